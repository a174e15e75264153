// The sum of each row of a matrix: TEAM threads share a row, a block has TEAM x ROWS of them.
#define TEAM 32
#define ROWS 4
#define WIDTH 1
#define UNROLL 1
// optiml: tune TEAM = 32, 64, 128, 256, 512, 1024
// optiml: tune ROWS = 1, 2, 4, 8, 16
// optiml: tune WIDTH = 1, 2, 4
// optiml: tune UNROLL = 1, 2, 4, 8
// optiml: where TEAM * ROWS >= 64 && TEAM * ROWS <= 1024

// optiml: args.x = { role = "in", size = "rows*cols", fill = "normal" }
// optiml: args.y = { role = "out", size = "rows" }
// optiml: check = [{ rows = 1, cols = 1 }, { rows = 7, cols = 129 }, { rows = 33, cols = 512 }, { rows = 101, cols = 4100 }]
// optiml: time = [{ rows = 16384, cols = 4096 }]
__global__ void row_sum_open(const float* x, float* y, int rows, int cols) {
    __shared__ float parts[ROWS][TEAM / 32];
    const int row = blockIdx.x * ROWS + threadIdx.y;
    float sum = 0.0f;
    if (row < rows) {
        const float* in = x + static_cast<size_t>(row) * cols;
        const bool whole = cols % WIDTH == 0;
        const int last = whole ? cols / WIDTH : 0;
#pragma unroll UNROLL
        for (int i = threadIdx.x; i < last; i += TEAM) {
            if (WIDTH == 4) {
                const float4 v = reinterpret_cast<const float4*>(in)[i];
                sum += v.x + v.y + v.z + v.w;
            } else if (WIDTH == 2) {
                const float2 v = reinterpret_cast<const float2*>(in)[i];
                sum += v.x + v.y;
            } else {
                sum += in[i];
            }
        }
        for (int i = last * WIDTH + threadIdx.x; i < cols; i += TEAM) {
            sum += in[i];
        }
    }
    for (int offset = 16; offset > 0; offset /= 2) {
        sum += __shfl_down_sync(0xffffffffu, sum, offset);
    }
    if (threadIdx.x % 32 == 0) {
        parts[threadIdx.y][threadIdx.x / 32] = sum;
    }
    __syncthreads();
    if (threadIdx.x == 0 && row < rows) {
        float total = 0.0f;
        for (int i = 0; i < TEAM / 32; ++i) {
            total += parts[threadIdx.y][i];
        }
        y[row] = total;
    }
}

void run_row_sum(const float* x, float* y, int rows, int cols) {
    row_sum_open<<<(rows + ROWS - 1) / ROWS, dim3(TEAM, ROWS)>>>(x, y, rows, cols);
}
