"""Changed kernels, from real git histories."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bot.changes import Changes, find_changes
from bot.clone import Repository
from bot.errors import GitError
from tests.bot.repo import Repo

A = """#include "scale.cuh"
// A comment.
__device__ float twice(float v) { return 2.0f * v; }
__global__ void first(float* x, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] = twice(x[i]);
}
__global__ void second(float* x, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] = scale(x[i]);
}
void run(float* x, int n) {
    first<<<(n + 255) / 256, 256>>>(x, n);
    second<<<(n + 255) / 256, 256>>>(x, n);
}
"""
SCALE = '#pragma once\n#include "deep/factor.h"\n__device__ inline float scale(float v) { return FACTOR * v; }\n'
FACTOR = "#pragma once\n#define FACTOR 3.0f\n"
FILES: dict[str, str | bytes] = {"src/a.cu": A, "src/scale.cuh": SCALE, "src/deep/factor.h": FACTOR}


def changes(repo: Repo, base: str, head: str) -> Changes:
    return find_changes(Repository(repo.folder), base, head)


def found(repo: Repo, base: str, head: str) -> dict[str, tuple[str, ...]]:
    return {kernel.kernel: kernel.reasons for kernel in changes(repo, base, head).kernels}


@pytest.fixture
def repo(tmp_path: Path) -> Repo:
    return Repo(tmp_path / "r")


@pytest.mark.parametrize(
    ("file", "old", "new", "expected"),
    [
        ("src/a.cu", "x[i] = twice(x[i])", "x[i] = twice(x[i]) + 1.0f", {"first": ("body",)}),
        ("src/a.cu", "2.0f * v", "v + v", {"first": ("callee or header",)}),
        ("src/a.cu", "first<<<(n + 255) / 256, 256>>>", "first<<<(n + 127) / 128, 128>>>", {"first": ("launch",)}),
        ("src/scale.cuh", "FACTOR * v", "v * FACTOR", {"second": ("callee or header",)}),
        ("src/deep/factor.h", "3.0f", "4.0f", {"second": ("callee or header",)}),
        ("src/a.cu", "// A comment.", "// Another one.\n\n", {}),
    ],
)
def test_the_kernels_that_a_change_reaches(
    repo: Repo, file: str, old: str, new: str, expected: dict[str, tuple[str, ...]]
) -> None:
    base = repo.commit(FILES)
    text = FILES[file]
    assert isinstance(text, str)
    assert old in text
    head = repo.commit({file: text.replace(old, new)})
    assert found(repo, base, head) == expected


@pytest.mark.parametrize("end", ["h", "hpp", "inl"])
def test_a_kernel_in_a_header_of_any_name_is_found(repo: Repo, end: str) -> None:
    """A quarter of the files with kernels of a large collection of programs were not looked at."""
    kernel = "__global__ void k(float* x) { x[threadIdx.x] = 1.0f; }\n"
    files: dict[str, str | bytes] = {
        f"k.{end}": kernel,
        "main.cu": f'#include "k.{end}"\nvoid f(float* x) {{ k<<<1, 32>>>(x); }}\n',
    }
    base = repo.commit(files)
    head = repo.commit({f"k.{end}": kernel.replace("1.0f", "2.0f")})
    assert found(repo, base, head) == {"k": ("body",)}
    again = repo.commit({"main.cu": str(files["main.cu"]).replace("1, 32", "1, 64")})
    assert found(repo, head, again) == {"k": ("launch",)}


def test_a_launch_in_another_file_counts(repo: Repo) -> None:
    main = "void first(float*, int);\nvoid go(float* x) { first<<<1, 32>>>(x, 32); }\n"
    base = repo.commit({**FILES, "main.cpp": main})
    head = repo.commit({"main.cpp": main.replace("<<<1, 32>>>", "<<<1, 64>>>")})
    assert found(repo, base, head) == {"first": ("launch",)}


def test_a_rename_alone_changes_no_kernel_and_a_new_kernel_is_new(repo: Repo) -> None:
    base = repo.commit(FILES)
    repo.git("mv", "src/a.cu", "src/b.cu")
    moved = repo.commit()
    assert found(repo, base, moved) == {}
    more = A + "__global__ void third(float* x) { x[0] = 1.0f; }\n"
    head = repo.commit({"src/b.cu": more})
    result = changes(repo, base, head)
    assert [(k.kernel, k.path, k.base_path, k.new) for k in result.kernels] == [("third", "src/b.cu", "", True)]


def test_a_deleted_file_is_silent_and_what_cannot_be_read_is_named(repo: Repo) -> None:
    base = repo.commit(FILES)
    repo.git("rm", "-q", "src/a.cu")
    os.symlink("/etc/passwd", repo.folder / "link.cu")
    head = repo.commit({"binary.cu": b"\0\1\2", "latin.cu": b"// \xe9\n__global__ void k() {}\n"})
    repo.git("update-index", "--add", "--cacheinfo", f"160000,{base},vendor")
    repo.git("commit", "-q", "-m", "Add a submodule")
    result = changes(repo, base, repo.git("rev-parse", "HEAD"))
    assert result.kernels == ()
    assert {s.path: s.reason.split(":")[0] for s in result.skipped} == {
        "binary.cu": "is binary",
        "link.cu": "a symbolic link is not followed",
        "latin.cu": "latin.cu",
        "vendor": "a submodule",
    }
    assert head


@pytest.mark.parametrize("attributes", ["-diff", "binary", "diff=evil"])
def test_attributes_in_the_pull_request_hide_nothing_and_run_nothing(
    repo: Repo, tmp_path: Path, attributes: str
) -> None:
    base = repo.commit(FILES)
    mark = tmp_path / "ran"
    repo.git("config", "diff.evil.textconv", f"touch {mark};cat")
    repo.git("config", "diff.evil.command", f"touch {mark}")
    repo.git("config", "core.fsmonitor", f"touch {mark}")
    head = repo.commit({"src/a.cu": A.replace("twice(x[i])", "x[i]"), ".gitattributes": f"*.cu {attributes}\n"})
    mark.unlink(missing_ok=True)  # the commit above ran what the test configured
    result = changes(repo, base, head)
    assert [k.kernel for k in result.kernels] == ["first"]
    assert not mark.exists()


def test_what_the_base_branch_did_meanwhile_is_not_the_pull_requests(repo: Repo) -> None:
    base = repo.commit(FILES)
    repo.git("checkout", "-q", "-b", "topic")
    head = repo.commit({"src/a.cu": A.replace("twice(x[i])", "x[i]")})
    repo.git("checkout", "-q", "main")
    main = repo.commit({"src/deep/factor.h": FACTOR.replace("3", "4")})
    result = changes(repo, main, head)
    assert [k.kernel for k in result.kernels] == ["first"]
    assert result.base == base


def test_three_hundred_files_and_more(repo: Repo) -> None:
    base = repo.commit(FILES)
    kernel = "__global__ void k%d(float* x) { x[0] = 1.0f; }\n"
    head = repo.commit({f"many/{i:03}.cu": kernel % i for i in range(310)})
    result = changes(repo, base, head)
    assert len(result.kernels) == 300
    assert len(result.skipped) == 10


def test_names_with_quotes_newlines_and_pathspec_magic(repo: Repo) -> None:
    base = repo.commit(FILES)
    names = ['odd "name".cu', "new\nline.cu", ":(exclude)x.cu", "-flag.cu", "ümlaut.cu"]
    head = repo.commit({name: f"__global__ void k{i}(float* x) {{ x[0] = 1.0f; }}\n" for i, name in enumerate(names)})
    result = changes(repo, base, head)
    assert {k.path for k in result.kernels} == set(names)


@pytest.mark.parametrize("sha", ["HEAD", "--upload-pack=x", "a" * 39, "", "A" * 40])
def test_only_full_commit_names_reach_git(repo: Repo, sha: str) -> None:
    base = repo.commit(FILES)
    with pytest.raises(GitError):
        changes(repo, base, sha)


def test_a_commit_that_is_not_there_says_what_to_do(repo: Repo) -> None:
    base = repo.commit(FILES)
    with pytest.raises(GitError, match="fetch"):
        changes(repo, base, "b" * 40)
