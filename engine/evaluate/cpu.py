"""Evaluation without a GPU: screened on the CPU, speed predicted from machine code and counted accesses."""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.compile.built import Built
from engine.cpu import CpuBinary, CpuJob, CpuMachine, CpuRun, Finding, Unsupported
from engine.cpu.object_checks import ObjectFacts, facts_of, objection
from engine.errors import CompileError, OptimlError, RefusedError
from engine.evaluate import guardrails
from engine.evaluate.build import Builder
from engine.evaluate.contained import contained_build, contained_evaluation
from engine.evaluate.cpu_failures import not_built, refused
from engine.evaluate.evaluator import Signals, nothing
from engine.evaluate.known_runs import KnownRun, screening_set
from engine.evaluate.sampled_sizes import SAMPLE_DEADLINE_S, Machinery, SampledSizes
from engine.evaluate.secret_cases import MOST, SecretCases
from engine.evaluate.speeds import Speeds
from engine.model import Evaluation, Failure, Guardrail, LaunchConfig, Measurement, Outcome, Program, Target
from engine.predict.predictor import Predictor
from engine.process.sandbox import NoSandbox, Sandbox
from engine.spec.data import INFINITE, NAN, bytes_needed, poisoned, scalars, takes_nan
from engine.spec.dtypes import parse_dtype
from engine.spec.kernel_spec import Case, KernelSpec
from engine.verify.host_compare import difference, noise
from engine.verify.plan import Check, plan
from engine.verify.propagation import defined, passes_on, without
from engine.verify.tolerance import Noise, allowed
from engine.verify.widen import widen, widened_spec

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Arrays = dict[str, NDArray[Any]]

_MOST_CHECK_BYTES = 128 << 20  # each array is there for the original, the candidate, the reference and a run's process
_RACES = ("race", "barrier_divergence", "deadlock")
_ACCESSES = ("input_written", "uninitialised")  # found by looking at each access; the run goes on after them
_ORDERS = 3  # lane and block orders a candidate is run in: forward, reversed, shuffled
_VALIDATION_SEEDS = 2
_ORIGINAL_DEADLINE_S = 10.0
_MOST_WHOLE_THREADS = 1 << 20  # of a launch at a size that no case has, run whole because sampled blocks raised a doubt
_DEADLINE_S = 4.0  # of one run on a check shape, which takes milliseconds


