"""Machine code of real kernels: loops, what is in them, loads in flight."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from engine.compile.compiler import Translation
from engine.compile.cubin import disassemble
from engine.compile.nvrtc import NvrtcCompiler
from engine.predict.sass import KernelCode, parse_sass
from engine.predict.targets import known_targets
from engine.process import sandbox as module
from tests.runtime import kept_code

Read = Callable[[str], KernelCode]


@pytest.fixture(scope="module")
def read() -> Iterator[Read]:
    works, why = module.available()
    if not works:
        pytest.skip(f"no sandbox here: {why}")
    box = module.sandbox()
    with NvrtcCompiler("sm_90", cache=kept_code(), sandbox=box, jobs=1) as compiler:

        def one(text: str) -> KernelCode:
            binary = compiler.compile(Translation(text, "a.cu", ("k",), line_info=True))
            return parse_sass(disassemble(binary.cubin, sandbox=box, line_info=True))[binary.entries[0]]

        yield one


def test_a_loop_and_what_is_in_it(read: Read) -> None:
    code = read(
        "__global__ void k(const float* x, float* y, int n) {\n"
        "  float s = 0;\n"
        "#pragma unroll 1\n"
        "  for (int i = threadIdx.x; i < n; i += 32)\n"
        "    s += __expf(x[i]);\n"
        "  y[threadIdx.x] = s;\n"
        "}\n"
    )
    straight, loop = code.loops
    assert [(m.space, m.kind, m.width_bytes, m.line) for m in loop.memory] == [("global", "load", 4, 5)]
    assert [(m.space, m.kind, m.line) for m in straight.memory] == [("global", "store", 6)]
    assert loop.mufu == 1
    assert (loop.loads, loop.load_batches, loop.parent, loop.depth) == (1, 1, 0, 1)
    assert straight.parent == -1


TENSOR = (
    "#include <mma.h>\nusing namespace nvcuda::wmma;\n"
    "__global__ void k(float* c, int n) {{\n"
    "  fragment<matrix_a, 16, 16, {depth}, {type}, row_major> a; fragment<matrix_b, 16, 16, {depth}, {type}, col_major> b;\n"
    "  fragment<accumulator, 16, 16, {depth}, float> s; fill_fragment(s, 0.0f); fill_fragment(a, {one}); fill_fragment(b, {one});\n"
    "#pragma unroll 1\n"
    "  for (int i = 0; i < n; ++i)\n"
    "    mma_sync(s, a, b, s);\n"
    "  store_matrix_sync(c, s, 16, mem_row_major);\n"
    "}}\n"
)


@pytest.mark.parametrize(
    ("kind", "one", "depth", "products"), [("precision::tf32", "1.0f", 8, 2.0), ("half", "__half(1.0f)", 16, 2.0)]
)
def test_matrix_instructions_count_by_their_size_and_type(
    read: Read, kind: str, one: str, depth: int, products: float
) -> None:
    """16 x 16 x 8 in TF32 are two of 16 x 8 x 8; twice the depth in half precision takes as long."""
    loop = read(TENSOR.format(type=kind, one=one, depth=depth)).loops[1]
    assert loop.tensor
    assert loop.products == products


def test_nested_loops_know_their_parents(read: Read) -> None:
    code = read(
        "__global__ void k(const float* x, float* y, int n) {\n"
        "#pragma unroll 1\n"
        "  for (int i = 0; i < n; i++) {\n"
        "    float s = 0;\n"
        "#pragma unroll 1\n"
        "    for (int j = 0; j < n; j++) s += x[j * n + i];\n"
        "    y[i] = s;\n"
        "  }\n"
        "}\n"
    )
    inner = next(loop for loop in code.loops if loop.depth == 2)
    assert code.loops[inner.parent].depth == 1
    assert any(m.kind == "load" for m in inner.memory)
    assert any(m.kind == "store" for m in code.loops[inner.parent].memory)


def test_unrolled_loads_are_in_flight_together(read: Read) -> None:
    body = (
        "__global__ void k(const float* __restrict__ x, float* y, int n) {{ float s = 0;\n#pragma unroll {}\n"
        "for (int i = 0; i < n; i++) s += x[i * 32 + threadIdx.x];\n y[threadIdx.x] = s; }}"
    )
    one = max(read(body.format(1)).loops, key=lambda loop: loop.loads)
    four = max(read(body.format(4)).loops, key=lambda loop: loop.loads)
    assert (one.loads, one.load_batches) == (1, 1)
    assert four.loads >= 4
    assert four.loads / four.load_batches >= 3


def test_widths_atomics_shared_memory_shuffles_barriers(read: Read) -> None:
    code = read(
        "__global__ void k(const float4* x, float* y, const unsigned char* b) {\n"
        "  __shared__ float s[256];\n"
        "  float4 v = x[threadIdx.x];\n"
        "  s[threadIdx.x] = v.x + v.y + v.z + v.w + b[threadIdx.x];\n"
        "  __syncthreads();\n"
        "  float t = s[255 - threadIdx.x];\n"
        "  t += __shfl_xor_sync(~0u, t, 1);\n"
        "  atomicAdd(y, t);\n"
        "}\n"
    )
    (loop,) = code.loops
    seen = {(m.space, m.kind, m.width_bytes) for m in loop.memory}
    assert {("global", "load", 16), ("global", "load", 1), ("shared", "store", 4), ("shared", "load", 4)} <= seen
    assert any(m.space == "global" and m.kind == "atomic" for m in loop.memory)
    assert (loop.shuffles, loop.barriers) == (1, 1)
    assert loop.shared_batches == 1


def test_spills_are_local_accesses(read: Read) -> None:
    code = read(
        "__global__ void k(float* x, int n) { float a[64]; for (int i = 0; i < 64; i++) a[i] = x[i];"
        " for (int i = 0; i < n; i++) x[i] = a[(i * 7) & 63]; }"
    )
    assert sum(loop.local for loop in code.loops) >= 16


def test_what_is_no_disassembly_gives_nothing() -> None:
    assert parse_sass("") == {}
    assert parse_sass("\x00garbage\n" * 100) == {}
    assert parse_sass('\t.section\t.text.k,"ax"\n') == {}


@pytest.mark.parametrize("arch", known_targets())
def test_machine_code_of_every_target_is_read(arch: str) -> None:
    """Before sm_90 a line `.sectioninfo` stands in the section, which was taken for the next one: nothing was read."""
    works, why = module.available()
    if not works:
        pytest.skip(f"no sandbox here: {why}")
    box = module.sandbox()
    text = "__global__ void k(const float* x, float* y) { y[threadIdx.x] = __expf(x[threadIdx.x]); }\n"
    with NvrtcCompiler(arch, cache=kept_code(), sandbox=box, jobs=1) as compiler:
        binary = compiler.compile(Translation(text, "a.cu", ("k",), line_info=True))
    (straight,) = parse_sass(disassemble(binary.cubin, sandbox=box, line_info=True))[binary.entries[0]].loops
    assert [(m.space, m.kind, m.width_bytes, m.line) for m in straight.memory] == [
        ("global", "load", 4, 1), ("global", "store", 4, 1),
    ]  # fmt: skip
    assert straight.mufu == 1
