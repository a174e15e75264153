// y = a * x + y, with the block's size, the elements per thread, how they are spread, and the vector width left open.
#define BLOCK 256
#define ITEMS 1
#define WIDTH 1
#define STRIDED 1
// optiml: tune BLOCK = 64..1024 step 64
// optiml: tune ITEMS = 1, 2, 4, 8
// optiml: tune WIDTH = 1, 2, 4
// optiml: tune STRIDED = 0, 1
// optiml: where BLOCK * ITEMS * WIDTH <= 8192

// optiml: args.x = { role = "in", size = "n", fill = "normal" }
// optiml: args.y = { role = "inout", size = "n", fill = "normal" }
// optiml: args.a = { value = "3" }
// optiml: check = [{ n = 1 }, { n = 129 }, { n = 4099 }, { n = 65536 }]
// optiml: time = [{ n = 16777216 }]
__global__ void saxpy_open(float a, const float* x, float* y, int n) {
    const int first = blockIdx.x * (BLOCK * ITEMS * WIDTH);
#pragma unroll
    for (int k = 0; k < ITEMS; ++k) {
        const int i = first + (STRIDED ? k * BLOCK + threadIdx.x : threadIdx.x * ITEMS + k) * WIDTH;
        if (WIDTH == 4 && i + 3 < n) {
            const float4 u = *reinterpret_cast<const float4*>(x + i);
            float4 v = *reinterpret_cast<const float4*>(y + i);
            v.x += a * u.x;
            v.y += a * u.y;
            v.z += a * u.z;
            v.w += a * u.w;
            *reinterpret_cast<float4*>(y + i) = v;
        } else if (WIDTH == 2 && i + 1 < n) {
            const float2 u = *reinterpret_cast<const float2*>(x + i);
            float2 v = *reinterpret_cast<const float2*>(y + i);
            v.x += a * u.x;
            v.y += a * u.y;
            *reinterpret_cast<float2*>(y + i) = v;
        } else {
            for (int j = i; j < i + WIDTH && j < n; ++j) {
                y[j] = a * x[j] + y[j];
            }
        }
    }
}

void run_saxpy(float a, const float* x, float* y, int n) {
    saxpy_open<<<(n + BLOCK * ITEMS * WIDTH - 1) / (BLOCK * ITEMS * WIDTH), BLOCK>>>(a, x, y, n);
}
