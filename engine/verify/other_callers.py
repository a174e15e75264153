"""Check cases for other callers than the spec has: other scalars, other sizes of blocks, one buffer for an input and an output.

A spec passes one value for each of these in all of its cases, so a kernel into which that value is written passes every check of it. The
original decides which of the cases count: it must be without a finding there, and where a case changes nothing that results hang on, with
the results that it has without the change.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass

from engine.spec.data import bytes_needed
from engine.spec.dtypes import parse_dtype
from engine.spec.kernel_spec import Argument, Case, KernelSpec
from engine.spec.undeclared import LONG_ROWS, ONE_SEGMENT, long_rows, long_segment

_WARP, _MOST_THREADS = 32, 1024
_LARGEST = 4096  # of a number from a text: larger ones are masks and moduli. Ours
_MOST_ZEROS, _MOST_WHOLE, _MOST_LAUNCHED = 4, 7, 3  # cases of one kind; each costs a confirmation some runs. Ours
_MOST_IN_PLACE = 4  # pairs of an input and an output that no visible caller passes one buffer for. Ours
_MOST_NULL = 4  # inputs that are left out, one at a time. Ours
_MOST_EXCHANGED = 16  # cases in which one size is another case's; a run of a check shape each. Ours
_LARGE, _MOST_SCALARS = 4, 4  # values of one scalar that are not drawn, and whole scalars that have others. Ours
_NUMBER = re.compile(r"(?<![\w.])([1-9]\d{0,8})(?:[uUlL]*|\.0*[fF]?)(?![\w.])")
_WORD = re.compile(r"[A-Za-z_]\w*")


@dataclass(frozen=True)
class CallerCase:
    """A case, and the one whose results the original must have there on the same inputs; None: it need only be finite there.

    `unseen`: no visible caller is like that, so that a promise of an edit that holds for those (`__restrict__`) is no fault. With
    `nan` the case is tried with NaN in the inputs as well: a factor of zero hides what it is multiplied with, or does not. It is
    tried with inputs of its `family` alone.
    """

    case: Case
    same_as: Case | None = None
    nan: bool = False
    family: str = "declared"
    unseen: bool = False


def whole_numbers(text: str) -> frozenset[int]:
    """The whole numbers that a text without comments has, also those that are written as reals."""
    return frozenset(int(number) for number in _NUMBER.findall(text))


def other_scalars(spec: KernelSpec, rng: random.Random) -> tuple[Case, ...]:
    """A named case in which every real scalar that the spec has as a number has another value: a caller may pass any."""
    given = _numbers(spec, "float")
    changed = {n: v * rng.uniform(0.3, 0.9) if v else rng.uniform(0.1, 0.9) for n, v in given.items()}
    if not changed or not spec.check:
        return ()
    return (_changed(rng.choice(spec.check), changed),)


def caller_cases(
    spec: KernelSpec, rng: random.Random, constants: Collection[int], shared: Collection[tuple[str, str]]
) -> tuple[CallerCase, ...]:
    """Proposed cases. `constants` are the whole numbers in the original's text; `shared` pairs of an input and an output that some
    caller passes one buffer for."""
    if not spec.check:
        return ()
    by_size = sorted(spec.check, key=lambda case: bytes_needed(spec, case))
    base = by_size[-1]
    return (
        *_other_reals(spec, base, rng),
        *_other_whole(spec, base, rng, constants),
        *_narrower(spec, base, rng),
        *_exchanged(spec, rng),
        *_other_launches(spec, base, rng),
        *_in_place(spec, by_size, shared),
        *(CallerCase(case, family=LONG_ROWS) for case in [long_rows(spec, base, rng)] if case is not None),
        *(CallerCase(case, family=ONE_SEGMENT) for case in [long_segment(spec, by_size[0], rng)] if case is not None),
    )


def null_cases(spec: KernelSpec, text: str) -> tuple[CallerCase, ...]:
    """Cases without one of the inputs whose address the original's text compares with null. `text` is without comments."""
    base = max(spec.check, key=lambda case: bytes_needed(spec, case), default=None)
    names = [a.name for a in spec.arguments if a.role == "in" and not a.symbol and _may_be_null(a.name, text)]
    return tuple(
        CallerCase(Case(f"{base.name}, '{name}' null", base.sizes, null=(name,)))
        for name in names[:_MOST_NULL]
        if base is not None
    )


