"""The shapes that generated kernels are checked on: made from the real ones, and such as meet the task's conditions."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations, cycle, product
from math import gcd

from engine.arith import ArithmeticError_, evaluate
from engine.errors import OptimlError
from engine.spec.kernel_spec import Case
from engine.spec.spec_checks import case_name, derived_cases

# A length below this says nothing about blocks that do not divide it: derived shapes keep it (`engine.spec.spec_checks`).
_LENGTH = 64
# Shapes with one length at its real value and the others small, up to so many bytes. On the CPU, where a thread costs a
# microsecond, the greatest length alone, and a little beyond what one thread of a block each could do.
_LONG_BYTES = 256 << 10
_CPU_LONG = 1031
_SMALL = (3, 5, 2, 7)
_ALIGNED, _LEAST_ALIGNED = (
    32,
    4,
)  # what a real length is a multiple of: whole warps and vectors of 16 bytes run only then
_ALONE = 33  # so many times that for the only length
_LEAST_CASES = 3
_SHORT = (33, 65)  # for a length whose square or cube fills memory, where too few of the longer ones remain
# A number beside the lengths (a factor, an epsilon) keeps its sign and comes in other values, so that none can be hard-coded.
_FACTORS = (1.0, 0.5, 3.0, 1.25)
_LITERAL = re.compile(r"(?<![\w.])[1-9]\d{0,5}(?![\w.])", re.ASCII)

Sizes = dict[str, int | float]
BytesOf = Callable[[Case], int]  # of a case's buffers; raises TaskError where a shape has no value


class TaskError(OptimlError):
    """A task that cannot be used, in words that its author could put right."""


def check_cases(
    time: Sequence[Case], conditions: Sequence[str], bytes_of: BytesOf, *, cpu: bool = False
) -> tuple[Case, ...]:
    """Awkward shapes (`derived_cases`), each length at its real value beside small others, and small aligned versions of the real cases.

    Factors come in other values, small sizes in each of their real ones. With `cpu` the shapes are such that kernels run on a CPU
    in no time. Raises TaskError where hardly any can be made.
    """
    first = time[0].sizes
    lengths = [n for n, v in first.items() if isinstance(v, int) and any(c.sizes[n] > _LENGTH for c in time)]
    if not lengths:
        raise TaskError(f"no size is over {_LENGTH}: nothing would be timed, and no awkward shape can be made")
    wanted: list[Sizes] = [dict(c.sizes) for c in derived_cases(tuple(time))]
    if len(lengths) > 1:
        wanted += _long(time, lengths, cpu=cpu)
    wanted += [_aligned(case.sizes, lengths, bytes_of) for case in time]
    fractions = [n for n, v in first.items() if isinstance(v, float)]
    kept = [n for n in first if n not in (*lengths, *fractions)]
    spare: list[Sizes] = [{**first, **dict.fromkeys(lengths, length)} for length in _SHORT]
    cases: list[Case] = []
    for index, sizes in enumerate((*wanted, *spare)):
        if index >= len(wanted) and len(cases) >= _LEAST_CASES:
            break
        # Radii and orders in each of their real values, so that none can be hard-coded either.
        sizes.update({name: time[index % len(time)].sizes[name] for name in kept})
        for name in fractions:
            sizes[name] = float(sizes[name]) * _FACTORS[(index + 1) % len(_FACTORS)]
        case = _fitting(sizes, lengths, conditions, bytes_of)
        if case is not None and all(case.sizes != c.sizes for c in cases):
            cases.append(case)
    if len(cases) < _LEAST_CASES:
        raise TaskError("the shapes hang together so that hardly any awkward one can be made")
    return tuple(cases)


def _long(time: Sequence[Case], lengths: Sequence[str], *, cpu: bool) -> Iterator[Sizes]:
    """Each length at its real value, the others small."""
    real = {name: int(max(c.sizes[name] for c in time)) for name in lengths}
    for name in lengths:
        if cpu and real[name] < max(real.values()):
            continue
        others = iter(_SMALL * len(lengths))
        sizes = {k: v if k == name or k not in lengths else next(others) for k, v in time[0].sizes.items()}
        sizes[name] = min(real[name], _CPU_LONG) if cpu else real[name]
        yield sizes


def _aligned(sizes: Mapping[str, int | float], lengths: Sequence[str], bytes_of: BytesOf) -> Sizes:
    """A small version of a real case whose lengths are multiples of what the real ones are: awkward lengths leave vectors and whole
    tiles unused, and a kernel that is wrong there alone would pass."""
    steps = {name: gcd(int(sizes[name]), _ALIGNED) for name in lengths}
    factors = cycle(_SMALL if len(lengths) > 1 else (_ALONE,))
    small = {**sizes, **{name: min(int(sizes[name]), steps[name] * next(factors)) for name in lengths}}
    while True:
        try:
            if bytes_of(Case("", small)) <= _LONG_BYTES:
                break
        except TaskError:
            break
        largest = max(lengths, key=lambda name: small[name])
        half = int(small[largest]) // 2
        step = min(steps[largest], max(_LEAST_ALIGNED, half & -half)) if half else 1
        if half < step:
            break
        small[largest] = half - half % step
    return small


def _fitting(sizes: Sizes, lengths: Sequence[str], conditions: Sequence[str], bytes_of: BytesOf) -> Case | None:
    """The case, its longest length halved until it runs on a CPU in no time, and what is near it and meets the conditions.

    None where its shapes have no value, or nothing near it meets the conditions.
    """
    sizes = dict(sizes)
    try:
        # What no size changes (a table) cannot be made smaller.
        fixed = bytes_of(Case("", {name: 1 if isinstance(value, int) else value for name, value in sizes.items()}))
    except TaskError:
        fixed = 0
    while True:
        case = next((Case(case_name(s), s) for s in _near(sizes, lengths, conditions) if _meets(s, conditions)), None)
        try:
            if case is not None and bytes_of(case) <= _LONG_BYTES + fixed:
                return case
        except TaskError:
            return None
        longest = max(lengths, key=lambda n: sizes[n])
        if sizes[longest] <= 1:
            return None
        sizes[longest] = int(sizes[longest]) // 2 + 1 if sizes[longest] > 2 else 1


def _meets(sizes: Mapping[str, int | float], conditions: Sequence[str]) -> bool:
    try:
        return all(evaluate(condition, sizes) for condition in conditions)
    except ArithmeticError_:
        return False


def _near(sizes: Sizes, lengths: Sequence[str], conditions: Sequence[str]) -> Iterator[Sizes]:
    """The sizes, then such as differ in one length, then in two, by as little as can be.

    Another value of a length is its neighbour, another size, or what a condition names: `n % 8 == 0` gives the next multiple of 8.
    """
    yield sizes
    others = [int(v) for v in sizes.values() if isinstance(v, int)]
    named = sorted({int(m) for condition in conditions for m in _LITERAL.findall(condition)})
    values = {}
    for name in lengths:
        value = int(sizes[name])
        multiples = [-(-value // m) * m for m in named]
        found = [*(value + 1, value - 1), *multiples, *others, *named]
        values[name] = sorted({v for v in found if v >= 1 and v != value}, key=lambda v: (abs(v - value), v))
    for count in (1, 2):
        for names in combinations(lengths, count):
            for chosen in product(*(values[n] for n in names)):
                yield {**sizes, **dict(zip(names, chosen, strict=True))}
