"""Strides among a kernel's whole numbers: of memory without gaps, where the names say which dimensions they are of."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

_STRIDE = frozenset({"stride", "pitch", "step", "ld"})
_LEADING = re.compile(r"ld[abcd]")
# ggml's: of which tensor, of which dimension, the innermost first. `nb` counts bytes, `s` elements; `ne` are the extents.
_GGML = re.compile(r"(?P<prefix>(?:[a-z]+_)?)(?P<what>nb|s)(?P<of>\d?)(?P<dim>\d)")
_GGML_WORDS = ("ncols", "nrows", "nchannels", "nsamples")  # its other names for extents
EXTENT = re.compile(r"ne(?P<of>\d?)\d(?:_[a-z]+)?")  # ggml's extents, some with the tensor's name behind
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_STORAGE = frozenset({"data", "ptr", "d", "p", "buf", "in", "dev"})  # of a pointer's name: not what it points to
# The dimensions of tensors by the words that people write for them, with those of the sizes that count them.
_DIMENSIONS: Mapping[str, frozenset[str]] = {
    **{each: frozenset({each}) for each in "abcdefgklmopqrxyz"},
    "h": frozenset({"h", "heads", "nheads", "height"}),
    "b": frozenset({"b", "batch", "batches"}),
    "s": frozenset({"s", "seq", "seqlen"}),
    "n": frozenset({"n", "nnz", "tokens"}),
    "t": frozenset({"t", "tokens"}),
    "w": frozenset({"w", "width"}),
    "tok": frozenset({"tok", "toks", "tokens"}),
    "seq": frozenset({"seq", "seqs"}),
    **{
        each: frozenset({each, f"{each}s", f"n{each}", f"n{each}s"})
        for each in ("row", "col", "channel", "sample", "batch", "head", "token", "page", "block", "dim", "plane", "frame")
    },
    "tokens": frozenset({"tokens"}),
    "heads": frozenset({"heads"}),
    "hidden": frozenset({"hidden"}),
}  # fmt: skip
_INNERMOST = frozenset({"d", "dim", "w", "x", "k", "e", "c", "col", "hidden"})  # its elements lie beside each other
# One of the first ones comes first, and one of the others last, where the innermost dimension comes first.
_INNER = frozenset({"row", "col", "channel", "tok", "token", "tokens"})
_OUTER = frozenset({"channel", "sample", "seq", "batch", "head", "heads", "b"})
_FILTERED = frozenset("xyz")  # the strides of a filter or a window as well
_FLOAT = 4  # bytes
_PAIR = 2  # letters of a dimension's name
_COLUMNS = frozenset({"w", "width", "cols", "ncols", "columns", "d", "dim", "dims", "hidden"})  # of a size of rows
_OF_BLOCKS = frozenset({"block", "tile", "warp", "thread", "threads", "chunk", "vec"})  # of a constant of the launch's
_MOST_SIZES = 6  # that a row may be as long as the largest of


@dataclass(frozen=True)
class Numbers:
    """What a kernel is given: its whole numbers in order, fields without what they are of, and those that count something.

    `buffers` are its pointers, by name, with the bytes of an element. `scaling` are numbers that it multiplies something by, as
    strides are. `bytewise`: it counts bytes from some pointer. `constants` are numbers among its template's arguments.
    """

    names: Sequence[str]
    sizes: Sequence[str]
    buffers: Mapping[str, int] = field(default_factory=dict)
    scaling: Collection[str] = ()
    bytewise: bool = False
    constants: Mapping[str, int] = field(default_factory=dict)

    @property
    def item(self) -> int:
        """The bytes of the largest element."""
        return max(self.buffers.values(), default=4)


@dataclass(frozen=True)
class _Stride:
    """`of`: the words for the tensor; `dim`: that for the dimension, "" where it is the only stride of its tensor."""

    name: str
    word: str
    of: tuple[str, ...]
    dim: str


def strides(given: Numbers) -> Mapping[str, str]:
    """The values of those among a kernel's whole numbers that are strides, in elements and over its sizes.

    A family (`stride_b`, `stride_h`, `stride_d`; `stride_row_x`, `stride_channel_x`) is that of a tensor with these dimensions,
    outermost first where their names do not say otherwise. A single stride is as long as a row, by the name of its size, or
    else as the largest size: no two rows overlap then. So is each dimension within another whose size no name says.
    """
    sizes = [*given.sizes]
    ggml = any(map(EXTENT.fullmatch, sizes))
    read = [each for each in (_read(name, given) for name in given.names) if each is not None]
    named = {each.name for each in read}
    counted = [s for s in dict.fromkeys(sizes) if s not in named and not (ggml and _GGML.fullmatch(s))]
    longest = _longest(counted, given.constants)
    found = dict[str, str]()
    families: dict[tuple[str, ...], list[_Stride]] = {}
    for each in read:
        if each.dim:
            families.setdefault(each.of, []).append(each)
        elif longest:
            found[each.name] = _in_bytes(each, longest, given)
    for of, members in families.items():
        own = {each.dim for each in members}
        # `stride_row`, `stride_channel_x`
        shared = [each for each in families.get((), ()) if of and each.dim not in own]
        found |= _of_family([*shared, *members], counted, longest)
    return found | _of_ggml(given, counted)


def _longest(counted: Sequence[str], constants: Mapping[str, int]) -> str:
    """The length of a row: what the template says, else the size that counts columns, or else the largest of all; "" for too many."""
    fixed = [
        str(value) for name, value in constants.items() if (own := {*_words(name)}) & _COLUMNS and not own & _OF_BLOCKS
    ]
    columns = fixed or [size for size in counted if _COLUMNS & {*_words(size)}] or counted
    return _largest(columns) if 0 < len(columns) <= _MOST_SIZES else ""


def _largest(names: Sequence[str]) -> str:
    """The largest of these, as an expression: `max` takes two."""
    return names[0] if len(names) == 1 else f"max({names[0]}, {_largest(names[1:])})"


def _words(name: str) -> list[str]:
    return [word.lower() for word in _WORD.findall(name)]


def _read(name: str, given: Numbers) -> _Stride | None:
    """What a name says of a stride; None where it is that of none."""
    words = _words(name)
    if _LEADING.fullmatch(name.lower()):
        return _Stride(name, "ld", (name[-1].lower(),), "")
    if name.endswith("_s0"):
        return _Stride(name, "stride", tuple(words[:-2]), "")
    where = [at for at, word in enumerate(words) if word in _STRIDE]
    if len(where) != 1:
        return None
    at, word = where[0], words[where[0]]
    before, after = words[:at], words[at + 1 :]
    # A step may be one of a loop, or of time.
    if word == "step" and name not in given.scaling and not _stores(before, given):
        return None
    if word != "stride":
        return _Stride(name, word, tuple(before), "") if not after or after[0].isdigit() else None
    dim = _dimension(before, after, given)
    return _Stride(name, word, tuple(w for w in [*before, *after] if w != dim), dim)


def _dimension(before: list[str], after: list[str], given: Numbers) -> str:
    """The dimension that a stride is of; "" where the words are those of a tensor alone."""
    if len(after) == 1 and _stores(after, given):
        return ""
    words = [w for w in after if w in _DIMENSIONS and len(w) > 1]  # `stride_row_x`: of the rows of `x`
    letters = [w for w in reversed(after) if w in _DIMENSIONS or w.isdigit()]  # `stride_input_n`
    pairs = after if len(after) == 1 and len(after[0]) == _PAIR else []  # `stride_ih`
    others = [w for w in reversed(before) if w in _DIMENSIONS and len(w) > 1] if not after else []  # `head_stride`
    return next(iter([*words, *letters, *pairs, *others]), "")


def _stores(words: Sequence[str], given: Numbers) -> bool:
    """Whether some buffer has these words in its name."""
    wanted = {*words} - _STORAGE
    return bool(wanted) and any(wanted <= {*_words(buffer)} for buffer in given.buffers)


def _in_bytes(stride: _Stride, value: str, given: Numbers) -> str:
    """The value of a single stride, in bytes where the kernel counts these: a pitch may, a stride does not."""
    if stride.word not in ("pitch", "step") or not given.bytewise:
        return value
    own = [item for name, item in given.buffers.items() if {*stride.of} - _STORAGE <= {*_words(name)} and stride.of]
    item = max(own, default=given.item)
    return f"{value}*{item}" if item > 1 else value


def _of_family(members: Sequence[_Stride], counted: Sequence[str], longest: str) -> dict[str, str]:
    """The strides of one tensor, from the innermost dimension outwards; none where one within another has no size."""
    dims = [each.dim for each in members]
    if {*dims} <= _FILTERED and not all(_size(each.of, each.dim, counted) for each in members):
        return {}
    reverse = dims[0] in _INNER and dims[-1] in _OUTER
    inwards = members if reverse else members[::-1]
    if all(dim.isdigit() for dim in dims):
        inwards = sorted(members, key=lambda each: -int(each.dim))
    elements = len(members) > 1 and not reverse and inwards[0].dim in _INNERMOST
    found, value = dict[str, str](), "1" if elements else longest
    for within, each in zip([None, *inwards], inwards, strict=False):
        if within is not None and value:
            size = _size(each.of, within.dim, counted) or longest
            value = size if value == "1" else f"{size}*{value}" if size else ""
        found[each.name] = value
    return found if all(found.values()) else {}


def _size(of: Sequence[str], dimension: str, counted: Sequence[str]) -> str:
    """The size of a dimension by its letter or word; the larger one of several; "" where no name says it."""
    if dimension in counted:
        return dimension
    wanted = _DIMENSIONS.get(dimension, frozenset({dimension}))
    fitting = [name for name in counted if wanted & {*_words(name)}]
    own = [name for name in fitting if any(_is_of(tensor, word) for tensor in of for word in _words(name))] or fitting
    return _largest(own) if own else ""


def _is_of(tensor: str, word: str) -> bool:
    """Whether a word of a size names a tensor, or two with it: `k` in `num_kv_heads`."""
    return tensor == word or (len(tensor) == 1 and len(word) == _PAIR and word.startswith(tensor))


def _of_ggml(given: Numbers, counted: Sequence[str]) -> dict[str, str]:
    """Those by ggml's names: each is what all dimensions within take, of the same tensor or else of another one."""
    found: dict[str, str] = {}
    own = {name.partition("_")[0]: name for name in counted if EXTENT.fullmatch(name)}
    extents = {match["of"]: None for match in map(EXTENT.fullmatch, counted) if match}
    by_words = not extents and {*_GGML_WORDS[:2]} <= {*counted}
    if by_words:
        prefixes = {name[: -len(word)] for name in counted for word in _GGML_WORDS if name.endswith(word)}
        own = {f"{p}ne{at}": p + word for p in prefixes for at, word in enumerate(_GGML_WORDS) if p + word in counted}
        extents = {"": None}
    for name in given.names:  # the result's extents, where the host launches as many blocks as the source has rows
        source = f"ne0{name[2:]}"
        if re.fullmatch(r"ne\d", name) and source in counted and source not in given.names:
            found[name] = source
    for match in filter(None, map(_GGML.fullmatch, given.names)):
        doubted = by_words or match["of"] not in extents
        if doubted and ((not match["of"] and match[0] not in given.scaling) or not extents):
            continue  # `s1` is many things elsewhere
        tensors = [t for t in (match["of"], *extents) if t in extents]
        within = [
            next((own[n] for t in tensors for p in (match["prefix"], "") if (n := f"{p}ne{t}{dim}") in own), "")
            for dim in range(int(match["dim"]))
        ]
        factors = [str(given.item if given.item > 1 else _FLOAT)] if match["what"] == "nb" else []  # through `char*`
        if all(within):
            found[match[0]] = "*".join([*factors, *within]) or "1"
    return found
