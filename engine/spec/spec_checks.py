"""Checks of a kernel spec's values: every expression over every case, sizes, memory, launches."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from itertools import pairwise

from engine.arith import ArithmeticError_, Number, evaluate, evaluate_int
from engine.errors import SpecError
from engine.model import LaunchConfig
from engine.spec.dtypes import DType, parse_dtype
from engine.spec.kernel_spec import Argument, Case, KernelSpec, LaunchExpr

Where = Callable[..., str]  # keys of the spec's table -> "path:line"

# A buffer index fits 48 bits on every GPU; beyond that a size is a mistake, not a shape.
MAX_ELEMENTS = 2**48
# ours: leaves room beside copies on a 141 GB GPU; the machine's own limit is checked by who runs
MAX_BYTES = 64 * 2**30
MAX_CHECK_BYTES = 1 << 30  # of a case to check: its data is drawn, kept and compared several times over. Ours
_BLOCK_LIMITS = (1024, 1024, 64)
_GRID_LIMITS = (2**31 - 1, 65535, 65535)
_MAX_SHARED = 232448  # bytes per block, opted in, on sm_90 (CUDA programming guide, table of compute capabilities)


def value_of(text: str, sizes: Mapping[str, Number], where: str) -> Number:
    """The value of an expression over a case's sizes. Raises SpecError with its place."""
    try:
        return evaluate(text, sizes)
    except ArithmeticError_ as error:
        raise SpecError(error.what, where, f"known names: {', '.join(sorted(sizes)) or 'none'}") from None


def whole(text: str, sizes: Mapping[str, Number], where: str) -> int:
    """As `value_of`, for whole numbers."""
    try:
        return evaluate_int(text, sizes)
    except ArithmeticError_ as error:
        raise SpecError(error.what, where, f"known names: {', '.join(sorted(sizes)) or 'none'}") from None


def elements_of(argument: Argument, case: Case, where: str) -> int:
    """The number of elements of a buffer. Raises SpecError where it is not positive."""
    count = whole(argument.size, case.sizes, where)
    if not 1 <= count <= MAX_ELEMENTS:
        do = "sizes must be positive" if count < 1 else f"the limit is {MAX_ELEMENTS}"
        raise SpecError(f"'{argument.name}' has {count} elements in the case {case.name}", where, do)
    return count


def check_scalar(argument: Argument, dtype: DType, case: Case, where: str) -> None:
    """Raises SpecError where a scalar's value has no exact place in its type."""
    if dtype.kind == "bytes":
        raw = struct_bytes(argument.value)
        if raw is None or len(raw) != dtype.itemsize:
            raise SpecError(
                f"the value of '{argument.name}' is not {dtype.itemsize} bytes",
                where,
                f'write "hex:" and {2 * dtype.itemsize} hexadecimal digits',
            )
        return
    value = value_of(argument.value or argument.name, case.sizes, where)
    low, high = dtype.limits
    if dtype.kind == "float":
        if value != value or not low <= value <= high:
            raise SpecError(f"'{argument.name}' is {value} in the case {case.name}: outside of {dtype.name}", where)
        return
    if not math.isfinite(value) or value != int(value):
        do = "give an integer"
        raise SpecError(
            f"'{argument.name}' is {value} in the case {case.name}, but {dtype.name} is an integer type", where, do
        )
    if not low <= value <= high:
        text = f"'{argument.name}' is {value} in the case {case.name}: outside of {dtype.name} ({low} to {high})"
        raise SpecError(text, where, "use a smaller size, or another type")


def struct_bytes(value: str) -> bytes | None:
    """The bytes that `hex:0011…` stands for; None for anything else."""
    try:
        return bytes.fromhex(value.removeprefix("hex:")) if value.startswith("hex:") else None
    except ValueError:
        return None


