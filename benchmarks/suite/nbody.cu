// Gravitational accelerations of n bodies on each other, with softening; w of a position is the body's mass.
#include <cuda_runtime.h>

// optiml: args.positions = { role = "in", size = "n", fill = { kind = "uniform", low = 0, high = 1 } }
// optiml: args.accelerations = { role = "out", size = "n" }
// optiml: args.softening = { value = "0.01" }
// optiml: check = [{ n = 2 }, { n = 129 }, { n = 301 }]
// optiml: time = [{ n = 16384 }]

// One thread adds what all others do to one body.
__global__ void nbody_kernel(const float4* positions, float4* accelerations, float softening, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) {
        return;
    }
    float4 own = positions[i];
    float ax = 0.0f, ay = 0.0f, az = 0.0f;
    for (int j = 0; j < n; ++j) {
        float4 other = positions[j];
        float dx = other.x - own.x;
        float dy = other.y - own.y;
        float dz = other.z - own.z;
        float square = dx * dx + dy * dy + dz * dz + softening;
        float inverse = 1.0f / sqrtf(square);
        float strength = other.w * inverse * inverse * inverse;
        ax += dx * strength;
        ay += dy * strength;
        az += dz * strength;
    }
    accelerations[i] = make_float4(ax, ay, az, 0.0f);
}

void nbody(const float4* positions, float4* accelerations, float softening, int n) {
    nbody_kernel<<<(n + 255) / 256, 256>>>(positions, accelerations, softening, n);
}
