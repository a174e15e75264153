// One step of Adam. With `decoupled` the weight decay acts on the parameters (AdamW), otherwise on the gradient.
#include <cuda_runtime.h>

#include <cmath>

struct AdamArgs {
    float lr;
    float beta1;
    float beta2;
    float eps;
    float weight_decay;
    float correction1;  // 1 - beta1^t
    float correction2;  // 1 - beta2^t
    int decoupled;
};

// optiml: args.p = { role = "inout", size = "n", fill = "normal" }
// optiml: args.g = { role = "in", size = "n", fill = "normal" }
// optiml: args.m = { role = "inout", size = "n", fill = "normal" }
// optiml: args.v = { role = "inout", size = "n", fill = { kind = "uniform", low = 0.1, high = 1 } }
// optiml: args.a.lr = { value = "0.001" }
// optiml: args.a.beta1 = { value = "0.9" }
// optiml: args.a.beta2 = { value = "0.999" }
// optiml: args.a.eps = { value = "1e-8" }
// optiml: args.a.weight_decay = { value = "0.01" }
// optiml: args.a.correction1 = { value = "0.5" }
// optiml: args.a.correction2 = { value = "0.25" }
// optiml: args.a.decoupled = { value = "1" }
// optiml: check = [{ n = 1 }, { n = 903 }, { n = 4096 }, { n = 10007 }]
// optiml: time = [{ n = 33554432 }]

__global__ void adam_kernel(float* p, const float* g, float* m, float* v, AdamArgs a, long long n) {
    long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) {
        return;
    }
    float param = p[i];
    float grad = g[i];
    if (a.decoupled) {
        param -= a.lr * a.weight_decay * param;
    } else {
        grad += a.weight_decay * param;
    }
    float m1 = a.beta1 * m[i] + (1.0f - a.beta1) * grad;
    float v1 = a.beta2 * v[i] + (1.0f - a.beta2) * grad * grad;
    float update = (m1 / a.correction1) / (sqrtf(v1 / a.correction2) + a.eps);
    p[i] = param - a.lr * update;
    m[i] = m1;
    v[i] = v1;
}

cudaError_t adam_step(float* p, const float* g, float* m, float* v, const AdamArgs& a, long long n, cudaStream_t stream) {
    if (n == 0) {
        return cudaSuccess;
    }
    adam_kernel<<<(n + 255) / 256, 256, 0, stream>>>(p, g, m, v, a, n);
    return cudaGetLastError();
}
