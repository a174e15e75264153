"""What an installation brings: its parts, its pins, its size."""

from __future__ import annotations

import importlib
import os
import re
import sys
import tomllib
import zlib
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatch
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
DOWNLOAD_LIMIT = 150_000_000  # bytes: what the hook's environment may download
# Heavy parts that only an extra may bring.
NOT_IN_BASE = {"cupy-cuda13x", "nvidia-cuda-nvcc", "nvidia-nvvm", "ziglang", "torch"}


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
    assert closure >= {"numpy", "cuda-bindings", "nvidia-cuda-nvrtc", "tree-sitter-cuda"}
    assert not closure & NOT_IN_BASE


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
