"""Whether the project's own compiler would refuse what was refused here: an error that it may not have is a note."""

from __future__ import annotations

import re
from collections.abc import Sequence

from engine.cuda.conditions import is_standard
from engine.cuda.slice import DeviceSlice
from engine.errors import CompileError, OptimlError
from engine.settings.suffixes import HEADERS
from hooks.targets import Target

_WORD = re.compile(r"(?<![\w:])[A-Za-z_]\w*", re.ASCII)
_BUILT_IN = frozenset(
    f"{sign}int{bits}_t" for sign in ("", "u") for bits in (8, 16, 32, 64)
) | frozenset({
    "float", "double", "half", "__half", "half2", "__half2", "nv_bfloat16", "__nv_bfloat16", "bool", "char", "short", "int", "long",
    "unsigned", "signed", "true", "false", "const", "size_t",
})  # fmt: skip
# At the start of a line: a declaration inside a macro or a function is none at file scope.
_DECLARES = (
    r"(?m)^[ \t]*(?:using {0}\b|typedef\b.*\b{0}\s*;|(?:struct|class|union|enum)(?: class)? {0}\b|#[ \t]*define[ \t]+{0}\b"
    r"|(?:(?:static|inline|__device__)[ \t]+)*(?:constexpr|const)\b[^;{{}}\n]*\b{0}\b|namespace {0}\b)"
)


def uncertain(target: Target, error: OptimlError, sliced: DeviceSlice | None, instances: Sequence[str]) -> str:
    """Why an error of a target may be none in the project's own build; "" where it would be one there too.

    `sliced` is what was compiled, None where it could not be made; `instances` are the names it was compiled by.
    """
    if not isinstance(error, CompileError) or sliced is None:
        return "" if target.spec else "it could not be compiled by itself"
    strange = [name for name in sliced.system if not is_standard(name)]
    if strange:
        return f"<{strange[0][:100]}> is not in the repository"
    if target.path.endswith(HEADERS) and not target.compile.unit:
        return "no file that includes this header was found"
    if target.spec is None:
        if error.what == f'identifier "{target.kernel.rpartition("::")[2]}" is undefined':
            return "it is behind a preprocessor condition that is false here"
        for instance in instances:
            for word in _WORD.findall(instance.partition("<")[2]):
                if word not in _BUILT_IN and not re.search(_DECLARES.format(word), sliced.text):
                    return f"'{word}' of its launch is not defined at file scope"
    return ""
