// C = A * B for row-major matrices: a block of BLOCK_X x BLOCK_Y threads computes a tile, each thread TILE_X x TILE_Y results.
#define BLOCK_X 16
#define BLOCK_Y 16
#define TILE_X 1
#define TILE_Y 1
#define STEP 16
#define UNROLL 1
// optiml: tune BLOCK_X = 8, 16, 32
// optiml: tune BLOCK_Y = 4, 8, 16, 32
// optiml: tune TILE_X = 1, 2, 4, 8
// optiml: tune TILE_Y = 1, 2, 4, 8
// optiml: tune STEP = 8, 16, 32
// optiml: tune UNROLL = 1, 4, 8
// optiml: where BLOCK_X * BLOCK_Y >= 64 && BLOCK_X * BLOCK_Y <= 512
// optiml: where TILE_X * TILE_Y <= 32
// optiml: where UNROLL <= STEP

// optiml: args.a = { role = "in", size = "m*k", fill = "normal" }
// optiml: args.b = { role = "in", size = "k*n", fill = "normal" }
// optiml: args.c = { role = "out", size = "m*n" }
// optiml: check = [{ m = 1, n = 1, k = 1 }, { m = 7, n = 129, k = 33 }, { m = 65, n = 31, k = 17 }, { m = 256, n = 256, k = 64 }]
// optiml: time = [{ m = 2048, n = 2048, k = 2048 }]
__global__ void gemm_open(const float* a, const float* b, float* c, int m, int n, int k) {
    __shared__ float tile_a[BLOCK_Y * TILE_Y][STEP + 1];
    __shared__ float tile_b[STEP][BLOCK_X * TILE_X];
    const int row0 = blockIdx.y * (BLOCK_Y * TILE_Y);
    const int col0 = blockIdx.x * (BLOCK_X * TILE_X);
    const int tid = threadIdx.y * BLOCK_X + threadIdx.x;
    float sum[TILE_Y][TILE_X] = {};
    for (int k0 = 0; k0 < k; k0 += STEP) {
        for (int i = tid; i < BLOCK_Y * TILE_Y * STEP; i += BLOCK_X * BLOCK_Y) {
            const int r = i / STEP, s = i % STEP;
            tile_a[r][s] = row0 + r < m && k0 + s < k ? a[(row0 + r) * k + k0 + s] : 0.0f;
        }
        for (int i = tid; i < STEP * BLOCK_X * TILE_X; i += BLOCK_X * BLOCK_Y) {
            const int s = i / (BLOCK_X * TILE_X), q = i % (BLOCK_X * TILE_X);
            tile_b[s][q] = k0 + s < k && col0 + q < n ? b[(k0 + s) * n + col0 + q] : 0.0f;
        }
        __syncthreads();
#pragma unroll UNROLL
        for (int s = 0; s < STEP; ++s) {
            float left[TILE_Y];
#pragma unroll
            for (int y = 0; y < TILE_Y; ++y) {
                left[y] = tile_a[threadIdx.y + y * BLOCK_Y][s];
            }
#pragma unroll
            for (int x = 0; x < TILE_X; ++x) {
                const float right = tile_b[s][threadIdx.x + x * BLOCK_X];
#pragma unroll
                for (int y = 0; y < TILE_Y; ++y) {
                    sum[y][x] += left[y] * right;
                }
            }
        }
        __syncthreads();
    }
#pragma unroll
    for (int y = 0; y < TILE_Y; ++y) {
#pragma unroll
        for (int x = 0; x < TILE_X; ++x) {
            const int row = row0 + threadIdx.y + y * BLOCK_Y, col = col0 + threadIdx.x + x * BLOCK_X;
            if (row < m && col < n) {
                c[row * n + col] = sum[y][x];
            }
        }
    }
}

void run_gemm(const float* a, const float* b, float* c, int m, int n, int k) {
    dim3 block(BLOCK_X, BLOCK_Y);
    dim3 grid((n + BLOCK_X * TILE_X - 1) / (BLOCK_X * TILE_X), (m + BLOCK_Y * TILE_Y - 1) / (BLOCK_Y * TILE_Y));
    gemm_open<<<grid, block>>>(a, b, c, m, n, k);
}
