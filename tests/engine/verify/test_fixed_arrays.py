"""Arrays of a fixed length hold what all blocks leave, however many there are."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.cuda.load import load_program
from engine.spec.find import find_spec
from engine.verify.fixed_arrays import outgrown_array

TEXT = """#include <cuda_runtime.h>
// optiml: args.x = { role = "in", size = "n" }
// optiml: args.partial = { role = "out", size = "cdiv(n, 1024)" }
// optiml: args.out = { role = "out", size = "1" }
// optiml: check = [{ n = 904 }]
// optiml: time = [{ n = 1048576 }]
__device__ unsigned int g_done = 0;
__global__ void total(const float* x, float* partial, float* out, int n) {
    __shared__ bool last;
    if (threadIdx.x == 0) {
        float sum = 0.0f;
        for (int i = 1024 * blockIdx.x; i < min(n, 1024 * (blockIdx.x + 1)); i++) sum += x[i];
        partial[blockIdx.x] = sum;
        __threadfence();
        last = atomicAdd(&g_done, 1u) == gridDim.x - 1;
    }
    __syncthreads();
    if (!last) return;
    MERGE
}
void run(const float* x, float* partial, float* out, int n) {
    const int blocks = (n + 1023) / 1024;
    total<<<blocks, 256>>>(x, partial, out, n);
}
"""
PLAIN = "if (threadIdx.x == 0) { float all = 0; for (int b = 0; b < gridDim.x; b++) all += partial[b]; out[0] = all; g_done = 0; }"
SUM = "__syncthreads(); if (threadIdx.x == 0) { float all = 0; for (int b = 0; b < gridDim.x; b++) all += found[b]; out[0] = all; }"
STAGE = "for (unsigned i = threadIdx.x; i < gridDim.x; i += 256) found[i] = partial[i];"
SHARED = f"__shared__ float found[2048]; {STAGE} {SUM}"


def refused(folder: Path, merge: str, *edits: tuple[str, str], before: str = PLAIN) -> str:
    (folder / ".git").mkdir()
    old, new = TEXT.replace("MERGE", before), TEXT.replace("MERGE", merge)
    for find, put in edits:
        assert find in new
        new = new.replace(find, put)
    (folder / "a.cu").write_text(old)
    spec, _ = find_spec(folder, folder / "a.cu")
    program = load_program(folder / "a.cu")
    return outgrown_array(program, program.replace({program.kernel_file: new.encode()}), spec) or ""


@pytest.mark.parametrize(
    "merge",
    [
        SHARED,
        SHARED.replace("i < gridDim.x;", "i < gridDim.x * gridDim.y;"),
        "constexpr int kRoom = 2048;" + SHARED.replace("2048", "kRoom"),
        "const unsigned int blocks = gridDim.x;" + SHARED.replace("i < gridDim.x;", "i < blocks;"),
        f"__shared__ float found[2048]; unsigned i = threadIdx.x; while (i < gridDim.x) {{ found[i] = partial[i]; i += 256; }} {SUM}",
        "float found[4096]; for (int b = 0; b < gridDim.x; b++) found[b] = partial[b]; out[0] = found[0];",
        "__shared__ float mine[64]; mine[blockIdx.x] = 1.0f; out[0] = mine[0];",
    ],
)
def test_an_array_for_so_many_blocks_is_refused(tmp_path: Path, merge: str) -> None:
    reason = refused(tmp_path, merge)
    assert "has " in reason
    assert "grows with the number of blocks" in reason


@pytest.mark.parametrize(
    ("merge", "edits"),
    [
        (SHARED, [("(n + 1023) / 1024", "min((n + 1023) / 1024, 2048)")]),
        (f"if (gridDim.x <= 2048) {{ {SHARED} }} else {{ {PLAIN} }}", []),
        (SHARED.replace("i < gridDim.x;", "i < min(gridDim.x, 2048u);").replace("b < gridDim.x;", "b < 2048 && b < gridDim.x;"), []),
        ("__shared__ float found[256]; float all = 0; for (int b = threadIdx.x; b < gridDim.x; b += 256) all += partial[b];"
         "found[threadIdx.x] = all; __syncthreads(); if (threadIdx.x == 0) out[0] = found[0];", []),
        ("__shared__ float found[256]; for (int i = blockIdx.x * 1024 + threadIdx.x; i < n; i += 256)"
         "found[i - blockIdx.x * 1024 & 255] = x[i]; out[0] = found[0];", []),
        ("__shared__ float turns[2][8]; int from = 64 * blockIdx.x; for (int r = from; r < from + 64; r++)"
         "turns[r & 1][threadIdx.x & 7] = x[r]; out[0] = turns[0][0];", []),
        ("__shared__ float turns[2]; int from = 64 * blockIdx.x; for (int r = from; r < from + 64; r++)"
         "turns[r & 1] = x[r]; out[0] = turns[0];", []),
    ],
)  # fmt: skip
def test_what_a_fixed_array_holds_is_none_of_it(tmp_path: Path, merge: str, edits: list[tuple[str, str]]) -> None:
    assert refused(tmp_path, merge, *edits) == ""


def test_an_array_that_the_original_has_is_no_fault_of_an_edit(tmp_path: Path) -> None:
    assert refused(tmp_path, SHARED.replace("all += found[b]", "all = all + found[b]"), before=SHARED) == ""
