"""Runs as they might come from a stranger, and a predicted one."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from benchmarks.report_size import recorded, synthesise
from engine.model import Evaluation, Outcome
from engine.run.result import OptimizationResult

EVIL = (
    "</script><script>window.pwned=1</script></style></title></textarea>--><img src=http://127.0.0.1:9/x onerror=window.pwned=1>"
    "\"' onmouseover=window.pwned=1 \x1b[2J\x00\x85\u202e\u2066{{ 7*7 }}{% raw %}$x^2$\\frac javascript:window.pwned=1 &amp; <!--"
)
_FIXED = {"schema", "mode", "outcome"}


def evil(value: Any, key: str = "") -> Any:
    """The value with every text in it that is free to be another one trying to leave its place."""
    if isinstance(value, str):
        return value if key in _FIXED else EVIL + value
    if isinstance(value, list):
        return [evil(item, key) for item in value]
    if isinstance(value, dict):
        free = key in (
            "stages",
            "proposers",
            "device",
            "parameters",
            "versions",
            "reward",
            "constants",
            "model",
            "memory",
            "counts",
        )
        return {(EVIL + k if free else k): evil(v, k) for k, v in value.items()}
    return value


def hostile(folder: Path) -> None:
    """Every text of the run, names and source too, tries to leave its place."""
    source = ("// " + EVIL.replace("\x00", "") + "\n") * 3
    result = dataclasses.replace(
        recorded(), model={"spent": {"usd": 1.0}, "stopped": "x", "faults": {"y": 1},
               "edits": [{"id": 3, "idea": "i", "held": None}, "odd"]},
        memory={"learnt": 1},
        proposers={"rules": {"candidates": 1}, "llm": 5}, refused=(),
        spec={"steps": [{"kernel": "k"}]}, constants={"reward": {"cap": {"value": 1.0, "reason": "r"}, "odd": 3}}, notes=("n",),
    )  # fmt: skip
    texts = {result.file: (source.encode(), (source + "__global__ " + source).encode())}
    synthesise(folder, 60, result=result, texts=texts, edit=EVIL)
    path = folder / "result.json"
    path.write_text(json.dumps({**evil(json.loads(path.read_text())), "file": result.file}))


def predicted() -> OptimizationResult:
    """The recorded run as a machine without a GPU would tell it."""
    result = recorded()
    assert result.best is not None
    return dataclasses.replace(
        result, mode="predicted", verdict="predicted, not measured", original=_predicted(result.original),
        best=dataclasses.replace(result.best, evaluation=_predicted(result.best.evaluation)),
        trajectory=tuple(dataclasses.replace(s, evaluation=_predicted(s.evaluation)) for s in result.trajectory),
        signals={"device": {"arch": "sm_90", "name": "none"}},
    )  # fmt: skip


def _predicted(e: Evaluation) -> Evaluation:
    assert e.measurement is not None
    m = dataclasses.replace(e.measurement, predicted=True, low=e.measurement.ratio, high=e.measurement.ratio)
    return dataclasses.replace(e, outcome=Outcome.SCREENED, measurement=m)
