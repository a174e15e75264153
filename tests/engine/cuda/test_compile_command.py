"""The project's own compile command: where it is found, what of it is taken, and what hostile ones do not do."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.cuda.compile_command import CompileCommand, Project, compile_command, project
from engine.cuda.compile_options import read_options, words_of

KERNEL = '#include "api/types.h"\n__global__ void k(real *x) { x[threadIdx.x] = SCALE; }\n'


@pytest.fixture
def root(tmp_path: Path) -> Path:
    base = tmp_path / "work"
    for folder in (".git", "src", "include/api", "third party", "build"):
        (base / folder).mkdir(parents=True)
    (base / "src" / "k.cu").write_text(KERNEL)
    (base / "include" / "api" / "types.h").write_text("typedef float real;\n")
    return base


def database(root: Path, *entries: dict[str, object], folder: str = "build") -> None:
    (root / folder).mkdir(parents=True, exist_ok=True)
    given = [{"directory": str(root / folder), "file": str(root / "src" / "k.cu"), **entry} for entry in entries]
    (root / folder / "compile_commands.json").write_text(json.dumps(given))


@pytest.mark.parametrize("folder", [".", "build", "build/release", "out/build/x64", "cmake-build-debug", "builddir"])
def test_a_database_is_found_in_the_usual_folders(root: Path, folder: str) -> None:
    database(root, {"command": f"nvcc -I{root}/include -DSCALE=2 -std=c++20 -c {root}/src/k.cu"}, folder=folder)
    found = compile_command(root, "src/k.cu")
    assert (found.include, found.defines, found.std) == (("include",), ("SCALE=2",), "c++20")
    assert found.origin == os.path.normpath(f"{folder}/compile_commands.json")


def test_the_settings_name_another_database_and_add_to_it(root: Path) -> None:
    database(root, {"arguments": ["nvcc", "-DSCALE=1"]})
    database(root, {"arguments": ["nvcc", "-DSCALE=2"]}, folder="products/cuda")
    (root / "pyproject.toml").write_text(
        '[tool.optiml]\ncompile-commands = "products/cuda"\ncompile = { include = ["include"], define = ["WIDE"] }\n'
    )
    found = compile_command(root, "src/k.cu")
    assert (found.include, found.defines) == (("include",), ("SCALE=2", "WIDE"))
    assert found.origin == "products/cuda/compile_commands.json and the settings"


@pytest.mark.parametrize(
    ("arguments", "include", "defines", "std"),
    [
        (["nvcc", "-I", "../include", "-D", "A", "--std=c++14"], ("include",), ("A",), "c++14"),
        (["nvcc", "--include-path=../include", "--define-macro=A=1", "-std", "c++17"], ("include",), ("A=1",), "c++17"),
        (["ccache", "CC=x", "/usr/bin/clang++-17", "-x", "cuda", "-isystem", "../third party"], ("third party",), (), ""),
        (["nvcc", "-Xcompiler", "-Ielsewhere", "-include", "-DB", "-o", "-DA"], (), (), ""),
        (["nvcc", "-DA=1", "-DA=2", "-std=gnu++2a"], (), ("A=2",), "c++20"),
        (["nvcc", "-I/usr/include", "-I../..", "-I../.git"], (), (), ""),
        (["nvcc", '-DTEXT="a b"', "-DCALL(x)=x"], (), (), ""),
    ],
)  # fmt: skip
def test_only_folders_macros_and_the_standard_are_taken(
    root: Path, arguments: list[str], include: tuple[str, ...], defines: tuple[str, ...], std: str
) -> None:
    database(root, {"arguments": arguments})
    found = compile_command(root, "src/k.cu")
    assert (found.include, found.defines, found.std) == (include, defines, std)


def test_response_files_are_read_inside_the_repository_alone(root: Path, tmp_path: Path) -> None:
    (tmp_path / "secret.rsp").write_text("-DSTOLEN")
    (root / "build" / "link.rsp").symlink_to(tmp_path / "secret.rsp")
    (root / "build" / "in.rsp").write_text('-I"../third party" @more.rsp')
    (root / "build" / "more.rsp").write_text("-DMORE @in.rsp")
    (root / "build" / "cmake.rsp").write_text("--options-file=more.rsp -I../include")
    given = "nvcc @in.rsp --options-file cmake.rsp @../../secret.rsp @link.rsp"
    database(root, {"command": given})
    found = compile_command(root, "src/k.cu")
    assert found.include == ("third party", "include")
    assert found.defines == ("MORE",)
    assert sum("cannot be read inside the repository" in note for note in found.notes) >= 2


@pytest.mark.parametrize(
    ("content", "note"),
    [
        ("{", "not a valid compile_commands.json"),
        ("[" * 100_000, "not a valid compile_commands.json"),
        ('{"directory": "/"}', "not a valid compile_commands.json"),
        ('[1, {"directory": 1, "file": []}]', ""),
        ('[{"directory": "/else", "file": "/else/k.cu", "command": "nvcc"}]', "outside the repository"),
        ('[{"directory": ".", "file": "src/k.cu", "command": "nvcc \'"}]', "unclosed quote"),
        ('[{"directory": ".", "file": "src/k.cu", "command": "cl.exe /Iinclude"}]', "'cl.exe'"),
        ('[{"directory": ".", "file": "src/k.cu", "arguments": []}]', ""),
        ('[{"directory": ".", "file": "src/k\\u0000.cu", "arguments": ["nvcc"]}]', "outside the repository"),
    ],
)
def test_a_bad_database_gives_a_note_and_no_failure(root: Path, content: str, note: str) -> None:
    (root / "compile_commands.json").write_text(content)
    found = compile_command(root, "src/k.cu")
    assert (found.defines, found.std) == ((), "")
    assert note in " ".join(found.notes)
    assert bool(note) == bool(found.notes)


def test_a_database_that_is_a_link_out_of_the_repository_is_not_read(root: Path, tmp_path: Path) -> None:
    database(root, {"arguments": ["nvcc", "-DSTOLEN"]})
    (root / "build" / "compile_commands.json").rename(tmp_path / "compile_commands.json")
    (root / "compile_commands.json").symlink_to(tmp_path / "compile_commands.json")
    assert compile_command(root, "src/k.cu").defines == ()


def test_nothing_of_a_command_is_run(root: Path, tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    program = root / "nvcc"
    program.write_text(f"#!/bin/sh\ntouch {mark}\n")
    program.chmod(0o755)
    database(root, {"command": f"{program} -DA=$(touch {mark}) `touch {mark}` -DB; touch {mark}"})
    assert compile_command(root, "src/k.cu").defines == ()
    assert not mark.exists()


NINJA = """\
ninja_required_version = 1.3
cxx = c++
nvcc = /usr/local/cuda/bin/nvcc

