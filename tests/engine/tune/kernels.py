"""Small programs for the tuner's tests."""

from __future__ import annotations

from engine.model import Program
from engine.spec.reader import specs_in
from engine.tune.declare import declared

SAXPY = """// y = a * x + y
#ifndef BLOCK
#define BLOCK 256
#endif
constexpr int ITEMS = 1;
// optiml: tune BLOCK = 64, 128, 256, 2048
// optiml: tune ITEMS = 1, 2, 4
// optiml: where BLOCK * ITEMS <= 4096

// optiml: args.x = { role = "in", size = "n", fill = "normal" }
// optiml: args.y = { role = "inout", size = "n", fill = "normal" }
// optiml: args.a = { value = "3" }
// optiml: check = [{ n = 1 }, { n = 129 }]
// optiml: time = [{ n = 65536 }, { n = 16777216 }]
__global__ void saxpy(float a, const float* x, float* y, int n) {
    int i = blockIdx.x * (BLOCK * ITEMS) + threadIdx.x;
#pragma unroll
    for (int k = 0; k < ITEMS; ++k) {
        int j = i + k * BLOCK;
        if (j < n) {
            y[j] = a * x[j] + y[j];
        }
    }
}

void run(float a, const float* x, float* y, int n) {
    const int per_block = BLOCK * ITEMS;
    dim3 grid((n + per_block - 1) / per_block);
    saxpy<<<grid, BLOCK>>>(a, x, y, n);
}
"""


def program(text: str = SAXPY, **files: str) -> Program:
    others = {name.replace("_", "."): data.encode() for name, data in files.items()}
    return Program({"k.cu": text.encode(), **others}, "k.cu")


def template(text: str = SAXPY, spec_path: str | None = None, files: dict[str, str] | None = None, **options):
    made = Program({"k.cu": text.encode(), **{n: t.encode() for n, t in (files or {}).items()}}, "k.cu")
    spec = specs_in(made, spec_path)[0]
    return declared(made, spec, spec_path, **options)


# Threads hold ITEMS values across a barrier, so that 80 of them take some hundred registers; the block's size is the launch's alone.
HELD = """// y = 2 * x, with ITEMS values of x kept across a barrier
#ifndef BLOCK
#define BLOCK 256
#endif
#define ITEMS 4
#define PER_BLOCK (BLOCK * ITEMS)
// optiml: tune BLOCK = 64, 256, 512, 1024
// optiml: tune ITEMS = 4, 80

// optiml: args.x = { role = "in", size = "n", fill = "normal" }
// optiml: args.y = { role = "out", size = "n" }
// optiml: check = [{ n = 1 }, { n = 129 }]
// optiml: time = [{ n = 65536 }]
__global__ void held(const float* x, float* y, int n) {
    const int first = blockIdx.x * blockDim.x * ITEMS + threadIdx.x;
    float own[ITEMS];
#pragma unroll
    for (int k = 0; k < ITEMS; ++k) own[k] = x[min(first + k * (int)blockDim.x, n - 1)];
    __syncthreads();
#pragma unroll
    for (int k = 0; k < ITEMS; ++k) {
        if (first + k * (int)blockDim.x < n) y[first + k * blockDim.x] = 2 * own[k];
    }
}

void run(const float* x, float* y, int n) {
    held<<<(n + PER_BLOCK - 1) / PER_BLOCK, BLOCK>>>(x, y, n);
}
"""
