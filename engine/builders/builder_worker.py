"""The front worker: reads, writes and builds programs of one spec, one frame per request, until its input closes."""

from __future__ import annotations

import os
import sys
from array import array
from contextlib import suppress
from pathlib import Path
from typing import Any

_MOST_FAMILIES = 32  # that are kept to write more points of; each holds its program's syntax tree


def _program(header: dict[str, Any], blobs: list[bytes]) -> Any:
    from engine.model import Program

    return Program(dict(zip(header["files"], blobs, strict=True)), header["kernel_file"])


def _open(header: dict[str, Any], blobs: list[bytes]) -> Any:
    from engine.compile.nvrtc import NvrtcCompiler
    from engine.process.sandbox import NoSandbox, Sandbox

    box, cache = header["box"], header["cache"]
    compiler = NvrtcCompiler(
        header["arch"],
        cache=None if cache is None else Path(cache),
        sandbox=NoSandbox() if box is None else Sandbox(**{**box, "bwrap": Path(box["bwrap"])}),
        jobs=1,
        group=True,  # it must end when this process is killed
    )
    if header["compiles"]:
        compiler.warm(1)  # beside what is imported here
    from engine.evaluate.build import Builder, BuildOptions
    from engine.model import Target
    from engine.spec.plain import as_spec
    from engine.verify.defences import Defences

    builder = Builder(
        as_spec(header["spec"]),
        Path(header["root"]),
        compiler,
        Target(**header["target"]),
        header["spec_path"],
        BuildOptions(line_info=header["line_info"], defences=Defences(**header["defences"])),
    )
    if header["files"]:
        builder.original_program = _program(header, blobs)
    return builder


def _build(builder: Any, program: Any, header: dict[str, Any]) -> tuple[dict[str, Any], list[bytes]]:
    from engine.compile.built import NotBuilt

    try:
        built = builder.candidate(program)
    except NotBuilt as error:
        ended: Any = error.evaluation
        failed = {"outcome": ended.outcome.value, "reason": ended.failure.reason, "line": ended.failure.line}
        return {"failed": failed, "stage_s": dict(ended.stage_s)}, []
    binary = vars(built.binary)
    answer = {
        "launches": [[(s.grid, s.block, s.shared_bytes) for s in case] for case in built.launches],
        "stage_s": dict(built.stage_s),
        "binary": {name: value for name, value in binary.items() if name not in ("cubin", "resources")},
        "resources": [vars(each) for each in built.binary.resources],
    }
    return answer, [built.text.encode(), built.binary.cubin]


def _propose(analysis: Any, program: Any, header: dict[str, Any]) -> tuple[dict[str, Any], list[bytes]]:
    found, failures = analysis.propose(program)
    return {
        "proposals": [{**_plain(p), "makes": _made(program, p)} for p in found],
        "failures": [{"rule": f.rule, "error": f.error} for f in failures],
        "not_understood": _not_understood(program, {path for p in found for path in p.edits}),
    }, []


def _not_understood(program: Any, paths: set[str]) -> dict[str, list[tuple[int, int]]]:
    """What the grammar did not understand of the files that proposals edit: who makes the edits asks that of each."""
    from engine.cuda.edit import SOURCES
    from engine.cuda.parse import not_understood
    from engine.errors import SourceError

    found = {}
    for path in paths & set(program.files):
        if not path.endswith(SOURCES):
            continue
        with suppress(SourceError):  # whoever edits it is told
            found[path] = [(span.start, span.end) for span in not_understood(program.files[path], path)]
    return found


def _made(program: Any, proposal: Any) -> str | None:
    """The digest of what a proposal gives, so that who chooses knows what was tried; None where it cannot be applied."""
    from engine.cuda.edit import edit_program

    try:
        return str(edit_program(program, proposal.edits).digest)
    except Exception:  # whoever tries it is told
        return None


def _offers(analysis: Any, program: Any, header: dict[str, Any]) -> tuple[dict[str, Any], list[bytes]]:
    from engine.tune.offers import offers

    found: Any = offers(program, analysis.spec, analysis.spec_path, analysis.target)
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


def _write(analysis: Any, program: Any, header: dict[str, Any]) -> tuple[dict[str, Any], list[bytes]]:
    """A point of a rule's template, and its program built: that is what is wanted of it next."""
    from engine.cuda.edit import edit_program

    made = _family(analysis, program, header).make(header["values"])
    if made is None:
        return {"proposal": None}, []
    written = edit_program(program, made.edits)
    answer, blobs = _build(analysis, written, header)
    return {**answer, "proposal": _plain(made), "digest": written.digest}, blobs


_families: dict[tuple[Any, ...], Any] = {}


def _family(analysis: Any, program: Any, header: dict[str, Any]) -> Any:
    from engine.tune.offers import Place, family_at

    place = Place(*header["place"])
    known = _families.get((program.digest, header["rule"], place))
    if known is None:
        parameters = {name: tuple(values) for name, values in header["parameters"].items()}
        known = family_at(program, analysis.spec, analysis.target, header["rule"], place, parameters)
        _keep(program, place, known)
    return known


def _keep(program: Any, place: Any, family: Any) -> None:
    _families[program.digest, family.rule, place] = family
    if len(_families) > _MOST_FAMILIES:
        del _families[next(iter(_families))]


def _plain(proposal: Any) -> dict[str, Any]:
    return {
        "proposer": proposal.proposer,
        "rule": proposal.rule,
        "summary": proposal.summary,
        "edits": {path: [(e.span.start, e.span.end, e.text) for e in edits] for path, edits in proposal.edits.items()},
        "parameters": dict(proposal.parameters),
        "prior": proposal.prior,
    }


def main() -> int:
    """Serve until the input closes. Exit code 0."""
    from engine.errors import OptimlError
    from engine.process import wire

    source, sink = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    analysis: Any = None
    while True:
        try:
            header, blobs = wire.receive(source)
        except wire.WireError:
            return 0
        answer: dict[str, Any] = {}
        out: list[bytes] = []
        try:
            if header["op"] == "open":
                analysis = _open(header, blobs)
            else:
                work = {"build": _build, "propose": _propose, "offers": _offers, "write": _write}[header["op"]]
                answer, out = work(analysis, _program(header, blobs), header)
        except OptimlError as error:
            answer = {"refused": error.what}
        except (KeyError, LookupError, RecursionError) as error:
            answer = {"refused": f"cannot be analysed: {type(error).__name__}: {error}"[:300]}
        wire.send(sink, answer, out)


if __name__ == "__main__":
    sys.exit(main())
