"""Whether a second run would report the same speedup: suggestions confirmed again and again, each time in a new process. Needs a GPU.

    python benchmarks/repeats.py [FILE ...] [--repeats N] [--record FILE.json]

Of each kernel one fixed edit of the rules is confirmed N times (default 8), the first of each pair as the search's own measurement. Two
confirmations agree where their 95 % intervals overlap. Printed and recorded: the ratios, how many of all pairs agree, with and without
the between-process part of the interval, and the standard deviation between processes that `engine.statistics.PROCESS_SD` stands for.
Exit code 0; 1 where a kernel cannot be measured.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import math
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.examples import head  # noqa: E402 - the path above makes it importable as a script
from engine.errors import OptimlError  # noqa: E402
from engine.model import Measurement  # noqa: E402

KERNELS = tuple(
    f"suite/{name}.cu"
    for name in (
        "adamw",
        "batched_gemm",
        "causal_scores",
        "cross_entropy",
        "nbody",
        "permute",
        "quantize",
        "row_sum",
        "spmv",
        "topk",
    )
)
SCHEMA = "optiml.repeats/1"


def confirmations(path: Path, repeats: int) -> tuple[str, list[Measurement]]:
    """The edit, and what each of so many processes measured of it. Raises OptimlError."""
    from engine.cuda.edit import edit_program
    from engine.cuda.load import load_program, repository_root
    from engine.rules import make_site, proposals
    from engine.run.machine import make_machine
    from engine.spec.find import find_spec

    root = repository_root(path)
    spec, spec_path = find_spec(root, path)
    program = load_program(path, spec_file=spec_path, kernels=[s.kernel for s in spec.steps])
    machine = make_machine(device="gpu")
    try:
        evaluator: Any = machine.evaluator(spec, root, spec_path)
        evaluator.open(program)
        found: list[Measurement] = []
        for proposal in sorted(proposals(make_site(program, spec)), key=lambda p: -p.prior):
            built = evaluator.build(edit_program(program, proposal.edits), by_rules=True)
            evaluation, _ = evaluator.evaluate(built, None)
            if evaluation.measurement is None or not evaluation.measurement.low > 1.01:
                continue
            first = evaluation.measurement
            for _ in range(repeats):
                evaluator._near[built.identity] = first
                confirmed = evaluator.confirm(built).measurement
                if confirmed is not None:
                    found.append(confirmed)
                    first = confirmed
            return proposal.summary, found
    finally:
        machine.close()
    return "no edit of the rules is faster", []


def summary(kernels: dict[str, list[Measurement]]) -> dict[str, Any]:
    """How many pairs of confirmations of one kernel agree, and the deviation between processes."""
    pairs = [pair for found in kernels.values() for pair in itertools.combinations(found, 2)]
    agree = sum(a.low <= b.high and b.low <= a.high for a, b in pairs)
    squares = [statistics.variance([math.log(m.ratio) for m in found]) for found in kernels.values() if len(found) > 1]
    deviation = math.sqrt(statistics.fmean(squares)) if squares else 0.0
    return {"pairs": len(pairs), "agree": agree, "deviation_between_processes": deviation}


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table, and write the record if asked to."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "files", nargs="*", type=Path, metavar="FILE", help="kernels with a spec (default: ten of the suite)"
    )
    parser.add_argument("--repeats", type=int, default=8, help="confirmations of each kernel (default: 8)")
    parser.add_argument("--record", type=Path, help="write a record there")
    chosen = parser.parse_args(arguments)
    begin = datetime.datetime.now(datetime.UTC)
    kernels: dict[str, list[Measurement]] = {}
    rows = []
    print("| kernel | edit | speedups, one for each process |\n|---|---|---|", flush=True)
    for path in chosen.files or [ROOT / "benchmarks" / kernel for kernel in KERNELS]:
        try:
            edit, kernels[path.stem] = confirmations(path.resolve(), chosen.repeats)
        except OptimlError as error:
            print(error, file=sys.stderr)
            return 1
        ratios = [(m.ratio, m.low, m.high) for m in kernels[path.stem]]
        rows.append({"kernel": path.stem, "edit": edit, "ratios": ratios})
        print(
            f"| {path.stem} | {edit} | {', '.join(f'{r:.4f} ({a:.4f} to {b:.4f})' for r, a, b in ratios)} |", flush=True
        )
    total = summary(kernels)
    print(
        f"\n{total['agree']} of {total['pairs']} pairs overlap; deviation between processes {total['deviation_between_processes']:.5f}"
    )
    if chosen.record:
        record = {**head(SCHEMA, __file__, arguments, begin), "kernels": rows, **total}
        chosen.record.parent.mkdir(parents=True, exist_ok=True)
        chosen.record.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
