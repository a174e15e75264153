"""What a suggestion's files come to when nvcc builds them whole: as guardrails, with what could not be built named."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from posixpath import basename

from engine.compile.built import Built
from engine.compile.compiler import CompileTimeout
from engine.compile.kept_whole import WholeBuilds
from engine.compile.nvcc import find_nvcc
from engine.compile.whole import WholeFile, WholeOptions
from engine.cuda.load import add_headers, including_files
from engine.errors import OptimlError
from engine.model import Guardrail, Program
from engine.process.sandbox import NoSandbox, Sandbox
from engine.spec.kernel_spec import KernelSpec
from engine.spec.tables import split_kernel
from engine.verify.host_object import public_name
from engine.verify.whole_build import (
    changed_kernels,
    host_problem,
    including,
    same_kernels,
    shared_entries,
    verified_problem,
    with_lines_of,
)

HOST = "host code unchanged except for the launch (nvcc build of the whole file)"
OTHERS = "other kernels unchanged (nvcc build of the whole file)"
VERIFIED = "machine code of the nvcc build equals the verified one"
BUILT = "patched files build with nvcc"
_MOST_UNITS = 4  # of files that are built for one suggestion: each takes a second or two. Ours


@dataclass(frozen=True)
class BuiltUnit:
    """What nvcc makes of one file, with the files that it was built of."""

    unit: str
    files: Mapping[str, bytes] = field(repr=False)
    whole: WholeFile = field(repr=False)


@dataclass(frozen=True)
class ChangedInstance:
    """Another instance of the spec's kernel whose machine code a suggestion changes, and the unit that it is in, before and after."""

    name: str  # its name expression, "k<__half, 128>"
    entry: str
    old: BuiltUnit
    new: BuiltUnit


@dataclass(frozen=True)
class WholeVerdict:
    """The guardrails of a suggestion's files, and the other instances that have to be verified before it can be suggested."""

    guardrails: tuple[Guardrail, ...]
    instances: tuple[ChangedInstance, ...] = ()
    unchanged: tuple[str, ...] = ()  # name expressions of those whose machine code stays

    @property
    def complete(self) -> bool:
        """Whether all files were built that the suggestion reaches: then no other instance changes."""
        return bool(self.guardrails) and all(guardrail.name != BUILT for guardrail in self.guardrails)


