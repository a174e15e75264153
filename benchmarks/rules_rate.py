"""Which rules find work in the example and suite kernels, and how much of what they write compiles. Needs no GPU.

    python benchmarks/rules_rate.py --record benchmarks/results/rules_rate.json

For each kernel with a spec below `examples/` and `benchmarks/suite/`: all proposals of all rules are applied and built as a
search would build them (device slice, launch figures, limits, NVRTC). With `--after N` that is done once more for N programs
per kernel that are one edit away, taken by a seeded choice over the rules, because rules work on each other's output; those
counts stand apart. Exit code 0 when every rule matches a kernel and at least nine of ten proposals of each compile, 1 when
one does not, 2 on wrong use.
"""

from __future__ import annotations

import argparse
import datetime
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.examples import commit, machine  # noqa: E402 - the path above makes it importable as a script
from engine.compile.nvrtc import NvrtcCompiler  # noqa: E402
from engine.cuda.edit import edit_program  # noqa: E402
from engine.cuda.load import load_program, repository_root  # noqa: E402
from engine.errors import OptimlError  # noqa: E402
from engine.evaluate.build import Builder  # noqa: E402
from engine.model import Program, Target  # noqa: E402
from engine.process import sandbox  # noqa: E402
from engine.rewrite.proposal import Proposal  # noqa: E402
from engine.rules import RuleFailure, make_site, proposals, rules  # noqa: E402
from engine.spec.find import described, find_spec  # noqa: E402
from engine.spec.kernel_spec import KernelSpec  # noqa: E402

SCHEMA = "optiml.rules_rate/1"
LEAST = 0.9  # of a rule's proposals compile
_FOLDERS = ("examples", "benchmarks/suite")


@dataclass
class Tally:
    """What came of one rule's proposals."""

    kernels: list[str] = field(default_factory=list)
    proposals: int = 0
    compiled: int = 0
    failed: list[dict[str, Any]] = field(default_factory=list)  # each proposal that did not compile, and why


