"""What other code of the file uses stays as it is: other kernels' launches, and what constants reach through others."""

from __future__ import annotations

import pytest

from engine.model import Program
from engine.spec.read import specs_in
from engine.verify.screen import screen

TEXT = """#define BLOCK 256
#define TWICE (2 * BLOCK)
constexpr int ITEMS = 1;
constexpr int PER_BLOCK = BLOCK * ITEMS;
// optiml: args.x = { role = "in", size = "n", fill = "normal" }
// optiml: args.y = { role = "out", size = "n" }
// optiml: check = [{ n = 129 }]
// optiml: time = [{ n = 1048576 }]
__global__ void twice(const float* x, float* y, int n) {
    int i = blockIdx.x * PER_BLOCK + threadIdx.x;
    for (int k = 0; k < ITEMS; ++k, i += BLOCK) {
        if (i < n) y[i] = 2 * x[i];
    }
}
void run(const float* x, float* y, int n) { twice<<<(n + PER_BLOCK - 1) / PER_BLOCK, BLOCK>>>(x, y, n); }
"""
OTHER = "__global__ void other(float* y) { y[blockIdx.x * blockDim.x + threadIdx.x] = 0; }\n"


def screened(text: str, old: str, new: str) -> str | None:
    program = Program({"k.cu": text.encode()}, "k.cu")
    assert text.count(old) == 1
    return screen(program, program.replace({"k.cu": text.replace(old, new).encode()}), specs_in(program, None)[0])


def test_the_launch_of_the_specs_kernel_and_its_constants_may_change():
    assert screened(TEXT, "#define BLOCK 256", "#define BLOCK 128") is None
    assert screened(TEXT, "int ITEMS = 1;", "int ITEMS = 4;") is None
    assert screened(TEXT, "PER_BLOCK, BLOCK>>>", "PER_BLOCK + 1, 256, 64>>>") is None
    assert screened("static_assert(BLOCK % 32 == 0);\n" + TEXT, "#define BLOCK 256", "#define BLOCK 128") is None
    assert screened(TEXT + "__device__ int table[BLOCK];\n", "#define BLOCK 256", "#define BLOCK 128") is None
    launched = TEXT + OTHER + "void also(float* y) { other<<<4, 256>>>(y); }\n"
    assert screened(launched, "#define BLOCK 256", "#define BLOCK 128") is None


@pytest.mark.parametrize("name", ["other", "ns::other", "other<float, 3>", "(*pointer)"])
def test_the_launch_of_another_kernel_stays(name: str) -> None:
    """Its figures were left out as those of the spec's kernel are: nobody verifies what they make of it."""
    text = TEXT + OTHER + f"void also(float* y) {{ {name}<<<4, 256>>>(y); }}\n"
    assert "outside of the kernel and its launch" in (screened(text, "<<<4, 256>>>", "<<<4, 64>>>") or "")


@pytest.mark.parametrize(
    "use",
    [
        "void also(float* y) { other<<<4, BLOCK>>>(y); }",
        "void also(float* y) { const int threads = TWICE; other<<<4, threads>>>(y); }",
        "#define GRID(n) (((n) + PER_BLOCK - 1) / PER_BLOCK)\nvoid also(float* y, int n) { other<<<GRID(n), 256>>>(y); }",
        "int chunk() { return BLOCK; }",
        "int chunk() { return TWICE; }",
        "int table[BLOCK];",
        "static int table[TWICE];\nint first() { return sizeof(table); }",
        "template <int N> __device__ float also() { return N; }\n__global__ void third(float* y) { y[0] = also<TWICE>(); }",
    ],
)
def test_a_constant_that_other_code_reaches_stays(use: str) -> None:
    """Through another macro, an array or another kernel's launch it was free to change."""
    reason = screened(TEXT + OTHER + use + "\n", "#define BLOCK 256", "#define BLOCK 128")
    assert reason == "redefines 'BLOCK', which code beside the kernel and its launch uses"


def test_a_constant_that_a_constant_of_others_is_made_of_stays() -> None:
    use = "int chunk() { return PER_BLOCK; }\n"
    assert "('ITEMS')" in (screened(TEXT + use, "int ITEMS = 1;", "int ITEMS = 4;") or "")