cflags = -I/opt/torch/include -DHOST
cuda_cflags = -I{root}/include -I/opt/torch/include $
  -DWITH_CUDA
cuda_post_cflags = -D__CUDA_NO_HALF_OPERATORS__ -O3 -DTORCH_EXTENSION_NAME=_C -gencode=arch=compute_90,code=sm_90 -std=c++17

rule cuda_compile
  command = $nvcc $cuda_cflags -c $in -o $out $cuda_post_cflags

build {root}/build/temp.linux/src/host.o: compile {root}/src/host.cpp
build {root}/build/temp.linux/src/k.o: cuda_compile {root}/src/k.cu
"""


def test_pytorchs_ninja_file_is_read(root: Path) -> None:
    (root / "build" / "temp.linux-x86_64-cpython-311").mkdir()
    path = root / "build" / "temp.linux-x86_64-cpython-311" / "build.ninja"
    path.write_text(NINJA.replace("{root}", str(root)))
    found = compile_command(root, "src/k.cu")
    assert found.include == ("include",)
    assert found.defines == ("WITH_CUDA", "__CUDA_NO_HALF_OPERATORS__", "TORCH_EXTENSION_NAME=_C")
    assert found.std == "c++17"
    assert compile_command(root, "src/host.cpp").defines == ()


def test_a_header_has_the_command_of_the_file_that_includes_it(root: Path) -> None:
    (root / "include" / "api" / "scale.cuh").write_text("__global__ void scale(real *x) { x[0] *= 2; }\n")
    (root / "include" / "api" / "all.h").write_text('#include "scale.cuh"\n')
    (root / "src" / "a.cu").write_text('#include "../include/api/scale.cuh"\n')
    (root / "src" / "k.cu").write_text("#include <api/all.h>\n")
    assert compile_command(root, "include/api/scale.cuh").unit == "src/a.cu"
    database(root, {"arguments": ["nvcc", "-I../include", "-DSCALE=3"]})
    found = compile_command(root, "include/api/scale.cuh")
    assert (found.unit, found.defines) == ("src/k.cu", ("SCALE=3",))
    assert compile_command(root, "src/k.cu").unit == ""


def test_without_a_command_folders_named_include_are_assumed(root: Path) -> None:
    (root / "src" / "include").mkdir()
    assert compile_command(root, "src/k.cu") == CompileCommand(("src/include", "include"))


def test_a_command_is_read_anew_when_its_file_changes(root: Path) -> None:
    database(root, {"arguments": ["nvcc", "-DA=1"]})
    assert compile_command(root, "src/k.cu").defines == ("A=1",)
    assert project(root) is project(root)
    database(root, {"arguments": ["nvcc", "-DA=12"]})
    assert compile_command(root, "src/k.cu").defines == ("A=12",)


def test_broken_settings_are_a_note(root: Path) -> None:
    (root / ".optiml.yml").write_text("compile: {includes: []}\n")
    assert "the settings are ignored" in Project(root).command("src/k.cu").notes[0]


def test_a_huge_command_ends(root: Path) -> None:
    def none(path: str) -> bytes | None:
        return None

    reader: Callable[[str], bytes | None] = none
    found = read_options(["nvcc", *["-I."] * 200_000], ".", root, reader)
    assert found.include == (".",)
    assert "is cut there" in found.notes[0]
    assert words_of("a 'b") is None


def test_a_source_that_includes_nothing_of_its_own_is_compiled_through_the_one_that_includes_it(root: Path) -> None:
    (root / "src" / "part.cu").write_text(
        "#include <stdio.h>\n__global__ void p(real *x) { x[threadIdx.x] = WIDTH; }\n"
    )
    assert compile_command(root, "src/part.cu").unit == ""
    (root / "src" / "main.cu").write_text('#define WIDTH 8\ntypedef float real;\n#include "part.cu"\nint main() {}\n')
    (root / "src" / "test.cu").write_text('#include "k.cu"\n')
    assert compile_command(root, "src/part.cu").unit == "src/main.cu"
    assert compile_command(root, "src/k.cu").unit == ""  # it includes what it needs


def test_sources_that_cannot_include_a_header_are_not_followed(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The headers of every source of the repository were looked for before a header's kernel was drafted: minutes in large ones."""
    (root / "src" / "k.cuh").write_text("__global__ void k(float *x) {}\n")
    (root / "src" / "near.hxx").write_text('#include "k.cuh"\n')
    (root / "src" / "uses.cu").write_text('#include "near.hxx"\n')
    (root / "src" / "list.cu").write_text('#include "parts.inc"\n')
    (root / "src" / "parts.inc").write_text('#include "k.cuh"\n')
    for number in range(20):
        (root / "src" / f"other{number}.cu").write_text('#include "api/types.h"\n')
    followed: list[str] = []
    closure = Project._closure
    monkeypatch.setattr(Project, "_closure", lambda self, unit: followed.append(unit) or closure(self, unit))
    assert Project(root).command("src/k.cuh").unit == "src/list.cu"  # nobody knows what its part includes
    (root / "src" / "list.cu").unlink()
    assert Project(root).command("src/k.cuh").unit == "src/uses.cu"
    assert followed == ["src/list.cu", "src/uses.cu"]