def check_fill(argument: Argument, dtype: DType, spec: KernelSpec, case: Case, where: str) -> None:
    """Raises SpecError where a fill's range is empty, or leaves the type, or a sparse matrix does not fit together."""
    fill, name = argument.fill, argument.name
    low = value_of(fill.low, case.sizes, where) if fill.low else 0
    high = value_of(fill.high, case.sizes, where) if fill.high else 1
    least, most = dtype.limits
    if dtype.kind == "int":
        most = min(most, 2**63 - 1)  # what generators draw
    if fill.kind in ("uniform", "integers", "sorted", "symmetric"):
        if not fill.high and dtype.kind in ("int", "bytes"):
            raise SpecError(f"the fill '{fill.kind}' of '{name}' needs 'high'", where, "high is exclusive")
        if fill.kind == "integers" and not fill.high:
            raise SpecError(f"the fill 'integers' of '{name}' needs 'high'", where, "high is exclusive")
        count = elements_of(argument, case, where)
        if fill.kind == "symmetric" and (math.isqrt(count) ** 2 != count or dtype.lanes > 1):
            raise SpecError(
                f"'{name}' has {count} elements in the case {case.name}: no square matrix", where, "use another fill"
            )
        if not low < high:
            raise SpecError(f"the fill of '{name}' is from {low} to {high} in the case {case.name}: empty", where)
        if low < least or (high - 1 if dtype.kind != "float" else high) > most:
            raise SpecError(f"the fill of '{name}' exceeds the range of {dtype.name} in the case {case.name}", where)
    elif fill.kind == "offsets":
        if not fill.high or not 0 <= low < high:
            raise SpecError(
                f"the steps of '{name}' are from {low} to {high} in the case {case.name}", where, "high is exclusive"
            )
        if (elements_of(argument, case, where) - 1) * (high - 1) > most:
            raise SpecError(f"offsets of '{name}' exceed the range of {dtype.name} in the case {case.name}", where)
    elif fill.kind == "constant" and not least <= low <= most:
        raise SpecError(f"the constant {low} of '{name}' exceeds the range of {dtype.name}", where)
    elif fill.kind == "normal" and not (high > 0 and abs(low) + 8 * high <= most):
        raise SpecError(f"a normal fill of '{name}' with mean {low} and deviation {high} is not possible", where)
    elif fill.kind == "permutation" and elements_of(argument, case, where) - 1 > most:
        raise SpecError(f"a permutation of '{name}' does not fit {dtype.name} in the case {case.name}", where)
    elif fill.kind in ("csr_offsets", "csr_columns"):
        _check_csr(argument, dtype, spec, case, where)


def _check_csr(argument: Argument, dtype: DType, spec: KernelSpec, case: Case, where: str) -> None:
    partner = next((a for a in spec.arguments if a.name == argument.fill.of), None)
    other = "csr_columns" if argument.fill.kind == "csr_offsets" else "csr_offsets"
    if partner is None or partner.fill.kind != other or partner.fill.of != argument.name:
        do = f"fill the partner with kind '{other}' and of = '{argument.name}', and name it in 'of'"
        raise SpecError(f"the fill '{argument.fill.kind}' of '{argument.name}' has no partner", where, do)
    offsets, columns = (argument, partner) if other == "csr_columns" else (partner, argument)
    rows = elements_of(offsets, case, where) - 1
    nonzeros = elements_of(columns, case, where)
    width = whole(columns.fill.high or "0", case.sizes, where)
    if rows < 1 or width < 1:
        raise SpecError(f"the sparse matrix of '{offsets.name}' has {rows} rows and {width} columns", where)
    if nonzeros > rows * width:
        text = f"{nonzeros} entries do not fit a matrix of {rows} by {width} in the case {case.name}"
        raise SpecError(text, where, "use fewer entries")
    if (nonzeros if argument is offsets else width - 1) > dtype.limits[1]:
        raise SpecError(f"the fill of '{argument.name}' exceeds the range of {dtype.name}", where)


