"""`optiml optimize --per-device`: a search on each kind of device. Loads Dask, so it is imported where that is asked for."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict

from engine.commands.device_dispatch import Searched, dispatch_of
from engine.commands.on_cluster import machines_per_device
from engine.commands.one_kernel import KernelRun, all_kernels
from engine.commands.optimize import RESULTS, print_one
from engine.commands.targets import KernelTarget
from engine.errors import OptimlError, UsageError
from engine.llm.session import LlmSettings
from engine.report.device_table import DeviceBest, plain, print_device_dispatch, print_device_table
from engine.report.safe_text import clean
from engine.run.result import OptimizationResult
from engine.search.progress import Budget


def search(
    arguments: argparse.Namespace, targets: Sequence[KernelTarget], budget: Budget, proposers: tuple[str, ...],
    settings: LlmSettings | None,
) -> int:  # fmt: skip
    """A search on each kind of device, one after the other, with the whole budget; exit code 0, or 1 where one failed."""
    (job, *others) = all_kernels(targets)
    if others:
        raise UsageError(
            "--per-device searches one kernel", do="give one kernel, or use: optiml all --cluster ADDR --per-device"
        )
    best: list[DeviceBest] = []
    results: list[OptimizationResult] = []
    searched: list[Searched] = []
    failed: list[dict[str, object]] = []
    codes = {0}
    with closing(machines_per_device(arguments)) as machines:
        for device, machine in machines:
            run = KernelRun(arguments, machine, budget, proposers, settings, device=device)
            try:
                result, out, root = run.search(job)
            except OptimlError as error:
                codes.add(error.exit_code)
                failed.append({"file": job.shown, "kernel": job.kernel or "", "device": device, "error": str(error)})
                if arguments.format == "text":
                    print(clean(f"optiml: {device}: {error}"), file=sys.stderr)
                continue
            found = result.best.evaluation.measurement if result.best is not None else None
            patch = str(out / result.best.patch) if result.best is not None else ""
            ratio, predicted = (None, False) if found is None else (found.ratio, found.predicted)
            best.append(DeviceBest(result.file, result.kernel, device, ratio, predicted, patch))
            results.append(result)
            assert run.spec is not None
            searched.append(Searched(device, machine.arch, machine.mode, result, out, root, run.spec))
            if arguments.format == "text":
                print_one(arguments, result, out, root)
            if budget.interrupt.asked:
                break
    dispatch = dispatch_of(arguments, searched, interrupted=budget.interrupt.asked)
    if arguments.format == "text":
        print_device_table(best)
        print_device_dispatch(dispatch)
    else:
        every = [json.loads(result.to_json()) for result in results]
        found_all = {
            "schema": RESULTS, "results": every, "failed": failed, "best_per_device": plain(best),
            "device_dispatch": asdict(dispatch),
        }  # fmt: skip
        sys.stdout.write(json.dumps(found_all, indent=2, sort_keys=True) + "\n")
    return min(1, max(codes)) if results else max(codes)
