"""What the measured path asks of an original: room for its buffers, its float64 twin, NaN, the sanitizers' verdicts, copies of its size."""

import random
from collections.abc import Sequence

from engine.compile.built import Built
from engine.errors import CompileError, OptimlError, RefusedError
from engine.evaluate.build import Builder
from engine.evaluate.samples import certain_bytes, floors_us, moved_bytes
from engine.gpu.runner import GpuRunner, Wide, wide_launches
from engine.gpu.sanitize import Sanitized
from engine.model import Measurement
from engine.spec.data import NAN, bytes_needed, poisoned
from engine.spec.kernel_spec import KernelSpec
from engine.verify.propagation import passes_on, without
from engine.verify.widen import widen

DRAWN_S = 20.0  # of a validation with secret cases: for a drawn size the original may never end


def refuse_large(spec: KernelSpec, free_bytes: int) -> None:
    """Raise RefusedError for a case whose buffers do not fit the GPU: inputs, two sets of outputs, and a twin in doubles."""
    for case in (*spec.check, *spec.time):
        needed = bytes_needed(spec, case)
        if needed * 5 > free_bytes:
            raise RefusedError(
                f"case {case.name} needs {needed / 1e9:.1f} GB of buffers and about five times that to check; the GPU has "
                f"{free_bytes / 1e9:.1f} GB free", spec.origin or spec.file, "use smaller sizes",
            )  # fmt: skip


def widened(spec: KernelSpec, builder: Builder, built: Built) -> Wide | None:
    """The original in float64; None where it cannot be converted."""
    # In a struct the fields behind a float would move.
    found = None if spec.has_fields else widen(built.text, built.expressions)
    if found is None:
        return None
    text, expressions = found
    try:
        binary = builder.compile(text, expressions)
    except (CompileError, OptimlError):
        return None
    return Wide(binary, wide_launches(built.launches))


def passes_nan_on(spec: KernelSpec, runner: GpuRunner, index: int, seeds: random.Random) -> bool:
    """Whether the original turns NaN among its inputs into NaN in its outputs, and nothing else differs. Raises DeviceFault."""
    given = poisoned(spec, spec.check[index], seeds.getrandbits(40), NAN)
    outputs = []
    for buffers in (given, without(spec, given)):
        strayed, found = runner.outputs("original", index, buffers, 0, timeout_s=DRAWN_S)
        if strayed:
            return False
        outputs.append(found)
    return passes_on(spec, *outputs) == {a.name for a in spec.outputs}


def without_verdict(spec: KernelSpec, reports: Sequence[Sanitized]) -> list[str]:
    """Sanitizers that have no verdict on the original, in sentences.

    Raises RefusedError for a report: what a candidate does wrong could not be told from what the original does.
    """
    found = [f"{s.tool}: {s.first}" for s in reports if s.errors]
    if found:
        raise RefusedError(
            f"compute-sanitizer reports errors in the kernel '{spec.kernel}' itself: {'; '.join(found)}",
            spec.origin or spec.file, "fix the kernel, or check the sizes in the spec",
        )  # fmt: skip
    return [f"{s.tool} gave no verdict on the original: {s.first}" for s in reports if s.errors is None]


def copies(spec: KernelSpec, runner: GpuRunner, original: Measurement) -> tuple[dict[str, float], tuple[float, ...]]:
    """Bytes per second of a copy of each timing case's bytes, by case, and the least time in µs that each case can take."""
    moved = [moved_bytes(spec, case) for case in spec.time]
    certain = [certain_bytes(spec, case) for case in spec.time]
    copies_us = runner.copies_us([*moved, *certain])
    speeds = {
        case.name: sum(sizes) / us * 1e6 for case, sizes, us in zip(spec.time, moved, copies_us, strict=False) if us
    }
    cache = int(runner.device.get("l2_bytes", 0))
    return speeds, floors_us(certain, copies_us[len(moved) :], original, cache)
