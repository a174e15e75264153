"""What edits take for granted of callers is named, and refused where a visible caller breaks it."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.cuda.load import load_program
from engine.model import Guardrail
from engine.spec.find import find_spec
from engine.verify.assumptions import anywhere, assumptions

TEXT = """#include <cuda_runtime.h>
// optiml: args.x = { role = "in", size = "n" }
// optiml: args.y = { role = "out", size = "n" }
// optiml: check = [{ n = 904 }]
// optiml: time = [{ n = 1048576 }]
__global__ void scale(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        y[i] = 2.0f * x[i];
    }
}
void run_scale(const float* x, float* y, int n) {
    scale<<<(n + 255) / 256, 256>>>(x, y, n);
}
"""
VECTORS = """    int i = blockIdx.x * blockDim.x + threadIdx.x;
    const float4* v = reinterpret_cast<const float4*>(x);
    if (i < n / 4) {
        float4 a = v[i];
        ((float4*)y)[i] = make_float4(2.0f * a.x, 2.0f * a.y, 2.0f * a.z, 2.0f * a.w);
    }
}
void run"""
BODY = TEXT[TEXT.index("    int i") : TEXT.index("_scale(const float* x, float* y, int n) {\n    scale<<<")]


def judged(folder: Path, text: str, *edits: tuple[str, str]) -> dict[str, Guardrail]:
    (folder / ".git").mkdir()
    (folder / "a.cu").write_text(text)
    spec, _ = find_spec(folder, folder / "a.cu")
    program = load_program(folder / "a.cu")
    for old, new in edits:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    found = assumptions(program, program.replace({program.kernel_file: text.encode()}), spec)
    return {guard.name: guard for guard in found}


def static(text: str) -> str:
    return text.replace("void run", "static void run")


def test_vector_loads_assume_alignment_and_divisibility(tmp_path: Path) -> None:
    found = judged(tmp_path, static(TEXT), (static(BODY), static(VECTORS)))
    assert {name: guard.verdict for name, guard in found.items()} == {
        "assumes x is 16-byte aligned": "passed",
        "assumes y is 16-byte aligned": "passed",
        "assumes n is divisible by 4": "not checked",
    }


@pytest.mark.parametrize(
    ("call", "verdict"),
    [("run_scale(b + 1, c, n)", "failed"), ("run_scale(b + 4, c, n)", "passed"), ("run_scale(b + k, c, n)", "failed"),
     ("run_scale(b + 4 * k, c, n)", "passed"), ("run_scale(at(b, k), c, n)", "not checked"),
     ("run_scale(&b[3], c, n)", "failed"), ("run_scale(b, c, n)", "passed")],
)  # fmt: skip
def test_callers_of_the_launching_function_count(tmp_path: Path, call: str, verdict: str) -> None:
    text = static(TEXT) + f"void main_part(float* b, float* c, int n, int k) {{\n    {call};\n}}\n"
    assert judged(tmp_path, text, (static(BODY), static(VECTORS)))["assumes x is 16-byte aligned"].verdict == verdict


def test_whoever_calls_a_function_of_other_files_may_pass_any_address(tmp_path: Path) -> None:
    found = judged(tmp_path, TEXT, (BODY, VECTORS))["assumes x is 16-byte aligned"]
    assert (found.verdict, found.detail) == ("not checked", "whoever calls 'run_scale' may pass any address")


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("", "", "whoever calls 'run_scale' may pass any address"),
        ("void run", "static void run", ""),
        ("void run", "namespace {\nvoid run", ""),
        ("void run_scale(const float* x", "int main() { const float* x = take()", ""),
        ("scale<<<(n + 255) / 256, 256>>>(x, y, n);", "", "no caller is visible"),
    ],
)
def test_code_of_other_files_may_pass_any_address_to_what_it_can_call(
    tmp_path: Path, old: str, new: str, reason: str
) -> None:
    (tmp_path / ".git").mkdir()
    text = TEXT.replace(old, new) + ("}\n" if new.startswith("namespace") else "")
    text = text.replace(
        "int main() { const float* x = take(), float* y, int n) {", "int main() {\n    float *x, *y; int n;"
    )
    (tmp_path / "a.cu").write_text(text)
    spec, _ = find_spec(tmp_path, tmp_path / "a.cu")
    assert anywhere(load_program(tmp_path / "a.cu"), spec, "x") == reason


def test_restrict_assumes_distinct_buffers(tmp_path: Path) -> None:
    edit = ("__global__ void scale(const float* x", "__global__ void scale(const float* __restrict__ x")
    assert judged(tmp_path, TEXT, edit)["assumes x overlaps no other buffer"].verdict == "passed"


def test_a_caller_in_place_refuses_restrict(tmp_path: Path) -> None:
    edit = ("__global__ void scale(const float* x", "__global__ void scale(const float* __restrict__ x")
    text = TEXT + "void main_part(float* b, int n) {\n    run_scale(b, b, n);\n}\n"
    found = judged(tmp_path, text, edit)["assumes x overlaps no other buffer"]
    assert (found.verdict, found.detail) == ("failed", "a.cu:16 passes one buffer for x and y")


def test_a_guarded_cast_assumes_nothing(tmp_path: Path) -> None:
    guarded = VECTORS.replace("if (i < n / 4)", "if (reinterpret_cast<uintptr_t>(x) % 16 == 0 && i < n / 4)")
    assert not [name for name in judged(tmp_path, TEXT, (BODY, guarded)) if "aligned" in name]


def test_narrower_indices_are_named(tmp_path: Path) -> None:
    wide = TEXT.replace("int i = blockIdx.x * ", "size_t i = (size_t)blockIdx.x * ")
    wide = wide.replace("float* y, int n) {\n    size_t", "float* y, size_t n) {\n    size_t")
    narrow = ("size_t i = (size_t)blockIdx.x * ", "int i = blockIdx.x * ")
    assert judged(tmp_path, wide, narrow)["assumes that indices fit in 32 bits"].verdict == "not checked"


def test_another_store_assumes_nothing(tmp_path: Path) -> None:
    assert not judged(tmp_path, TEXT, ("2.0f * x[i]", "x[i] + x[i]"))


def test_nothing_is_known_of_pointers_in_structs(tmp_path: Path) -> None:
    text = """#include <cuda_runtime.h>
struct Params { const float* x; float* y; int n; };
// optiml: args.p.x = { size = "n" }
// optiml: args.p.y = { role = "out", size = "n" }
// optiml: args.p.n = {}
// optiml: time = [{ n = 1048576 }]
__global__ void scale(Params p) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    const float* x = p.x;
    if (i < p.n) p.y[i] = 2.0f * x[i];
}
void run_scale(Params p) { scale<<<(p.n + 255) / 256, 256>>>(p); }
"""
    promised = judged(tmp_path, text, ("const float* x = p.x;", "const float* __restrict__ x = p.x;"))
    assert {guard.verdict for guard in promised.values()} == {"not checked"}
    assert list(promised) == ["assumes that pointers in structs overlap no other buffer"]
    (tmp_path / ".git").rmdir()
    wide = judged(tmp_path, text, ("2.0f * x[i]", "2.0f * reinterpret_cast<const float4*>(x)[i / 4].x"))
    assert wide["assumes that pointers in structs are aligned for vectors"].verdict == "not checked"
