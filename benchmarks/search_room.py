"""What a search could still have found: each arm of an ablation against the best that any of its runs found on the kernel.

    python benchmarks/search_room.py benchmarks/results/ablation-search.json

Runs of one kernel share one store of measurements (benchmarks/store.py), so the best of all runs is known to be there. For each kernel:
the best known speedup; the share of it that each arm reaches, as the geometric mean over its seeds; after how few candidates, of those
that the record looks at, the first arm stood within one per cent of its end; how many different ends the first arm's seeds came to;
and the share of all candidates that nothing was measured for, because they did not build or gave machine code that was there already
(at least: an end that was looked at twice counts as measured). Exit code 0; 2 for a record that is not an ablation.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_ALIKE = 1.01  # as in the ablation's table: better or worse is more than one per cent


def room(row: Mapping[str, Any]) -> dict[str, Any]:
    """One kernel's figures; see the module's docstring. `row` is a row of the record, with runs."""
    runs = row["runs"]
    arms = list(dict.fromkeys(run["arm"] for run in runs))
    known = max(run["best"] for run in runs)
    first = [run for run in runs if run["arm"] == arms[0]]
    marks = sorted({int(mark) for run in first for mark in run["after"]})
    settled = [
        next((mark for mark in marks if run["best"] / run["after"][str(mark)] < _ALIKE), run["candidates"]) for run in first
    ]  # fmt: skip
    tried = sum(run["candidates"] for run in runs)
    return {
        "known": known,
        "shares": {a: statistics.geometric_mean(r["best"] / known for r in runs if r["arm"] == a) for a in arms},
        "settled": statistics.median_high(settled),
        "ends": len({run["best"] for run in first}),
        "unmeasured": max(0.0, 1.0 - (row["measured"] + row["answered"]) / tried),
    }


def table(record: Mapping[str, Any]) -> str:
    """All kernels of a record in Markdown. Raises KeyError or ValueError for a record without runs."""
    found = {kernel: room(row) for kernel, row in record["rows"].items() if row["runs"]}
    arms = list(next(iter(found.values()), {"shares": {}})["shares"])
    if not arms:
        raise ValueError("no runs")
    lines = [
        f"| kernel | best known | {' | '.join(arms)} | {arms[0]}: within 1 % of its end after | different ends | not measured |",
        "|---|---:|" + "---:|" * (len(arms) + 3),
    ]
    for kernel, r in sorted(found.items()):
        shares = " | ".join(f"{100 * r['shares'][arm]:.1f} %" for arm in arms)
        lines.append(
            f"| {kernel} | {r['known']:.2f} | {shares} | {r['settled']} | {r['ends']} | {100 * r['unmeasured']:.0f} % |"
        )
    means = {a: math.exp(statistics.mean(math.log(r["shares"][a]) for r in found.values())) for a in arms}
    known = statistics.geometric_mean(r["known"] for r in found.values())
    lines.append(f"| all | {known:.2f} | " + " | ".join(f"{100 * means[arm]:.1f} %" for arm in arms) + " | | | |")
    return "\n".join(lines)


def main(given: Sequence[str] | None = None) -> int:
    """Print the table; see the module's docstring."""
    parser = argparse.ArgumentParser(description="Each arm of an ablation against the best that was known.")
    parser.add_argument("record", type=Path, help="a record of optiml bench ablation-…")
    options = parser.parse_args(given)
    try:
        text = table(json.loads(options.record.read_text(encoding="utf-8")))
    except (OSError, KeyError, TypeError, AttributeError, ValueError) as error:
        parser.error(f"{options.record} is no record of an ablation: {error}")
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
