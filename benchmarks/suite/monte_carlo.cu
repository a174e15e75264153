// Payoffs of an Asian call option over simulated paths; every path has a generator of its own (xorshift, Box and Muller).
#include <cuda_runtime.h>

__device__ unsigned int next_random(unsigned int* state) {
    unsigned int x = *state;
    x ^= x << 13;
    x ^= x >> 17;
    x ^= x << 5;
    *state = x;
    return x;
}

__device__ float next_uniform(unsigned int* state) { return ((next_random(state) >> 8) + 1) / 16777217.0f; }

// optiml: args.seeds = { role = "in", size = "paths", fill = { kind = "integers", low = 1, high = 4000000000 } }
// optiml: args.payoffs = { role = "out", size = "paths" }
// optiml: args.spot = { value = "100.0" }
// optiml: args.strike = { value = "95.0" }
// optiml: args.drift = { value = "0.0005" }
// optiml: args.volatility = { value = "0.02" }
// optiml: check = [{ paths = 5, steps = 3 }, { paths = 903, steps = 8 }, { paths = 1024, steps = 16 }]
// optiml: time = [{ paths = 1048576, steps = 64 }]
__global__ void monte_carlo_kernel(const unsigned int* seeds, float* payoffs, float spot, float strike, float drift,
                                   float volatility, int paths, int steps) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= paths) {
        return;
    }
    unsigned int state = seeds[i];
    float price = spot;
    float sum = 0.0f;
    for (int s = 0; s < steps; ++s) {
        float u = next_uniform(&state);
        float v = next_uniform(&state);
        float z = sqrtf(-2.0f * logf(u)) * cosf(6.2831853f * v);
        price *= expf(drift + volatility * z);
        sum += price;
    }
    payoffs[i] = fmaxf(sum / steps - strike, 0.0f);
}

void monte_carlo(const unsigned int* seeds, float* payoffs, float spot, float strike, float drift, float volatility,
                 int paths, int steps) {
    int threads = 128;
    int blocks = (paths + threads - 1) / threads;
    monte_carlo_kernel<<<blocks, threads>>>(seeds, payoffs, spot, strike, drift, volatility, paths, steps);
}
