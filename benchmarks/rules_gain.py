"""What each rule's proposals come to on the kernels they were written for: equal or not, and how much faster.

    python benchmarks/rules_gain.py --rules warp_reduce,swap_axes --record benchmarks/results/rules_gain.json

Each proposal of each rule is applied to the original kernels below `examples/` and `benchmarks/suite/`, alone, and evaluated
as in a search: verified and timed on a GPU, screened and predicted without one. A kernel that the rule does not match costs
nothing. Exit code 0, or 1 when no kernel matched.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.examples import commit, machine  # noqa: E402 - the path above makes it importable as a script
from benchmarks.rules_rate import kernels, some_rules, sources  # noqa: E402
from engine.compile.built import NotBuilt  # noqa: E402
from engine.cuda.edit import edit_program  # noqa: E402
from engine.cuda.load import repository_root  # noqa: E402
from engine.errors import OptimlError  # noqa: E402
from engine.model import Evaluation  # noqa: E402
from engine.rules import RuleFailure, make_site, proposals  # noqa: E402
from engine.run.machine import Machine, make_machine  # noqa: E402

SCHEMA = "optiml.rules_gain/1"


def main(given: Sequence[str] | None = None) -> int:
    """Run; see the module's docstring."""
    parser = argparse.ArgumentParser(description="Outcome and speedup of each rule's proposals, one at a time.")
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE", help="default: the examples and the suite")
    parser.add_argument("--rules", default="", help="only these, separated by commas")
    parser.add_argument("--device", choices=("auto", "gpu", "cpu"), default="auto", help="as for optimize")
    parser.add_argument("--record", type=Path, required=True, help="the JSON record to write")
    options = parser.parse_args(given)
    names = some_rules(parser, options.rules)
    rows: list[dict[str, Any]] = []
    skipped: dict[str, str] = {}
    here = make_machine(device=options.device)
    try:
        for file in sources(options.files):
            rows += _file(here, file, names, skipped)
    finally:
        here.close()
    record = {
        "schema": SCHEMA,
        "command": ["python", "benchmarks/rules_gain.py", *(sys.argv[1:] if given is None else given)],
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "machine": machine(),
        "mode": here.mode,
        "arch": here.arch,
        "skipped": skipped,
        "proposals": rows,
    }
    options.record.parent.mkdir(parents=True, exist_ok=True)
    options.record.write_text(json.dumps(record, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    print(table(record))
    return 0 if rows else 1


def _file(here: Machine, file: Path, names: Sequence[str], skipped: dict[str, str]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for label, program, spec, spec_path in kernels(file, skipped):
        failures: list[RuleFailure] = []
        found = [
            p
            for step in range(len(spec.steps))
            for p in proposals(make_site(program, spec, step, here.target), only=names, failures=failures)
        ]
        if not found:
            continue
        print(f"{label}: {len(found)} proposals", file=sys.stderr, flush=True)
        evaluator = here.evaluator(spec, repository_root(file), spec_path)
        try:
            evaluator.open(program)
            for proposal in found:
                row = {"kernel": label, "rule": proposal.rule, "parameters": dict(proposal.parameters)}
                try:
                    built = evaluator.build(edit_program(program, proposal.edits), by_rules=True)
                    rows.append(row | _said(evaluator.evaluate(built, None)[0]))
                except NotBuilt as error:
                    rows.append(row | {"outcome": "not built", "reason": str(error)[:300], "ratio": None})
        except OptimlError as error:
            skipped[label] = str(error)
        finally:
            evaluator.close()
    return rows


def _said(evaluation: Evaluation) -> dict[str, Any]:
    found = evaluation.measurement
    return {
        "outcome": evaluation.outcome.value,
        "reason": evaluation.failure.reason[:300] if evaluation.failure else "",
        "ratio": found.ratio if found else None,
        "low": found.low if found else None,
        "high": found.high if found else None,
    }


def table(record: dict[str, Any]) -> str:
    """For each rule and kernel: how the proposals ended and the best speedup, as a Markdown table."""
    lines = [
        f"| rule | kernel | outcomes | best ({record['mode']}) | 95 % interval | with |",
        "|---|---|---|---:|---|---|",
    ]
    pairs = dict.fromkeys((r["rule"], r["kernel"]) for r in record["proposals"])
    for rule, kernel in sorted(pairs):
        mine = [r for r in record["proposals"] if (r["rule"], r["kernel"]) == (rule, kernel)]
        counted = Counter(r["outcome"] for r in mine)
        best = max((r for r in mine if r["ratio"] is not None), key=lambda r: r["ratio"], default=None)
        cells = [rule, kernel, ", ".join(f"{n} {outcome}" for outcome, n in sorted(counted.items()))]
        cells += [f"{best['ratio']:.3f}", f"{best['low']:.3f} to {best['high']:.3f}"] if best else ["", ""]
        cells.append(", ".join(f"{k}={v}" for k, v in best["parameters"].items()) if best else "")
        lines.append("| " + " | ".join(cells) + " |")
    lines += [
        f"{r['rule']} on {r['kernel']} {r['parameters']}: {r['outcome']}: {r['reason'][:200]}"
        for r in record["proposals"] if r["reason"]
    ][:12]  # fmt: skip
    lines += [f"{label} was left out: {reason[:160]}" for label, reason in record["skipped"].items()]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
