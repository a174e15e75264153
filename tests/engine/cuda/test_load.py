"""Loading a program from a folder that strangers filled."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from engine.cuda.launch_reading import readable_sites
from engine.cuda.load import load_program, read_below, repository_root, resolve_include
from engine.cuda.slice import device_slice
from engine.errors import SourceError, UsageError

KERNEL = b"__global__ void k(float* x, int n) { x[0] = n; }\n"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    root = tmp_path / "repository"
    (root / ".git").mkdir(parents=True)
    (root / "src").mkdir()
    return root


def test_the_root_is_the_nearest_repository(repository: Path, tmp_path: Path) -> None:
    (repository / "src" / "a.cu").write_bytes(KERNEL)
    assert repository_root(repository / "src" / "a.cu") == repository.resolve()
    (tmp_path / "b.cu").write_bytes(KERNEL)
    assert repository_root(tmp_path / "b.cu") == tmp_path.resolve()


def test_headers_launchers_and_spec_come_along(repository: Path) -> None:
    (repository / "src/a.cu").write_bytes(b'#include "inc/h.cuh"\n#include <cstdio>\n' + KERNEL)
    (repository / "src/inc").mkdir()
    (repository / "src/inc/h.cuh").write_bytes(b'#pragma once\n#include "../g.h"\n#include "h.cuh"\n')
    (repository / "src/g.h").write_bytes(b"// g\n")
    (repository / "host.cpp").write_bytes(b"void f(float* x, int n) { k<<<n, 1>>>(x, n); }\n")
    (repository / "other.cpp").write_bytes(b"void f(float* x, int n) { kk<<<n, 1>>>(x, n); } // k\n")
    (repository / "build").mkdir()
    (repository / "build/copy.cpp").write_bytes(b"void f(float* x, int n) { k<<<n, 1>>>(x, n); }\n")
    (repository / "optiml.toml").write_bytes(b"[[kernel]]\n")
    program = load_program(repository / "src/a.cu", spec_file="optiml.toml")
    assert program.kernel_file == "src/a.cu"
    assert set(program.files) == {"src/a.cu", "src/inc/h.cuh", "src/g.h", "host.cpp", "optiml.toml"}


def test_a_template_launch_in_another_file(repository: Path) -> None:
    (repository / "a.cu").write_bytes(b"template <int N> " + KERNEL)
    (repository / "b.cu").write_bytes(b"void f(float* x) { k<4><<<1, 2>>>(x, 1); }\n")
    assert "b.cu" in load_program(repository / "a.cu", kernels=["k"]).files


def test_a_launch_by_a_macro_of_a_header(repository: Path) -> None:
    """The draft of a header's kernel had read the launch, and the search then said that there was none."""
    (repository / "a.cuh").write_bytes(KERNEL)
    (repository / "call.h").write_bytes(b"#define LAUNCH(kernel, g, b, ...) (kernel)<<<(g), (b)>>>(__VA_ARGS__)\n")
    (repository / "b.cu").write_bytes(
        b'#include "a.cuh"\n#include "call.h"\nvoid f(float* x) { LAUNCH(\n    impl::k, 1, 2, x, 1); }\n'
    )
    (repository / "c.cu").write_bytes(b'#include "call.h"\nvoid f(float* x) { LAUNCH(other, 1, 2, x, 1); }\n')
    program = load_program(repository / "a.cuh", kernels=["k"])
    assert set(program.files) == {"a.cuh", "b.cu", "call.h"}
    (site,) = readable_sites(program, "k")
    assert (site.path, [part.text for part in site.parts]) == ("b.cu", ["(1)", "(2)"])


def test_a_file_that_launches_its_own_kernel_of_that_name_stays_out(repository: Path) -> None:
    (repository / "a.cu").write_bytes(KERNEL)
    (repository / "b.cu").write_bytes(KERNEL + b"void f(float* x) { k<<<1, 2>>>(x, 1); }\n")
    (repository / "c.cu").write_bytes(b'#include "k.cuh"\nvoid f(float* x) { k<<<3, 4>>>(x, 1); }\n')
    (repository / "k.cuh").write_bytes(KERNEL)
    (repository / "d.cu").write_bytes(b'#include "a.cu"\n#include "k.cuh"\nvoid f(float* x) { k<<<5, 6>>>(x, 1); }\n')
    assert set(load_program(repository / "a.cu").files) == {"a.cu", "d.cu"}
    assert set(load_program(repository / "k.cuh").files) == {"k.cuh", "c.cu", "d.cu"}


@pytest.mark.parametrize("name", ["/etc/passwd", "../../../../../../etc/passwd", "../../outside.h", "../.git/config"])
def test_nothing_outside_is_read(repository: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / "outside.h").write_bytes(b"int secret;")
    (repository / ".git/config").write_bytes(b"secret")
    (repository / "src/a.cu").write_bytes(f'#include "{name}"\n'.encode() + KERNEL)
    assert set(load_program(repository / "src/a.cu").files) == {"src/a.cu"}
    if not name.endswith("config"):
        with pytest.raises(SourceError, match="outside the repository"):
            resolve_include(name, True, "src/a.cu", files={}, root=repository)


