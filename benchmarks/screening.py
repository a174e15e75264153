"""How long one candidate takes without a GPU: screened with all its compilers, and its data races looked for.

    python benchmarks/screening.py --record benchmarks/results/screening.json

For each example kernel the rules' first proposals are built and screened one after the other, with nothing in any cache:
NVRTC, the C++ compiler, the disassembler, the runs on the check shapes, the prediction. The race detector is timed as it
runs on what would be suggested. Run it on a machine that does nothing else. Exit code 0.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.examples import head  # noqa: E402 - the path above makes it importable as a script

SCHEMA = "optiml.screening/1"


def main(given: Sequence[str] | None = None) -> int:
    """Measure, write the record, print the table."""
    parser = argparse.ArgumentParser(description="Seconds per screened candidate, and per search for races.")
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE", help="kernels (default: examples/*.cu)")
    parser.add_argument("--candidates", type=int, default=8, help="of each kernel (default: 8)")
    parser.add_argument("--record", type=Path, required=True, help="the JSON record to write")
    options = parser.parse_args(given)
    begin = datetime.datetime.now(datetime.UTC)
    rows = []
    for file in [f.resolve() for f in options.files] or sorted((ROOT / "examples").glob("*.cu")):
        with tempfile.TemporaryDirectory() as cache:
            os.environ["OPTIML_CACHE"] = cache
            rows.append(one_kernel(file, options.candidates))
        print(line(rows[-1]), flush=True)
    screened = [s for row in rows for s in row["screened_s"]]
    raced = [s for row in rows for s in row["races_s"]]
    record = {
        **head(SCHEMA, __file__, given, begin),
        "kernels": rows,
        "screened_median_s": statistics.median(screened),
        "screened_most_s": max(screened),
        "races_median_s": statistics.median(raced),
        "races_most_s": max(raced),
    }
    options.record.parent.mkdir(parents=True, exist_ok=True)
    options.record.write_text(json.dumps(record, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    print(f"screened: median {record['screened_median_s']:.2f} s, most {record['screened_most_s']:.2f} s")
    print(f"races: median {record['races_median_s']:.2f} s, most {record['races_most_s']:.2f} s")
    return 0


def one_kernel(file: Path, count: int) -> dict[str, Any]:
    """Seconds of each candidate of one kernel, alone on the machine's cores."""
    from engine.cuda.edit import edit_program
    from engine.cuda.load import load_program, repository_root
    from engine.errors import OptimlError
    from engine.evaluate.analysis import Analysis
    from engine.evaluate.cpu import CpuEvaluator
    from engine.model import Outcome
    from engine.run.machine import make_machine
    from engine.spec.find import find_spec

    root = repository_root(file)
    spec, spec_path = find_spec(root, file)
    program = load_program(file, spec_file=spec_path, kernels=[s.kernel for s in spec.steps])
    here = make_machine(device="cpu")
    screened, races, outcomes = [], [], []
    try:
        evaluator = here.evaluator(spec, root, spec_path)
        assert isinstance(evaluator, CpuEvaluator)
        evaluator.open(program)
        detect = evaluator._screen._machine.races

        def timed(*arguments: Any, **named: Any) -> Any:
            at = time.perf_counter()
            found = detect(*arguments, **named)
            races.append(time.perf_counter() - at)
            return found

        evaluator._screen._machine.races = timed  # type: ignore[method-assign]
        proposals, _ = Analysis(spec, root, here.target, spec_path).propose(program)
        for proposal in proposals[:count]:
            at = time.perf_counter()
            try:
                built = evaluator.build(edit_program(program, proposal.edits), by_rules=True)
                evaluation, _ = evaluator.evaluate(built, None)
            except OptimlError as error:
                outcomes.append(str(error)[:100])
                continue
            screened.append(time.perf_counter() - at)
            outcomes.append(evaluation.outcome.value)
            if evaluation.outcome is Outcome.SCREENED and len(races) < 2:
                evaluator.confirm(built)
    finally:
        here.close()
    return {"file": file.name, "screened_s": screened, "races_s": races, "outcomes": outcomes}


def line(row: dict[str, Any]) -> str:
    """One kernel of the table."""
    return (
        f"{row['file']:16} screened {statistics.median(row['screened_s']):.2f} s (most {max(row['screened_s']):.2f}), "
        f"races {max(row['races_s'], default=0):.2f} s, {len(row['outcomes'])} candidates"
    )


if __name__ == "__main__":
    sys.exit(main())