class WholeCheck:
    """Builds the original's and a suggestion's files whole, for one spec of the repository at `root`.

    The original's are built once, beside the suggestion's, or taken from `cache` where an earlier run built them.
    """

    def __init__(
        self, spec: KernelSpec, root: Path, arch: str, sandbox: Sandbox | NoSandbox, cache: Path | None = None
    ) -> None:
        self._spec, self._root, self._builds = spec, root, WholeBuilds(sandbox, cache)
        compiled = spec.compile
        self._options = WholeOptions(compiled.defines, compiled.std, compiled.include, arch)
        instances = (f"{s.kernel}<{s.template_args}>" for s in spec.steps if s.template_args)
        self._instances = tuple(dict.fromkeys(instances))
        self._before: dict[str, Future[WholeFile]] = {}
        self._begun: tuple[Program, Future[WholeVerdict]] | None = None
        self._others = lru_cache(maxsize=4)(self._including)

    def begin(self, original: Program, built: Built) -> None:
        """Begin with what `judge` will be asked for if the suggestion is confirmed, beside the confirmation."""
        verdicts: Future[WholeVerdict] = Future()
        before, self._begun = self._begun, (built.program, verdicts)

        def work() -> None:
            if before is not None:  # of two checks one runs
                wait([before[1]])
            try:
                verdicts.set_result(self._verdicts(original, built))
            except BaseException as error:
                verdicts.set_exception(error)

        # A daemon: whoever refuses the suggestion does not wait for it.
        threading.Thread(target=work, daemon=True).start()

    def judge(self, original: Program, built: Built) -> WholeVerdict:
        """The verdict on one confirmed suggestion. Several seconds where files are large."""
        begun, self._begun = self._begun, None
        if begun is not None and begun[0].digest == built.program.digest:
            return begun[1].result()
        if begun is not None:
            wait([begun[1]])
        return self._verdicts(original, built)

    def instance(self, changed: ChangedInstance, original: Built, built: Built) -> Guardrail:
        """Whether the machine code of an instance is what was verified of it, before the edit and after."""
        if changed.entry not in map(public_name, built.binary.entries):
            return Guardrail(VERIFIED, "failed", f"'{changed.name}' names another kernel than '{changed.entry[:80]}'")
        try:
            verdicts = [
                self._verified(unit, of, (changed.name,))
                for unit, of in ((changed.old, original), (changed.new, built))
            ]
            return joined(verdicts)[0]
        except OptimlError as error:
            return Guardrail(VERIFIED, "not checked", f"{changed.name}: {_said(error)}")

    def _verdicts(self, original: Program, built: Built) -> WholeVerdict:
        found = self._judge(original, built)
        if self._builds.taken and any(verdict.verdict == "failed" for verdict in found.guardrails):
            self._builds.forget()
            self._before.clear()
            found = self._judge(original, built)
        return found

    def _judge(self, original: Program, built: Built) -> WholeVerdict:
        candidate = built.program
        if find_nvcc() is None:
            return WholeVerdict((Guardrail(BUILT, "not checked", "nvcc is not installed"),))
        changed = tuple(sorted(p for p, data in candidate.files.items() if original.files.get(p) != data))
        sources, units = self._units(original, changed)
        if not units:
            nowhere = "the change is in a header that no file of the repository includes"
            return WholeVerdict((Guardrail(BUILT, "not checked", nowhere),))
        patched = {
            **sources,
            **{p: with_lines_of(original.files[p], candidate.files[p]) for p in changed if p in sources},
        }
        main = units[0]
        verdicts: list[Guardrail] = []
        others: list[ChangedInstance] = []
        with ThreadPoolExecutor(2, thread_name_prefix="whole") as executor:
            started: list[tuple[str, Future[WholeFile], Future[WholeFile]]] = []
            for unit in units[:_MOST_UNITS]:
                before = executor.submit(self._first, sources, unit, main)
                started.append((unit, before, executor.submit(self._build, patched, unit, self._uses(unit, main))))
            for unit, before, after in started:
                judged = _Judged(sources, patched, original, built, main, started[0][1:])
                found, instances = self._compared(unit, before, after, judged)
                verdicts += found
                others += instances
        if len(units) > _MOST_UNITS:
            verdicts.append(Guardrail(BUILT, "not checked", f"{len(units) - _MOST_UNITS} further files include it"))
        names = self._other_names((b.result() for _, b, _ in started if b.exception() is None), built)
        stay = names.keys() - {changed.name for changed in others}
        return WholeVerdict(joined(verdicts), tuple(others), tuple(name for name in names if name in stay))

    def other_instances(self, original: Built) -> tuple[str, ...]:
        """The name expressions of the instances of the spec's kernels that the original's files have beside its own.

        Takes a build of each file. Raises OptimlError where the kernel's own file does not build.
        """
        program = original.program
        sources, units = self._units(program, (program.kernel_file,))
        main = units[0] if units and find_nvcc() is not None else ""
        return tuple(self._other_names((self._first(sources, u, main) for u in units[:_MOST_UNITS] if main), original))

    def _other_names(self, builds: Iterable[WholeFile], built: Built) -> dict[str, None]:
        """The name expressions of the instances of the spec's kernels in these builds, but for the spec's own, in order."""
        own = set(map(public_name, built.binary.entries))
        kernels = {step.kernel.rpartition("::")[2] for step in self._spec.steps}
        named = ((public_name(entry), name) for build in builds for entry, name in build.kernels.items())
        return {
            n: None for e, n in named if e not in own and "<" in n and split_kernel(n)[0].rpartition("::")[2] in kernels
        }

    def _units(self, original: Program, changed: Sequence[str]) -> tuple[dict[str, bytes], list[str]]:
        """The sources of the include graph, and those that have to be built, the first of which holds the verified kernels."""
        files = {**self._others(tuple(sorted(basename(path) for path in changed))), **original.files}
        sources = {path: data for path, data in files.items() if not path.endswith(".toml")}
        units = list(including(sources, changed))
        main = next((unit for unit in (original.kernel_file, self._spec.compile.unit) if unit in units), None)
        return sources, sorted(units, key=lambda unit: unit != main)

    def around(self, original: Program, candidate: Program) -> dict[str, bytes]:
        """The files of the repository that include a changed one, with their headers, by relative path."""
        changed = sorted(p for p, data in candidate.files.items() if original.files.get(p) != data)
        return self._others(tuple(basename(path) for path in changed))

    def _uses(self, unit: str, main: str) -> tuple[str, ...]:
        return self._instances if unit == main else ()

    def _first(self, sources: Mapping[str, bytes], unit: str, main: str) -> WholeFile:
        """The original's build, made once."""
        mine: Future[WholeFile] = Future()
        before = self._before.setdefault(unit, mine)
        if before is mine:
            try:
                mine.set_result(self._build(sources, unit, self._uses(unit, main)))
            except BaseException as error:
                mine.set_exception(error)
        return before.result()

    def _build(self, files: Mapping[str, bytes], unit: str, uses: Sequence[str]) -> WholeFile:
        return self._builds.build(files, unit, self._options, uses)

    def _including(self, names: tuple[str, ...]) -> dict[str, bytes]:
        found = including_files(self._root, names)
        for path in list(found):
            add_headers(found, path, self._root, self._options.include)
        return found

    def _compared(
        self, unit: str, before: Future[WholeFile], after: Future[WholeFile], judged: _Judged
    ) -> tuple[list[Guardrail], list[ChangedInstance]]:  # fmt: skip
        try:
            old = before.result()
        except OptimlError as error:
            return [Guardrail(BUILT, "not checked", f"{unit} cannot be built here: {_said(error)}")], []
        try:
            new = after.result()
        except CompileTimeout as error:
            return [Guardrail(BUILT, "not checked", f"{unit} cannot be built here: {_said(error)}")], []
        except OptimlError as error:
            return [Guardrail(BUILT, "failed", f"{unit}: {_said(error)}")], []
        found: list[Guardrail] = []
        instances: list[ChangedInstance] = []
        try:
            host = host_problem(old, new, judged.files, judged.original, self._spec)
            found.append(Guardrail(HOST, "failed", f"{unit}: {host}") if host else Guardrail(HOST, "passed"))
            changed = changed_kernels(old, new, self._spec, judged.built.binary.entries)
            other = next((kernel.problem for kernel in changed if not kernel.instance), None)
            found.append(Guardrail(OTHERS, "failed", f"{unit}: {other}") if other else Guardrail(OTHERS, "passed"))
            was, is_ = BuiltUnit(unit, judged.sources, old), BuiltUnit(unit, judged.files, new)
            instances += [ChangedInstance(k.instance, k.entry, was, is_) for k in changed if k.instance]
            if unit == judged.main:
                found.append(self._verified(is_, judged.built, self._instances))
            elif entry := _other_kernel(old, new, judged):
                found.append(
                    Guardrail(VERIFIED, "failed", f"{unit}: '{entry[:80]}' is other code there than in {judged.main}")
                )
        except OptimlError as error:
            found.append(Guardrail(BUILT, "not checked", f"{unit}: {_said(error)}"))
        return found, instances

    def _verified(self, of: BuiltUnit, built: Built, uses: Sequence[str]) -> Guardrail:
        """The verified text came from NVRTC. Where nvcc makes other code of it, what nvcc makes of that text alone decides."""
        unit, whole, binary = of.unit, of.whole, built.binary
        kind, entry = verified_problem(whole, binary)
        if kind == "missing":
            return Guardrail(VERIFIED, "not checked", f"the build contains no machine code of '{entry[:80]}'")
        if not kind:
            return Guardrail(VERIFIED, "passed")
        verified = {**of.files, unit: built.text.encode()}
        alone = self._builds.build(verified, unit, replace(self._options, device_only=True), uses)
        if same_kernels(whole, alone, binary.entries):
            return Guardrail(VERIFIED, "passed", "equals nvcc's build of the verified text; NVRTC's build differs")
        return Guardrail(
            VERIFIED, "failed", f"{unit}: nvcc's code for '{entry[:80]}' differs from that of the verified text"
        )


