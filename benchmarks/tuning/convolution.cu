// A 2D convolution with a 15 x 15 filter: a block computes a tile of BLOCK_X * TILE_X by BLOCK_Y * TILE_Y, staged if SHARED.
#define FILTER 15
#define BLOCK_X 16
#define BLOCK_Y 16
#define TILE_X 1
#define TILE_Y 1
#define SHARED 0
#define PAD 0
// optiml: tune BLOCK_X = 16, 32, 48, 64, 96, 128, 160, 192, 256
// optiml: tune BLOCK_Y = 1, 2, 4, 8, 16
// optiml: tune TILE_X = 1, 2, 3, 4
// optiml: tune TILE_Y = 1, 2, 3, 4
// optiml: tune SHARED = 0, 1
// optiml: tune PAD = 0, 1
// optiml: where BLOCK_X * BLOCK_Y >= 64 && BLOCK_X * BLOCK_Y <= 1024
// optiml: where SHARED || PAD == 0
// optiml: where (BLOCK_X * TILE_X + FILTER - 1 + PAD) * (BLOCK_Y * TILE_Y + FILTER - 1) * 4 <= 49152 || !SHARED

// optiml: args.image = { role = "in", size = "(h+14)*(w+14)", fill = "normal" }
// optiml: args.filter = { role = "in", size = "225", fill = "normal" }
// optiml: args.result = { role = "out", size = "h*w" }
// optiml: check = [{ h = 1, w = 1 }, { h = 7, w = 129 }, { h = 65, w = 33 }, { h = 64, w = 256 }]
// optiml: time = [{ h = 4096, w = 4096 }]
__global__ void convolution_open(const float* image, const float* filter, float* result, int h, int w) {
    __shared__ float tile[SHARED ? BLOCK_Y * TILE_Y + FILTER - 1 : 1][SHARED ? BLOCK_X * TILE_X + FILTER - 1 + PAD : 1];
    const int wide = w + FILTER - 1;
    const int x0 = blockIdx.x * (BLOCK_X * TILE_X), y0 = blockIdx.y * (BLOCK_Y * TILE_Y);
    if (SHARED) {
        for (int y = threadIdx.y; y < BLOCK_Y * TILE_Y + FILTER - 1; y += BLOCK_Y) {
            for (int x = threadIdx.x; x < BLOCK_X * TILE_X + FILTER - 1; x += BLOCK_X) {
                const bool inside = y0 + y < h + FILTER - 1 && x0 + x < wide;
                tile[y][x] = inside ? image[(y0 + y) * wide + x0 + x] : 0.0f;
            }
        }
        __syncthreads();
    }
    float sum[TILE_Y][TILE_X] = {};
    for (int i = 0; i < FILTER; ++i) {
#pragma unroll
        for (int j = 0; j < FILTER; ++j) {
            const float weight = filter[i * FILTER + j];
#pragma unroll
            for (int ty = 0; ty < TILE_Y; ++ty) {
#pragma unroll
                for (int tx = 0; tx < TILE_X; ++tx) {
                    const int x = threadIdx.x + tx * BLOCK_X, y = threadIdx.y + ty * BLOCK_Y;
                    if (SHARED) {
                        sum[ty][tx] += weight * tile[y + i][x + j];
                    } else if (x0 + x < w && y0 + y < h) {
                        sum[ty][tx] += weight * image[(y0 + y + i) * wide + x0 + x + j];
                    }
                }
            }
        }
    }
#pragma unroll
    for (int ty = 0; ty < TILE_Y; ++ty) {
#pragma unroll
        for (int tx = 0; tx < TILE_X; ++tx) {
            const int x = x0 + threadIdx.x + tx * BLOCK_X, y = y0 + threadIdx.y + ty * BLOCK_Y;
            if (x < w && y < h) {
                result[y * w + x] = sum[ty][tx];
            }
        }
    }
}

void run_convolution(const float* image, const float* filter, float* result, int h, int w) {
    dim3 block(BLOCK_X, BLOCK_Y);
    dim3 grid((w + BLOCK_X * TILE_X - 1) / (BLOCK_X * TILE_X), (h + BLOCK_Y * TILE_Y - 1) / (BLOCK_Y * TILE_Y));
    convolution_open<<<grid, block>>>(image, filter, result, h, w);
}
