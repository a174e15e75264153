"""The pre-commit hook optiml-quick: a short search over the kernels that a commit changes, with a patch to take."""

from __future__ import annotations

import hashlib
import json
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hooks.common import base_commit, chosen, guarded, named, nothing_named, show

if TYPE_CHECKING:
    from engine.compile.cache import DiskCache
    from engine.run.machine import Machine
    from engine.settings.config import Config
    from engine.settings.memory_settings import MemorySettings
    from hooks.targets import Target

_LEAST_S = 3.0  # a search below that finds nothing: validating a spec takes about as long
_SEARCHED = 0.75  # the share of the time that is searched in: validating before and confirming after take the rest
_OVER = 1.3  # a search that takes so many times its share is stopped from outside, and nothing is suggested


@dataclass(frozen=True)
class Suggestion:
    """A faster version of one kernel. `verdict` says how much, and whether that was measured."""

    kernel: str
    line: int
    verdict: str
    patch: bytes


@dataclass(frozen=True)
class Search:
    """What is searched: kernels that differ from `commit` ("": all), until the `deadline` (of time.monotonic), with lessons or without."""

    config: Config
    commit: str
    deadline: float
    memory: MemorySettings | None = None


@dataclass
class Found:
    """What a file gave. `complete`: searching again under the same budget has no more to say; `answered`: nothing was searched."""

    suggestions: list[Suggestion] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    complete: bool = True
    answered: bool = False


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints patches and how to take them. Exit codes: 0, 1 where one was applied or the settings say so, 2 wrong use."""
    return guarded("optiml-quick", lambda: _run(arguments))


def _run(arguments: Sequence[str] | None) -> int:
    from engine.commands.options import Parser, add_memory, memory_settings
    from engine.settings.config import load_config
    from hooks.worktree import toplevel

    begin = time.monotonic()
    parser = Parser(
        prog="optiml-quick", description="Search for faster versions of the CUDA kernels that a commit changes."
    )
    parser.add_argument(
        "files", nargs="*", metavar="FILE", help="CUDA files and headers (default: those that differ from HEAD)"
    )
    parser.add_argument("--fix", action="store_true", help="apply the suggestions to the working tree")
    parser.add_argument("--all", action="store_true", help="all kernels of the files (default: of the repository)")
    parser.add_argument("--base", metavar="REV", help="commit to compare with (default: HEAD)")
    parser.add_argument(
        "--budget", metavar="N", help="seconds for all files together, e.g. 20s (default: the settings')"
    )
    add_memory(parser)
    given = parser.parse_args(arguments)

    root = toplevel(Path.cwd())
    config, _ = load_config(root)
    budget = config.quick.budget
    if given.budget:
        from engine.commands.optimize import parse_budget
        from engine.errors import UsageError

        seconds = parse_budget(given.budget).seconds
        if seconds is None:
            raise UsageError(f"invalid budget '{given.budget}'", "--budget", "expected e.g. 20s")
        budget = seconds
    commit = "" if given.all else base_commit(root, given.base)
    paths = chosen(root, named(root, given.files, commit), config)
    if not paths:
        if not given.files:
            print(f"note: {nothing_named(commit)}")
        return 0
    gpu = Path("/dev/nvidiactl").exists()
    memory = memory_settings(given, root)
    common = [commit, budget, config.thresholds.speedup, config.targets, gpu, repr(memory)]
    found = _search(root, paths, common, Search(config, commit, begin + budget, memory))
    if answered := [path for path in paths if found[path].answered]:
        print(show(f"note: nothing changed since the last search, so its results are shown: {', '.join(answered)}"))
    applied = False
    for path, result in found.items():
        taken = [suggestion for suggestion in result.suggestions if _offer(root, path, suggestion, given.fix)]
        applied |= bool(taken)
        for note in result.notes:
            print(show(f"note: {note}"))
        result.notes += [f"{path}: {s.kernel}: applied by an earlier --fix: {s.verdict}" for s in taken]
        result.suggestions = [suggestion for suggestion in result.suggestions if suggestion not in taken]
    if applied:
        _remember(root, found, common)
    anything = any(result.suggestions for result in found.values())
    return int(applied or (anything and config.quick.fail))


def _search(root: Path, paths: Sequence[str], common: object, asked: Search) -> dict[str, Found]:
    cache, keys = _cache(), _keys(root, paths, common)
    found: dict[str, Found] = {}
    for path in paths:
        kept = cache.get(keys[path])
        if kept is not None:
            found[path] = _unpacked(*kept)
    missing = [path for path in paths if path not in found]
    if missing:
        fresh = search(root, missing, asked)
        for path, result in fresh.items():
            if result.complete:
                cache.put(keys[path], *_packed(result))
        found.update(fresh)
    return {path: found[path] for path in paths}


def _remember(root: Path, found: Mapping[str, Found], common: object) -> None:
    """Keep what was found for the sources as `--fix` left them: to search what it wrote finds nothing and takes the whole budget."""
    cache, keys = _cache(), _keys(root, list(found), common)
    for path, result in found.items():
        if result.complete and not result.suggestions:
            cache.put(keys[path], *_packed(result))


def _cache() -> DiskCache:
    from engine.compile.cache import DiskCache
    from engine.settings.folders import cache_folder

    return DiskCache(cache_folder() / "hooks")


def _keys(root: Path, paths: Sequence[str], common: object) -> dict[str, str]:
    """By file, a name for everything that a search of its kernels depends on."""
    from importlib.metadata import version

    from hooks.worktree import fingerprint

    parts = ["quick", 2, version("optiml-cuda"), fingerprint(root), common]
    return {path: hashlib.sha256(json.dumps([*parts, path]).encode()).hexdigest() for path in paths}


def search(root: Path, paths: Sequence[str], asked: Search) -> dict[str, Found]:
    """Search the changed kernels of the files until the deadline, each for an equal share of the time.

    Raises MachineError where this machine cannot evaluate anything.
    """
    from engine.errors import OptimlError
    from hooks.targets import targets_in

    config = asked.config
    found = {path: Found() for path in paths}
    targets: list[Target] = []
    for path in paths:
        try:
            there = targets_in(root, path, asked.commit)
        except OptimlError as error:
            found[path].notes.append(f"not searched: {error}")
            continue
        targets += [target for target in there if target.spec is not None]
        bare = [target.kernel for target in there if target.spec is None and target.problem is None]
        if bare:
            found[path].notes.append(
                f"{path}: no spec, so not searched: {', '.join(bare)}; 'optiml init {path}' drafts one"
            )
        found[path].notes += [f"not searched: {target.problem}" for target in there if target.problem is not None]
    if not targets:
        return found
    from engine.run.device_choice import choose_device

    chosen_device = choose_device(ahead=True)
    from engine.run.machine import make_machine

    machine = make_machine(chosen=chosen_device)
    if machine.mode == "predicted" and machine.arch != config.targets[0]:
        machine.close()
        machine = make_machine(device="cpu", arch=config.targets[0])
    try:
        for index, target in enumerate(targets):
            share = (asked.deadline - time.monotonic()) / (len(targets) - index)
            result = found[target.path]
            if share < _LEAST_S:
                result.complete = False
                result.notes.append(f"{target.path}: {target.kernel}: not searched: out of budget")
                continue
            _one(root, target, share, asked, machine, result)
    finally:
        machine.close()
    return found


def _one(root: Path, target: Target, share_s: float, asked: Search, machine: Machine, found: Found) -> None:
    from engine.errors import OptimlError
    from engine.evaluate.contained import unexpected
    from engine.run.optimization import Options, optimize
    from engine.search.progress import Budget
    from engine.settings.scratch import scratch_folder

    name = f"{target.path}: {target.kernel}"
    with scratch_folder() as folder:
        budget, least = Budget(seconds=_SEARCHED * share_s), asked.config.thresholds.speedup
        options = Options(root / target.path, target.kernel, budget, out=folder, memory=asked.memory)
        try:
            with _limit(_OVER * share_s):
                result, out = optimize(options, machine)
        except _OutOfTime:
            found.complete = False
            found.notes.append(f"{name}: stopped: out of budget")
            return
        except OptimlError as error:
            found.notes.append(f"{name}: not searched: {error}")
            return
        except Exception as error:  # of this kernel: the others are searched all the same
            found.notes.append(f"{name}: not searched: {unexpected(error)}")
            return
        if result.best is None:
            found.notes.append(result.verdict)
            return
        measurement = result.best.evaluation.measurement
        assert measurement is not None
        if measurement.low < least:
            found.notes.append(f"{result.verdict} Below the threshold of {least:g}×, so not suggested.")
            return
        patch = (out / result.best.patch).read_bytes()
    found.suggestions.append(Suggestion(target.kernel, target.line, result.verdict, patch))


class _OutOfTime(Exception):
    pass


@contextmanager
def _limit(seconds: float) -> Iterator[None]:
    """Interrupts what runs inside after so many seconds; it ends as it would for an interrupt from the keyboard."""
    rung = False

    def ring(*_: Any) -> None:
        nonlocal rung
        rung = True
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    except KeyboardInterrupt:
        if rung:
            raise _OutOfTime from None
        raise
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _offer(root: Path, path: str, suggestion: Suggestion, fix: bool) -> bool:
    """Prints a suggestion, with --fix applies it. True where the working tree was changed."""
    from engine.errors import OptimlError
    from hooks.worktree import git

    print(show(f"{path}:{suggestion.line}: {suggestion.kernel}: {suggestion.verdict}"))
    for line in suggestion.patch.decode("utf-8", "replace").splitlines():
        print(show(line))
    if not fix:
        kept = _keep(root, path, suggestion)
        print(show(f"Apply it with: git apply {kept} (or run optiml-quick with --fix)"))
        return False
    try:
        git(root, "apply", "--whitespace=nowarn", "-", data=suggestion.patch)
    except OptimlError as error:
        print(show(f"note: {path}: {suggestion.kernel}: the patch was not applied: {error.what}"))
        return False
    print(show(f"{path}: applied; add it to the commit with: git add {path}"))
    return True


def _keep(root: Path, path: str, suggestion: Suggestion) -> str:
    """The patch's file, relative to the root, in a folder that git ignores."""
    from engine.errors import MachineError

    folder = root / ".optiml"
    kernel = suggestion.kernel.replace("::", ".")
    relative = f".optiml/quick-{Path(path).stem}-{kernel}.patch"
    try:
        folder.mkdir(exist_ok=True)
        if not (folder / ".gitignore").exists():
            (folder / ".gitignore").write_text("*\n")
        (root / relative).write_bytes(suggestion.patch)
    except OSError as error:
        raise MachineError(f"the patch cannot be written: {error.strerror}", relative) from None
    return relative


def _packed(found: Found) -> tuple[dict[str, Any], bytes]:
    each = [[s.kernel, s.line, s.verdict, len(s.patch)] for s in found.suggestions]
    return {"suggestions": each, "notes": found.notes}, b"".join(s.patch for s in found.suggestions)


def _unpacked(header: dict[str, Any], blob: bytes) -> Found:
    suggestions, at = [], 0
    for kernel, line, verdict, length in header["suggestions"]:
        suggestions.append(Suggestion(kernel, line, verdict, blob[at : at + length]))
        at += length
    return Found(suggestions, list(header["notes"]), answered=True)


if __name__ == "__main__":
    sys.exit(main())
