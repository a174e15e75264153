// Smoothed particle hydrodynamics: density (poly6 kernel) and pressure of every particle, all pairs.
#include <cuda_runtime.h>

#include <cstdlib>
#include <iostream>

struct SphParams {
    float h;          // smoothing length
    float mass;       // of one particle
    float box;        // edge of the periodic box
    int periodic;     // 0: open space
    float stiffness;  // of the equation of state
    float rest;       // rest density
};

// optiml: args.pos = { role = "in", size = "n", fill = { kind = "uniform", low = 0, high = 1 } }
// optiml: args.density = { role = "out", size = "n" }
// optiml: args.pressure = { role = "out", size = "n" }
// optiml: args.p.h = { value = "0.3" }
// optiml: args.p.mass = { value = "0.01" }
// optiml: args.p.box = { value = "1.0" }
// optiml: args.p.periodic = { value = "1" }
// optiml: args.p.stiffness = { value = "3.0" }
// optiml: args.p.rest = { value = "1.0" }
// optiml: check = [{ n = 1 }, { n = 77 }, { n = 128 }, { n = 300 }]
// optiml: time = [{ n = 32768 }]
__global__ void sph_density_kernel(const float4* pos, float* density, float* pressure, SphParams p, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float4 self = pos[i];
    float h2 = p.h * p.h;
    float rho = 0.0f;
    for (int j = 0; j < n; j++) {
        float4 other = pos[j];
        float dx = self.x - other.x;
        float dy = self.y - other.y;
        float dz = self.z - other.z;
        if (p.periodic) {
            dx -= p.box * rintf(dx / p.box);
            dy -= p.box * rintf(dy / p.box);
            dz -= p.box * rintf(dz / p.box);
        }
        float r2 = dx * dx + dy * dy + dz * dz;
        if (r2 < h2) {
            float coef = 315.0f / (64.0f * 3.14159265f * powf(p.h, 9.0f));
            float t = h2 - r2;
            rho += p.mass * coef * t * t * t;
        }
    }
    density[i] = rho;
    pressure[i] = p.stiffness * (rho - p.rest);
}

void sph_density(const float4* pos, float* density, float* pressure, const SphParams& params, int n) {
    const int threads = 128;
    const int blocks = (n + threads - 1) / threads;
    sph_density_kernel<<<blocks, threads>>>(pos, density, pressure, params, n);
    if (cudaGetLastError() != cudaSuccess) {
        std::cerr << "sph_density: launch failed" << std::endl;
        std::exit(1);
    }
}
