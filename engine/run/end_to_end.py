"""The user's own benchmark or test, with the original files and with the patched ones in turn: it must not notice but for speed.

Both trees are copies in a scratch folder, and the command runs in the sandbox at the root of its copy. It is a stranger's program
like all else: no network, no home folder, none of the environment's secrets, a deadline.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.model import Guardrail
from engine.process.process_wait import wait_process
from engine.process.sandbox import NoSandbox, Sandbox, SandboxAccess
from engine.settings.config import Guardrails
from engine.statistics import Interval, paired_ratio

NAME = "end-to-end command"
_LEFT_OUT = frozenset({".git", ".hg", ".svn", ".optiml"})
_MOST_BYTES = 4 << 30  # of one copy
_MOST_FILES = 200_000
_WARM_UPS = 1  # runs of each tree that do not count: files come into the cache, the program builds what it builds once
_LEAST_PAIRS, _MOST_PAIRS = (
    5,
    25,
)  # five medians give an interval; beyond 25 a command of that noise will not be decided
_SAID = 300


@dataclass(frozen=True)
class _CommandRun:
    """One run: seconds, and the exit code, None where it did not end in time; `said` is the end of its output."""

    seconds: float
    code: int | None
    said: str


class TreeTooLarge(Exception):
    """A repository too large to be copied."""


def end_to_end(
    root: Path, patched: Mapping[str, bytes], limits: Guardrails, box: Sandbox | NoSandbox, scratch: Path, *, gpu: bool
) -> Guardrail:
    """Run the command of the settings on both trees, interleaved; the verdict says whether it ends alike and is not slower.

    `patched` are files that replace those of the tree at `root`, by relative path. Without a command: not checked.
    """
    if not limits.command:
        return Guardrail(NAME, "not checked", "not set in the settings")
    folder = scratch / "end-to-end"
    trees = (folder / "original", folder / "patched")
    try:
        for tree in trees:
            copy_tree(root, tree)
        for path, data in patched.items():
            target = trees[1] / path
            # A link in the copy may lead back to the repository
            if not target.resolve().is_relative_to(trees[1].resolve()):
                return _undecided(f"{path} is behind a link that leads out of the repository")
            target.write_bytes(data)
        return _Command(limits, box, gpu).judge(trees)
    except TreeTooLarge as error:
        return _undecided(str(error))
    except OSError as error:
        return _undecided(f"the trees cannot be copied: {error.strerror or error}")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class _Command:
    def __init__(self, limits: Guardrails, box: Sandbox | NoSandbox, gpu: bool) -> None:
        self._limits, self._box, self._gpu = limits, box, gpu
        self._run_s = limits.time / 2

    def judge(self, trees: Sequence[Path]) -> Guardrail:
        for tree in trees:
            problem = self._prepare(tree)
            if problem and tree is trees[0]:
                return _undecided(f"the preparation fails without the patch: {problem}")
            if problem:
                return Guardrail(NAME, "failed", f"the preparation fails with the patch: {problem}")
        begin = time.monotonic()
        original: list[float] = []
        candidate: list[float] = []
        code: int | None = None
        interval: Interval | None = None
        for number in range(_WARM_UPS + _MOST_PAIRS):
            # Either comes first in turn, so that what one run leaves behind (heat, caches) helps or harms both alike.
            order = (0, 1) if number % 2 == 0 else (1, 0)
            runs = {which: self._run(trees[which], self._limits.command) for which in order}
            before, after = runs[0], runs[1]
            if number == 0:
                code = before.code
                if code in (126, 127):  # what the sandbox's launcher and shells say of a program that they cannot start
                    return _undecided(f"the command cannot be run{_saying(before)}")
                if code is None:
                    return _undecided(f"without the patch it does not finish in {self._run_s:g} s")
            if before.code != code:
                return Guardrail(
                    NAME,
                    "not checked",
                    f"without the patch it ends sometimes with {_ending(code)}, sometimes with {_ending(before.code)}",
                )
            if after.code != code:
                return Guardrail(
                    NAME,
                    "failed",
                    f"ends with {_ending(after.code)} where it ended with {_ending(code)}{_saying(after)}",
                )
            if number < _WARM_UPS:
                continue
            original.append(before.seconds)
            candidate.append(after.seconds)
            if len(original) >= _LEAST_PAIRS:
                interval = paired_ratio(original, candidate)
                least = 1 / self._limits.end_to_end
                if interval.low >= least or interval.high < least:
                    break
            if time.monotonic() - begin >= self._limits.time:
                break
        if interval is None:
            if len(original) < 2:
                return _undecided(f"{self._limits.time:g} s are not enough for two runs of each version")
            interval = paired_ratio(original, candidate)
        return self._verdict(interval, len(original), code)

    def _verdict(self, interval: Interval, pairs: int, code: int | None) -> Guardrail:
        detail = (
            f"{interval.ratio:.3f}× as fast as before (95 % interval {interval.low:.3f} to {interval.high:.3f}, {pairs} pairs of runs), "
            f"both end with {_ending(code)}"
        )
        least = 1 / self._limits.end_to_end
        if interval.high < least:
            return Guardrail(NAME, "failed", detail)
        return Guardrail(
            NAME, "passed", detail + ("" if interval.low >= least else "; too noisy for a narrower interval")
        )

    def _prepare(self, tree: Path) -> str:
        if not self._limits.prepare:
            return ""
        run = self._run(tree, self._limits.prepare, self._limits.time)
        return "" if run.code == 0 else f"it ends with {_ending(run.code)}{_saying(run)}"

    def _run(self, tree: Path, argv: Sequence[str], limit_s: float | None = None) -> _CommandRun:
        command = self._box.command(argv, SandboxAccess(writable=[tree], gpu=self._gpu, cwd=tree))
        output = tree.parent / f"{tree.name}.output"
        with output.open("wb") as sink:
            begin = time.perf_counter()
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd="/",
            )
            try:
                code: int | None = wait_process(process, limit_s or self._run_s)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                seconds = time.perf_counter() - begin
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        return _CommandRun(seconds, code, _end_of(output))


def copy_tree(root: Path, target: Path) -> None:
    """Copy a repository's files, but not its history. Links are copied as links, and what is no file is left out.

    Raises TreeTooLarge, OSError.
    """
    files = total = 0
    for folder, names, entries in os.walk(root):
        names[:] = [name for name in names if name not in _LEFT_OUT]
        here = target / Path(folder).relative_to(root)
        here.mkdir(parents=True, exist_ok=True)
        here.chmod(0o777)  # the sandbox's user may be another one
        for name in [*entries, *(n for n in names if os.path.islink(os.path.join(folder, n)))]:
            source = os.path.join(folder, name)
            if os.path.islink(source):
                os.symlink(os.readlink(source), here / name)
            elif os.path.isfile(source):
                files, total = files + 1, total + os.path.getsize(source)
                if files > _MOST_FILES or total > _MOST_BYTES:
                    raise TreeTooLarge(f"the repository has more than {_MOST_FILES} files or {_MOST_BYTES >> 30} GiB")
                shutil.copy2(source, here / name)
                (here / name).chmod((here / name).stat().st_mode | 0o666)


def _end_of(path: Path) -> str:
    with path.open("rb") as file:
        file.seek(max(0, os.path.getsize(path) - 4 * _SAID))
        text = file.read(4 * _SAID).decode("utf-8", "replace")
    lines = ["".join(c for c in line if c.isprintable()).strip() for line in text.splitlines()]
    return next((line[:_SAID] for line in reversed(lines) if line), "")


def _undecided(why: str) -> Guardrail:
    """Who asked for this condition gets no suggestion that was not held against it."""
    return Guardrail(NAME, "failed", f"was not checked: {why}")


def _ending(code: int | None) -> str:
    if code is None:
        return "timeout"
    return f"signal {-code}" if code < 0 else f"exit code {code}"


def _saying(run: _CommandRun) -> str:
    return f" ({run.said})" if run.said else ""
