"""The front worker: reads programs of one spec, one frame per request, until its input closes."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any


def _program(header: dict[str, Any], blobs: list[bytes]) -> Any:
    from engine.model import Program

    return Program(dict(zip(header["files"], blobs, strict=True)), header["kernel_file"])


def _open(header: dict[str, Any], blobs: list[bytes]) -> Any:
    from engine.evaluate.analysis import Analysis
    from engine.rules.model import Target
    from engine.spec.plain import as_spec
    from engine.verify.defences import Defences

    analysis = Analysis(
        as_spec(header["spec"]),
        Path(header["root"]),
        Target(**header["target"]),
        header["spec_path"],
        defences=Defences(**header["defences"]),
    )
    if header["files"]:
        analysis.original_program = _program(header, blobs)
    return analysis


def _prepare(analysis: Any, program: Any) -> tuple[dict[str, Any], list[bytes]]:
    prepared = analysis.prepare(program)
    launches = [[(s.grid, s.block, s.shared_bytes) for s in case] for case in prepared.launches]
    return {"launches": launches}, [prepared.text.encode()]


def _propose(analysis: Any, program: Any) -> tuple[dict[str, Any], list[bytes]]:
    found, failures = analysis.propose(program)
    failed = [{"rule": f.rule, "error": f.error} for f in failures]
    return {"proposals": [_plain(p) for p in found], "failures": failed}, []


def _offers(analysis: Any, program: Any) -> tuple[dict[str, Any], list[bytes]]:
    from engine.tune.offers import offers

    found: Any = offers(program, analysis.spec, analysis.spec_path, analysis.target)
    if any(offer.place is None for offer in found):
        return {"declared": True}, []
    plain = [
        {
            "place": (offer.place.step, offer.place.number),
            "rule": offer.template.family.rule,
            "summary": offer.template.family.summary,
            "parameters": dict(offer.template.family.parameters),
            "conditions": offer.template.family.conditions,
            "prior": offer.prior,
            "points": offer.points.points,
            "first": _plain(offer.first),
        }
        for offer in found
    ]
    return {"declared": False, "offers": plain}, []


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
    from engine import wire
    from engine.errors import OptimlError

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
                work = {"prepare": _prepare, "propose": _propose, "offers": _offers}[header["op"]]
                answer, out = work(analysis, _program(header, blobs))
        except OptimlError as error:
            answer = {"refused": error.what}
        except (KeyError, LookupError, RecursionError) as error:
            answer = {"refused": f"cannot be analysed: {type(error).__name__}: {error}"[:300]}
        wire.send(sink, answer, out)


if __name__ == "__main__":
    sys.exit(main())
