// B = A transposed: a block of EDGE x ROWS threads moves a tile of EDGE x EDGE, through shared memory if STAGED.
#define EDGE 16
#define ROWS 16
#define PAD 0
#define STAGED 0
#define SWEEP 1
// optiml: tune EDGE = 8, 16, 32, 64
// optiml: tune ROWS = 1, 2, 4, 8, 16, 32
// optiml: tune PAD = 0, 1, 2, 4
// optiml: tune STAGED = 0, 1
// optiml: tune SWEEP = 1, 2, 4
// optiml: where EDGE % ROWS == 0 && EDGE * ROWS >= 32
// optiml: where STAGED || PAD == 0

// optiml: args.a = { role = "in", size = "rows*cols", fill = "normal" }
// optiml: args.b = { role = "out", size = "rows*cols" }
// optiml: check = [{ rows = 1, cols = 1 }, { rows = 7, cols = 129 }, { rows = 129, cols = 65 }, { rows = 256, cols = 128 }]
// optiml: time = [{ rows = 8192, cols = 8192 }]
__global__ void transpose_open(const float* a, float* b, int rows, int cols) {
    __shared__ float tile[STAGED ? EDGE : 1][STAGED ? EDGE + PAD : 1];
    for (int t = 0; t < SWEEP; ++t) {
        const int row0 = (blockIdx.y * SWEEP + t) * EDGE, col0 = blockIdx.x * EDGE;
        if (STAGED) {
#pragma unroll
            for (int y = threadIdx.y; y < EDGE; y += ROWS) {
                if (row0 + y < rows && col0 + threadIdx.x < cols) {
                    tile[y][threadIdx.x] = a[(row0 + y) * cols + col0 + threadIdx.x];
                }
            }
            __syncthreads();
#pragma unroll
            for (int y = threadIdx.y; y < EDGE; y += ROWS) {
                if (col0 + y < cols && row0 + threadIdx.x < rows) {
                    b[(col0 + y) * rows + row0 + threadIdx.x] = tile[threadIdx.x][y];
                }
            }
            __syncthreads();
        } else {
#pragma unroll
            for (int y = threadIdx.y; y < EDGE; y += ROWS) {
                if (row0 + y < rows && col0 + threadIdx.x < cols) {
                    b[(col0 + threadIdx.x) * rows + row0 + y] = a[(row0 + y) * cols + col0 + threadIdx.x];
                }
            }
        }
    }
}

void run_transpose(const float* a, float* b, int rows, int cols) {
    dim3 block(EDGE, ROWS);
    dim3 grid((cols + EDGE - 1) / EDGE, (rows + EDGE * SWEEP - 1) / (EDGE * SWEEP));
    transpose_open<<<grid, block>>>(a, b, rows, cols);
}
