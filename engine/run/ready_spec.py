"""A kernel's spec, ready to search with: declared, else recorded from a run of the program, else drafted and completed.

What a draft lacks is asked for one line at a time where somebody answers, else listed with the exact lines to add.
"""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, Protocol

from engine.cpu import CpuMachine
from engine.cpu.draft_probe import CpuProbe
from engine.cuda.constants import integers, words
from engine.cuda.load import load_program, with_includers
from engine.cuda.parse import parse
from engine.errors import OptimlError, RefusedError, SpecError, UsageError
from engine.model import Program
from engine.process.sandbox import NoSandbox, Sandbox
from engine.run.spec_writing import Form, with_lines
from engine.settings.folders import cache_folder
from engine.settings.scratch import scratch_folder
from engine.spec.draft import Draft, DraftForm, OriginalRuns, draft
from engine.spec.draft_trials import KEEPING, other_shapes
from engine.spec.find import described, find_spec, partial_table, project_options
from engine.spec.gaps import Gap, answered, assumptions, is_open, lines_of, proposal
from engine.spec.kernel_spec import Case, CompileOptions, KernelSpec, LaunchExpr, Role
from engine.spec.launch_config import evaluate
from engine.spec.reader import spec_of
from engine.spec.size_gaps import FILLING, left, marked
from engine.spec.spec_text import with_checks
from engine.spec.tables import Table, comment_tables, split_kernel

Source = Literal["declared", "recorded", "drafted"]
_ROUNDS = 4  # of answers that make another draft: template arguments, macros
_REDRAFT = ("kernel", "compile.defines", "launch")  # what other gaps may close with, in the order of asking


class Recorded(Protocol):
    """The spec of a kernel as the program of the repository at `root` called it, as `engine.capture.recorded_spec.recorded_spec` has it."""

    def __call__(
        self,
        root: Path,
        kernel: str,
        /,
        *,
        roles: Mapping[str, Role] = MappingProxyType({}),
        whole: Collection[str] = (),
    ) -> Draft | None:
        """None where no launch of the kernel was recorded."""
        ...


class Ask(Protocol):
    """Asks a person for one line of a spec."""

    def __call__(self, what: str, line: str) -> str:
        """The answer to what a gap says; "" takes `line`, the proposal."""
        ...


@dataclass(frozen=True)
class ReadySpec:
    """A spec that says everything a search needs; whether it proves something shows when the original is run.

    `spec_path` is the optiml.toml it was read from. For one that is in no file, `text` holds its lines, `assumed` what the draft
    assumed, and `notes` why less of it was tried than could be.
    """

    spec: KernelSpec
    spec_path: str | None
    source: Source
    text: str = ""
    assumed: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Known:
    """What a draft need not find out: the kernel with its template arguments, the compiler's options, the launch."""

    kernel: str
    options: CompileOptions
    launch: LaunchExpr | None = None

    def told(self, data: Mapping[str, Any], file: Path) -> Known:
        """With what the keys of a spec say of these; what is wrong in them is for the spec's reader to refuse."""
        kernel, compiled, launch = data.get("kernel"), data.get("compile"), data.get("launch")
        known = self
        if isinstance(kernel, str):
            known = replace(known, kernel=kernel)
        defines = compiled.get("defines") if isinstance(compiled, dict) else None
        if isinstance(defines, list):
            options = known.options
            words = (*options.defines, *(d for d in defines if isinstance(d, str)))
            known = replace(known, options=replace(options, defines=words))
        if isinstance(launch, dict) and {"grid", "block"} <= launch.keys():
            known = replace(known, launch=_launch(launch, file))
        return known


class OpenSpecError(SpecError):
    """A draft with gaps and nobody to ask. `lines` are the spec lines to add, with their reasons."""

    def __init__(self, kernel: str, where: str, lines: Sequence[tuple[str, str]]) -> None:
        self.lines = tuple(lines)
        many = "one thing" if len(lines) == 1 else f"{len(lines)} things"
        shown = "".join(f"\n  // optiml: {line}\n    {why}" for line, why in lines)
        super().__init__(
            f"{many} about the kernel '{kernel}' cannot be determined from the source",
            where,
            f"put these lines above it, with '?' replaced and guesses checked, or answer the questions on a terminal:{shown}",
        )


