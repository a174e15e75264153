"""Which kernels a commit changes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from engine.errors import UsageError
from engine.settings.config import Config
from hooks.common import chosen
from hooks.targets import targets_in
from hooks.worktree import commit_of, fingerprint, sources
from tests.hooks.conftest import git

Edit = Callable[[str, str], None]


def changed(root: Path, path: str = "k.cu") -> list[str]:
    return [target.kernel for target in targets_in(root, path, commit_of(root, "HEAD"))]


def test_nothing_changed(repository: Path) -> None:
    assert changed(repository) == []


def test_without_a_commit_every_kernel_counts(repository: Path) -> None:
    found = targets_in(repository, "k.cu", "")
    assert [(t.kernel, t.line, t.spec is not None) for t in found] == [("scale", 6, True), ("other", 11, False)]


def test_a_repository_without_commits(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    assert commit_of(tmp_path, "HEAD") == ""


@pytest.mark.parametrize(
    ("old", "new", "kernels"),
    [
        ("2.0f * x[i]", "3.0f * x[i]", ["scale"]),
        ("+= 1.0f", "+= 2.0f", ["other"]),
        ("(n + 255) / 256, 256", "(n + 127) / 128, 128", ["scale", "other"]),  # both are launched by this function
        ("n = 1048576", "n = 524288", ["scale"]),
        ("#include <cuda_runtime.h>\n", "#include <cuda_runtime.h>\n\n\n", []),
        ("void run(", "int unrelated() { return 1; }\nvoid run(", []),
    ],
)
def test_what_an_edit_changes(repository: Path, edit: Edit, old: str, new: str, kernels: list[str]) -> None:
    edit(old, new)
    assert changed(repository) == kernels


def test_line_ends_alone_change_nothing(repository: Path) -> None:
    path = repository / "k.cu"
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    assert changed(repository) == []


def test_a_header_changes_the_kernels_that_use_it(repository: Path) -> None:
    (repository / "f.cuh").write_text("#pragma once\n__device__ inline float twice(float v) { return v + v; }\n")
    text = (repository / "k.cu").read_text()
    (repository / "k.cu").write_text('#include "f.cuh"\n' + text.replace("2.0f * x[i]", "twice(x[i])"))
    git(repository, "add", ".")
    git(repository, "commit", "-q", "-m", "two")
    assert changed(repository) == []
    (repository / "f.cuh").write_text("#pragma once\n__device__ inline float twice(float v) { return 2 * v; }\n")
    assert chosen(repository, ["f.cuh"], Config()) == ["k.cu"]
    assert changed(repository) == ["scale"]


def test_kernels_in_headers_of_any_name_are_looked_at(repository: Path) -> None:
    (repository / "plain.h").write_text("int f();\n")
    (repository / "kernel.h").write_text("__global__ void k(float* x) { x[0] = 1; }\n")
    assert sorted(sources(repository)) == ["k.cu", "kernel.h"]
    assert chosen(repository, ["plain.h", "kernel.h", "k.cu"], Config()) == ["kernel.h", "k.cu"]


def test_a_wrong_spec_is_a_problem_of_its_kernel(repository: Path, edit: Edit) -> None:
    edit('role = "out"', 'rol = "out"')
    (target,) = [t for t in targets_in(repository, "k.cu", commit_of(repository, "HEAD")) if t.problem]
    assert target.kernel == "scale"
    assert "k.cu:4" in str(target.problem)


def test_links_are_not_looked_at_and_a_path_may_lead_through_one(repository: Path, tmp_path: Path) -> None:
    outside = tmp_path / "o.cu"
    outside.write_text("__global__ void k() {}\n")
    (repository / "l.cu").symlink_to(outside)
    (tmp_path / "by").symlink_to(repository)
    assert chosen(repository, ["l.cu", str(tmp_path / "by" / "k.cu")], Config()) == ["k.cu"]
    with pytest.raises(UsageError, match="is not in the repository"):
        chosen(repository, [str(outside)], Config())


def test_the_fingerprint_follows_every_source(repository: Path) -> None:
    seen = {fingerprint(repository)}
    (repository / "notes.txt").write_text("no source")
    assert fingerprint(repository) in seen
    (repository / "new.h").write_text("int a;")
    seen.add(fingerprint(repository))
    (repository / "new.h").write_text("int b;")
    seen.add(fingerprint(repository))
    (repository / "k.cu").write_text("// gone")
    seen.add(fingerprint(repository))
    git(repository, "add", ".")
    assert fingerprint(repository) in seen  # staged or not
    (repository / "k.cu").unlink()
    seen.add(fingerprint(repository))
    assert len(seen) == 5
