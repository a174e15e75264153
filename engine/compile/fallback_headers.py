"""Headers of our own for libraries that NVRTC's packages lack: used on the CPU, and by a device compiler where no toolkit has them.

They offer the library's names, layouts and results, not its machine code: times predicted with them are those of ours.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path

from engine.compile.toolkit import include_folders, nvidia_folders

FALLBACK = Path(__file__).parent / "fallback_include"
_CURAND = "curand_kernel.h"
_INCLUDED = re.compile(rb'^[ \t]*#[ \t]*include[ \t]*[<"]curand\w*\.h[>"]', re.M)


def library_folders() -> tuple[Path, ...]:
    """Header folders to search after CUDA's own: where a toolkit or package has cuRAND, else ours."""
    there = include_folders()
    roots = [
        Path(root, "include") for root in (os.environ.get("CUDA_HOME", ""), "/usr/local/cuda") if os.path.isabs(root)
    ]
    others = [*(folder / "include" for folder in nvidia_folders("curand")), *roots]
    if any((folder / _CURAND).is_file() for folder in there):
        return ()
    return (next((folder for folder in others if (folder / _CURAND).is_file()), FALLBACK),)


def fallbacks_of(files: Mapping[str, bytes]) -> tuple[tuple[str, bytes], ...]:
    """(path, text) of those of ours that declare what the files of a program may name."""
    if any(_INCLUDED.search(data) for path, data in files.items() if not path.endswith(".toml")):
        return ((_CURAND, (FALLBACK / _CURAND).read_bytes()),)
    return ()