def check_launch(launch: LaunchExpr, case: Case, where: str) -> None:
    """Raises SpecError where a declared launch is beyond what CUDA can launch."""
    names = {**dict(launch.constants), **case.sizes}
    block = [whole(t, names, where) for t in launch.block]
    grid = [whole(t, names, where) for t in launch.grid]
    shared = whole(launch.shared, names, where)
    threads = 1
    for extent, limit in zip(block, _BLOCK_LIMITS, strict=False):
        threads *= extent
        if not 1 <= extent <= limit:
            raise SpecError(f"a block extent of {extent} in the case {case.name}", where, f"it is 1 to {limit}")
    if threads > _BLOCK_LIMITS[0]:
        raise SpecError(f"a block of {threads} threads in the case {case.name}", where, f"at most {_BLOCK_LIMITS[0]}")
    for extent, limit in zip(grid, _GRID_LIMITS, strict=False):
        if not 1 <= extent <= limit:
            raise SpecError(f"a grid extent of {extent} in the case {case.name}", where, f"it is 1 to {limit}")
    if not 0 <= shared <= _MAX_SHARED:
        raise SpecError(f"{shared} bytes of shared memory in the case {case.name}", where, f"at most {_MAX_SHARED}")


def can_launch(launch: LaunchConfig) -> bool:
    """Whether CUDA can launch these figures: no extent is empty or beyond its limit."""
    extents = (*zip(launch.block, _BLOCK_LIMITS, strict=True), *zip(launch.grid, _GRID_LIMITS, strict=True))
    whole = launch.threads <= _BLOCK_LIMITS[0] and 0 <= launch.shared_bytes <= _MAX_SHARED
    return whole and all(1 <= extent <= limit for extent, limit in extents)


def check_case(spec: KernelSpec, case: Case, where: Where, limit_bytes: int) -> None:
    """Raises SpecError for the first thing of `spec` that has no sound value in `case`."""
    kind, cases = ("time", spec.time) if case in spec.time else ("check", spec.check)
    total = 0
    for argument in spec.arguments:
        dtype = parse_dtype(argument.type)
        if argument.role == "scalar":
            own = where("args", argument.name, "value")
            check_scalar(
                argument, dtype, case, own if argument.value else where(kind, cases.index(case), argument.name)
            )
            continue
        total += elements_of(argument, case, where("args", argument.name, "size")) * dtype.itemsize
        if argument.role != "out":
            check_fill(argument, dtype, spec, case, where("args", argument.name, "fill"))
    if kind == "check":
        limit_bytes = min(limit_bytes, MAX_CHECK_BYTES)
    if total > limit_bytes:
        text = f"the buffers of the case {case.name} take {_gib(total)}, which exceeds the limit of {_gib(limit_bytes)}"
        raise SpecError(text, where(kind, cases.index(case)), "use smaller sizes")
    for index, step in enumerate(spec.steps):
        if step.launch:
            check_launch(step.launch, case, where("chain", index, "launch") if len(spec.steps) > 1 else where("launch"))


def _gib(count: int) -> str:
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count} bytes"


def derived_cases(time: tuple[Case, ...]) -> tuple[Case, ...]:
    """Small and awkward shapes from the timing cases: ones, and odd sizes that no block size divides.

    Sizes up to 64 and fractions are kept: they are radii, orders and factors rather than lengths.
    """
    first = time[0].sizes
    lengths = [n for n, v in first.items() if isinstance(v, int) and any(c.sizes[n] > 64 for c in time)]
    if not lengths:
        return (Case(time[0].name, first),)
    # Primes and neighbours of powers of two; neighbours in a row differ, so transposed indices show.
    patterns = (
        ((1,), (7, 129, 33), (129, 7, 65), (101, 257, 31)) if len(lengths) > 1 else ((1,), (129,), (903,), (4099,))
    )
    cases = []
    for pattern in patterns:
        sizes = dict(first)
        for at, name in enumerate(lengths):
            sizes[name] = min(pattern[at % len(pattern)], max(int(c.sizes[name]) for c in time))
        cases.append(Case(case_name(sizes), sizes))
    return tuple(c for at, c in enumerate(cases) if c not in cases[:at])


def case_name(sizes: Mapping[str, Number]) -> str:
    """The name of a case: `rows=7,cols=129`."""
    return ",".join(f"{k}={v}" for k, v in sizes.items()) or "single"


def same_names(cases: tuple[Case, ...]) -> tuple[Case, Case] | None:
    """Two cases whose sizes have different names, or None."""
    return next(((a, b) for a, b in pairwise(cases) if a.sizes.keys() != b.sizes.keys()), None)
