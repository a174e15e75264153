"""One kernel of a command line: its spec made ready, what was there before settled, the search, the result."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from engine.capture.recorded_spec import recorded_spec
from engine.commands.defining_files import where_defined
from engine.commands.options import memory_settings
from engine.commands.targets import KernelTarget, expand
from engine.cuda.load import repository_root
from engine.errors import OptimlError, UsageError
from engine.llm.session import LlmSettings
from engine.report.run_folder import read_result
from engine.report.safe_text import clean
from engine.report.terminal import Live
from engine.run.going_on import settle
from engine.run.machine import Machine
from engine.run.optimization import Options, default_folder, optimize
from engine.run.ready_spec import Ask, ReadySpec, SpecMaker, kernels_in
from engine.run.result import OptimizationResult
from engine.run.spec_writing import write_spec
from engine.search.progress import Budget, Progress
from engine.settings.config import load_config
from engine.spec.find import find_spec
from engine.spec.kernel_spec import KernelSpec


class KernelRun:
    """Searches kernels as a command line of `optimize` asks for it, on one machine."""

    def __init__(
        self, arguments: argparse.Namespace, machine: Machine, budget: Budget, proposers: tuple[str, ...],
        llm: LlmSettings | None, *, device: str = "",
    ) -> None:  # fmt: skip
        """`device` names the kind that the machine is, in a search for each kind: results go into a folder of its own."""
        self._device = device
        self._arguments, self._machine, self._budget = arguments, machine, budget
        self._proposers, self._llm = proposers, llm
        self._quiet = arguments.format == "json"
        self.spec: tuple[KernelSpec, str | None] | None = None  # of the last search
        self.on_progress: Callable[[Progress], None] | None = None  # in the place of the terminal's line

    def search(self, target: KernelTarget) -> tuple[OptimizationResult, Path, Path]:
        """The result, its folder and the repository's root. Raises as `optimize`, and OpenSpecError."""
        root = repository_root(target.file)
        with Live(self._budget, "reading the kernel and its spec", quiet=self._quiet) as live:
            ask = None if self._quiet else terminal_ask(live)
            maker = SpecMaker(root, self._machine.box, ask=ask, recorded=recorded_spec)
            ready = maker.ready(target.file, target.kernel)
        if ready.source != "declared":
            self._say_assumed(target, ready)
        if ready.text and self._arguments.write_spec:
            return self._written(target, root, ready)
        return self._search(target, root, ready)

    def _written(self, target: KernelTarget, root: Path, ready: ReadySpec) -> tuple[OptimizationResult, Path, Path]:
        """As `_search`, with the draft in the file; one that is refused is taken out again."""
        before = target.file.read_bytes()
        write_spec(target.file, ready.spec.kernel, ready.text, "comments")
        after = target.file.read_bytes()
        try:
            spec, path = find_spec(root, target.file, ready.spec.kernel)
            found = self._search(target, root, replace(ready, spec=spec, spec_path=path, text=""))
        except OptimlError:
            if target.file.read_bytes() == after:
                target.file.write_bytes(before)
            raise
        self._say(f"wrote the spec to {target.shown}")
        return found

    def _search(self, target: KernelTarget, root: Path, ready: ReadySpec) -> tuple[OptimizationResult, Path, Path]:
        arguments, spec = self._arguments, ready.spec
        self.spec = spec, ready.spec_path
        config, _ = load_config(root)
        out = arguments.out.resolve() if arguments.out else default_folder(root, target.file, spec.kernel)
        if self._device:
            out = out.with_name(f"{out.name}@{self._device}")
        options = Options(
            path=target.file,
            kernel=target.kernel,
            budget=self._budget,
            seed=arguments.seed,
            out=out,
            resume=arguments.resume,
            search=arguments.search,
            profile=arguments.profile,
            proxies=not arguments.no_proxies,
            guardrails=config.guardrails,
            targets=config.targets,
            command=("optiml", *sys.argv[1:]),
            spec=(spec, ready.spec_path),
            proposers=self._proposers,
            llm=self._llm,
            memory=memory_settings(arguments, root, arguments.seed),
            notes=_notes(ready),
        )
        settled = settle(options, out, self._machine, fresh=self._arguments.fresh)
        if settled.said:
            self._say(settled.said)
        if settled.answered:
            return read_result(out, {"result.json": (OptimizationResult,)}), out, root
        options = settled.options
        with Live(options.budget, "setting up and validating the spec", quiet=self._quiet) as live:
            result, folder = optimize(options, self._machine, self.on_progress or live.update)
        return result, folder, root

    def _say_assumed(self, target: KernelTarget, ready: ReadySpec) -> None:
        where = "a recorded launch" if ready.source == "recorded" else "the source"
        self._say(f"{target.shown}: no spec for '{ready.spec.kernel}', so one was drafted from {where}")
        for sentence in (*ready.notes, *ready.assumed):
            self._say(f"  {sentence}")
        if ready.text and not self._arguments.write_spec:
            self._say("  --write-spec writes it above the kernel")

    def _say(self, text: str) -> None:
        if not self._quiet:
            print(clean(text), file=sys.stderr)


def all_kernels(targets: Sequence[KernelTarget]) -> list[KernelTarget]:
    """One target for each kernel that is named, or that a file or folder holds. Raises UsageError."""

    def kernels(file: Path) -> list[str]:
        return kernels_in(repository_root(file), file)

    def wanted(file: Path) -> bool:
        root = repository_root(file)
        config, _ = load_config(root)
        return config.wants(file.resolve().relative_to(root.resolve()).as_posix())

    found = [one for target in targets for one in where_defined(target)]
    return expand(found, kernels, wanted)


def terminal_ask(live: Live) -> Ask | None:
    """Asks whoever sits at the terminal; None where nobody does."""
    if not (sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()):
        return None

    def ask(what: str, line: str) -> str:
        question = f"{clean(what)}\n  {clean(line)}\nPress Enter to accept this line, or type the value or the line: "
        with live.paused():
            print(question, end="", file=sys.stderr, flush=True)
            answer = sys.stdin.readline()
        if not answer:
            raise UsageError("no answer was given", do="add the line above the kernel")
        return answer.strip()

    return ask


def _notes(ready: ReadySpec) -> tuple[str, ...]:
    if ready.source == "declared":
        return ()
    where = "a recorded launch" if ready.source == "recorded" else "the source"
    count = f"{len(ready.assumed)} assumption{'' if len(ready.assumed) == 1 else 's'}"
    return (f"the spec was drafted from {where}, with {count}: check the assumptions before you use the patch",)
