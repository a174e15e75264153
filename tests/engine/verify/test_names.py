"""Names that an edit introduces are used by no other code of the include graph."""

from __future__ import annotations

import pytest

from engine.model import Program
from engine.spec.reader import specs_in
from engine.verify.names import names_problem, visible_instances

TEXT = """#include <cuda_runtime.h>
namespace app {
// optiml: args.x = { role = "in", size = "n" }
// optiml: args.y = { role = "out", size = "n" }
// optiml: check = [{ n = 903 }]
// optiml: time = [{ n = 1048576 }]
__global__ void first(const float* x, float* y, int n) { int i = threadIdx.x; if (i < n) y[i] = 2.0f * x[i]; }
__global__ void other(const float* x, float* y, int n) { float hold = fabsf(x[0]); y[0] = hold + sizeof(size_t); }
}
#include "after.cuh"
"""
AFTER = b"#pragma once\nstruct Pair { int tail; };\ninline int twice(Pair p) { return 2 * p.tail; }\n"


def problem(added: str, at: str = "namespace app {\n") -> str | None:
    program = Program({"k.cu": TEXT.encode()}, "k.cu")
    assert TEXT.count(at) == 1
    candidate = program.replace({"k.cu": TEXT.replace(at, at + added).encode()})
    return names_problem(program, candidate, {"after.cuh": AFTER}, specs_in(program, None)[0])


@pytest.mark.parametrize(
    ("added", "name"),
    [
        ("__device__ float fabsf(float v) { return v; }\n", "fabsf"),
        ("typedef unsigned short size_t;\n", "size_t"),
        ("struct size_t { char c; };\n", "size_t"),
        ("using size_t = unsigned char;\n", "size_t"),
        ("constexpr int twice = 2;\n", "twice"),
        ("struct Pair { int other; };\n", "Pair"),
    ],
)
def test_a_name_that_other_code_uses_is_refused(added: str, name: str) -> None:
    assert f"introduces '{name}'" in (problem(added) or "")


def test_a_macro_before_a_header_and_a_namespace_opened_are_refused() -> None:
    assert "before the header" in (problem("#define tail front\n") or "")
    assert "using namespace std" in (problem("using namespace std;\n") or "")
    assert "introduces 'tail'" in (problem("#define tail front\n", '#include "after.cuh"\n') or "")


def test_names_of_its_own_and_members_are_fine() -> None:
    assert problem("struct alignas(16) Four { float v[4]; };\n__device__ float bend(float v) { return v; }\n") is None
    assert problem("__device__ float tail_1(float v) { return v; }\nconstexpr int ITEMS = 4;\n") is None


@pytest.mark.parametrize(
    ("use", "others"),
    [("first<double>", ("app::first<double>",)), ("first< int, 4 >", ("app::first<int, 4>",)), ("first<float>", ())],
)
def test_another_visible_instance_of_an_edited_template_is_found(use: str, others: tuple[str, ...]) -> None:
    text = TEXT.replace("__global__ void first", "template <typename T> __global__ void first").replace(
        "// optiml: args.x", '// optiml: kernel = "first<float>"\n// optiml: args.x'
    )
    text += f"void run(float* y) {{ {use}<<<1, 32>>>(y, y, 3); }}\n"
    program = Program({"k.cu": text.encode()}, "k.cu")
    candidate = program.replace({"k.cu": text.replace("2.0f * x[i]", "x[i] + x[i]").encode()})
    assert visible_instances(program, candidate, {}, specs_in(program, None)[0]) == others
