"""nvcc for what NVRTC refuses. Where there is no nvcc, the error that says how to get it is tested instead."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.compile.compiler import Translation
from engine.compile.cubin import Cubin
from engine.compile.nvcc import compile_nvcc, find_nvcc, too_hard_for_nvrtc
from engine.compile.nvrtc import NvrtcCompiler
from engine.errors import CompileError
from engine.process.sandbox import NoSandbox, Sandbox

WHOLE_CUB = "#include <cub/cub.cuh>\ntemplate <int N> __global__ void k(float* x) { x[0] = N; }\n__global__ void z(int* x) { x[1] = 2; }\n"
needs_nvcc = pytest.mark.skipif(find_nvcc() is None, reason="no nvcc here")


@needs_nvcc
def test_whole_cub_goes_to_nvcc(compiler: NvrtcCompiler) -> None:
    binary = compiler.compile(Translation(WHOLE_CUB, "src/a.cu", ("k<32>", "z")))
    assert binary.entries == ("_Z1kILi32EEvPf", "_Z1zPi")
    assert all(used.registers > 0 for used in binary.resources)


@needs_nvcc
def test_errors_of_nvcc_name_the_line(box: Sandbox | NoSandbox) -> None:
    text = "__global__ void k(float* x) {\n  x[0] = y;\n}\n"
    with pytest.raises(CompileError) as caught:
        compile_nvcc(Translation(text, "src/a.cu", ("k",)), "sm_90", sandbox=box)
    assert caught.value.where == "src/a.cu:2"
    assert '"y" is undefined' in caught.value.what


@needs_nvcc
def test_nvcc_sees_no_file_of_the_machine(box: Sandbox | NoSandbox, tmp_path: Path) -> None:
    (tmp_path / "secret.h").write_text("#error s3cret-value\n")
    for path in (tmp_path / "secret.h", "/etc/passwd"):
        with pytest.raises(CompileError) as caught:
            compile_nvcc(
                Translation(f'#include "{path}"\n__global__ void k() {{}}', "a.cu", ("k",)), "sm_90", sandbox=box
            )
        assert "s3cret" not in caught.value.log
        assert "No such file" in caught.value.log


@needs_nvcc
def test_the_same_kernel_has_the_same_code_from_both(compiler: NvrtcCompiler, box: Sandbox | NoSandbox) -> None:
    text = "__global__ void k(float* x) { x[threadIdx.x] *= 2; }"
    cubin, entries, _ = compile_nvcc(Translation(text, "a.cu", ("k",)), "sm_90", sandbox=box)
    assert entries == ("_Z1kPf",)
    assert cubin.startswith(b"\x7fELF")


def test_without_nvcc_the_error_says_how_to_get_it(compiler: NvrtcCompiler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "_nvcc", None)
    with pytest.raises(CompileError) as caught:
        compiler.compile(Translation(WHOLE_CUB + "// no nvcc", "src/a.cu", ("k<1>",)))
    assert "optiml-cuda[nvcc]" in str(caught.value)


def test_an_ordinary_error_does_not_go_to_nvcc() -> None:
    assert not too_hard_for_nvrtc('a.cu(1): error: identifier "y" is undefined')
    assert not too_hard_for_nvrtc('a.cu(1): catastrophic error: cannot open source file "mine.h"')
    assert too_hard_for_nvrtc('a.cu(1): catastrophic error: cannot open source file "cstdint"')
    assert too_hard_for_nvrtc(
        "x.cuh(61): error: A function explicitly marked as a __host__ function is not allowed in JIT mode"
    )


@needs_nvcc
def test_constant_variables_are_found_too(box: Sandbox | NoSandbox) -> None:
    text = "namespace a { static __constant__ float taps[3]; __constant__ int n; __global__ void k(float* y) { y[0] = taps[n]; } }"
    cubin, names, _ = compile_nvcc(Translation(text, "a.cu", ("a::k", "&a::taps", "&a::n")), "sm_90", sandbox=box)
    assert names[0] == "_ZN1a1kEPf"
    assert [Cubin(cubin).variable_bytes(name) for name in names[1:]] == [12, 4]