class CpuEvaluator:
    """The predicted path: candidates are refuted on the check shapes, never verified."""

    def __init__(
        self, spec: KernelSpec, builder: Builder, box: Sandbox | NoSandbox, cache: Path, scratch: Path, target: Target,
        jobs: int,
    ) -> None:  # fmt: skip
        self._spec, self._builder, self._target = spec, builder, target
        self._machine = CpuMachine(cache / "cpu", sandbox=box, scratch=scratch, jobs=jobs)
        self._random = random.Random(secrets.randbits(64))
        self._wide_spec = widened_spec(spec)
        self._known: list[KnownRun] = []
        self._noise: dict[tuple[int, str], Noise] = {}
        self._original: Built | None = None
        self._wide: CpuBinary | None = None
        self.speeds = Speeds(spec, builder, self._machine, Predictor(target.arch, sandbox=box))
        self._missing: list[str] = []
        self._no_race_verdict = ""
        self._secret = SecretCases(spec, builder, self._random)
        self._nan: list[int] = []  # check cases with that family
        self._infinite: list[int] = []  # and with that one, when a suggestion is confirmed
        self._run: Built | None = None  # the original with the launches of the secret cases
        self._facts: ObjectFacts | None = None  # of the original's object
        self._sampled: SampledSizes | None = None

    @property
    def signals(self) -> Signals:
        missing = ("no GPU: candidates are screened on the CPU, speeds are predicted", *self._missing)
        missing += self._machine.degraded
        return Signals(
            "predicted", {"arch": self._target.arch, "name": f"none (predicted for {self._target.arch})"}, missing
        )

    def seed(self, secret: int) -> None:
        """Draw what every other device of a search draws; before `open`."""
        self._random.seed(secret)
        self.speeds.seed(secret)

    @property
    def secret_cases(self) -> tuple[Case, ...]:
        return self._secret.cases

    # ---- the original

    def open(self, original: Program, ready: Callable[[], None] = nothing) -> tuple[Built, Evaluation]:
        begin = time.perf_counter()
        built = self._builder.original(original)
        ready()
        where = self._spec.origin or self._spec.file
        for case in self._spec.check:
            if (needed := bytes_needed(self._spec, case)) > _MOST_CHECK_BYTES:
                raise RefusedError(
                    f"the buffers of the check case {case.name} take {needed >> 20} MiB, over the CPU path's limit of "
                    f"{_MOST_CHECK_BYTES >> 20} MiB", where, "give smaller sizes, or run it on a machine with a GPU",
                )  # fmt: skip
        try:
            binary = self._machine.build(built.text, self._spec.file, self._spec, self._builder.expressions)
        except Unsupported as error:
            uses = [f"{r.registers} registers, {r.spill_store_bytes} bytes spilled" for r in built.binary.resources]
            raise RefusedError(
                f"the CPU path cannot run {', '.join(error.features)}; the compiler's findings alone: {'; '.join(uses)}",
                where, "run it on a machine with a GPU",
            ) from None  # fmt: skip
        built = replace(built, extra=binary)
        self._original = built
        self._facts = self._object_facts(binary, where)
        self._wide = self._widened(built)
        if self._wide is None:
            self._missing.append("no float64 reference: the tolerance is a multiple of the type's epsilon")
        self._refuse_failing(binary)
        self._refuse_races()
        problems = self._validate(binary)
        if problems:
            raise RefusedError("; ".join(problems), where, "mend the spec")
        self._admit(built)
        if self._builder.defences.sampled_sizes:
            self._sampled = self._samples(built)
        stages = {**built.stage_s, "validate": time.perf_counter() - begin}
        return built, Evaluation(
            Outcome.SCREENED, self.speeds.predict(built), None, built.binary.resources, built.binary.code_hash, stages
        )

    def _samples(self, built: Built) -> SampledSizes:
        def run(binary: CpuBinary, jobs: Sequence[CpuJob]) -> list[CpuRun]:
            return self._machine.run_many(binary, jobs, deadline_s=SAMPLE_DEADLINE_S)

        def widened(job: CpuJob) -> tuple[CpuBinary, CpuJob] | None:
            if self._wide is None:
                return None
            twin = replace(job, buffers=self._wide_buffers(dict(job.buffers)), scalars=self._wide_scalars(job.scalars))
            return self._wide, twin

        return SampledSizes(self._spec, Machinery(run, self._secret.launch, self._whole, widened), built, self._random)

    def _whole(self, built: Built, case: Case) -> Failure | bool:
        """Whether a candidate is right at a size of no check case, with all its blocks; False where that cannot be said."""
        assert self._original is not None
        if bytes_needed(self._spec, case) > _MOST_CHECK_BYTES:
            return False
        launches = [self._secret.launch(each.program, case.sizes) for each in (self._original, built)]
        if any(launch.blocks * launch.threads > _MOST_WHOLE_THREADS for each in launches for launch in each):
            return False
        values, buffers = (
            scalars(self._spec, case),
            poisoned(self._spec, case, self._random.getrandbits(40), "declared"),
        )
        jobs = [self._job(each, buffers, values, 0) for each in launches]
        (first,) = self._machine.run_many(self._original.extra, jobs[:1])
        if first.findings:
            return False
        (second,) = self._machine.run_many(built.extra, jobs[1:])
        if second.findings:
            return Failure(f"{second.findings[0].message} (at {case.name})", case=case.name)
        wide = None
        if self._wide is not None:
            job = self._job(launches[0], self._wide_buffers(buffers), self._wide_scalars(values), 0)
            (reference,) = self._machine.run_many(self._wide, [job])
            wide = None if reference.findings else dict(reference.outputs)
        item = KnownRun(-1, "declared", buffers, values, dict(first.outputs), wide)
        failure = self._compare(item, second.outputs)
        return True if failure is None else replace(failure, case=case.name, reason=f"{failure.reason} at {case.name}")

    def _object_facts(self, binary: CpuBinary, where: str) -> ObjectFacts:
        try:
            return facts_of(binary.object)
        except ValueError as error:
            raise RefusedError(f"the kernel compiled for the CPU cannot be checked: {error}", where) from None

    def _widened(self, built: Built) -> CpuBinary | None:
        found = widen(built.text, built.expressions)
        if found is None or self._wide_spec is None:
            return None
        try:
            return self._machine.build(found[0], self._spec.file, self._wide_spec, found[1])
        except OptimlError:
            return None

    def _job(self, launches: Sequence[LaunchConfig], buffers: Arrays, values: Mapping[str, Any], order: int) -> CpuJob:
        return CpuJob(tuple(launches), buffers, values, order)

    def _inputs(self, case: int, family: str, seed: int) -> tuple[Arrays, dict[str, Any]]:
        chosen = self._case(case)
        return poisoned(self._spec, chosen, seed, family), scalars(self._spec, chosen)

    def _case(self, index: int) -> Case:
        """A check case of the spec, or behind these a secret one."""
        return (*self._spec.check, *self._secret.cases)[index]

    def _with_secret(self, built: Built) -> Built:
        """With the launches of the secret cases behind those of the check cases. Raises OptimlError."""
        named = built.launches[: len(self._spec.check)]
        return replace(built, launches=(*named, *self._secret.launches(built.program)))

    def _prepare(self, binary: CpuBinary, plan: Sequence[tuple[int, str, int]]) -> tuple[list[KnownRun], list[CpuRun]]:
        """Draw inputs and run the original (and its wide twin) on them."""
        assert self._original is not None
        drawn = [(case, family, *self._inputs(case, family, seed)) for case, family, seed in plan]
        launches = (self._run or self._original).launches
        jobs = [self._job(launches[c], b, v, 0) for c, _, b, v in drawn]
        runs = self._machine.run_many(binary, jobs, deadline_s=_ORIGINAL_DEADLINE_S)
        wides: list[CpuRun | None] = [None] * len(runs)
        if self._wide is not None and not any(run.findings for run in runs):
            wide_jobs = [
                self._job(launches[c], self._wide_buffers(b), self._wide_scalars(v), 0) for c, _, b, v in drawn
            ]
            wides = list(self._machine.run_many(self._wide, wide_jobs))
        known = [
            KnownRun(c, f, b, v, dict(run.outputs), dict(wide.outputs) if wide and not wide.findings else None)
            for (c, f, b, v), run, wide in zip(drawn, runs, wides, strict=True)
        ]
        return known, runs

    def _wide_buffers(self, buffers: Arrays) -> Arrays:
        widened = {}
        for name, array in buffers.items():
            dtype = parse_dtype(self._spec.argument(name).type)
            widened[name] = dtype.to_float64(array) if dtype.kind == "float" else array
        return widened

    def _wide_scalars(self, values: Mapping[str, Any]) -> dict[str, Any]:
        widened = {}
        for name, value in values.items():
            dtype = parse_dtype(self._spec.argument(name).type)
            is_float = dtype.kind == "float" and dtype.lanes == 1
            widened[name] = np.float64(dtype.to_float64(np.asarray(value).reshape(1))[0]) if is_float else value
        return widened

    def _seeds(self, repeats: int) -> list[tuple[int, str, int]]:
        checks = [check for _ in range(repeats) for check in plan(self._spec, self._random, self._builder.defences)]
        return [(check.case, check.family, check.seed) for check in checks]

    def _validate(self, binary: CpuBinary) -> list[str]:
        assert self._original is not None
        known, runs = self._prepare(binary, self._seeds(_VALIDATION_SEEDS))
        self._refuse_findings(known, runs)
        written = [a.name for a in self._spec.arguments if a.role in ("out", "inout")]
        for item in known:
            for name in written:
                reference: Arrays = item.wide if item.wide is not None else item.original
                self._record_noise(item, name, noise(self._spec, name, item.original, reference))
        problems = self._unwritten(known) or self._repeats(binary, known) or self._controls(binary, known, written)
        self._known = screening_set(known[: len(known) // _VALIDATION_SEEDS])
        return problems

    def _record_noise(self, item: KnownRun, name: str, now: Noise) -> None:
        old = self._noise.get((item.case, item.family + name), Noise(0.0, 0.0))
        self._noise[item.case, item.family + name] = Noise(max(now.error, old.error), max(now.rms, old.rms))

    def _record_order_noise(self, item: KnownRun, outputs: Mapping[str, Any]) -> None:
        """Count the rounding of a run in another order of threads, where the spec declares that the order matters.

        A float sum may be nearly exact in one order by luck. More than reductions come to is no rounding and is not counted.
        """
        if self._spec.deterministic or item.wide is None:
            return
        for name in outputs:
            now = noise(self._spec, name, outputs, item.wide)
            dtype = parse_dtype(self._spec.argument(name).type)
            if now.error <= allowed(dtype, Noise(0.0, now.rms), declared=None, widened=False):
                self._record_noise(item, name, now)

    def _refuse_failing(self, binary: CpuBinary) -> None:
        """Refuse an original that fails on its first inputs: one that never ends must not cost the deadline many times."""
        self._refuse_findings(*self._prepare(binary, self._seeds(1)[:1]))

    def _refuse_findings(self, known: Sequence[KnownRun], runs: Sequence[CpuRun]) -> None:
        for item, run in zip(known, runs, strict=True):
            if run.findings:
                finding = run.findings[0]
                raise RefusedError(
                    f"case {self._case(item.case).name}: the kernel fails on its own: {finding.message}",
                    self._spec.origin or self._spec.file,
                    "give smaller check shapes, or mend the kernel" if finding.kind == "timeout" else "mend the spec",
                )

    def _refuse_races(self) -> None:
        """Refuse an original with data races: its results prove nothing, and its races would excuse a candidate's."""
        assert self._original is not None
        if self._machine.degraded or not self._builder.defences.races:
            return
        drawn = [(check.case, *self._inputs(check.case, check.family, check.seed)) for check in self._declared()]
        findings = self._race_findings(self._original, drawn)
        races = list(dict.fromkeys(found.message for found in findings if found.kind in _RACES))
        if races:
            raise RefusedError(
                f"the kernel '{self._spec.kernel}' has data races: {'; '.join(races[:3])}",
                self._spec.origin or self._spec.file, "fix the kernel: use atomics, or a barrier between the accesses",
            )  # fmt: skip
        if findings:  # ThreadSanitizer did not see the kernel run to its end
            self._no_race_verdict = f"ThreadSanitizer gave no verdict on the original: {findings[0].message}"
            self._missing.append(self._no_race_verdict)

    def _declared(self) -> list[Check]:
        checks = plan(self._spec, self._random, self._builder.defences)
        return [check for check in checks if check.family == "declared"]

    def _race_findings(
        self, built: Built, drawn: Sequence[tuple[int, Arrays, Mapping[str, Any]]]
    ) -> tuple[Finding, ...]:
        """ThreadSanitizer's findings on these cases with their inputs, in several orders of threads."""
        jobs = [self._job(built.launches[case], b, v, i % _ORDERS) for i, (case, b, v) in enumerate(drawn)]
        return self._machine.races(built.extra, jobs)

    def _admit(self, built: Built) -> None:
        """Add the secret cases, and the family of NaN, that the original passes: no finding, every output written,
        the same in another order of threads."""
        self._secret.draw(built.program)
        self._run = self._with_secret(built)
        first, drawn = len(self._spec.check), len(self._secret.cases)
        passed = self._passing(built.extra, [(first + i, "declared") for i in range(drawn)])[:MOST]
        self._secret.keep([self._case(item.case) for item in passed])
        self._run = self._with_secret(built)
        self._known += [replace(item, case=first + place) for place, item in enumerate(passed)]
        defences = self._builder.defences
        if defences.families and defences.nan_inputs and takes_nan(self._spec):
            shapes = range(first if defences.shapes else 1)
            passed = self._passing(built.extra, [(i, NAN) for i in shapes])
            if passed and self._passes_nan_on(built.extra, passed):
                self._nan = [item.case for item in passed]
                self._known += passed[-1:]
        if defences.families and defences.infinite_inputs and takes_nan(self._spec):
            passed = self._passing(built.extra, [(i, INFINITE) for i in range(first)])
            if passed and self._defines_infinite(built.extra, passed):
                self._infinite = [item.case for item in passed]

    def _without(self, binary: CpuBinary, known: Sequence[KnownRun], *, extremes: bool = False) -> list[CpuRun]:
        """The original on ordinary inputs in the place of those that these runs had."""
        assert self._run is not None
        ordinary = [without(self._spec, k.buffers, extremes=extremes) for k in known]
        jobs = [self._job(self._run.launches[k.case], b, k.scalars, 0) for k, b in zip(known, ordinary, strict=True)]
        return self._machine.run_many(binary, jobs, deadline_s=_DEADLINE_S)

    def _passes_nan_on(self, binary: CpuBinary, known: Sequence[KnownRun]) -> bool:
        return all(
            not run.findings and passes_on(self._spec, k.original, run.outputs)
            for k, run in zip(known, self._without(binary, known), strict=True)
        )

    def _defines_infinite(self, binary: CpuBinary, known: Sequence[KnownRun]) -> bool:
        return all(
            not run.findings and defined(self._spec, k.buffers, k.original, k.wide, run.outputs)
            for k, run in zip(known, self._without(binary, known, extremes=True), strict=True)
        )

    def _passing(self, binary: CpuBinary, wanted: Sequence[tuple[int, str]]) -> list[KnownRun]:
        """Those of these cases and families that the original passes, each with inputs drawn for it."""
        assert self._run is not None
        seeds = [(case, family, self._random.getrandbits(40)) for case, family in wanted]
        jobs = [
            self._job(self._run.launches[case], *self._inputs(case, family, seed), 0) for case, family, seed in seeds
        ]
        runs = self._machine.run_many(binary, jobs, deadline_s=_DEADLINE_S)
        clean = [seed for seed, run in zip(seeds, runs, strict=True) if not run.findings]
        known, _ = self._prepare(binary, clean)
        again = [self._job(self._run.launches[k.case], k.buffers, k.scalars, 1 + i % 2) for i, k in enumerate(known)]
        runs = self._machine.run_many(binary, again)
        for item, run in zip(known, runs, strict=True):
            self._record_order_noise(item, run.outputs)
        return [
            item
            for item, run in zip(known, runs, strict=True)
            if not self._unwritten([item]) and self._compare(item, run.outputs) is None
        ]

    def _added(self) -> list[tuple[int, str, int]]:
        """Checks on the secret cases, with NaN and with infinities, on fresh seeds."""
        first = len(self._spec.check)
        wanted = [(first + i, "declared") for i in range(len(self._secret.cases))]
        wanted += [(case, NAN) for case in self._nan]
        wanted += [(case, INFINITE) for case in self._infinite]
        return [(case, family, self._random.getrandbits(40)) for case, family in wanted]

    def _unwritten(self, known: Sequence[KnownRun]) -> list[str]:
        """Elements of an output that no run of a case has changed: what stood there would count for the tolerance."""
        for argument in self._spec.arguments:
            dtype = parse_dtype(argument.type)
            if argument.role != "out" or dtype.storage.itemsize == 1:  # of single bytes some are right by chance
                continue
            stale: dict[int, np.ndarray[Any, Any]] = {}
            for item in known:
                pairs = (item.original[argument.name], item.buffers[argument.name])
                now, before = (np.ascontiguousarray(a).view(np.uint8).reshape(-1, dtype.itemsize) for a in pairs)
                same = (now == before).all(axis=1)
                stale[item.case] = stale.get(item.case, same) & same
            for case, left in stale.items():
                if left.any():
                    return [
                        f"case {self._case(case).name}: the kernel leaves {int(left.sum())} of {left.size} elements of the "
                        f"output '{argument.name}' unwritten, first at index {int(left.argmax())}; declare it as inout, or give "
                        "its true size"
                    ]
        return []

    def _repeats(self, binary: CpuBinary, known: Sequence[KnownRun]) -> list[str]:
        """The original again in other orders: it must not depend on them by more than its tolerance."""
        assert self._original is not None
        jobs = [
            self._job((self._run or self._original).launches[k.case], k.buffers, k.scalars, 1 + i % 2)
            for i, k in enumerate(known)
        ]
        runs = self._machine.run_many(binary, jobs)
        for item, run in zip(known, runs, strict=True):
            self._record_order_noise(item, run.outputs)
        for item, run in zip(known, runs, strict=True):
            failure = self._compare(item, run.outputs)
            if failure:
                return [f"case {failure.case}: run in another order of threads, {failure.reason}"]
        return []

    def _controls(self, binary: CpuBinary, known: Sequence[KnownRun], written: Sequence[str]) -> list[str]:
        wanted: dict[tuple[str, str], bool] = {}
        for item in known:
            for name in written:
                right = item.original[name]
                controls = {"all zeros": np.zeros_like(right)}
                controls["whatever stood there before"] = item.buffers[name]
                for argument in self._spec.arguments:
                    other = item.buffers.get(argument.name)
                    if (
                        argument.role == "in"
                        and other is not None
                        and other.dtype == right.dtype
                        and other.size >= right.size
                    ):
                        controls["a copy of an input"] = other[: right.size]
                        break
                for what, content in controls.items():
                    failure = self._compare(item, {**item.original, name: content})
                    wanted[what, name] = wanted.get((what, name), False) or failure is not None
        problems = [
            f"{what} in '{name}' would pass for a right result" for (what, name), seen in wanted.items() if not seen
        ]
        return problems + self._independent(binary, known)

    def _independent(self, binary: CpuBinary, known: Sequence[KnownRun]) -> list[str]:
        """Inputs that no output depends on, tried by exchanging one input at a time."""
        assert self._original is not None
        jobs, meaning = [], []
        items = [k for k in known[: len(known) // _VALIDATION_SEEDS] if k.family == "declared"]
        for item in items:
            fresh, _ = self._inputs(item.case, item.family, self._random.getrandbits(40))
            for argument in self._spec.arguments:
                if argument.role in ("in", "inout") and argument.fill.kind != "constant":
                    changed = {**item.buffers, argument.name: fresh[argument.name]}
                    jobs.append(self._job(self._original.launches[item.case], changed, item.scalars, 0))
                    meaning.append((item, argument.name))
        seen: dict[str, bool] = {}
        for (item, name), run in zip(meaning, self._machine.run_many(binary, jobs) if jobs else [], strict=True):
            seen[name] = seen.get(name, False) or bool(run.findings) or self._compare(item, run.outputs) is not None
        return [
            f"no output depends on the input '{name}' in any check case" for name, found in seen.items() if not found
        ]

    def _compare(self, item: KnownRun, outputs: Mapping[str, Any], *, loose: bool = False) -> Failure | None:
        for argument in self._spec.arguments:
            if argument.role not in ("out", "inout"):
                continue
            now = noise(self._spec, argument.name, item.original, item.wide if item.wide is not None else item.original)
            old = self._noise.get((item.case, item.family + argument.name), Noise(0.0, 0.0))
            scale = Noise(max(now.error, old.error), max(now.rms, old.rms))
            case = self._case(item.case).name
            failure = difference(
                self._spec, argument.name, outputs, item.original, item.wide, scale, case,
                loose=loose,
            )  # fmt: skip
            if failure:
                return replace(failure, reason=f"{failure.reason} (inputs '{item.family}')")
        return None

    # ---- candidates

    @contained_build
    def build(self, program: Program) -> Built:
        return self.complete(self._builder.candidate(program))

    @contained_build
    def complete(self, built: Built) -> Built:
        """Add the code for the CPU to a candidate built elsewhere. Raises NotBuilt."""
        if self._original is not None and built.identity == self._original.identity:
            return replace(built, extra=self._original.extra)  # known already: no need to compile it for the CPU
        begin = time.perf_counter()
        try:
            binary = self._machine.build(built.text, self._spec.file, self._spec, self._builder.expressions)
        except Unsupported as error:
            reason = f"the CPU path cannot run {', '.join(error.features)}"
            raise not_built(Outcome.SCREENED_OUT, reason, built) from None
        except CompileError as error:
            raise not_built(Outcome.COMPILE_ERROR, error.what, built) from None
        if self._facts is not None and self._builder.defences.object_checks:
            try:
                against = objection(self._facts, facts_of(binary.object))
            except ValueError as error:
                against = str(error)
            if against:
                raise not_built(Outcome.SCREENED_OUT, f"compiled for the CPU, the code {against}", built)
        compiled = time.perf_counter()
        self.speeds.predictor.code(built.binary)  # disassembled here, beside what runs, and kept
        stages = {
            **built.stage_s,
            "compile for the CPU": compiled - begin,
            "disassemble": time.perf_counter() - compiled,
        }
        return replace(built, extra=binary, stage_s=stages)

    @contained_evaluation
    def evaluate(
        self, built: Built, incumbent: Built | None, *, brief: bool = False
    ) -> tuple[Evaluation, float | None]:
        stages = dict(built.stage_s)
        evaluation = Evaluation(Outcome.CRASHED, None, None, built.binary.resources, built.binary.code_hash, stages)
        begin = time.perf_counter()
        failed = self._screen(built, self._known, evaluation)
        stages["screen"] = time.perf_counter() - begin
        if failed:
            return failed, None
        begin = time.perf_counter()
        try:
            measurement = self.speeds.predict(built)
        except OptimlError as error:
            return replace(evaluation, outcome=Outcome.SCREENED_OUT, failure=Failure(error.what)), None
        stages["predict"] = time.perf_counter() - begin
        against = None if incumbent is None else self._against(measurement, incumbent)
        return replace(evaluation, outcome=Outcome.SCREENED, measurement=measurement), against

    def _against(self, measurement: Measurement, incumbent: Built) -> float | None:
        """The speedup over the incumbent; None where that comes from an earlier run and cannot be predicted again."""
        try:
            return measurement.ratio / self.speeds.predict(incumbent).ratio
        except OptimlError:
            return None

    @contained_evaluation
    def retime(self, built: Built, incumbent: Built | None, effort: int) -> tuple[Evaluation, float | None]:
        return self.evaluate(built, incumbent)

    def _before(self, item: KnownRun) -> Arrays:
        """What stands in the buffers before a run."""
        if self._builder.defences.poison:
            return item.buffers
        stale = {a.name: item.original[a.name] for a in self._spec.arguments if a.role == "out"}
        return {**item.buffers, **stale}

    def _screen(self, built: Built, known: Sequence[KnownRun], evaluation: Evaluation) -> Evaluation | None:
        orders = _ORDERS if self._builder.defences.thread_orders else 1
        try:
            launched = self._with_secret(built).launches
        except OptimlError as error:
            return replace(evaluation, outcome=Outcome.SCREENED_OUT, failure=Failure(error.what))
        jobs = [
            self._job(launched[item.case], self._before(item), item.scalars, i % orders) for i, item in enumerate(known)
        ]
        # The first run alone, so that a candidate that never ends costs its deadline once.
        runs = self._machine.run_many(built.extra, jobs[:1], deadline_s=_DEADLINE_S)
        if not runs[0].findings or not self._builder.defences.access_checks:
            runs += self._machine.run_many(built.extra, jobs[1:], deadline_s=_DEADLINE_S)
        for item, run in zip(known, runs, strict=False):
            held = [f for f in run.findings if self._builder.defences.access_checks or f.kind not in _ACCESSES]
            if held:
                return refused(evaluation, held[0], self._case(item.case).name)
            failure = self._compare(item, run.outputs, loose=not self._builder.defences.scaled_tolerance)
            if failure:
                return replace(evaluation, outcome=Outcome.WRONG_RESULT, failure=failure)
        return None

    # ---- the suggestion

    def confirm(self, built: Built) -> Evaluation:
        """Fresh seeds in every order, and the race detector."""
        assert self._original is not None
        evaluation = Evaluation(Outcome.CRASHED, None, None, built.binary.resources, built.binary.code_hash, {})
        known, _ = self._prepare(self._original.extra, [*self._seeds(1), *self._added()])
        screened = self._screen(built, known, evaluation)
        if screened:
            return screened
        wrong, sampled = self._sampled.judge(built) if self._sampled else (None, None)
        if wrong:
            return replace(evaluation, outcome=Outcome.WRONG_RESULT, failure=wrong)
        unjudged = self._machine.degraded[0] if self._machine.degraded else self._no_race_verdict
        if not unjudged and self._builder.defences.races:
            drawn = [(k.case, k.buffers, k.scalars) for k in known if k.family == "declared"]
            findings = self._race_findings(self._with_secret(built), drawn)
            if findings:
                return refused(evaluation, findings[0], "")
        measurement = self.speeds.predict(built)
        verdicts = (
            guardrails.timing(measurement, self._builder.limits),
            guardrails.spills(
                self._original.binary.resources, built.binary.resources, measurement, self._builder.limits
            ),
            guardrails.numeric(screened=True),
            Guardrail("races", "not checked", unjudged)
            if unjudged
            else Guardrail("races", "passed", "by ThreadSanitizer, on check shapes"),
            *([sampled] if sampled else []),
        )
        evaluation = replace(evaluation, outcome=Outcome.SCREENED, measurement=measurement, guardrails=verdicts)
        failed = guardrails.broken(evaluation)
        if failed is not None:
            return replace(evaluation, outcome=Outcome.GUARDRAIL, failure=Failure(f"{failed.name}: {failed.detail}"))
        return evaluation

    def close(self) -> None:
        self._builder.close()
        pass
