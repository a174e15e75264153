"""What optiml-check does with code that the project's own build compiles and a compiler of one file may not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hooks import check, examine
from tests.hooks.conftest import git

Output = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _no_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examine, "prepare_later", lambda std: None)


def checked(root: Path, capsys: Output, **files: str) -> tuple[int, str]:
    for name, text in files.items():
        path = root / name.replace("__", "/").replace("_cuh", ".cuh").replace("_cu", ".cu").replace("_h", ".h")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        git(root, "add", str(path))
    code = check.main([str(root / "n.cu")])
    return code, capsys.readouterr().out


def test_a_type_of_a_generic_lambda_is_a_note(repository: Path, capsys: Output) -> None:
    """A dispatch macro names its type `scalar_t`: nvcc compiles it, and the hook failed the commit."""
    code, out = checked(
        repository, capsys,
        n_cu="template <typename T> __global__ void twice(T* x) { x[threadIdx.x] *= T(2); }\n"
        "#define DISPATCH(...) { using scalar_t = float; __VA_ARGS__(); }\n"
        "template <typename F> void with(F f) { f(1.0f); }\n"
        "void run(float* p) { with([&](auto v) { twice<scalar_t><<<1, 32>>>((scalar_t*)p); }); }\n",
    )  # fmt: skip
    assert code == 0
    assert "not certain, as 'scalar_t' of its launch is not defined at file scope" in out


@pytest.mark.parametrize(
    ("value", "said"), [("static_cast<float>(x[i])", ""), ("gain", "<c10/util/Half.h> is not in the")]
)
def test_the_half_types_of_pytorch_are_known_without_its_headers(
    repository: Path, capsys: Output, value: str, said: str
) -> None:
    """`c10::Half` was an unknown type, and the hook failed the commit; what the header may define is a note."""
    code, out = checked(
        repository, capsys,
        n_cu="#include <c10/util/Half.h>\n"
        "__global__ void scale(const c10::Half* x, c10::Half* y, at::BFloat16* z, int n) {\n"
        f"    int i = blockIdx.x * blockDim.x + threadIdx.x;\n    if (i < n) y[i] = {value} * 2.0f;\n}}\n",
    )  # fmt: skip
    assert code == 0
    assert said in out
    assert bool(said) == bool(out)


@pytest.mark.parametrize("how", ["settings", "database"])
def test_the_projects_include_folders_and_macros_are_used(repository: Path, capsys: Output, how: str) -> None:
    if how == "settings":
        (repository / ".optiml.yml").write_text("compile: {include: [lib], define: ['SCALE=3']}\n")
    else:
        entry = {"directory": str(repository), "file": "n.cu", "command": "nvcc -Ilib -DSCALE=3 -c n.cu"}
        (repository / "compile_commands.json").write_text(json.dumps([entry]))
    code, out = checked(
        repository, capsys, lib__types_h="typedef float real;\n",
        n_cu='#include "types.h"\n__global__ void twice(real* x) { x[threadIdx.x] *= SCALE; }\n',
    )  # fmt: skip
    assert (code, out) == (0, "")


def test_an_error_behind_an_unknown_header_is_a_note(repository: Path, capsys: Output) -> None:
    code, out = checked(
        repository, capsys, n_cu="#include <mylib/types.h>\n__global__ void twice(real* x) { x[threadIdx.x] *= 2; }\n"
    )
    assert code == 0
    assert "note: n.cu:2: twice: not certain, as <mylib/types.h> is not in the repository" in out


def test_an_error_of_the_text_itself_fails(repository: Path, capsys: Output) -> None:
    code, out = checked(repository, capsys, n_cu="__global__ void twice(float* x) { x[threadIdx.x] *= two; }\n")
    assert code == 1
    assert "n.cu:1: twice: error:" in out


def test_a_kernel_behind_a_condition_is_a_note(repository: Path, capsys: Output) -> None:
    """It was named to the compiler all the same, and the hook failed the commit."""
    code, out = checked(
        repository, capsys, n_cu="#ifdef WITH_HALF\n__global__ void twice(half* x) { *x = *x + *x; }\n#endif\n"
    )
    assert code == 0
    assert "note: n.cu:2: twice: not certain, as it is behind a preprocessor condition that is false here" in out


def test_code_that_needs_nvcc_where_there_is_none_is_a_note(
    repository: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NVRTC has no host headers: it refused what nvcc compiles, and the hook failed the commit."""
    monkeypatch.setattr("engine.compile.nvrtc.find_nvcc", lambda: None)
    code, out = checked(
        repository, capsys, n_cu="#include <cub/cub.cuh>\n__global__ void twice(float* x) { x[cub::LaneId()] *= 2; }\n"
    )
    assert code == 0
    assert "note: n.cu:2: twice: not compiled: " in out
    assert "pip install 'optiml-cuda[nvcc]'" in out
