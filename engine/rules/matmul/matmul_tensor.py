"""The product of two tiles on tensor cores, in single precision: every factor is the sum of two that TF32 can hold.

Source: Ootomo and Yokota, "Recovering Single Precision Accuracy from Tensor Cores While Surpassing the FP32 Theoretical Peak
Performance" (2022): without the product of the two rests, sums over the tiles rounded outside of the tensor cores.
"""

from __future__ import annotations

from collections.abc import Callable

from engine.rewrite.snippet_template import template

FIRST_ARCH = 80  # TF32
HEADER = "mma.h"
PAD = 8  # elements behind each row of a tile: the eight rows and four columns that a warp reads at once are in banks of their own
_SUM = 16  # rows and columns of one warp-wide sum
Names = Callable[[str], str]


def place(across: int, name: Names) -> list[str]:
    """The warp's first row and column in the tile, with `across` warps side by side."""
    warp = f"{name('tid')} / 32"
    return [
        f"const int {name('warp_row')} = {warp} / {across} * {name('warp_m')};",
        f"const int {name('warp_col')} = {warp} % {across} * {name('warp_n')};",
    ]


def sums(name: Names, unit: str) -> list[str]:
    """The warp's sums, all zero."""
    return _section("sums", name, unit)


def multiply(buffer: str, name: Names, unit: str) -> list[str]:
    """Adds the product of the two tiles in `buffer` to the sums."""
    return _section("multiply", name, unit, buffer=buffer)


def results(each: str, buffered: bool, name: Names, unit: str) -> list[str]:
    """The statements `each` for every element of the sums that is the lane's: of `row`, `column`, as `value`."""
    return _section("results", name, unit, each=each, first="[0]" if buffered else "")


def result_place(which: str, name: Names) -> str:
    """The row ("m") or column ("n") in the block's tile of the lane's result that `results` is at."""
    lane = f"{name('tid')} % {_SUM}" if which == "n" else f"{name('e')} * 2 + {name('tid')} % 32 / {_SUM}"
    first, index = (name("warp_row"), name("i")) if which == "m" else (name("warp_col"), name("j"))
    return f"{first} + {index} * {_SUM} + {lane}"


def result(name: Names) -> str:
    """The value of that result."""
    return f"{name('patch')}[{name('e')} * 32 + {name('tid')} % 32]"


def split(name: Names) -> str:
    """The device function that the product calls."""
    return "".join(line + "\n" for line in _section("split", name, "    "))


def _section(section: str, name: Names, unit: str, **values: str) -> list[str]:
    snippet = template("engine.rules", "tensor_product").sections()[section]
    written = snippet.render(**{hole: values[hole] if hole in values else name(hole) for hole in snippet.holes})
    return written.removesuffix("\n").replace("    ", unit).split("\n")
