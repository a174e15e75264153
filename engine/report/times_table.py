"""The table of a recording: kernels by their share of GPU time."""

from collections.abc import Sequence

from engine.capture.manifest import LaunchTimes, Manifest, RecordedKernel
from engine.capture.source_binding import split_name
from engine.report.safe_text import clean

_ROWS = 30
_NAME_WIDTH = 48


def times_table(manifest: Manifest) -> str:
    """Lines of text: share, time, launches, mean, the most frequent launch, what is recorded, source."""
    cells: list[tuple[str, ...]] = [
        ("share", "time", "launches", "mean", "grid x block", "recorded", "kernel", "source")
    ]
    cells += [_row(kernel) for kernel in manifest.kernels[:_ROWS]]
    widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
    left = (4, 6, 7)
    lines = [
        "  ".join(
            c.ljust(w) if i in left else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    ]
    if rest := manifest.kernels[_ROWS:]:
        lines.append(f"{sum(k.share for k in rest):6.1%} in {len(rest)} more kernels")
    return "\n".join(lines)


def _row(kernel: RecordedKernel) -> tuple[str, ...]:
    name = split_name(kernel.demangled)
    full = name.qualified + (f"<{', '.join(name.template_args)}>" if name.template_args else "")
    shown = full if len(full) <= _NAME_WIDTH else full[: _NAME_WIDTH - 1] + "…"
    source = f"{kernel.file}:{kernel.line}" if kernel.file else kernel.problem
    recorded = str(len(kernel.launches)) if kernel.launches else "-"
    mean = kernel.total_us / kernel.count
    cells = (
        f"{kernel.share:.1%}", _time(kernel.total_us), str(kernel.count), _time(mean), _shape(kernel.shapes), recorded,
        shown, source,
    )  # fmt: skip
    return tuple(clean(c) for c in cells)


def _shape(shapes: Sequence[LaunchTimes]) -> str:
    if not shapes:
        return ""
    first = max(shapes, key=lambda s: s.count)
    more = f" +{len(shapes) - 1}" if len(shapes) > 1 else ""
    return f"{_triple(first.grid)} x {_triple(first.block)}{more}"


def _triple(values: Sequence[int]) -> str:
    used = [v for i, v in enumerate(values) if i == 0 or any(x != 1 for x in values[i:])]
    return str(used[0]) if len(used) == 1 else f"({', '.join(map(str, used))})"


def _time(us: float) -> str:
    if us >= 1e6:
        return f"{us / 1e6:.2f} s"
    return f"{us / 1e3:.2f} ms" if us >= 1e3 else f"{us:.1f} µs"
