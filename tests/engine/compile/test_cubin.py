"""The hash of machine code: equal for the same instructions, different for any other."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from engine.compile.compiler import Translation
from engine.compile.cubin import Cubin, CubinError, disassemble, find_tool
from engine.compile.nvrtc import NvrtcCompiler
from engine.process.sandbox import NoSandbox, Sandbox

BASE = """
__constant__ float table[4] = {1, 2, 3, 4};
__device__ int calls = 7;
__device__ __noinline__ float helper(float v) { return v * 3.0f + sinf(v); }
__global__ void k(const float* x, float* y, int n) {
  __shared__ float s[64];
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  s[threadIdx.x & 63] = i < n ? helper(x[i]) : 0.0f;
  __syncthreads();
  if (i < n) y[i] = s[63 - (threadIdx.x & 63)] * table[i & 3] + calls;
}
"""


def digest(compiler: NvrtcCompiler, text: str, expression: str = "k") -> str:
    return compiler.compile(Translation(text, "a.cu", (expression,))).code_hash


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("int i", "/* a remark */ int i"),
        ("\n__global__", "\n\n\n\n__global__"),
        ("float v)", "float value_)"),
        ("helper", "assistant"),
        ("table", "coefficients"),
        ("const float* x, float* y", "const float* source, float* sink"),
    ],
)
def test_what_does_not_change_the_code_keeps_the_hash(compiler: NvrtcCompiler, old: str, new: str) -> None:
    changed = BASE.replace(old, new)
    if old == "float v)":
        changed = changed.replace("v * 3.0f + sinf(v)", "value_ * 3.0f + sinf(value_)")
    if old.startswith("const float* x"):
        changed = changed.replace("x[i]", "source[i]").replace("y[i]", "sink[i]")
    assert changed != BASE
    assert digest(compiler, changed) == digest(compiler, BASE)


@pytest.mark.parametrize("size", ["", "__shared__ float s[3]; s[i % 3] = x[i]; __syncthreads(); x[i] = s[2 - i % 3];"])
def test_an_extern_array_of_another_kernel_leaves_a_kernel_what_it_is(compiler: NvrtcCompiler, size: str) -> None:
    """ptxas gives each kernel of such a file a section of shared memory: three suggestions of 2.8 to 11 times were refused for it."""
    kernel = f"__global__ void k(float* x) {{ int i = threadIdx.x; {size} x[i] += 1.0f; }}\n"
    other = "extern __shared__ __align__(128) float d[];\n"
    other += "__global__ void c(float* x) { d[threadIdx.x] = *x; __syncthreads(); *x = d[3]; }\n"
    alone = compiler.compile(Translation(kernel, "a.cu", ("k",)))
    beside = compiler.compile(Translation(kernel + other, "a.cu", ("k", "c")))
    hashes = [Cubin(binary.cubin).code_hash(binary.entries[:1], module=False) for binary in (alone, beside)]
    assert hashes[0] == hashes[1]
    larger = compiler.compile(Translation(kernel.replace("[3]", "[300]"), "a.cu", ("k",)))
    changed = Cubin(larger.cubin).code_hash(larger.entries, module=False)
    assert (changed == hashes[0]) == (not size)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("3.0f", "3.5f"),  # in a function that is called, not inlined
        ("{1, 2, 3, 4}", "{1, 2, 3, 5}"),  # a constant's value
        ("calls = 7", "calls = 8"),  # a variable's first value
        ("[64]", "[128]"),  # shared memory
        ("__syncthreads();", ""),
        ("63 - ", "62 - "),
        ("i < n ?", "i <= n ?"),
    ],
)
def test_what_changes_the_code_changes_the_hash(compiler: NvrtcCompiler, old: str, new: str) -> None:
    changed = BASE.replace(old, new)
    assert changed != BASE
    assert digest(compiler, changed) != digest(compiler, BASE)


def test_the_name_of_the_kernel_does_not_count_but_the_order_does(compiler: NvrtcCompiler) -> None:
    two = BASE + "__global__ void z(float* x) { x[0] = 1; }"
    assert digest(compiler, two.replace(" k(", " other("), "other") == digest(compiler, two)
    one = compiler.compile(Translation(two, "a.cu", ("k", "z"))).code_hash
    assert one != compiler.compile(Translation(two, "a.cu", ("z", "k"))).code_hash


def test_what_is_no_cubin_is_refused(compiler: NvrtcCompiler) -> None:
    good = compiler.compile(Translation(BASE, "a.cu", ("k",))).cubin
    for data in (b"", b"\x7fELF", b"x" * 1000, good[:100], good[: len(good) // 2]):
        with pytest.raises(CubinError):
            Cubin(data).code_hash(("_Z1kPKfPfi",))
    with pytest.raises(CubinError, match="no entry"):
        Cubin(good).code_hash(("missing",))


def test_disassembly_names_instructions_and_lines(compiler: NvrtcCompiler, box: Sandbox | NoSandbox) -> None:
    binary = compiler.compile(Translation(BASE, "a.cu", ("k",), line_info=True))
    text = disassemble(binary.cubin, sandbox=box, line_info=True)
    assert "STS" in text
    assert "line 8" in text
    assert binary.entries[0] in text


def test_disassembly_needs_no_analysis_of_data_flow(
    compiler: NvrtcCompiler, box: Sandbox | NoSandbox, tmp_path: Path
) -> None:
    """It takes a third of nvdisasm's time. BASE has a call, a branch, a barrier and, in `sinf`, a loop."""
    cubin = compiler.compile(Translation(BASE, "a.cu", ("k",), line_info=True)).cubin
    file, tool = tmp_path / "k.cubin", find_tool("nvdisasm")
    file.write_bytes(cubin)
    analysed = subprocess.run(
        [str(tool), "--print-code", "--print-line-info", str(file)], capture_output=True, text=True, check=True
    )
    assert disassemble(cubin, sandbox=box, line_info=True) == analysed.stdout


def test_only_what_outlives_a_launch_counts_as_kept(compiler: NvrtcCompiler) -> None:
    kept = BASE.replace("__shared__ float s[64];", "static __device__ float s[64];")
    plain, keeping = (compiler.compile(Translation(text, "a.cu", ("k",))) for text in (BASE, kept))
    assert (plain.kept_bytes, keeping.kept_bytes) == (0, 256)