def test_links_out_of_the_repository_are_not_read(repository: Path, tmp_path: Path) -> None:
    (tmp_path / "outside.h").write_bytes(b"int secret;")
    (repository / "h.h").symlink_to(tmp_path / "outside.h")
    (repository / "a.cu").write_bytes(b'#include "h.h"\n' + KERNEL)
    assert set(load_program(repository / "a.cu").files) == {"a.cu"}
    assert read_below(repository, "h.h") is None


def test_links_are_not_followed_in_the_search(repository: Path, tmp_path: Path) -> None:
    (tmp_path / "away").mkdir()
    (tmp_path / "away/host.cpp").write_bytes(b"void f() { k<<<1, 1>>>(0, 0); }\n")
    (repository / "away").symlink_to(tmp_path / "away")
    (repository / "file.cpp").symlink_to(tmp_path / "away/host.cpp")
    os.mkfifo(repository / "pipe.cpp")
    (repository / "a.cu").write_bytes(KERNEL)
    assert set(load_program(repository / "a.cu").files) == {"a.cu"}


def test_wrong_use_is_said(repository: Path) -> None:
    with pytest.raises(UsageError, match="no such file"):
        load_program(repository / "none.cu")
    with pytest.raises(UsageError, match="folder"):
        load_program(repository)
    (repository / "a.cu").write_bytes(b"int main() {}\n")
    with pytest.raises(UsageError, match="contains no kernel"):
        load_program(repository / "a.cu")
    (repository / "a.cu").write_bytes(KERNEL)
    with pytest.raises(UsageError, match=r"has no kernel 'kk'; it has: k"):
        load_program(repository / "a.cu", kernels=["kk"])
    with pytest.raises(UsageError, match="spec cannot be read"):
        load_program(repository / "a.cu", spec_file="optiml.toml")


def test_a_launch_elsewhere_of_a_kernel_launched_here_counts_where_it_can_mean_it(repository: Path) -> None:
    (repository / "a.cu").write_bytes(KERNEL + b"void g(float* x) { k<<<1, 2>>>(x, 1); }\n")
    (repository / "b.cu").write_bytes(b"void f(float* x) { k<<<3, 4>>>(x, 1); }\n")
    (repository / "c.cu").write_bytes(b"__global__ void k(float* x, int n);\nvoid f(float* x) { k<<<5, 6>>>(x, 1); }\n")
    (repository / "d.cu").write_bytes(b'#include "a.cu"\nvoid f(float* x) { k<<<7, 8>>>(x, 1); }\n')
    assert set(load_program(repository / "a.cu").files) == {"a.cu", "c.cu", "d.cu"}


def test_a_header_that_only_the_build_knows_is_the_nearest_of_its_name(repository: Path) -> None:
    for path, text in {
        "src/cuda/includes/kernels.h": "// near\n",
        "src/other/kernels.h": "// far\n",
        "src/cuda/a/twice.h": "// 1\n",
        "src/cuda/b/twice.h": "// 2\n",
        "src/other/lib/part.h": "// of a folder\n",
        "src/other/cuda_runtime.h": "// not CUDA's\n",
        "src/cuda/k.cu": '#include "kernels.h"\n#include "twice.h"\n#include "lib/part.h"\n#include "cuda_runtime.h"\n'
        "#include <other.h>\n__global__ void k() {}\n",
        "src/other/other.h": "// a system's\n",
    }.items():
        (repository / path).parent.mkdir(parents=True, exist_ok=True)
        (repository / path).write_text(text)
    program = load_program(repository / "src/cuda/k.cu")
    assert set(program.files) == {"src/cuda/k.cu", "src/cuda/includes/kernels.h", "src/other/lib/part.h"}
    sliced = device_slice(program, ["k"], root=repository)
    assert not set(sliced.system) & {"kernels.h", "lib/part.h"}


def test_headers_above_are_found_without_the_compile_command(repository: Path) -> None:
    files = {
        "src/cuda/a.cu": KERNEL,
        "src/common.h": b"// 1\n",
        "src/include/lib/x.h": b"// 2\n",
        "include/lib/y.h": b"// 3\n",
    }
    find = lambda name, quoted: resolve_include(name, quoted, "src/cuda/a.cu", files=files, root=None)  # noqa: E731
    assert find("common.h", True) == ("src/common.h", b"// 1\n")
    assert find("lib/x.h", False) == ("src/include/lib/x.h", b"// 2\n")
    assert find("lib/y.h", False) == ("include/lib/y.h", b"// 3\n")
    assert find("common.h", False) is None  # in angle brackets and without a folder it is a system's
