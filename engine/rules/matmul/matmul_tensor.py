"""The product of two tiles on tensor cores (`engine/rules/idioms/tensor_cores.py`)."""

from collections.abc import Callable

from engine.rewrite import Namer, template
from engine.rules.idioms.tensor_cores import INDEPENDENT

# Elements behind each row of a tile, so that the 32 elements that a warp reads at once are in banks of their own: eight rows of four
# neighbours each where the tile's rows run along k, else four rows of eight.
PAD_ALONG_K, PAD_ACROSS = 4, 8


def place(across: int, name: Namer, unit: str) -> list[str]:
    """The warp's first row and column in the tile, with `across` warps side by side, and the thread's group of four in the warp."""
    return _section("place", name, unit, across=str(across))


def sums(name: Namer, unit: str) -> list[str]:
    """The thread's part of the warp's sums, all zero."""
    return _section("sums", name, unit)


def multiply(down: int, across: int, element: Callable[[str, str, str], str], name: Namer, unit: str) -> list[str]:
    """Adds the product of two tiles for a warp with `down` x `across` sums of 16 x 8.

    `element` gives C text of the element of tile "a" or "b" at an outer place and a depth.
    """
    i, j, e, k, p = (name(n) for n in ("i", "j", "e", "k_in", "p"))
    group, member = name("group"), name("member")
    a = element("a", f"{name('warp_row')} + ({i} + {p}) * 16 + {group} + {e} % 2 * 8", f"{k} + {member} + {e} / 2 * 4")
    b = element("b", f"{name('warp_col')} + {j} * 8 + {group}", f"{k} + {member} + {e} * 4")
    together = next(n for n in (4, 2, 1) if down % n == 0 and (n * across <= INDEPENDENT or n == 1))
    return _section("multiply", name, unit, a_element=a, b_element=b, down=str(together))


def multiply_pairs(element: Callable[[str, str, str], str], apart: frozenset[str], name: Namer, unit: str) -> list[str]:
    """As `multiply`, of tiles of 16-bit elements; in the tiles of `apart` neighbours along k are not next to each other."""
    i, j, e, k = (name(n) for n in ("i", "j", "e", "k_in"))
    group, member = name("group"), name("member")

    def pair(which: str, outer: str, depth: str) -> str:
        if which not in apart:
            return f"*reinterpret_cast<const unsigned*>(&{element(which, outer, depth)})"
        return f"{name('pair')}({element(which, outer, depth)}, {element(which, outer, f'{depth} + 1')})"

    a = pair("a", f"{name('warp_row')} + {i} * 16 + {group} + {e} % 2 * 8", f"{k} + {member} * 2 + {e} / 2 * 8")
    b = pair("b", f"{name('warp_col')} + {j} * 8 + {group}", f"{k} + {member} * 2 + {e} * 8")
    return _section("multiply_pairs", name, unit, a_pair=a, b_pair=b)


def handed_on(threads: int, across: int) -> int:
    """The bytes that `handing_on` takes of a tile, for `across` results of a thread in a row of its warp's."""
    return 4 * threads * (2 * across + 2)


def handing_on(tile: str, buffered: bool, name: Namer, unit: str) -> list[str]:
    """Statements after which warps may hand on results where a tile was."""
    return _section("handing_on", name, unit, tile=tile, first="[0]" if buffered else "")


def finite(name: Namer, unit: str) -> list[str]:
    """Whether all of the thread's sums are numbers and finite, as `finite`."""
    return _section("finite", name, unit)


def results(name: Namer, unit: str) -> tuple[list[str], str, str, str]:
    """The opening of the two loops over the warp's results, and C text of the row, the column and the value of the thread's own one."""
    at, per = name("at"), name("warp_n")
    row = f"{name('warp_row')} + {name('i')} * 8 + {at} / {per}"
    value = f"{name('out_tile')}[{name('tid')} / 32][{at} / {per}][{at} % {per}]"
    return _section("results", name, unit), row, f"{name('warp_col')} + {at} % {per}", value


def _section(section: str, name: Namer, unit: str, **values: str) -> list[str]:
    snippet = template("engine.rules", "tensor_product").sections()[section]
    written = snippet.render(**{hole: values[hole] if hole in values else name(hole) for hole in snippet.holes})
    return written.removesuffix("\n").replace("    ", unit).split("\n")


__all__ = [
    "PAD_ACROSS", "PAD_ALONG_K", "finite", "handed_on", "handing_on", "multiply", "multiply_pairs", "place", "results", "sums",
]  # fmt: skip
