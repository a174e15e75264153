// Nearest axis-aligned box hit by each ray (slab test). A ray that starts inside a box hits it at 0; of equally near boxes the first
// one counts. Rays parallel to an axis have a zero in their direction.
#include <cuda_runtime.h>

#include <cmath>
#include <cstdio>

struct Scene {
    const float* lo;  // 3 * count
    const float* hi;  // 3 * count
    const int* mask;  // layers of a box
    int count;
    int layers;  // boxes of other layers are invisible
};

// optiml: args.origin = { role = "in", size = "rays*3", fill = { kind = "uniform", low = -2, high = 2 } }
// optiml: args.dir = { role = "in", size = "rays*3", fill = "normal" }
// optiml: args.scene.lo = { role = "in", size = "count*3", fill = { kind = "uniform", low = -1, high = 0 } }
// optiml: args.scene.hi = { role = "in", size = "count*3", fill = { kind = "uniform", low = 0, high = 1 } }
// optiml: args.scene.mask = { role = "in", size = "count", fill = { kind = "integers", low = 1, high = 4 } }
// optiml: args.scene.count = { value = "count" }
// optiml: args.scene.layers = { value = "1" }
// optiml: args.hit = { role = "out", size = "rays" }
// optiml: args.distance = { role = "out", size = "rays" }
// optiml: check = [{ rays = 1, count = 2 }, { rays = 77, count = 30 }, { rays = 300, count = 65 }]
// optiml: time = [{ rays = 1048576, count = 512 }]
__global__ void ray_boxes_kernel(const float* origin, const float* dir, Scene scene, int* hit, float* distance, int rays) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= rays) return;
    float nearest = INFINITY;
    int found = -1;
    for (int b = 0; b < scene.count; b++) {
        if ((scene.mask[b] & scene.layers) == 0) continue;
        float enter = 0.0f;
        float leave = INFINITY;
        for (int a = 0; a < 3; a++) {
            float inv = 1.0f / dir[3 * i + a];
            float t0 = (scene.lo[3 * b + a] - origin[3 * i + a]) * inv;
            float t1 = (scene.hi[3 * b + a] - origin[3 * i + a]) * inv;
            enter = fmaxf(enter, fminf(t0, t1));
            leave = fminf(leave, fmaxf(t0, t1));
        }
        if (enter <= leave && enter < nearest) {
            nearest = enter;
            found = b;
        }
    }
    hit[i] = found;
    distance[i] = nearest;
}

int ray_boxes(const float* origin, const float* dir, const Scene& scene, int* hit, float* distance, int rays, cudaStream_t stream) {
    const int block = 256;
    const int grid = (rays + block - 1) / block;
    ray_boxes_kernel<<<grid, block, 0, stream>>>(origin, dir, scene, hit, distance, rays);
    cudaError_t err = cudaGetLastError();
    if (err != cudaSuccess) std::printf("ray_boxes: %s\n", cudaGetErrorString(err));
    return err == cudaSuccess ? 0 : -1;
}