def kernels_in(root: Path, file: Path) -> list[str]:
    """The kernels of a file by their qualified names, those with a spec alone where some have one. Raises as `find_spec`."""
    there = described(root, file)
    unit = parse(file.read_bytes(), str(file))
    names = [k.qualified for k in unit.kernels]
    covered = [n for n in names if n in there or n.rpartition("::")[2] in there]
    return covered or names


class SpecMaker:
    """Makes specs ready for the kernels of one repository. `recorded` gives a draft of a recorded launch, where there is one."""

    def __init__(
        self, root: Path, box: Sandbox | NoSandbox, *, ask: Ask | None = None, recorded: Recorded | None = None,
        static: bool = False,
    ) -> None:  # fmt: skip
        self._root, self._box, self._ask, self._recorded, self._static = root, box, ask, recorded, static

    def ready(self, file: Path, kernel: str | None = None) -> ReadySpec:
        """The spec of a kernel of `file`.

        Raises UsageError for no such kernel, SpecError for a declared spec that is wrong, OpenSpecError for a draft with gaps
        that nobody closes, RefusedError for a kernel that no spec can be drafted for, SourceError for a broken file.
        """
        name, table = self._which(file, kernel)
        if name is None:
            spec, spec_path = find_spec(self._root, file, kernel)
            return ReadySpec(spec, spec_path, "declared")
        given = _given(table)
        known = Known(name, project_options(self._root, file))
        if table is not None:
            known = known.told(table.data, file)
        answers: dict[str, str] = {}
        for _ in range(_ROUNDS):
            made, source, notes = self.drafted(file, known)
            gaps = _open_gaps(made, {*given, *answers})
            if gaps and self._ask is None:
                raise self._open(file, name, made, gaps)
            again = next((gap for gap in gaps if gap.key in _REDRAFT), None)
            for gap in [again] if again is not None else gaps:
                answers[gap.key] = self._close(made, gap)
            if again is None:
                break
            known = known.told(tomllib.loads(answers[again.key]), file)
        lines = {**lines_of(made.text), **answers}
        written = "".join(f"// optiml: {line}\n" for key, line in lines.items() if key not in given)
        spec = self.read_back(file, name, written)
        return ReadySpec(spec, None, source, _noted(written, made.text), assumptions(made.text), notes)

    def _which(self, file: Path, kernel: str | None) -> tuple[str | None, Table | None]:
        """The kernel to draft, with what comments say of it already; None where a declared spec counts."""
        there = described(self._root, file)
        data = file.read_bytes()
        unit = parse(data, file.name)
        names = [k.qualified for k in unit.kernels]
        if kernel is None:
            if not names or len(names) > 1:
                return None, None  # one of them has a spec, or the error says what to name
            kernel = names[0]
        base = split_kernel(kernel)[0]
        full = next((n for n in names if base in (n, n.rpartition("::")[2])), None)
        if full is None:
            return None, None
        declared = full in there or full.rpartition("::")[2] in there
        table = partial_table(self._root, file, full) if declared else None
        if declared and table is None:
            return None, None
        return (kernel if "<" in kernel else full), table

    def drafted(self, file: Path, known: Known, *, form: Form = "comments") -> tuple[Draft, Source, tuple[str, ...]]:
        """A draft as it is, gaps and all, where it comes from, and what it was not tried with. Raises as `ready`."""
        base = split_kernel(known.kernel)[0]
        found = self._recorded(self._root, base) if self._recorded is not None else None
        options = known.options
        if found is not None and form == "comments":
            program = load_program(file, kernels=[base], include=options.include, unit=options.unit)
            return self._checked(found, program, base)
        program = load_program(file, kernels=[base], include=options.include, unit=options.unit)
        made, notes = self._probed(with_includers(program, self._root), known, form, file.name)
        return made, "drafted", notes

    def _checked(self, found: Draft, program: Program, kernel: str) -> tuple[Draft, Source, tuple[str, ...]]:
        """A recorded spec, checked at other sizes where the kernel fails on its own at those that follow from the recording.

        What a check leaves of an output as it was is part of the result.
        """
        if found.missing or self._static:
            return found, "recorded", ()
        with scratch_folder() as scratch:
            try:
                machine = CpuMachine(cache_folder() / "cpu", sandbox=self._box, scratch=scratch)
                probe = CpuProbe(program, found.spec, machine, self._root)
                whole: set[str] = set()
                while True:
                    failing, shapes, beyond = self._failing(probe, program, found)
                    again = self._again(kernel, whole=whole | beyond) if beyond - whole and not shapes else None
                    if again is None or again.missing:
                        break
                    found, whole = again, whole | beyond
                cases = shapes or (() if failing else found.spec.check)
                overwritten = probe.overwritten(found.spec, cases) if cases else frozenset[str]()
                if probe.kept or overwritten:
                    roles: dict[str, Role] = {**dict.fromkeys(probe.kept, "inout"), **dict.fromkeys(overwritten, "out")}
                    found = self._again(kernel, roles=roles, **({"whole": whole} if whole else {})) or found
            except OptimlError as error:
                return found, "recorded", (f"the recorded spec was not tried: {error}",)
        if not shapes:
            return found, "recorded", ()
        text = with_checks(found.text, shapes, KEEPING)
        return replace(found, spec=replace(found.spec, check=shapes), text=text), "recorded", ()

    def _again(self, kernel: str, **shown: Any) -> Draft | None:
        """The recorded spec with what trial runs showed."""
        return self._recorded(self._root, kernel, **shown) if self._recorded is not None else None

    def _failing(
        self, probe: CpuProbe, program: Program, found: Draft
    ) -> tuple[Mapping[str, str], tuple[Case, ...], set[str]]:
        """Checks at which the kernel fails on its own, others at which it does not, and the buffers that it goes beyond.

        A size that was only found to fill an allocation is refuted by that: no other shapes are looked for.
        """
        failing = probe.failing(found.spec, found.spec.check)
        if not failing and all(_blocks(program, found.spec, case) == 1 for case in found.spec.time):
            # Threads of several blocks may meet where the program never has them.
            several = [case for case in found.spec.check if _blocks(program, found.spec, case) > 1]
            failing = dict.fromkeys(probe.racy(found.spec, several), "races")
        beyond = {name for said in failing.values() if (name := left(said))}
        if beyond and all(marked(found.text, name, FILLING) for name in beyond):
            return failing, (), beyond
        return failing, other_shapes(probe, found.spec, failing) if failing else (), beyond

    def _probed(self, program: Program, known: Known, form: Form, toml_file: str) -> tuple[Draft, tuple[str, ...]]:
        """A draft with extents and roles as runs on the CPU show them, and why it has none of that."""
        make = partial(
            draft, program, known.kernel, written=DraftForm(form, toml_file), options=known.options, launch=known.launch
        )
        made = make()
        # Of an unknown type, which is no empty struct: nothing could be passed for it.
        unknown = [gap for gap in made.missing if not gap.key or gap.startswith("the type of")]
        if self._static or (unknown and any(a.type == "struct:1" for a in made.spec.arguments)):
            return made, ()
        with scratch_folder() as scratch:
            try:
                machine = CpuMachine(cache_folder() / "cpu", sandbox=self._box, scratch=scratch)
                probe = CpuProbe(program, made.spec, machine, self._root)
                return make(runs=OriginalRuns(probe.touched, probe.moved, probe.roles, trials=probe)), ()
            except OptimlError as error:
                return make(runs=OriginalRuns(untried=str(error))), (
                    f"sizes are derived only from the source: {error}",
                )

    def _close(self, made: Draft, gap: Gap) -> str:
        assert self._ask is not None
        line = proposal(gap, made.text, made.spec.time[0].sizes)
        while True:
            line = answered(line, self._ask(str(gap), line))
            if not is_open(line):
                return line

    def _open(self, file: Path, name: str, made: Draft, gaps: Sequence[Gap]) -> OpenSpecError:
        keys = dict.fromkeys(gap.key for gap in gaps)
        sizes = made.spec.time[0].sizes
        lines = []
        for key in keys:
            here = [gap for gap in made.missing if gap.key == key]
            lines.append((proposal(here[0], made.text, sizes), "; ".join(here)))
        line_number = parse(file.read_bytes(), file.name).kernel(split_kernel(name)[0]).line
        return OpenSpecError(name, f"{_shown(self._root, file)}:{line_number}", lines)

    def read_back(self, file: Path, kernel: str, lines: str) -> KernelSpec:
        """The spec that these lines give, read as if they stood above the kernel. Raises SpecError."""
        options = project_options(self._root, file)
        path = _shown(self._root, file)
        program = load_program(file, kernels=[split_kernel(kernel)[0]], include=options.include, unit=options.unit)
        base = split_kernel(kernel)[0]
        program = program.replace({program.kernel_file: with_lines(program.data, program.kernel_file, base, lines)})
        for table in comment_tables(parse(program.data, program.kernel_file)):
            if _same(split_kernel(table.kernel)[0], base):
                try:
                    return replace(spec_of(program, table, compile=options), origin="")
                except SpecError as error:  # the line is one of no file
                    raise SpecError(f"the drafted spec of '{base}' is rejected: {error.what}", path, error.do) from None
        raise SpecError(f"the drafted spec of '{base}' cannot be parsed", path, f"run 'optiml init {path}'")


