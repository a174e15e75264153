"""Which `#error` lines can be judged with the device half of a file alone, and which condition is an include guard."""

import re
from collections.abc import Callable, Collection, Sequence

from engine.cuda.device_headers import constant
from engine.cuda.items import Item

_NAME = re.compile(r"(?<!\w)[A-Za-z_]\w*")
# What NVRTC, nvcc and clang all say of themselves.
_PREDEFINED = frozenset({
    "__CUDA_ARCH__", "__CUDACC__", "__CUDACC_VER_MAJOR__", "__CUDACC_VER_MINOR__", "__cplusplus", "defined", "true", "false",
})  # fmt: skip
# Headers of the standard libraries and of CUDA: they define reserved names, limits, and names of their own alone.
_STANDARD = re.compile(
    r"[a-z_0-9]+"  # C++ has no other header without an ending
    r"|(?:assert|complex|ctype|errno|fenv|float|inttypes|iso646|limits|locale|malloc|math|memory|setjmp|signal|stdalign|stdarg"
    r"|stdbool|stddef|stdint|stdio|stdlib|string|strings|time|unistd|wchar)\.h|sys/\w+\.h"
    r"|(?:cuda|curand|cublas|cufft|cusparse|cusolver|nvrtc|nvtx|nvToolsExt|vector_|device_|math_|driver_|channel_|texture_"
    r"|surface_|sm_)\w*\.h(?:pp)?"
    r"|cuComplex\.h|mma\.h|cooperative_groups(?:\.h|/.*)|(?:cub|thrust|cuda|nv|nvtx3)/.*"
)
_THEIRS = re.compile(
    r"_\w*|(?:CUDA|CUDART|CUDNN|CUBLAS|CUFFT|CUSPARSE|CUSOLVER|CURAND|CUB|CCCL|THRUST|NCCL|NVTX|NV|WIN)(?:\d*|_\w*|RT\w*)"
    r"|linux|unix|NDEBUG|NULL|EOF|BUFSIZ|RAND_MAX|\w+_MAX|\w+_MIN|PRI\w+|SCN\w+|CLOCKS_PER_SEC"
)


def is_standard(header: str) -> bool:
    """Whether a header is of a standard library or of CUDA: what it defines is known, or not used in device code."""
    return _STANDARD.fullmatch(header) is not None


def compilers_own(name: str) -> bool:
    """Whether a macro's name belongs to a compiler, CUDA or a standard library: its value is theirs to say."""
    return name in _PREDEFINED or _THEIRS.fullmatch(name) is not None or constant(name)


class Conditions:
    """Follows the conditions around a place of the text, in the order in which a preprocessor meets them.

    A branch hangs on the conditions of the branches before it, too.
    """

    def __init__(self, macros: Collection[str], expand: Callable[[set[str]], set[str]]) -> None:
        self._macros, self._expand = macros, expand
        self._around: list[set[str]] = []

    def see(self, word: str, rest: str) -> None:
        """Take in a directive `#word rest`."""
        if word in ("if", "ifdef", "ifndef"):
            self._around.append(set(_NAME.findall(rest)))
        elif word == "endif" and self._around:
            self._around.pop()
        elif word.startswith("el") and self._around:
            self._around[-1].update(_NAME.findall(rest))

    def judged(self, headers: Collection[str]) -> bool:
        """Whether a device compiler decides here as the whole file's compiler would, though `headers` are left out.

        It does not where a name may come from a header of a stranger, or is one of the host's compiler or libraries.
        """
        names = self._expand({name for names in self._around for name in names}) - _PREDEFINED - set(self._macros)
        if any(_THEIRS.fullmatch(name) or constant(name) for name in names):
            return False
        return not names or all(is_standard(header) for header in headers)


def is_guarded(items: Sequence[Item]) -> int:
    """1 where an include guard stands around the whole file, else 0."""
    if (
        len(items) < 3
        or items[0].word not in ("ifndef", "if")
        or items[1].word != "define"
        or items[-1].word != "endif"
    ):
        return 0
    name = items[1].rest.split("(")[0].split()
    around = all(item.conditional >= 1 for item in items[1:-1])
    return int(bool(name) and name[0] in _NAME.findall(items[0].rest) and around)
