"""What an installation brings: its parts, its pins, its size."""

from __future__ import annotations

import doctest
import importlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zlib
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatch
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
DOWNLOAD_LIMIT = 150_000_000  # bytes: what the hook's environment may download
# Heavy parts that only an extra may bring.
NOT_IN_BASE = {"matplotlib", "cupy-cuda13x", "nvidia-cuda-nvcc", "nvidia-nvvm", "ziglang", "torch"}


def _name(requirement: str) -> str:
    match = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert match, requirement
    return re.sub(r"[-_.]+", "-", match[0]).lower()


def _wanted(requirement: str) -> bool:
    """Whether a base installation on this machine takes it: no extra, and no marker for another system."""
    marker = requirement.partition(";")[2]
    if "extra" in marker:
        return False
    other_platform = re.search(r"(?:sys_platform|platform_system)\s*==\s*['\"](\w+)['\"]", marker)
    return not (other_platform and other_platform[1].lower() not in (sys.platform, "linux"))


def _base_closure() -> set[str]:
    found: set[str] = set()
    queue = [_name(r) for r in PROJECT["project"]["dependencies"] if _wanted(r)]
    while queue:
        name = queue.pop()
        if name in found:
            continue
        try:
            requires = distribution(name).requires or []
        except PackageNotFoundError:
            continue  # behind a marker that does not hold here
        found.add(name)
        queue += [_name(r) for r in requires if _wanted(r)]
    return found


def test_base_installation_brings_no_heavy_part() -> None:
    closure = _base_closure()
    assert closure >= {"numpy", "nvidia-cuda-nvrtc", "tree-sitter-cuda", "jinja2", "openai"}
    assert not closure & NOT_IN_BASE


@pytest.mark.slow
def test_base_installation_downloads_at_most_150_mb() -> None:
    """A wheel is a zip of deflated files: deflating what is installed gives its size to within a few percent.

    Of large files one part in four is looked at, which changes the sum by less than one percent and saves nine seconds.
    """
    files: list[Path] = []
    for name in _base_closure():
        for file in distribution(name).files or []:
            path = Path(str(file.locate()))
            if "__pycache__" not in file.parts and path.is_file():
                files.append(path)

    def deflated(path: Path) -> int:
        engine = zlib.compressobj(6, zlib.DEFLATED, -15)
        whole, seen, size = path.stat().st_size, 0, 0
        with path.open("rb") as stream:
            for start in range(0, whole, 4 << 20 if whole > 8 << 20 else 1 << 20):
                stream.seek(start)
                chunk = stream.read(1 << 20)
                seen += len(chunk)
                size += len(engine.compress(chunk))
        return (size + len(engine.flush())) * whole // max(seen, 1)

    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        total = sum(pool.map(deflated, files))
    assert 100_000_000 < total <= DOWNLOAD_LIMIT, f"{total / 1e6:.1f} MB"


def test_cuda_packages_share_one_minor_version() -> None:
    """A cubin of a newer NVRTC does not load on an older driver, so nothing may drift ahead of the others."""
    extras = PROJECT["project"]["optional-dependencies"]
    pins = [r for r in [*PROJECT["project"]["dependencies"], *extras["nvcc"]] if _name(r).startswith("nvidia-")]
    versions = {_name(r): re.search(r"==(\d+\.\d+)\.\*", r) for r in pins if _name(r) != "nvidia-ml-py"}
    # Readers of machine code take older cubins; they exist on the index from 13.2 on.
    readers = {"nvidia-cuda-nvdisasm", "nvidia-cuda-cuobjdump"}
    assert {m[1] if m else None for name, m in versions.items() if name not in readers} == {"13.0"}


def test_every_folder_with_modules_is_a_package() -> None:
    """A folder without `__init__.py` works in a checkout and is missing from the wheel."""
    tops = [pattern.rstrip("*") for pattern in PROJECT["tool"]["setuptools"]["packages"]["find"]["include"]]
    folders = {p.parent for top in tops for p in (ROOT / top).rglob("*.py")}
    assert folders
    assert [str(f.relative_to(ROOT)) for f in folders if not (f / "__init__.py").is_file()] == []


