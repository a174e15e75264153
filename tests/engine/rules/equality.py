"""Runs a site's kernel and its rewrites on the CPU: the outputs must agree, and nothing may be found."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from engine.arith import evaluate_int
from engine.cpu import CpuBinary, CpuJob, CpuMachine
from engine.rewrite.site import Site
from engine.settings.folders import cache_folder
from engine.spec.launch_config import evaluate
from tests.engine.rules.workbench import PATH, device

TYPES: Mapping[str, Any] = {
    "float": np.float32, "double": np.float64, "int": np.int32, "unsigned int": np.uint32, "signed char": np.int8,
    "half": np.float16, "__half": np.float16, "T": np.float32, "size_t": np.uint64, "__nv_bfloat16": np.uint16,
}  # fmt: skip
BFLOAT16 = ("__nv_bfloat16",)  # by their bits


@cache
def machine() -> CpuMachine:
    """One machine for the whole session. Its precompiled header takes seconds: it is kept where the command keeps it."""
    scratch = Path(tempfile.mkdtemp(prefix="optiml-rules-"))
    atexit.register(shutil.rmtree, scratch, ignore_errors=True)
    return CpuMachine(cache_folder() / "cpu", sandbox=None, scratch=scratch)


# The original runs beside each of its rewrites, and every kernel for several sizes.
_BINARIES: dict[tuple[str, ...], CpuBinary] = {}
_RESULTS: dict[tuple[str, ...], dict[str, np.ndarray[Any, Any]]] = {}
_JOBS: dict[tuple[str, ...], tuple[CpuBinary, CpuJob]] = {}


def results(
    site: Site, sizes: Mapping[str, int], expression: str = "", *, seed: int = 1, infinite: str = ""
) -> dict[str, np.ndarray[Any, Any]]:
    """The buffers that are not inputs after one checked run. Fails the test where the run finds anything.

    The first element of the buffer `infinite` is infinite.
    """
    return _RESULTS[_run(site, sizes, expression, seed, infinite)]


def _run(site: Site, sizes: Mapping[str, int], expression: str, seed: int = 1, infinite: str = "") -> tuple[str, ...]:
    """The key of a run, with `_RESULTS` and `_JOBS` filled."""
    kernel = (device(site), expression or site.kernel.name, repr(site.spec))
    launch = evaluate(site.program, site.spec, 0, sizes)
    run = (*kernel, repr(launch), repr(sorted(sizes.items())), str(seed), infinite)
    if run in _RESULTS:
        return run
    rng = np.random.default_rng(seed)
    buffers: dict[str, np.ndarray[Any, Any]] = {}
    scalars: dict[str, np.generic | bytes] = {}
    for argument in site.spec.arguments:
        kind = TYPES.get(argument.type, np.float32)
        if argument.role == "scalar":
            scalars[argument.name] = kind(sizes.get(argument.name, 2))
            continue
        count = evaluate_int(argument.size, sizes)
        bfloat = argument.type in BFLOAT16
        drawn = rng.standard_normal(count) if bfloat or np.issubdtype(kind, np.floating) else rng.integers(-9, 9, count)
        buffers[argument.name] = drawn.astype(np.float32).view(np.uint32) >> 16 if bfloat else drawn.astype(kind)
        buffers[argument.name] = buffers[argument.name].astype(kind)
        if argument.name == infinite:
            buffers[argument.name][0] = np.inf
    cpu = machine()
    if kernel not in _BINARIES:
        _BINARIES[kernel] = cpu.build(kernel[0], PATH, site.spec, [kernel[1]])
    jobs = [CpuJob([launch], buffers, scalars, order) for order in (0, 1, 7)]
    runs = cpu.run_many(_BINARIES[kernel], jobs)
    for each in runs:
        assert not each.findings, each.findings
    _JOBS[run], _RESULTS[run] = (_BINARIES[kernel], jobs[0]), dict(runs[0].outputs)
    return run


def assert_equal(
    site: Site,
    edited: Iterable[Site],
    sizes: Iterable[Mapping[str, int]],
    *,
    expression: str = "",
    tolerance: float = 1e-4,
    races: bool = False,
) -> None:
    """The edited kernels give what the original gives, for each set of sizes.

    Races are looked for in the largest: starting a thread for ThreadSanitizer takes a millisecond, and smaller sizes leave
    threads of the same blocks without work.
    """
    candidates, cases = list(edited), list(sizes)
    assert candidates
    largest = max(cases, key=lambda case: prod(case.values()))
    for case in cases:
        expected = results(site, case, expression)
        for candidate in candidates:
            got = results(candidate, case, expression)
            for name, value in expected.items():
                scale = 1 + np.abs(value.astype(np.float64))
                error = np.max(np.abs(got[name].astype(np.float64) - value) / scale, initial=0.0)
                assert error <= tolerance, (name, case, error)
    if races:
        for run in machine().race_runs([_JOBS[_run(candidate, largest, expression)] for candidate in candidates]):
            assert not run.findings, run.findings
