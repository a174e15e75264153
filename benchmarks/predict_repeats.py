"""Whether the predicted time of one text repeats: the same program, counted with other inputs.

    python benchmarks/predict_repeats.py --record benchmarks/results/predict_repeats.json

Every kernel of examples/ and benchmarks/suite/ is built once and predicted with several seeds of its inputs. The spread of a kernel is
its largest predicted time over its smallest one, in the timing case where that is most. With `--docs` the table goes into
docs/predictions.md. Exit code 0 when no spread is over `--most`, 1 otherwise.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.examples import head  # noqa: E402 - the path above makes it importable as a script

if TYPE_CHECKING:
    from engine.run.machine import Machine

SCHEMA = "optiml.predict_repeats/1"
DOCS = ROOT / "docs" / "predictions.md"
BEGIN, END = "<!-- repeats: begin -->", "<!-- repeats: end -->"
MOST = 1.3
FILES = tuple(sorted([*ROOT.glob("examples/*.cu"), *ROOT.glob("benchmarks/suite/*.cu")]))


def main(given: Sequence[str] | None = None) -> int:
    """Predict, record, print the table; see the module's docstring."""
    parser = argparse.ArgumentParser(description="How far predictions of one text differ by the seed of its inputs.")
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE", help="kernels (default: examples and suite)")
    parser.add_argument("--seeds", type=int, default=8, help="predictions of each kernel (default: 8)")
    parser.add_argument("--most", type=float, default=MOST, help=f"the largest spread to pass (default: {MOST})")
    parser.add_argument("--record", type=Path, help="the JSON record to write")
    parser.add_argument("--docs", action="store_true", help="also put the table into docs/predictions.md")
    options = parser.parse_args(given)
    from engine.run.machine import make_machine

    begin = datetime.datetime.now(datetime.UTC)
    here = make_machine(device="cpu", arch="sm_90")
    rows = []
    try:
        for file in [f.resolve() for f in options.files] or FILES:
            rows.append(predictions(file, here, range(options.seeds)))
            print(line(rows[-1]), flush=True)
    finally:
        here.close()
    record = {**head(SCHEMA, __file__, given, begin), "seeds": options.seeds, "kernels": rows}
    if options.record:
        options.record.parent.mkdir(parents=True, exist_ok=True)
        options.record.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    if options.docs:
        head_, _, rest = DOCS.read_text(encoding="utf-8").partition(BEGIN)
        DOCS.write_text(f"{head_}{BEGIN}\n{table(record)}\n{END}{rest.partition(END)[2]}", encoding="utf-8")
    predicted = [row for row in rows if row["spread"] is not None]
    within = [row for row in predicted if row["spread"] <= options.most]
    print(f"{len(rows)} kernels, {len(predicted)} predicted, {len(within)} of these within {options.most:g} times")
    return 0 if len(within) == len(predicted) else 1


def predictions(file: Path, here: Machine, seeds: Sequence[int]) -> dict[str, Any]:
    """The predicted microseconds of each timing case by seed, their spread, and the reasons where there was no prediction."""
    from engine.cpu import CpuMachine
    from engine.cuda.load import load_program, repository_root
    from engine.errors import OptimlError
    from engine.evaluate.speeds import Speeds
    from engine.predict.predictor import Predictor
    from engine.spec.find import find_spec

    row: dict[str, Any] = {"file": file.relative_to(ROOT).as_posix(), "times_us": [], "refused": [], "seconds": []}
    root = repository_root(file)
    spec, spec_path = find_spec(root, file)
    try:
        program = load_program(file, spec_file=spec_path, kernels=[s.kernel for s in spec.steps])
        builder = here.builder(spec, root, spec_path)
        built = builder.original(program)
        cpu = CpuMachine(here.cache / "cpu", sandbox=here.box, scratch=here.scratch, jobs=here.jobs)
        built = replace(built, extra=cpu.build(built.text, spec.file, spec, builder.expressions))
        predictor = Predictor(here.arch, sandbox=here.box, cache=cpu.cache / "sass")
        predictor.code(built.binary)
    except OptimlError as error:
        return {**row, "refused": [error.what], "spread": None}
    for seed in seeds:
        speeds = Speeds(spec, builder, cpu, predictor)
        speeds.seed(seed)
        at = time.perf_counter()
        try:
            row["times_us"].append([case.original_us for case in speeds.predict(built).cases])
        except OptimlError as error:
            row["refused"].append(error.what)
        row["seconds"].append(round(time.perf_counter() - at, 3))
    by_case = list(zip(*row["times_us"], strict=True))
    return {**row, "spread": max((max(times) / min(times) for times in by_case), default=None)}


def line(row: dict[str, Any]) -> str:
    """One kernel of the table."""
    name = Path(row["file"]).stem
    if row["spread"] is None:
        return f"| {name} | | | {row['refused'][0]} |"
    first = [times[0] for times in row["times_us"]]
    refused = f"{len(row['refused'])} times not predicted" if row["refused"] else ""
    return f"| {name} | {min(first):.1f} to {max(first):.1f} | {row['spread']:.2f} | {refused} |"


def table(record: dict[str, Any]) -> str:
    """The record as a Markdown table, of the kernels that vary by more than a hundredth or were not predicted."""
    told = [row for row in record["kernels"] if row["spread"] is None or row["refused"] or row["spread"] > 1.01]
    rows = [line(row) for row in sorted(told, key=lambda row: -(row["spread"] or 1e9))]
    return "\n".join(["| kernel | predicted µs, first timing case | spread | |", "|---|---|---:|---|", *rows])


if __name__ == "__main__":
    sys.exit(main())
