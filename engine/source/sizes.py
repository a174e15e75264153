"""What expressions and shared arrays of a file come to where named constants have other values than its text gives them."""

from __future__ import annotations

import re
from collections.abc import Mapping

from engine.arith import ArithmeticError_, evaluate_int
from engine.errors import OptimlError
from engine.source.constants import integers, words
from engine.source.model import Kernel, Unit
from engine.spec.dtypes import parse_dtype

_QUALIFIERS = re.compile(r"\b(?:const|volatile|unsigned(?= int\b))\b")


def value_at(unit: Unit, text: str, values: Mapping[str, int]) -> int | None:
    """The value of an integer expression over `values`, and over constants of the file that depend on them; None where it has none."""
    try:
        return evaluate_int(text, integers(unit, words(text), values))
    except ArithmeticError_:
        return None


def shared_bytes(unit: Unit, kernel: Kernel, values: Mapping[str, int]) -> int | None:
    """The static shared memory of a kernel in bytes; None where its declarations are no plain arithmetic."""
    total = 0
    for array in kernel.shared:
        if array.dynamic:
            continue
        try:
            count = parse_dtype(_QUALIFIERS.sub("", array.type).strip()).itemsize
        except OptimlError:
            return None
        for extent in array.extents:
            found = value_at(unit, extent, values)
            if found is None:
                return None
            count *= found
        total += count
    return total
