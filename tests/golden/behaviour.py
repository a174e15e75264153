"""What the rules propose and `optiml init` drafts for the kernels of examples and suite, as text that a difference can be read from.

`make golden` writes the files beside this module anew.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from unittest.mock import patch

from engine.cuda.edit import apply, edit_program
from engine.cuda.load import load_program
from engine.cuda.parse import parse
from engine.errors import OptimlError, RefusedError, SourceError
from engine.model import Program
from engine.rewrite.proposal import Family, Proposal
from engine.rewrite.site import Site
from engine.rules import RuleFailure, families, make_site, proposals
from engine.spec.draft import draft
from engine.spec.find import described, find_spec
from engine.spec.kernel_spec import KernelSpec
from engine.tune.space import Condition, ParameterSpace, TuneParameter

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
FOLDERS = ("examples", "benchmarks/suite")
_FIRST_EDITS = 12  # of a kernel, each with all proposals for what it gives
_POINTS = 48  # of a family, spread evenly over its feasible points


@dataclass
class _Digest:
    """A count and a hash of what one rule says about one kernel."""

    count: int = 0
    sha: hashlib._Hash = field(default_factory=hashlib.sha256)

    def add(self, *parts: object) -> None:
        self.count += 1
        self.sha.update(repr(parts).encode())

    def __str__(self) -> str:
        return f"{self.count:4} {self.sha.hexdigest()[:12] if self.count else '-' * 12}"


@dataclass
class _Line:
    """A rule's proposals for a kernel as it stands, those after one edit of it, and the points of its families."""

    first: _Digest = field(default_factory=_Digest)
    after: _Digest = field(default_factory=_Digest)
    points: _Digest = field(default_factory=_Digest)


def kernel_files() -> Iterator[Path]:
    for folder in FOLDERS:
        yield from sorted((ROOT / folder).glob("*.cu"))


def proposal_lines(file: Path) -> list[str]:
    """One line for each kernel and rule of the file: `FILE KERNEL RULE`, then a count and a hash of three kinds.

    A proposal counts with its parameters, its prior and the text of the files after its edits; its summary does not. Rules have
    all the time they want.
    """
    found: list[str] = []
    with patch("engine.rules.limited", lambda seconds: nullcontext()):
        for name in described(ROOT, file):
            spec, path = find_spec(ROOT, file, name)
            program = load_program(file, spec_file=path, kernels=[step.kernel for step in spec.steps])
            lines = _lines(program, spec)
            found += [
                f"{file.stem:<18} {name:<26} {rule:<20} {line.first}  {line.after}  {line.points}"
                for rule, line in sorted(lines.items())
            ]
    return found


def _lines(program: Program, spec: KernelSpec) -> dict[str, _Line]:
    lines: dict[str, _Line] = {}

    def line(rule: str) -> _Line:
        return lines.setdefault(rule, _Line())

    proposed: list[Proposal] = []
    for site in _sites(program, spec):
        for proposal in _all(site):
            line(proposal.rule).first.add(*_parts(program, proposal))
            proposed.append(proposal)
        for family in families(site):
            line(family.rule).points.add(sorted(family.parameters.items()), family.conditions, family.prior)
            for values in _points(family):
                made = family.make(values)
                line(family.rule).points.add(*(_parts(program, made) if made is not None else (values,)))
    for proposal in proposed[:_FIRST_EDITS]:
        try:
            edited = edit_program(program, proposal.edits)
        except SourceError:
            continue
        for site in _sites(edited, spec):
            for other in _all(site):
                line(other.rule).after.add(*_parts(edited, other))
    return lines


def _sites(program: Program, spec: KernelSpec) -> Iterator[Site]:
    for step in range(len(spec.steps)):
        try:
            yield make_site(program, spec, step)
        except (KeyError, OptimlError):
            continue


def _all(site: Site) -> tuple[Proposal, ...]:
    failures: list[RuleFailure] = []
    found = proposals(site, failures=failures)
    assert not failures, failures
    return found


def _parts(program: Program, proposal: Proposal) -> tuple[object, ...]:
    files = sorted((path, apply(program.files[path], edits)) for path, edits in proposal.edits.items())
    return proposal.rule, files, sorted(proposal.parameters.items()), proposal.prior


def _points(family: Family) -> list[dict[str, int]]:
    """Some of the family's feasible points, as the tuner finds them."""
    space = ParameterSpace(
        tuple(TuneParameter(name, tuple(values)) for name, values in family.parameters.items()),
        tuple(Condition(text) for text in family.conditions),
    )
    try:
        feasible, _ = space.points()
    except RefusedError:  # none
        return []
    return [space.named(point) for point in feasible[:: max(1, -(-len(feasible) // _POINTS))]]


def drafts(files: Iterable[Path]) -> str:
    """The drafts of all kernels, from the text alone."""
    found = []
    for file in files:
        program = load_program(file)
        for kernel in parse(program.data, program.kernel_file).kernels:
            made = draft(program, kernel.qualified)
            missing = "".join(f"missing: {what}\n" for what in made.missing)
            found.append(f"=== {program.kernel_file} {kernel.qualified}\n{made.text}{missing}")
    return "\n".join(found)


def write() -> None:
    """Write both files from what the code does now."""
    lines = [line for file in kernel_files() for line in proposal_lines(file)]
    (HERE / "proposals.txt").write_text("\n".join(lines) + "\n")
    (HERE / "drafts.txt").write_text(drafts(kernel_files()))


if __name__ == "__main__":
    write()