def _blocks(program: Program, spec: KernelSpec, case: Case) -> int:
    return evaluate(program, spec, 0, case.sizes).blocks


def _same(name: str, other: str) -> bool:
    """Whether two names, with all, some or none of their namespaces, are those of one kernel."""
    return f"::{name}".endswith(f"::{other}") or f"::{other}".endswith(f"::{name}")


def _open_gaps(made: Draft, closed: Collection[str]) -> list[Gap]:
    """One gap for each line that is to be written, those first that others may close with.

    Raises RefusedError for a gap that no line can close.
    """
    found: dict[str, Gap] = {}
    for gap in made.missing:
        if not gap.key:
            what = f"no spec can be drafted for '{made.spec.kernel}': {gap}"
            raise RefusedError(what, made.spec.file, "write its spec by hand, or exclude it")
        if gap.key not in closed:
            found.setdefault(gap.key, gap)
    order = {key: place for place, key in enumerate(_REDRAFT)}
    return sorted(found.values(), key=lambda gap: order.get(gap.key, len(order)))


def _launch(data: Mapping[str, Any], file: Path) -> LaunchExpr:
    def texts(value: object) -> tuple[str, ...]:
        return tuple(str(v) for v in value) if isinstance(value, list) else (str(value),)

    grid, block, shared = texts(data["grid"]), texts(data["block"]), str(data.get("shared", "0"))
    names = [name for text in (*grid, *block, shared) for name in words(text)]
    unit = parse(file.read_bytes(), file.name)
    return LaunchExpr(grid, block, shared, tuple(integers(unit, names).items()))


def _given(table: Table | None) -> frozenset[str]:
    """The keys that comments of the file have, as those of a draft's lines."""
    if table is None:
        return frozenset()
    keys: set[str] = set()
    for key, value in table.data.items():
        nested = key in ("args", "compile") and isinstance(value, dict)
        keys |= {f"{key}.{name}" for name in value} if nested else {key}
    return frozenset(keys)


def _noted(lines: str, draft_text: str) -> str:
    """The lines with the notes that the draft has on them."""
    notes = {}
    for line in draft_text.splitlines():
        bare, mark, _ = line.partition("  # assumed: ")
        if mark:
            notes[bare] = line
    return "".join(f"{notes.get(line, line)}\n" for line in lines.splitlines())


def _shown(root: Path, file: Path) -> str:
    try:
        return file.resolve().relative_to(root.resolve()).as_posix()
    except ValueError:
        raise UsageError(f"the file is outside {root}", str(file)) from None
