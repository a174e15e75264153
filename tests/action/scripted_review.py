"""Preloaded into workers: reviews that take no compiler. Their searches record candidates in a real journal (tests/engine/cluster)."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from action import kernel_review
from bot.bundle import Comparison
from engine.campaign import kernel_search
from engine.run.result import OptimizationResult
from tests.bot.make import measurement, result
from tests.engine.cluster import scripted

CANDIDATES = 25


def optimize(options: Any, machine: Any, on_progress: Any) -> tuple[OptimizationResult, Path]:
    """The scripted search with a result that a review can read."""
    counted = dataclasses.replace(options.budget, candidates=CANDIDATES)
    _, out = scripted.optimize(dataclasses.replace(options, budget=counted), machine, on_progress)
    found = result(None, predicted=True)
    found = dataclasses.replace(found, counts={**found.counts, "candidates": CANDIDATES})
    (out / "result.json").write_text(json.dumps(dataclasses.asdict(found)))
    return found, out


def compared(*_: object) -> tuple[Comparison, dict[str, str]]:
    """A comparison without a compiler."""
    return Comparison("slower", measurement(0.5, predicted=True)), {"arch": "sm_90"}


def dask_setup(worker: Any) -> None:
    """Called by Dask where this file is preloaded."""
    kernel_search.optimize = optimize  # type: ignore[assignment]
    kernel_review.compared = compared
