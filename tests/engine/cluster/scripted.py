"""Preloaded into workers: searches that take no compiler. They book candidates in a real journal, one at a time, and end in a result."""

from __future__ import annotations

import json
import time
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from engine.campaign import kernel_search
from engine.cuda.load import load_program
from engine.model import Evaluation, Outcome
from engine.run.earlier_run import identity_of
from engine.search.journal import Entry, Journal
from engine.search.progress import Progress

STEP_S = 0.15
KERNEL = """
// optiml: args.x = { role = "in", size = "n", fill = "normal" }
// optiml: args.y = { role = "out", size = "n" }
// optiml: check = [{ n = 1 }, { n = 903 }, { n = 4096 }, { n = 10007 }]
// optiml: time = [{ n = 4096 }]
__global__ void NAME(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = 2.0f * x[i];
}
void run_NAME(const float* x, float* y, int n) { NAME<<<(n + 255) / 256, 256>>>(x, y, n); }
"""


def repository(root: Path, kernels: int) -> Path:
    """A repository of so many kernels with specs, a file for each."""
    (root / ".git").mkdir(parents=True)
    for number in range(kernels):
        (root / f"k{number}.cu").write_text(KERNEL.replace("NAME", f"k{number}"))
    return root


def optimize(options: Any, machine: Any, on_progress: Any) -> tuple[Any, Path]:
    """Book candidates until the budget's number of them is in the journal, or its time is over."""
    spec, spec_path = options.spec
    program = load_program(options.path, spec_file=spec_path, kernels=[spec.kernel])
    identity = identity_of(program, spec, options.seed, machine.arch, machine.mode)
    out = options.out
    journal = Journal(
        out / "journal.sqlite", program, {"kernel": spec.kernel}, resume=options.resume, identity=identity
    )
    try:
        there = [entry.elapsed_s for entry in journal.entries()]
        begin = time.monotonic() - max(there, default=0.0)
        for number in count(len(there)):
            if options.budget.spent(time.monotonic() - begin, number - 1):
                break
            evaluation = Evaluation(Outcome.SCREENED, code_hash=f"{number:x}")
            parent = None if number == 0 else number - 1
            journal.book(
                Entry(
                    number,
                    parent,
                    "rules",
                    "r",
                    {},
                    f"step {number}",
                    f"d{number}",
                    (),
                    evaluation,
                    {},
                    time.monotonic() - begin,
                )
            )
            on_progress(Progress(evaluated=number))
            time.sleep(STEP_S)
    finally:
        journal.close()
    (out / "result.json").write_text(json.dumps({"best": None}))
    counts = {"candidates": number - 1}
    return SimpleNamespace(best=None, stopped="", verdict=f"{counts['candidates']} candidates", counts=counts), out


def dask_setup(worker: Any) -> None:
    """Called by Dask where this file is preloaded."""
    kernel_search.optimize = optimize  # type: ignore[assignment]