@dataclass(frozen=True)
class _Judged:
    """A suggestion with the sources of all files that are built for it, and these patched."""

    sources: Mapping[str, bytes]
    files: Mapping[str, bytes]
    original: Program
    built: Built
    main: str  # the file whose build must hold the verified kernels: a header's are built through one that includes it
    builds: tuple[Future[WholeFile], Future[WholeFile]]  # of that file, before and after


def _other_kernel(old: WholeFile, new: WholeFile, judged: _Judged) -> str:
    """The verified kernel that a unit changes although it is other code there than in the main one, as where it sets other macros.

    "" for none.
    """
    first, then = (build.result() for build in judged.builds)
    for entry in shared_entries(old, judged.built.binary.entries):
        same = same_kernels(old, first, (entry,)) and same_kernels(new, then, (entry,))
        if not same and not same_kernels(old, new, (entry,)):
            return entry
    return ""


def _said(error: OptimlError) -> str:
    where = f" ({error.where})" if error.where else ""
    return f"{error.what}{where}"


def joined(verdicts: Sequence[Guardrail]) -> tuple[Guardrail, ...]:
    """One verdict for each condition: the worst over the files."""
    order = {"failed": 0, "not checked": 1, "passed": 2}
    found: dict[str, Guardrail] = {}
    for verdict in verdicts:
        known = found.setdefault(verdict.name, verdict)
        if order[verdict.verdict] < order[known.verdict]:
            found[verdict.name] = verdict
    return tuple(found.values())
