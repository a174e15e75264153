// One AdamW step over a flat array of parameters, with decoupled weight decay.
#include <cuda_runtime.h>

// optiml: args.param = { role = "inout", size = "n", fill = "normal" }
// optiml: args.m = { role = "inout", size = "n", fill = "normal" }
// optiml: args.v = { role = "inout", size = "n", fill = { kind = "uniform", low = 0, high = 1 } }
// optiml: args.grad = { role = "in", size = "n", fill = "normal" }
// optiml: args.lr = { value = "0.001" }
// optiml: args.beta1 = { value = "0.9" }
// optiml: args.beta2 = { value = "0.999" }
// optiml: args.correction1 = { value = "0.1" }
// optiml: args.correction2 = { value = "0.001" }
// optiml: args.eps = { value = "0.00000001" }
// optiml: args.decay = { value = "0.01" }
// optiml: check = [{ n = 1 }, { n = 903 }, { n = 4096 }, { n = 10007 }]
// optiml: time = [{ n = 16777216 }]
__global__ void adamw_kernel(float* param, float* m, float* v, const float* grad, float lr, float beta1, float beta2,
                             float correction1, float correction2, float eps, float decay, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) {
        return;
    }
    float g = grad[i];
    m[i] = beta1 * m[i] + (1.0f - beta1) * g;
    v[i] = beta2 * v[i] + (1.0f - beta2) * g * g;
    float m_hat = m[i] / correction1;
    float v_hat = v[i] / correction2;
    param[i] = param[i] - lr * (m_hat / (sqrtf(v_hat) + eps) + decay * param[i]);
}

void adamw(float* param, float* m, float* v, const float* grad, float lr, float beta1, float beta2, float correction1,
           float correction2, float eps, float decay, int n) {
    int threads = 512;
    int blocks = (n + threads - 1) / threads;
    adamw_kernel<<<blocks, threads>>>(param, m, v, grad, lr, beta1, beta2, correction1, correction2, eps, decay, n);
}