def main(given: Sequence[str] | None = None) -> int:
    """Run; see the module's docstring."""
    parser = argparse.ArgumentParser(description="Precondition hits and compile rate of each rewrite rule.")
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE", help=f"default: below {', '.join(_FOLDERS)}")
    parser.add_argument("--rules", default="", help="only these, separated by commas")
    parser.add_argument("--after", type=int, default=0, help="programs one edit away, for each kernel (default: 0)")
    parser.add_argument("--seed", type=int, default=1, help="of the choice of those programs (default: 1)")
    parser.add_argument("--arch", default="sm_90", help="compile for (default: sm_90)")
    parser.add_argument("--record", type=Path, required=True, help="the JSON record to write")
    options = parser.parse_args(given)
    names = some_rules(parser, options.rules)
    begin = datetime.datetime.now(datetime.UTC)
    first, later = ({n: Tally() for n in names} for _ in range(2))
    timing: dict[str, float] = {}
    skipped: dict[str, str] = {}
    failures: list[RuleFailure] = []
    chance = random.Random(options.seed)
    with (
        tempfile.TemporaryDirectory() as folder,
        NvrtcCompiler(options.arch, cache=Path(folder), sandbox=sandbox.sandbox()) as compiler,
        ThreadPoolExecutor(2 * (machine()["cpus_usable"] or 1)) as pool,
    ):
        target = Target(arch=options.arch)
        for file in sources(options.files):
            for label, program, spec, spec_path in kernels(file, skipped):
                builder = Builder(spec, repository_root(file), compiler, target, spec_path)
                try:
                    builder.original(program)
                except OptimlError as error:
                    skipped[label] = str(error)
                    continue
                began = time.perf_counter()
                found = _proposals(program, spec, target, names, failures)
                timing[label] = time.perf_counter() - began
                _build(builder, program, label, found, first, pool)
                for proposal in _some(found, options.after, chance):
                    edited = _applied(program, proposal)
                    if edited is not None:
                        more = _proposals(edited, spec, target, names, failures)
                        _build(builder, edited, label, more, later, pool)
    record = {
        "schema": SCHEMA,
        "command": ["python", "benchmarks/rules_rate.py", *(sys.argv[1:] if given is None else given)],
        "date": begin.isoformat(timespec="seconds"),
        "commit": commit(),
        "machine": machine(),
        "compiler": {"nvrtc": compiler.version, "arch": options.arch},
        "kernels": sorted(timing),
        "skipped": skipped,
        "proposals_s": timing,
        "failures": [{"rule": f.rule, "error": f.error} for f in failures],
        "rules": {n: _row(t) for n, t in first.items()},
        "after_one_edit": {n: _row(t) for n, t in later.items()} if options.after else {},
    }
    options.record.parent.mkdir(parents=True, exist_ok=True)
    options.record.write_text(json.dumps(record, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    print(table(record))
    return 0 if passed(record) else 1


def some_rules(parser: argparse.ArgumentParser, given: str) -> list[str]:
    """The rules of a list with commas, or all. Ends the program where one is not there."""
    known = [r.name for r in rules()]
    names = [n for n in given.split(",") if n] or known
    if unknown := sorted(set(names) - set(known)):
        parser.error(f"there is no rule {', '.join(unknown)}")
    return names


def sources(given: Sequence[Path]) -> list[Path]:
    """The given files, or those of the examples and the suite."""
    return [f.resolve() for f in given] or [f for d in _FOLDERS for f in sorted((ROOT / d).rglob("*.cu"))]


def kernels(file: Path, skipped: dict[str, str]) -> Iterator[tuple[str, Program, KernelSpec, str | None]]:
    """Label, program, spec and the spec's file of each kernel in the file that has a spec."""
    root = repository_root(file)
    try:
        names = described(root, file)
    except OptimlError as error:
        skipped[file.name] = str(error)
        return
    for name in names:
        label = file.stem if len(names) == 1 else f"{file.stem}:{name}"
        try:
            spec, spec_path = find_spec(root, file, name)
            kernels = [step.kernel for step in spec.steps]
            yield label, load_program(file, spec_file=spec_path, kernels=kernels), spec, spec_path
        except OptimlError as error:
            skipped[label] = str(error)


def _proposals(
    program: Program, spec: KernelSpec, target: Target, names: Sequence[str], failures: list[RuleFailure]
) -> list[Proposal]:
    found: list[Proposal] = []
    for step in range(len(spec.steps)):
        found += proposals(make_site(program, spec, step, target), only=names, failures=failures)
    return found


def _some(found: Sequence[Proposal], count: int, chance: random.Random) -> list[Proposal]:
    """So many proposals, of as many different rules as there are."""
    order = list(found)
    chance.shuffle(order)
    seen: Counter[str] = Counter()
    ranked = []
    for proposal in order:
        ranked.append((seen[proposal.rule], len(ranked), proposal))
        seen[proposal.rule] += 1
    return [p for _, _, p in sorted(ranked, key=lambda r: r[:2])[:count]]


def _applied(program: Program, proposal: Proposal) -> Program | None:
    try:
        return edit_program(program, proposal.edits)
    except OptimlError:
        return None


def _build(
    builder: Builder, program: Program, label: str, found: Sequence[Proposal], tallies: dict[str, Tally],
    pool: ThreadPoolExecutor,
) -> None:  # fmt: skip
    def outcome(proposal: Proposal) -> str:
        """Why it does not compile; "" where it does."""
        edited = _applied(program, proposal)
        if edited is None:
            return "cannot be applied"
        try:
            builder.candidate(edited)
        except OptimlError as error:
            return str(error)
        return ""

    for proposal, reason in zip(found, pool.map(outcome, found), strict=True):
        tally = tallies[proposal.rule]
        tally.proposals += 1
        if label not in tally.kernels:
            tally.kernels.append(label)
        if reason:
            said = {"kernel": label, "parameters": dict(proposal.parameters), "reason": reason[:300]}
            tally.failed.append(said)
        else:
            tally.compiled += 1


def _row(tally: Tally) -> dict[str, Any]:
    return {
        "kernels": tally.kernels,
        "proposals": tally.proposals,
        "compiled": tally.compiled,
        "failed": tally.failed,
    }


def passed(record: dict[str, Any]) -> bool:
    """Whether every rule matched a kernel and enough of its proposals compile, also on edited programs."""
    fine = all(r["kernels"] and r["compiled"] >= LEAST * r["proposals"] for r in record["rules"].values())
    return fine and all(r["compiled"] >= LEAST * r["proposals"] for r in record["after_one_edit"].values())


def table(record: dict[str, Any]) -> str:
    """The record as a Markdown table, and what was noticed besides."""
    lines = ["| rule | kernels | proposals | compiled | after an edit | compiled |", "|---|---:|---:|---:|---:|---:|"]
    for name, row in record["rules"].items():
        later = record["after_one_edit"].get(name, {"proposals": 0, "compiled": 0})
        cells = [name, str(len(row["kernels"])), str(row["proposals"]), str(row["compiled"])]
        cells += [str(later["proposals"]), str(later["compiled"])] if later["proposals"] else ["", ""]
        lines.append("| " + " | ".join(cells) + " |")
    total = [sum(r[k] for r in record["rules"].values()) for k in ("proposals", "compiled")]
    slowest = max(record["proposals_s"].values(), default=0.0)
    lines += [
        "",
        f"{len(record['kernels'])} kernels, {total[0]} proposals, {total[1]} compiled; "
        f"all rules together take {slowest:.2f} s for one kernel at most.",
    ]
    lines += [f"No kernel for {n}." for n, r in record["rules"].items() if not r["kernels"]]
    for kind in ("rules", "after_one_edit"):
        for name, row in record[kind].items():
            lines += [f"{name} {f['parameters']} on {f['kernel']}: {f['reason'][:160]}" for f in row["failed"][:3]]
    lines += [f"{f['rule']} failed: {f['error'][:160]}" for f in record["failures"][:5]]
    lines += [f"{label} was left out: {reason[:160]}" for label, reason in record["skipped"].items()]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
