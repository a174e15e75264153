"""What a front worker answers: what rules propose for a program, points of their templates, and programs that it builds."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from engine.compile.built import NotBuilt
from engine.compile.compiler import Compiler
from engine.cuda.edit import edit_program
from engine.cuda.parse import not_understood
from engine.errors import SourceError
from engine.evaluate.build import Builder, BuildOptions
from engine.evaluate.device_frames import head_of
from engine.model import Program, Target
from engine.process.decode import decode
from engine.rewrite.proposal import Family, Proposal
from engine.settings.suffixes import KERNELS
from engine.spec.kernel_spec import KernelSpec
from engine.tune.offers import SearchPlace, family_at, offers
from engine.verify.defences import Defences

_MOST_FAMILIES = 32  # that are kept to write more points of; each holds its program's syntax tree

Answer = tuple[dict[str, Any], list[bytes]]


class BuilderRequests:
    """Answers requests on programs of the spec that it was opened with."""

    def __init__(self, header: dict[str, Any], blobs: list[bytes], compiler: Compiler) -> None:
        self._builder = Builder(
            decode(KernelSpec, header["spec"]),
            Path(header["root"]),
            compiler,
            Target(**header["target"]),
            header["spec_path"],
            BuildOptions(line_info=header["line_info"], defences=Defences(**header["defences"])),
        )
        if header["files"]:
            self._builder.original_program = _program(header, blobs)

    def answer(self, header: dict[str, Any], blobs: list[bytes]) -> Answer:
        """Raises OptimlError, LookupError, RecursionError where a program cannot be analysed."""
        work: dict[str, Callable[[Builder, Program, dict[str, Any]], Answer]] = {
            "build": _build, "propose": _propose, "offers": _offers, "write": _write,
        }  # fmt: skip
        return work[header["op"]](self._builder, _program(header, blobs), header)


def _program(header: dict[str, Any], blobs: list[bytes]) -> Program:
    return Program(dict(zip(header["files"], blobs, strict=True)), header["kernel_file"])


def _build(builder: Builder, program: Program, header: dict[str, Any]) -> Answer:
    builder.further = {"asked": header.get("further", ())}
    try:
        built = builder.candidate(program)
    except NotBuilt as error:
        ended: Any = error.evaluation
        failed = {"outcome": ended.outcome.value, "reason": ended.failure.reason, "line": ended.failure.line}
        return {"failed": failed, "stage_s": dict(ended.stage_s)}, []
    head, blobs = head_of(built, program)
    return {"built": head}, blobs


def _propose(builder: Builder, program: Program, header: dict[str, Any]) -> Answer:
    found, failures = builder.propose(program)
    return {
        "proposals": [{**_plain(p), "makes": _made(program, p)} for p in found],
        "failures": [{"rule": f.rule, "error": f.error} for f in failures],
        "not_understood": _not_understood(program, {path for p in found for path in p.edits}),
    }, []


def _not_understood(program: Program, paths: set[str]) -> dict[str, list[tuple[int, int]]]:
    """What the grammar did not understand of the files that proposals edit: who makes the edits asks that of each."""
    found = {}
    for path in paths & set(program.files):
        if not path.endswith(KERNELS):
            continue
        with suppress(SourceError):  # whoever edits it is told
            found[path] = [(span.start, span.end) for span in not_understood(program.files[path], path)]
    return found


def _made(program: Program, proposal: Proposal) -> str | None:
    """The digest of what a proposal gives, so that who chooses knows what was tried; None where it cannot be applied."""
    try:
        return str(edit_program(program, proposal.edits).digest)
    except Exception:  # whoever tries it is told
        return None


def _offers(builder: Builder, program: Program, header: dict[str, Any]) -> Answer:
    found: Any = offers(program, builder.spec, builder.spec_path, builder.target)
    if any(offer.place is None for offer in found):
        return {"declared": True}, []
    for offer in found:
        _keep(program, offer.place, offer.template.family)
    plain = [
        {
            "place": (offer.place.step, offer.place.number),
            "rule": offer.template.family.rule,
            "summary": offer.template.family.summary,
            "parameters": dict(offer.template.family.parameters),
            "conditions": offer.template.family.conditions,
            "prior": offer.prior,
            "first": _plain(offer.first),
        }
        for offer in found
    ]
    # As bytes: thousands of them, the same for most programs, so that they are hardly ever read.
    points = [array("q", (v for point in offer.points.points for v in point)).tobytes() for offer in found]
    return {"declared": False, "offers": plain}, points


def _write(builder: Builder, program: Program, header: dict[str, Any]) -> Answer:
    """A point of a rule's template, and its program built: that is what is wanted of it next."""
    made = _family(builder, program, header).make(header["values"])
    if made is None:
        return {"proposal": None}, []
    written = edit_program(program, made.edits)
    answer, blobs = _build(builder, written, header)
    return {**answer, "proposal": _plain(made), "digest": written.digest}, blobs


_families: dict[tuple[Any, ...], Any] = {}


def _family(builder: Builder, program: Program, header: dict[str, Any]) -> Any:
    place = SearchPlace(*header["place"])
    known = _families.get((program.digest, header["rule"], place))
    if known is None:
        parameters = {name: tuple(values) for name, values in header["parameters"].items()}
        known = family_at(program, builder.spec, builder.target, header["rule"], place, parameters)
        _keep(program, place, known)
    return known


def _keep(program: Program, place: SearchPlace, family: Family) -> None:
    _families[program.digest, family.rule, place] = family
    if len(_families) > _MOST_FAMILIES:
        del _families[next(iter(_families))]


def _plain(proposal: Proposal) -> dict[str, Any]:
    return {
        "proposer": proposal.proposer,
        "rule": proposal.rule,
        "summary": proposal.summary,
        "edits": {path: [(e.span.start, e.span.end, e.text) for e in edits] for path, edits in proposal.edits.items()},
        "parameters": dict(proposal.parameters),
        "prior": proposal.prior,
    }
