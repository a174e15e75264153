// Payoffs of Asian options with a knock-out barrier, on simulated paths. z holds the normal variates of all steps (steps x paths, one
// path in each column). Also tells the lowest price of each path for the risk report.
#include <cuda_runtime.h>

#include <stdexcept>

struct Option {
    float spot;
    float strike;
    float barrier;  // a path that falls to it pays nothing
    float rate;
    float sigma;
    float dt;
    int is_call;
};

// optiml: args.z = { role = "in", size = "steps*paths", fill = "normal" }
// optiml: args.payoff = { role = "out", size = "paths" }
// optiml: args.lowest = { role = "out", size = "paths" }
// optiml: args.opt.spot = { value = "100.0" }
// optiml: args.opt.strike = { value = "95.0" }
// optiml: args.opt.barrier = { value = "80.0" }
// optiml: args.opt.rate = { value = "0.03" }
// optiml: args.opt.sigma = { value = "0.3" }
// optiml: args.opt.dt = { value = "0.02" }
// optiml: args.opt.is_call = { value = "1" }
// optiml: check = [{ steps = 1, paths = 1 }, { steps = 13, paths = 100 }, { steps = 25, paths = 257 }]
// optiml: time = [{ steps = 256, paths = 262144 }]
__global__ void asian_option_kernel(const float* z, float* payoff, float* lowest, Option opt, int steps, int paths) {
    int p = blockIdx.x * blockDim.x + threadIdx.x;
    if (p >= paths) return;
    float price = opt.spot;
    float total = 0.0f;
    float low = opt.spot;
    bool alive = true;
    for (int s = 0; s < steps; s++) {
        float drift = (opt.rate - 0.5f * opt.sigma * opt.sigma) * opt.dt;
        float diffusion = opt.sigma * sqrtf(opt.dt);
        price *= expf(drift + diffusion * z[(size_t)s * paths + p]);
        total += price;
        low = fminf(low, price);
        if (price <= opt.barrier) alive = false;
    }
    float average = total / steps;
    float value = opt.is_call ? fmaxf(average - opt.strike, 0.0f) : fmaxf(opt.strike - average, 0.0f);
    payoff[p] = alive ? value * expf(-opt.rate * opt.dt * steps) : 0.0f;
    lowest[p] = low;
}

void asian_option(const float* z, float* payoff, float* lowest, const Option& opt, int steps, int paths, cudaStream_t stream) {
    if (steps <= 0 || paths <= 0) throw std::invalid_argument("asian_option: nothing to do");
    int threads = 128;
    int blocks = (paths + threads - 1) / threads;
    asian_option_kernel<<<blocks, threads, 0, stream>>>(z, payoff, lowest, opt, steps, paths);
    if (cudaGetLastError() != cudaSuccess) throw std::runtime_error("asian_option: launch");
}