def test_every_data_file_is_in_the_wheel() -> None:
    data: dict[str, list[str]] = PROJECT["tool"]["setuptools"]["package-data"]
    lost = []
    for path in (ROOT / "engine").rglob("*"):
        if path.is_dir() or path.suffix in (".py", ".pyc") or "__pycache__" in path.parts:
            continue
        covered = False
        for package, patterns in data.items():
            folder = ROOT / package.replace(".", "/")
            if path.is_relative_to(folder):
                inside = path.relative_to(folder).as_posix()
                # `*` of a pattern does not cross a folder, `**` does.
                covered |= any(fnmatch(inside, p) and ("**" in p or "/" not in inside) for p in patterns)
        if not covered:
            lost.append(str(path.relative_to(ROOT)))
    assert lost == []


@pytest.mark.parametrize("target", PROJECT["project"]["scripts"].values())
def test_console_script_exists(target: str) -> None:
    module, _, attribute = target.partition(":")
    assert callable(getattr(importlib.import_module(module), attribute))


def test_licence_is_shipped() -> None:
    assert PROJECT["project"]["license"] == "Apache-2.0"
    text = (ROOT / "LICENSE").read_text()
    assert "Version 2.0, January 2004" in text
    assert "END OF TERMS AND CONDITIONS" in text


def test_every_hint_names_our_own_distribution() -> None:
    """`optiml` on the package index is somebody else's project: a hint that names it installs a stranger's package."""
    ours = PROJECT["project"]["name"]
    assert ours == "optiml-cuda"
    extras = "|".join(PROJECT["project"]["optional-dependencies"])
    wrong = []
    for folder in ("engine", "bot", "action", "hooks", "optiml_cuda", "docs", "benchmarks", "examples"):
        for path in (ROOT / folder).rglob("*"):
            if path.suffix not in (".py", ".md", ".yml", ".jinja", ".toml"):
                continue
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
                named = re.findall(rf"([\w.-]+)\[(?:{extras})[\],]", line) + re.findall(
                    r"pip install '?(optiml[\w-]*)", line
                )
                wrong += [
                    f"{path.relative_to(ROOT)}:{number}" for name in named if name.startswith("opti") and name != ours
                ]
    assert wrong == []


def test_the_public_package_is_documented_by_what_runs() -> None:
    import optiml_cuda

    done = doctest.testmod(optiml_cuda)
    assert (done.failed, done.attempted >= 4) == (0, True)
    for name in optiml_cuda.__all__:
        assert getattr(optiml_cuda, name).__doc__, name
    with pytest.raises(AttributeError, match="no attribute 'optimise'"):
        _ = optiml_cuda.optimise


@pytest.mark.parametrize("command", ["optiml", "optiml-check", "optiml-quick", "optiml-action"])
@pytest.mark.parametrize("where", ["working folder", "PYTHONPATH"])
def test_a_module_of_our_packages_name_does_not_stand_in_our_way(tmp_path: Path, command: str, where: str) -> None:
    for name in ("engine", "bot", "action", "hooks"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('the wrong module')\n")
    scripts = PROJECT["project"]["scripts"]
    module, _, function = scripts[command].partition(":")
    path = [str(ROOT)] if where == "working folder" else [str(tmp_path), str(ROOT)]
    argument = "--version" if command == "optiml" else "--help"
    code = (
        f"import sys; from {module} import {function}; sys.argv = [{command!r}, {argument!r}]; sys.exit({function}())"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path)}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert "wrong module" not in done.stdout + done.stderr


def test_the_public_package_costs_nothing_to_import() -> None:
    code = "import sys; import optiml_cuda; print([m for m in sys.modules if m.partition('.')[0] in ('engine', 'numpy', 'bot')])"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "[]"


def test_the_archives_hold_the_packages_and_nothing_else(tmp_path: Path) -> None:
    """Built from the tracked files by this environment's setuptools; `make release-check` also uses the wheel."""
    uv = Path(sys.executable).with_name("uv")
    if not uv.exists() or int(version("setuptools").partition(".")[0]) < 77:
        pytest.skip("uv or a new enough setuptools is not installed")
    specification = importlib.util.spec_from_file_location("release_check", ROOT / ".ci" / "release_check.py")
    assert specification is not None
    assert specification.loader is not None
    check = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(check)
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for path in listed.splitlines():
        if not path.startswith(("benchmarks/", "docs/")) and (ROOT / path).is_file():
            target = tmp_path / "source" / path
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / path, target)
    (tmp_path / "source" / "engine" / "stray.py").write_text("")
    project = PROJECT["project"]["version"]
    archives = check.build(tmp_path / "dist", project, "--no-build-isolation", source=tmp_path / "source")
    assert check.contents(*archives) == ["in the wheel, and not in the repository: engine/stray.py"]
