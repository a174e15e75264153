"""What it costs to build a suggestion's files whole with nvcc, and what the comparison says of edits by the rules. Needs nvcc, no GPU.

    python benchmarks/whole_build.py --record benchmarks/results/whole_build.json

For each kernel of `examples/` (with `--suite` of `benchmarks/suite/` too) some proposals of different rules, chosen by a seed, are
built and judged as a suggestion is, each with an original that was not built before. Exit code 0 when no edit of a rule is refused
and the median costs at most 3 s, else 1.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.examples import commit, machine  # noqa: E402 - the path above makes it importable as a script
from benchmarks.rules_rate import kernels  # noqa: E402
from engine.compile.nvrtc import NvrtcCompiler  # noqa: E402
from engine.cuda.edit import edit_program  # noqa: E402
from engine.cuda.load import repository_root  # noqa: E402
from engine.errors import OptimlError  # noqa: E402
from engine.evaluate.build import Builder  # noqa: E402
from engine.model import Target  # noqa: E402
from engine.process.sandbox import sandbox  # noqa: E402
from engine.run.whole_check import WholeCheck  # noqa: E402

SCHEMA = "optiml.whole_build/1"
MOST_S = 3.0


def main(given: Sequence[str] | None = None) -> int:
    """Run; see the module's docstring."""
    parser = argparse.ArgumentParser(description="Cost and verdicts of building suggestions whole with nvcc.")
    parser.add_argument("--suite", action="store_true", help="the kernels of benchmarks/suite too")
    parser.add_argument("--each", type=int, default=2, help="proposals for each kernel (default: 2)")
    parser.add_argument("--seed", type=int, default=1, help="of their choice (default: 1)")
    parser.add_argument("--record", type=Path, required=True, help="the JSON record to write")
    options = parser.parse_args(given)
    begin = datetime.datetime.now(datetime.UTC)
    folders = ["examples", *(["benchmarks/suite"] if options.suite else [])]
    rows: list[dict[str, Any]] = []
    chance, box = random.Random(options.seed), sandbox()
    with NvrtcCompiler("sm_90", cache=None, sandbox=box, jobs=1) as compiler:
        for file in (f for folder in folders for f in sorted((ROOT / folder).rglob("*.cu"))):
            root = repository_root(file)
            for label, program, spec, spec_path in kernels(file, {}):
                builder = Builder(spec, root, compiler, Target(arch="sm_90"), spec_path)
                builder.original(program)
                proposals, _ = builder.propose(program)
                chance.shuffle(proposals)
                chosen = list({proposal.rule: proposal for proposal in proposals}.values())[: options.each]
                for proposal in chosen:
                    try:
                        built = builder.candidate(edit_program(program, proposal.edits))
                    except OptimlError:
                        continue
                    start = time.perf_counter()
                    verdicts = WholeCheck(spec, root, "sm_90", box).judge(program, built).guardrails
                    rows.append(
                        {"kernel": label, "rule": proposal.rule, "seconds": time.perf_counter() - start,
                         "verdicts": [[v.name, v.verdict, v.detail] for v in verdicts]}
                    )  # fmt: skip
    seconds = [row["seconds"] for row in rows]
    counts = Counter(f"{verdict}: {name}" for row in rows for name, verdict, _ in row["verdicts"])
    record = {
        "schema": SCHEMA,
        "command": ["python", "benchmarks/whole_build.py", *(sys.argv[1:] if given is None else given)],
        "date": begin.isoformat(timespec="seconds"),
        "commit": commit(),
        "machine": machine(),
        "load_1min": os.getloadavg()[0],
        "median_s": statistics.median(seconds),
        "most_s": max(seconds),
        "verdicts": dict(sorted(counts.items())),
        "edits": rows,
    }
    options.record.parent.mkdir(parents=True, exist_ok=True)
    options.record.write_text(json.dumps(record, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    print(f"{len(rows)} edits: median {record['median_s']:.2f} s, most {record['most_s']:.2f} s")
    for what, count in record["verdicts"].items():
        print(f"{count:4} {what}")
    refused = any(verdict == "failed" for row in rows for _, verdict, _ in row["verdicts"])
    return int(refused or statistics.median(seconds) > MOST_S)


if __name__ == "__main__":
    sys.exit(main())
