"""After a push to the default branch: times the kernels that it changed, and adds them to the baseline."""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Literal

from action.request import Request
from action.search_job import machine_for, settings_at, wanted
from action.trees import write_tree
from bot.baseline import Baseline, CaseTime, Entry, device_name, read_baseline, spec_name, write_baseline
from bot.changes import find_changes
from bot.clone import Repository
from bot.errors import BundleError
from engine.cuda.load import load_program
from engine.errors import OptimlError
from engine.evaluate.contained import unexpected
from engine.settings.scratch import scratch_folder
from engine.spec.find import find_spec


def record(
    request: Request, clone: Path, folder: Path, *, device: Literal["auto", "gpu", "cpu"], say: Callable[[str], None]
) -> int:
    """Time what changed between the request's commits; how many kernels were added to the baseline in `folder`.

    Raises ConfigError, GitError, DiffError, MachineError, BundleError (it cannot be written).
    """
    begin = time.monotonic()
    repository = Repository(clone)
    config = settings_at(repository, request.head)
    chosen, _ = wanted(request, config, list(find_changes(repository, request.base, request.head).kernels))
    try:
        baseline = read_baseline(folder)
    except BundleError as error:
        say(f"the baseline is started over: {error}")
        baseline = Baseline()
    added = 0
    if chosen:
        with scratch_folder() as scratch:
            tree = write_tree(repository, request.head, scratch / "head")
            machine = machine_for(device, config.targets[0])
            try:
                for changed in chosen:
                    if time.monotonic() - begin > config.budget.total:
                        say(f"{changed.path}: {changed.kernel}: out of time")
                        continue
                    try:
                        spec, spec_path = find_spec(tree, tree / changed.path, changed.kernel)
                        program = load_program(
                            tree / changed.path, spec_file=spec_path, kernels=[step.kernel for step in spec.steps]
                        )
                        evaluator = machine.evaluator(spec, tree, spec_path)
                        try:
                            _, evaluation = evaluator.open(program)
                        finally:
                            evaluator.close()
                    except OptimlError as error:
                        say(f"{changed.path}: {changed.kernel}: {str(error).replace(f'{tree.resolve()}/', '')}")
                        continue
                    except Exception as error:  # of this kernel: the others are measured all the same
                        say(f"{changed.path}: {changed.kernel}: {unexpected(error)}")
                        continue
                    measurement = evaluation.measurement
                    if measurement is None:
                        continue
                    name = device_name(machine.mode, evaluator.signals.device, metadata.version("optiml-cuda"))
                    cases = tuple(CaseTime(c.case, c.weight, c.original_us) for c in measurement.cases)
                    baseline = baseline.with_entry(
                        Entry(
                            changed.path,
                            changed.kernel,
                            name,
                            spec_name(spec),
                            request.head,
                            measurement.predicted,
                            cases,
                        )
                    )
                    added += 1
                    say(f"{changed.path}: {changed.kernel}: {', '.join(f'{c.us:.1f} µs' for c in cases)}")
            finally:
                machine.close()
    write_baseline(baseline, folder)
    return added
