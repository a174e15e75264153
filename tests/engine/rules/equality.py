"""Runs a site's kernel and its rewrites on the CPU: the outputs must agree, and nothing may be found."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from engine.arith import evaluate_int
from engine.cpu import CpuJob, CpuMachine
from engine.rules.model import Site
from engine.source.launch import evaluate
from tests.engine.rules.workbench import PATH, device

TYPES: Mapping[str, Any] = {
    "float": np.float32, "double": np.float64, "int": np.int32, "unsigned int": np.uint32, "signed char": np.int8,
    "half": np.float16, "__half": np.float16, "T": np.float32,
}  # fmt: skip


@cache
def machine() -> CpuMachine:
    """One machine for the whole session: its precompiled header takes seconds."""
    folder = Path(tempfile.mkdtemp(prefix="optiml-rules-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return CpuMachine(folder / "cache", sandbox=None, scratch=folder / "scratch")


def results(
    site: Site, sizes: Mapping[str, int], expression: str = "", *, races: bool = False, seed: int = 1
) -> dict[str, np.ndarray[Any, Any]]:
    """The buffers that are not inputs after one checked run. Fails the test where the run finds anything."""
    rng = np.random.default_rng(seed)
    buffers: dict[str, np.ndarray[Any, Any]] = {}
    scalars: dict[str, np.generic | bytes] = {}
    for argument in site.spec.arguments:
        kind = TYPES.get(argument.type, np.float32)
        if argument.role == "scalar":
            scalars[argument.name] = kind(sizes.get(argument.name, 2))
            continue
        count = evaluate_int(argument.size, sizes)
        drawn = rng.standard_normal(count) if np.issubdtype(kind, np.floating) else rng.integers(-9, 9, count)
        buffers[argument.name] = drawn.astype(kind)
    launch = evaluate(site.program, site.spec, 0, sizes)
    cpu = machine()
    binary = cpu.build(device(site), PATH, site.spec, [expression or site.kernel.name])
    jobs = [CpuJob([launch], buffers, scalars, order) for order in (0, 1, 7)]
    runs = cpu.run_many(binary, jobs)
    for run in runs:
        assert not run.findings, run.findings
    if races:
        found = cpu.races(binary, jobs[:1])
        assert not found, found
    return dict(runs[0].outputs)


def assert_equal(
    site: Site,
    edited: Iterable[Site],
    sizes: Iterable[Mapping[str, int]],
    *,
    expression: str = "",
    tolerance: float = 1e-4,
    races: bool = False,
) -> None:
    """The edited kernels give what the original gives, for each set of sizes."""
    candidates = list(edited)
    assert candidates
    for case in sizes:
        expected = results(site, case, expression)
        for candidate in candidates:
            got = results(candidate, case, expression, races=races)
            for name, value in expected.items():
                scale = 1 + np.abs(value.astype(np.float64))
                error = np.max(np.abs(got[name].astype(np.float64) - value) / scale, initial=0.0)
                assert error <= tolerance, (name, case, error)