def _may_be_null(name: str, text: str) -> bool:
    """Whether a text looks at an address: what is no such test the original fails without the input, and the case is left out."""
    null, bare = r"(?:nullptr|NULL)\b", rf"(?<![\w.*\]]){name}\b"
    tests = rf"{bare}\s*[!=]=\s*{null}|{null}\s*[!=]=\s*{bare}|\bif\s*\(\s*{bare}\s*\)|!\s*{bare}|{bare}\s*(?:\?|&&)|&&\s*{bare}"
    return re.search(tests, text) is not None


def _other_reals(spec: KernelSpec, base: Case, rng: random.Random) -> Iterator[CallerCase]:
    """Values of the size of one, the values of the other scalars, values beyond one, and in turn zero and the other sign."""
    given = _numbers(spec, "float")
    if not given:
        return
    yield CallerCase(_changed(base, {n: rng.uniform(0.3, 1.0) * _least_one(v) for n, v in given.items()}))
    turned = dict(zip(given, reversed(given.values()), strict=True))
    if turned != given:  # what is in order for the spec need not be: bounds of an empty range
        yield CallerCase(_changed(base, turned))
    names = [name for name, value in given.items() if value]
    for name in rng.sample(names, min(len(names), _MOST_ZEROS)):
        yield CallerCase(_changed(base, {name: 0.0}), nan=True)
    yield CallerCase(_changed(base, {n: rng.uniform(1.2, 4.0) * max(abs(v), 1.0) for n, v in given.items()}))
    for name in rng.sample(list(given), min(len(given), _MOST_ZEROS)):
        yield CallerCase(_changed(base, {name: math.copysign(rng.uniform(0.3, 3.0), -given[name])}))


def _least_one(value: float) -> float:
    return value * 2.0 if abs(value) > 1.0 else (-1.0 if value < 0 else 1.0)


def _other_whole(spec: KernelSpec, base: Case, rng: random.Random, constants: Collection[int]) -> Iterator[CallerCase]:
    """Whole scalars and flags in turn: the other truth value, neighbours, and numbers that the original's text has."""
    found = list[list[Case]]()
    for name, value in _numbers(spec, "int").items():
        low, high = parse_dtype(spec.argument(name).type).limits
        others = [other for other in _other_values(int(value), constants) if low <= other <= high]
        found.append([_changed(base, {name: float(other)}) for other in _chosen(others, rng)])
    for name, value in _free_sizes(spec, base, launched=False, fixed=True).items():
        found.append([_resized(base, name, other) for other in _chosen(_other_values(value, constants), rng)])
    for cases in rng.sample(found, min(len(found), _MOST_SCALARS)):
        yield from (CallerCase(case) for case in cases)


def _chosen(values: list[int], rng: random.Random) -> list[int]:
    """The largest of ascending values, and some of the others: what is kept in fewer bits is wrong from a landmark on."""
    others = values[:-_LARGE]
    return [*values[-_LARGE:], *rng.sample(others, min(len(others), _MOST_WHOLE - _LARGE))]


def _other_values(value: int, constants: Collection[int]) -> list[int]:
    """Values beside one, for a scalar that need be no size: zero, one and two (a flag is tested for zero), landmarks of the text."""
    if value in (0, 1):
        return [1 - value, 2]
    near = {0, 1, value - 1, value + 1, 2 * value}
    landmarks = (other for c in constants if 0 < c <= _LARGEST for other in (c, c + 1))
    return sorted({*near, *landmarks} - {value})


def _narrower(spec: KernelSpec, base: Case, rng: random.Random) -> Iterator[CallerCase]:
    """Sizes that no buffer has, such as the width of a region of an image: one less, and any below."""
    for name, value in _free_sizes(spec, base, launched=False, fixed=False).items():
        smaller = {value - 1, rng.randrange(1, max(2, value))} - {0, value}
        yield from (CallerCase(_resized(base, name, other)) for other in sorted(smaller))


