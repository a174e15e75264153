"""Packages of npm that tests read: fetched once into the cache, with a reason to skip where that cannot be."""

from __future__ import annotations

import json
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from engine.settings.folders import cache_folder
from tests.locked import locked


def package(name: str, version: str) -> Path:
    """The folder of a package. Skips the test where there is no npm, or it cannot fetch the package."""
    home = cache_folder() / "test-npm" / f"{name.replace('/', '-')}-{version}"
    with locked(home):
        return _package(name, version, home)


def _package(name: str, version: str, home: Path) -> Path:
    folder = home / "node_modules" / name
    if not (home / "ready").exists():
        npm = shutil.which("npm")
        if npm is None:
            pytest.skip(f"{name} comes through npm, and there is no npm")
        home.mkdir(parents=True, exist_ok=True)
        options = ["--silent", "--no-audit", "--no-fund", "--ignore-scripts", "--omit=optional", "--prefix", str(home)]
        done = subprocess.run(
            [npm, "install", *options, f"{name}@{version}"], capture_output=True, text=True, timeout=240
        )
        if done.returncode != 0:
            pytest.skip(f"npm cannot fetch {name}@{version}: {done.stderr[-200:]}")
        (home / "ready").touch()
    return folder


def member(name: str, version: str, path: str) -> Path:
    """One file of a package, without the packages that it depends on. Skips the test as `package` does."""
    home = cache_folder() / "test-npm" / f"{name.replace('/', '-')}-{version}-files"
    with locked(home):
        return _member(name, version, path, home)


def _member(name: str, version: str, path: str, home: Path) -> Path:
    target = home / path
    if not target.is_file():
        npm = shutil.which("npm")
        if npm is None:
            pytest.skip(f"{name} comes through npm, and there is no npm")
        home.mkdir(parents=True, exist_ok=True)
        command = [npm, "pack", "--silent", "--json", "--pack-destination", str(home), f"{name}@{version}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=240)
        if done.returncode != 0:
            pytest.skip(f"npm cannot fetch {name}@{version}: {done.stderr[-200:]}")
        archive = home / json.loads(done.stdout)[0]["filename"].replace("@", "").replace("/", "-")
        with tarfile.open(archive) as packed:
            found = packed.extractfile(f"package/{path}")
            assert found is not None
            target.parent.mkdir(parents=True, exist_ok=True)
            part = target.with_suffix(".part")
            part.write_bytes(found.read())
            part.replace(target)
        archive.unlink()
    return target
