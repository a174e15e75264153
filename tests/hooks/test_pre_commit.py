"""The hooks as people run them: pre-commit builds their environment from this repository and runs them on a commit."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from engine.settings.folders import cache_folder
from tests.hooks.conftest import KERNEL, git
from tests.locked import locked

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
PRE_COMMIT = BIN / "pre-commit"


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, testrun_uid: str) -> Iterator[Path]:
    """One folder for all processes of a test run: an environment takes half a minute to build. The last one removes it."""
    folder = tmp_path_factory.getbasetemp().parent / f"pre-commit-{testrun_uid}"
    mine = folder / "users" / str(os.getpid())
    with locked(folder):
        mine.parent.mkdir(parents=True, exist_ok=True)
        mine.touch()
    yield folder
    with locked(folder):
        mine.unlink()
        if not any(mine.parent.iterdir()):
            shutil.rmtree(folder)


@pytest.fixture(scope="module")
def source(shared: Path) -> Path:
    """This working tree as a repository of its own with one commit, so that what is tested is what is on disk."""
    folder = shared / "optiml"
    with locked(folder):
        if not folder.is_dir():
            _commit_all(shared / "unfinished")
            (shared / "unfinished").rename(folder)
    return folder


def _commit_all(folder: Path) -> None:
    folder.mkdir()
    for name in ("engine", "bot", "hooks", "action", "optiml_cuda"):
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE", ".pre-commit-hooks.yaml"):
        shutil.copy(ROOT / name, folder / name)
    git(folder, "init", "-q", "-b", "main")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "as it is")


@pytest.fixture(scope="module")
def wheels(source: Path) -> Path:
    """Wheels of all that an installation needs, fetched once for each state of pyproject.toml and then kept."""
    if not PRE_COMMIT.exists():
        pytest.skip("pre-commit is not installed")
    digest = hashlib.sha256((ROOT / "pyproject.toml").read_bytes() + sys.version.encode()).hexdigest()[:16]
    kept = cache_folder() / f"test-wheels-{digest}"
    with locked(kept):
        return _wheels(kept)


def _wheels(kept: Path) -> Path:
    if not kept.is_dir():
        kept.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=kept.parent) as scratch:
            folder = Path(scratch) / "wheels"
            command = [sys.executable, "-m", "pip", "download", "-q", "--only-binary", ":all:", "-d", str(folder)]
            project = tomllib.loads((ROOT / "pyproject.toml").read_text())
            needed = [*project["project"]["dependencies"], *project["build-system"]["requires"]]
            made = subprocess.run([*command, *needed], capture_output=True, text=True, timeout=280)
            if made.returncode != 0:
                pytest.skip(f"the wheels cannot be had: {made.stderr[-200:]}")
            folder.rename(kept)
    return kept


@pytest.fixture(scope="module")
def environment(shared: Path, wheels: Path) -> Mapping[str, str]:
    """Offline, with nothing of this interpreter's: the hooks get what an installation brings them, and no more."""
    home = shared / "home"
    home.mkdir(exist_ok=True)
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("GIT_", "PIP_", "PYTHON", "PRE_COMMIT"))}
    return kept | {
        "HOME": str(home),
        "PRE_COMMIT_HOME": str(home / "pre-commit"),
        "OPTIML_CACHE": str(home / "cache"),
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(wheels),
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_NO_COMPILE": "1",  # of what is installed only a part is ever imported
    }


def _run(hook: str, root: Path, environment: Mapping[str, str], *given: str) -> subprocess.CompletedProcess[str]:
    command = [str(PRE_COMMIT), "run", hook, "--verbose", *given]
    return subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, timeout=280)


@pytest.fixture
def project(tmp_path: Path, source: Path) -> Path:
    """A repository that asks for the hooks as the guide says."""
    root = tmp_path / "project"
    root.mkdir()
    git(root, "init", "-q", "-b", "main")
    (root / "k.cu").write_text(KERNEL)
    (root / "notes.txt").write_text("nothing to see")
    revision = git(source, "rev-parse", "HEAD").strip()
    hooks = [{"id": "optiml-check"}, {"id": "optiml-quick"}]
    settings = {"repos": [{"repo": str(source), "rev": revision, "hooks": hooks}]}
    (root / ".pre-commit-config.yaml").write_text(json.dumps(settings))  # JSON is YAML
    git(root, "add", ".")
    git(root, "commit", "-q", "-m", "one")
    return root


@pytest.mark.slow
def test_check_through_pre_commit(project: Path, environment: Mapping[str, str]) -> None:
    (project / "k.cu").write_text(KERNEL.replace("2.0f * x[i]", "2.0f * z[i]"))
    git(project, "add", ".")
    done = _run("optiml-check", project, environment)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "k.cu:8: scale: error: " in done.stdout
    (project / "k.cu").write_text(KERNEL.replace("2.0f * x[i]", "3.0f * x[i]"))
    git(project, "add", ".")
    done = _run("optiml-check", project, environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Passed" in done.stdout


@pytest.mark.slow
def test_all_files_of_a_clean_tree_are_checked(project: Path, environment: Mapping[str, str]) -> None:
    """As CI runs it: nothing differed from HEAD, so nothing was compiled, and it said Passed."""
    (project / "k.cu").write_text(KERNEL.replace("2.0f * x[i]", "2.0f * z[i]"))
    git(project, "add", ".")
    git(project, "commit", "-q", "-m", "broken")
    done = _run("optiml-check", project, environment, "--all-files")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "k.cu:8: scale: error: " in done.stdout


def test_files_that_are_no_cuda_are_skipped(project: Path, environment: Mapping[str, str]) -> None:
    (project / "notes.txt").write_text("changed")
    git(project, "add", ".")
    done = _run("optiml-check", project, environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Skipped" in done.stdout


def test_quick_through_pre_commit(project: Path, environment: Mapping[str, str]) -> None:
    (project / "k.cu").write_text(KERNEL.replace("+= 1.0f", "+= 2.0f"))
    git(project, "add", ".")
    done = _run("optiml-quick", project, environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "no spec, so not searched: other" in done.stdout


def test_the_manifest_is_one() -> None:
    if not PRE_COMMIT.exists():
        pytest.skip("pre-commit is not installed")
    command = [str(PRE_COMMIT), "validate-manifest", str(ROOT / ".pre-commit-hooks.yaml")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
