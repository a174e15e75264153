"""Where a result comes from."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import sys
from typing import Any


def provenance(command: tuple[str, ...]) -> dict[str, Any]:
    """Command, date, versions and machine."""
    versions = {"optiml": _version("optiml-cuda"), "python": platform.python_version()}
    for package in (
        "nvidia-cuda-nvrtc",
        "nvidia-cuda-nvrtc-cu12",
        "cupy-cuda13x",
        "cupy-cuda12x",
        "numpy",
        "tree-sitter-cuda",
    ):
        found = _version(package)
        if found:
            versions[package] = found
    return {
        "command": list(command),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "versions": versions,
        "system": platform.platform(),
        "cpus": os.cpu_count(),
        "python_implementation": sys.implementation.name,
    }


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""
