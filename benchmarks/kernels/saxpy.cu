// y = a x + y, as the first kernel of many a course.
// optiml: args.x = { role = "in", size = "n", fill = "normal" }
// optiml: args.y = { role = "inout", size = "n", fill = "normal" }
// optiml: args.a = { value = "1.5" }
// optiml: check = [{ n = 1 }, { n = 333 }, { n = 4099 }]
// optiml: time = [{ n = 16777216 }]
__global__ void saxpy(const float* x, float* y, float a, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        y[i] = a * x[i] + y[i];
    }
}

void launch_saxpy(const float* x, float* y, float a, int n) {
    int threads = 128;
    saxpy<<<(n + threads - 1) / threads, threads>>>(x, y, a, n);
}
