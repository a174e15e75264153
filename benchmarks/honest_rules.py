"""What the verifier says of the rules' own edits: each is honest, and none may be refused as wrong.

    python benchmarks/honest_rules.py --most 4 --record benchmarks/results/honest-rules-cpu.json

Every edit that a rule proposes for a kernel of examples/ and benchmarks/suite/ (with `--most`, so many of each kernel, drawn by
`--seed`) is built, evaluated and confirmed like a candidate. An edit that does not compile or cannot be launched was refused for no
cheating; it is counted apart. Exit code 0 when no edit was refused as wrong, 1 otherwise.
"""

from __future__ import annotations

import argparse
import datetime
import json
import random
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.examples import commit, machine  # noqa: E402 - the path above makes it importable as a script
from benchmarks.selftest import device as described  # noqa: E402
from engine.compile.built import NotBuilt  # noqa: E402
from engine.cuda.edit import edit_program  # noqa: E402
from engine.cuda.load import load_program  # noqa: E402
from engine.model import PASSED, Evaluation, Outcome  # noqa: E402
from engine.run.machine import Machine, make_machine  # noqa: E402
from engine.spec.find import find_spec  # noqa: E402

WRONG = frozenset({Outcome.WRONG_RESULT, Outcome.MEMORY_ERROR, Outcome.RACE, Outcome.CRASHED, Outcome.SCREENED_OUT})


@dataclass(frozen=True)
class Edit:
    """One edit of a rule, and what became of it."""

    kernel: str
    rule: str
    summary: str
    outcome: str
    reason: str
    refused: bool


def main(given: Sequence[str] | None = None) -> int:
    """Run the edits; see the module's docstring."""
    parser = argparse.ArgumentParser(description="What the verifier says of the rules' own edits.")
    parser.add_argument("--device", choices=("cpu", "gpu"), default="cpu", help="which path (default: cpu)")
    parser.add_argument("--only", nargs="*", default=[], metavar="KERNEL", help="these files, by stem (default: all)")
    parser.add_argument("--most", type=int, help="edits of each kernel (default: all)")
    parser.add_argument("--seed", type=int, default=0, help="of the draw (default: 0)")
    parser.add_argument("--jobs", type=int, help="compilers at once (default: one per core)")
    parser.add_argument("--record", type=Path, help="the JSON record to write")
    options = parser.parse_args(given)
    paths = sorted([*ROOT.glob("examples/*.cu"), *ROOT.glob("benchmarks/suite/*.cu")])
    here = make_machine(device=options.device, jobs=options.jobs)
    found: list[Edit] = []
    try:
        for path in paths:
            if not options.only or path.stem in options.only:
                for edit in edits(path, here, options.most, random.Random(options.seed)):
                    found.append(edit)
                    if edit.refused:
                        print(f"{edit.kernel}: {edit.rule}: {edit.summary}: {edit.outcome}: {edit.reason}", flush=True)
        record: dict[str, Any] = {
            "schema": "optiml.honest_rules/1",
            "command": ["python", "benchmarks/honest_rules.py", *(sys.argv[1:] if given is None else given)],
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "commit": commit(),
            "machine": machine(),
            "device": described(here),
            "edits": [asdict(edit) for edit in found],
        }
    finally:
        here.close()
    refused = sum(edit.refused for edit in found)
    print(f"{len(found)} edits of {len({edit.kernel for edit in found})} kernels, {refused} refused as wrong")
    if options.record:
        options.record.parent.mkdir(parents=True, exist_ok=True)
        options.record.write_text(json.dumps(record, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    return 1 if refused else 0


def edits(path: Path, here: Machine, most: int | None, rng: random.Random) -> Iterator[Edit]:
    """The rules' edits of a file, each judged."""
    spec, spec_path = find_spec(ROOT, path)
    program = load_program(path, spec_file=spec_path, kernels=[step.kernel for step in spec.steps])
    proposed, _ = here.builder(spec, ROOT, spec_path).propose(program)
    if most is not None:
        proposed = rng.sample(proposed, min(most, len(proposed)))
    with closing(here.evaluator(spec, ROOT, spec_path)) as evaluator:
        evaluator.open(program)
        for one in proposed:
            try:
                built = evaluator.build(edit_program(program, one.edits))
            except NotBuilt as error:
                evaluation = error.evaluation or Evaluation(Outcome.SCREENED_OUT)
            else:
                evaluation = evaluator.evaluate(built, None)[0]
                if evaluation.outcome in PASSED:
                    evaluation = evaluator.confirm(built)
            reason = evaluation.failure.reason if evaluation.failure else ""
            outcome = evaluation.outcome
            yield Edit(path.stem, one.rule, one.summary, str(outcome), reason, outcome in WRONG)


if __name__ == "__main__":
    sys.exit(main())