def _exchanged(spec: KernelSpec, rng: random.Random) -> Iterator[CallerCase]:
    """Cases in which one such size is another case's: what the spec passes together a caller need not."""
    found = []
    for base in spec.check:
        for name in _free_sizes(spec, base, launched=False, fixed=False):
            others = {case.sizes[name] for case in spec.check} - {base.sizes[name]}
            if others:
                found.append(_resized(base, name, int(rng.choice(sorted(others)))))
    yield from (CallerCase(case) for case in rng.sample(found, min(len(found), _MOST_EXCHANGED)))


def _other_launches(spec: KernelSpec, base: Case, rng: random.Random) -> Iterator[CallerCase]:
    """Sizes that the launch alone has, such as threads of a block that the host chooses: also less than a warp, one, and the most."""
    for name, value in _free_sizes(spec, base, launched=True).items():
        if value % _WARP == 0 and value <= _MOST_THREADS:
            least = {_WARP // 2, _WARP}
            others = [_WARP << step for step in range(6) if _WARP << step != value]
        else:
            least = set[int]()
            others = [other for other in (1, value // 2, value + 1, 2 * value) if other not in (0, value)]
        larger = [other for other in others if other > value]
        some = {*larger[-2:], *rng.sample(others, min(_MOST_LAUNCHED, len(others)))}
        yield from (CallerCase(_resized(base, name, other), same_as=base) for other in sorted((least | some) - {value}))


def _in_place(spec: KernelSpec, by_size: list[Case], shared: Collection[tuple[str, str]]) -> Iterator[CallerCase]:
    """An output in the buffer of an input, where both are as large and of one type: those of `shared`, and a few others."""
    pairs = [
        (one.name, other.name)
        for one in spec.arguments
        for other in spec.outputs
        if one.role == "in" and (one.type, one.size) == (other.type, other.size)
    ]
    seen, others = [pair for pair in pairs if pair in shared], [pair for pair in pairs if pair not in shared]
    for first, second in (*seen, *others[:_MOST_IN_PLACE]):
        for case in by_size[-2:]:
            name = f"{case.name}, '{second}' in the buffer of '{first}'"
            in_place = Case(name, case.sizes, shared={second: first})
            yield CallerCase(in_place, same_as=case, unseen=(first, second) in others)


def _numbers(spec: KernelSpec, kind: str) -> dict[str, float]:
    """The scalars of a kind, fields of structs as well, that the spec has as numbers."""
    found = {}
    for argument in spec.arguments:
        dtype = parse_dtype(argument.type)
        if argument.role == "scalar" and dtype.kind in (kind, "bool" if kind == "int" else kind) and dtype.lanes == 1:
            with suppress(ValueError):
                found[argument.name] = float(argument.value)
    return found


def _free_sizes(spec: KernelSpec, base: Case, *, launched: bool, fixed: bool | None = None) -> Mapping[str, int]:
    """Whole sizes of a case that no buffer's size or contents hang on: those that the launch alone has, or scalars.

    `fixed`: only those with one value in all cases, or with several.
    """
    used = {word for a in spec.arguments for word in _words(a, scalars=False)}
    passed = {word for a in spec.arguments for word in _words(a, scalars=True)}
    cases = (*spec.check, *spec.time)
    found = {}
    for name, value in base.sizes.items():
        if not all(isinstance(case.sizes.get(name), int) for case in cases):
            continue
        one = len({case.sizes[name] for case in cases}) == 1
        if name not in used and (name in passed) is not launched and fixed in (None, one):
            found[name] = int(value)
    return found


def _words(argument: Argument, *, scalars: bool) -> list[str]:
    """The names that a scalar's value has, or a buffer's size and contents."""
    if argument.role == "scalar":
        return _WORD.findall(argument.value or argument.name) if scalars else []
    fill = argument.fill
    return [] if scalars else _WORD.findall(f"{argument.size} {fill.low} {fill.high}")


def _changed(base: Case, changed: Mapping[str, float]) -> Case:
    given = ", ".join(f"{name} = {value:.3g}" for name, value in changed.items())
    return Case(f"{base.name}, {given}, drawn", base.sizes, changed=changed)


def _resized(base: Case, name: str, value: int) -> Case:
    return Case(f"{base.name}, {name} = {value}, drawn", {**base.sizes, name: value})
