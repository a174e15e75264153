"""Real git repositories with CUDA files in them, and a cache of their own."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

KERNEL = """\
#include <cuda_runtime.h>

// optiml: args.x = { role = "in", size = "n" }
// optiml: args.y = { role = "out", size = "n" }
// optiml: time = [{ n = 1048576 }]
__global__ void scale(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = 2.0f * x[i];
}

__global__ void other(float* y, int n) {
    int i = threadIdx.x;
    if (i < n) y[i] += 1.0f;
}

void run(const float* x, float* y, int n) {
    scale<<<(n + 255) / 256, 256>>>(x, y, n);
    other<<<1, 256>>>(y, n);
}
"""


def git(root: Path, *arguments: str) -> str:
    command = ["git", "-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false", *arguments]
    return subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with one commit, and the working directory in it."""
    root = tmp_path / "project"
    root.mkdir()
    git(root, "init", "-q", "-b", "main")
    (root / "k.cu").write_text(KERNEL)
    (root / ".optiml.yml").write_text("check: {budget: 300s}\n")  # on a busy machine the default runs out
    git(root, "add", ".")
    git(root, "commit", "-q", "-m", "one")
    monkeypatch.chdir(root)
    monkeypatch.setenv("OPTIML_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("PRE_COMMIT_FROM_REF", raising=False)
    for name in ("GIT_DIR", "GIT_INDEX_FILE", "GIT_WORK_TREE"):
        monkeypatch.delenv(name, raising=False)
    return root


@pytest.fixture
def edit(repository: Path) -> Callable[[str, str], None]:
    """Replaces text of k.cu and stages it."""

    def replace(old: str, new: str) -> None:
        path = repository / "k.cu"
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))
        git(repository, "add", "k.cu")

    return replace
