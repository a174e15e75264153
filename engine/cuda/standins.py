"""Small headers of our own that stand in for those of well-known libraries which a repository uses and does not hold.

Each declares the few classes and functions that device code takes from the library, with the library's names, layout and
meaning. A header that the repository holds itself always counts first.
"""

import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

_FOLDER = Path(__file__).parent / "standins"
PREFIX = "optiml-standins/"  # of their paths: a folder that no repository holds
# What an `#include` names -> the header that stands in for it.
_OF = (
    (re.compile(r"opencv2/opencv_modules\.hpp"), "opencv_modules.cuh"),
    (re.compile(r"opencv2/(?:cudev|core/cuda)(?:\.hpp|/.*)|opencv2/core/cuda_(?:types|devptrs)\.hpp"), "opencv.cuh"),
    (re.compile(r"torch/headeronly/core/TensorAccessor\.h|ATen/core/TensorAccessor\.h"), "torch_accessor.cuh"),
    (re.compile(r"(?:torch/extension|torch/torch|torch/types|torch/all|ATen/ATen)\.h"), "torch_accessor.cuh"),
    (re.compile(r"ATen/cuda/(?:CUDAGeneratorImpl\.h|PhiloxCudaState\.h|detail/UnpackRaw\.cuh)"), "torch_philox.cuh"),
    (re.compile(r"ATen/CUDAGeneratorImpl\.h"), "torch_philox.cuh"),
    (re.compile(r"cutlass/.*"), "cutlass.cuh"),
)
_INCLUDE = re.compile(rb'^[ \t]*#[ \t]*include[ \t]*[<"]([^>"\r\n]+)[>"]', re.M)


def standin(name: str) -> tuple[str, bytes] | None:
    """(path, text) of what stands in for `#include <name>`; None where nothing does."""
    for pattern, header in _OF:
        if pattern.fullmatch(name):
            return PREFIX + header, _read(header)
    return None


def is_standin(path: str) -> bool:
    """Whether a path is that of a stand-in: it is on no disk, and nothing edits it."""
    return path.startswith(PREFIX)


def standins_of(files: Mapping[str, bytes]) -> Iterator[tuple[str, bytes]]:
    """Those that the files of a program include, each once, but for headers that are among the files."""
    seen: set[str] = set()
    for path, data in files.items():
        for match in _INCLUDE.finditer(data) if not path.endswith(".toml") else ():
            name = match[1].decode("utf-8", "replace")
            found = standin(name)
            if found is not None and found[0] not in seen and not any(p.endswith(name) for p in files):
                seen.add(found[0])
                yield found


@cache
def names_of(header: str) -> frozenset[str]:
    """The words of a stand-in: what code may take from its library."""
    return frozenset(re.findall(r"[A-Za-z_]\w*", _read(header).decode()))


@cache
def _read(header: str) -> bytes:
    return (_FOLDER / header).read_bytes()
