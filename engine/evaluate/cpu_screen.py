"""Correctness without a GPU: the original validated on the CPU, edits of it refuted there."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from engine.compile.built import Built
from engine.cpu import CpuBinary, CpuFinding, CpuJob, CpuMachine, CpuRun, Unsupported
from engine.cpu.object_checks import ObjectFacts, facts_of, objection
from engine.errors import OptimlError, RefusedError
from engine.evaluate.added_conditions import AddedConditions
from engine.evaluate.admitted_checks import AdmittedChecks, AdmittedRuns
from engine.evaluate.build import Builder
from engine.evaluate.cpu_controls import Controls, Exchange, unwritten
from engine.evaluate.cpu_failures import refused
from engine.evaluate.edit_variants import EditVariants
from engine.evaluate.equal_terms import EqualTerms
from engine.evaluate.known_noise import KnownNoise
from engine.evaluate.known_runs import KnownRun, screening_set
from engine.evaluate.mixed_magnitudes import MixedMagnitudes
from engine.evaluate.sampled_sizes import MANY_CORES, SampledSizes
from engine.evaluate.secret_cases import SecretCases
from engine.evaluate.suggestion_runs import MOST_CHECK_BYTES, ComparedJob, SuggestionRuns
from engine.evaluate.twin_jobs import twin_job
from engine.model import Evaluation, Failure, Guardrail, Outcome
from engine.spec.data import bytes_needed, scalars
from engine.spec.kernel_spec import Case, KernelSpec
from engine.spec.undeclared import contents
from engine.verify.plan import plan
from engine.verify.widen import widen, widened_spec

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Arrays = dict[str, NDArray[Any]]

_RACES = ("race", "barrier_divergence", "deadlock")
# Found by looking at each access; the run goes on after them.
_ACCESSES = ("input_written", "stale_read", "uninitialised")
_ORDERS = 3  # lane and block orders a candidate is run in: forward, reversed, shuffled
_VALIDATION_SEEDS = 2
_ORDER = "with another order of threads"
_FIX_ORDER = (
    "fix the kernel: its result depends on the order of its threads (of atomics on floats alone: deterministic = false)"
)
_NO_REFERENCE = "no float64 reference: the tolerance is a multiple of the type's epsilon"
_ORIGINAL_DEADLINE_S = 10.0
_DEADLINE_S = 4.0  # of one run on a check shape, which takes milliseconds


class _Undefined(RefusedError):
    """The original's own behaviour is undefined."""


class CpuScreen:
    """Refutes edits of one original on the check shapes and, for a suggestion, on sizes and values beyond them; it verifies none."""

    def __init__(self, spec: KernelSpec, builder: Builder, machine: CpuMachine, rng: random.Random) -> None:
        self._spec, self._builder, self._machine, self._random = spec, builder, machine, rng
        self._wide_spec = widened_spec(spec)
        self._known: list[KnownRun] = []
        self._noise = KnownNoise(spec, lambda case: self._case(case).name)
        self._original: Built | None = None
        self._wide: CpuBinary | None = None
        self._missing: list[str] = []
        self._no_race_verdict = ""
        self._secret = SecretCases(spec, builder, self._random)
        runs = AdmittedRuns(self._drawn, self._again)
        self._admitted = AdmittedChecks(spec, builder.defences, self._secret, self._noise, runs, lambda: self._cases)
        self._facts: ObjectFacts | None = None  # of the original's object
        self._sampled: SampledSizes | None = None
        self._mixed: MixedMagnitudes | None = None
        self._equal: EqualTerms | None = None
        self._strict = builder.defences.undefined
        self._conditions: AddedConditions | None = None
        self._runs: SuggestionRuns | None = None
        self._variants: EditVariants | None = None
        self._prepared = False
        self._fresh: list[KnownRun] = []  # of confirmations, until one refutes

    @property
    def missing(self) -> tuple[str, ...]:
        """What cannot be found out about this original."""
        return (*self._missing, *self._machine.degraded)

    @property
    def secret_cases(self) -> tuple[Case, ...]:
        return self._secret.cases

    # ---- the original

    def open(self, built: Built) -> Built:
        """Compile the original for the CPU and validate the spec on it. Raises RefusedError where nothing can be proven here."""
        where = self._spec.origin or self._spec.file
        for case in self._spec.check:
            if (needed := bytes_needed(self._spec, case)) > MOST_CHECK_BYTES:
                raise RefusedError(
                    f"the buffers of the check case {case.name} take {needed >> 20} MiB, over the CPU path's limit of "
                    f"{MOST_CHECK_BYTES >> 20} MiB", where, "give smaller sizes, or run it on a machine with a GPU",
                )  # fmt: skip
        try:
            return self._validated(built)
        except _Undefined as error:  # of the original's it is not asked what it means, nor of an edit's then
            self._strict = False
            self._missing = [f"undefined behaviour is not detected: the original {error.what}"]
            return self._validated(built)

    def _validated(self, built: Built) -> Built:
        where = self._spec.origin or self._spec.file
        try:
            binary = self._build(built)
        except Unsupported as error:
            uses = [f"{r.registers} registers, {r.spill_store_bytes} bytes spilled" for r in built.binary.resources]
            raise RefusedError(
                f"the CPU path cannot run {', '.join(error.features)}; only the compiler's findings: {'; '.join(uses)}",
                where, "run it on a machine with a GPU",
            ) from None  # fmt: skip
        built = replace(built, extra=binary)
        self._original = built
        try:
            self._facts = facts_of(binary.object)
        except ValueError as error:
            raise RefusedError(f"the kernel compiled for the CPU cannot be checked: {error}", where) from None
        self._wide = self._widened(built)
        if self._wide is None:
            self._missing.append(_NO_REFERENCE)
        self._refuse_failing(binary)
        self._refuse_races()
        if problems := self._validate(binary):
            raise RefusedError("; ".join(problems), where, _FIX_ORDER if _ORDER in problems[0] else "correct the spec")
        self._admit(built)
        self._runs = SuggestionRuns(
            self._spec, self._machine, built, self._wide, self._secret.launch,
            lambda item, outputs: self._noise.compare(item, outputs, loose=not self._builder.defences.scaled_tolerance),
            self._builder.defences.any_address, self._builder.defences.earlier_launch,
        )  # fmt: skip
        if outside := self._runs.samples(built, self._random).outside():
            case, message = outside
            raise RefusedError(
                f"timing case {case.name}: the original kernel fails: {message}", where, "correct the spec's sizes"
            )
        self._variants = EditVariants(
            self._spec, self._builder, built, self._build, lambda mixed, now: self._screen(mixed, self._known, now)
        )
        if self._builder.defences.added_conditions:
            self._conditions = AddedConditions(self._machine, built, self._strict, self._spec)
        return built

    def _widened(self, built: Built) -> CpuBinary | None:
        found = widen(built.text, built.expressions)
        if found is None or self._wide_spec is None:
            return None
        try:
            return self._machine.build(found[0], self._spec.file, self._wide_spec, found[1])
        except OptimlError:
            return None

    def _job(self, built: Built, case: int, inputs: tuple[Arrays, Mapping[str, Any]], order: int) -> CpuJob:
        """A program's run of a case. Raises OptimlError where it cannot be launched at one that the original can."""
        launches = self._secret.whole(built, timed=False).launches[case]
        early = not self._builder.defences.late_copies
        at = self._case(case)
        return CpuJob(launches, *inputs, order, early_copies=early, shared=at.shared, null=at.null)

    def _first_job(self, built: Built, item: KnownRun) -> CpuJob:
        return self._job(built, item.case, (self._before(item), item.scalars), 0)

    def _inputs(self, case: int, family: str, seed: int) -> tuple[Arrays, dict[str, Any]]:
        chosen = self._case(case)
        return contents(self._spec, chosen, seed, family), scalars(self._spec, chosen)

    def _case(self, index: int) -> Case:
        return self._cases[index]

    @property
    def _cases(self) -> tuple[Case, ...]:
        """The check cases of the spec, and behind these the secret ones."""
        return (*self._spec.check, *self._secret.cases)

    def _run_original(
        self, binary: CpuBinary, plan: Sequence[tuple[int, str, int]], *, turned: bool = False,
        deadline_s: float | None = None,
    ) -> tuple[list[KnownRun], list[CpuRun], list[CpuRun]]:  # fmt: skip
        """Draw inputs and run the original and its wide twin on them, and, `turned`, the original in another order of threads: all at
        once, as some runs take long and cores are many. The original's runs come second, those in another order third."""
        assert self._original is not None
        drawn = [(case, family, *self._inputs(case, family, seed)) for case, family, seed in plan]
        jobs = [self._job(self._original, c, (b, v), 0) for c, _, b, v in drawn]
        others = [replace(job, order=1 + i % 2) for i, job in enumerate(jobs)] if turned else []
        pairs = [(binary, job) for job in (*jobs, *others)]
        if self._wide is not None:
            pairs += [(self._wide, twin_job(self._spec, job)) for job in jobs]
        found = self._machine.run_each(pairs, deadline_s=deadline_s or _ORIGINAL_DEADLINE_S)
        turned_at, twins_at = len(jobs), len(jobs) + len(others)
        runs, again, twins = found[:turned_at], found[turned_at:twins_at], found[twins_at:]
        wides = [None if twin.findings else dict(twin.outputs) for twin in twins] or [None] * len(jobs)
        known = [
            KnownRun(c, f, b, v, dict(run.outputs), wide, self._admitted.compared(c, f))
            for (c, f, b, v), run, wide in zip(drawn, runs, wides, strict=True)
        ]
        return known, runs, again

    def _seeds(self, repeats: int) -> list[tuple[int, str, int]]:
        checks = [check for _ in range(repeats) for check in plan(self._spec, self._random, self._builder.defences)]
        return [(check.case, check.family, check.seed) for check in checks]

    def _validate(self, binary: CpuBinary) -> list[str]:
        assert self._original is not None
        known, runs, again = self._run_original(binary, self._seeds(_VALIDATION_SEEDS), turned=True)
        if self._found_unwritten(runs):
            known, runs, again = self._run_original(binary, self._seeds(_VALIDATION_SEEDS), turned=True)
        self._refuse_findings(known, runs)
        if self._wide is not None and self._noise.misled(known):
            self._wide, known = None, [replace(item, wide=None) for item in known]
            self._missing.append(_NO_REFERENCE)
        for item in known:
            self._noise.record(item)
        self._admitted.record(known)
        problems = unwritten(self._spec, known, self._cases) or self._repeats(known, again)
        if not problems:
            problems = self._controls(binary, known)
        self._known = screening_set(known[: len(known) // _VALIDATION_SEEDS])
        return problems

    def _refuse_failing(self, binary: CpuBinary) -> None:
        """Refuse an original that fails on its first inputs: one that never ends must not cost the deadline many times."""
        known, runs, _ = self._run_original(binary, self._seeds(1)[:1])
        if not self._found_unwritten(runs):
            self._refuse_findings(known, runs)

    def _found_unwritten(self, runs: Sequence[CpuRun]) -> bool:
        """Whether all findings are reads of shared memory that nothing has written: from now on they are none.

        At borders such values are read and not used, as no tool for GPUs minds. That results do not depend on them is checked:
        what is there differs between orders of threads.
        """
        found = [finding for run in runs for finding in run.findings]
        buffers = {argument.name for argument in self._spec.arguments}
        if self._machine.unwritten_shared or not found or not all(f.reads_unwritten_shared(buffers) for f in found):
            return False
        self._machine.unwritten_shared = True
        self._missing.append(f"the original {found[0].message}: such reads of shared memory are not reported")
        return True

    def _refuse_findings(self, known: Sequence[KnownRun], runs: Sequence[CpuRun]) -> None:
        for item, run in zip(known, runs, strict=True):
            if run.findings:
                finding = run.findings[0]
                if finding.kind == "undefined":
                    raise _Undefined(finding.message)
                raise RefusedError(
                    f"case {self._case(item.case).name}: the original kernel fails: {finding.message}",
                    self._spec.origin or self._spec.file,
                    "use smaller check shapes, or fix the kernel" if finding.kind == "timeout" else "correct the spec",
                )

    def _refuse_races(self) -> None:
        """Refuse an original with data races: its results prove nothing, and its races would excuse a candidate's."""
        assert self._original is not None
        if self._machine.degraded or not self._builder.defences.races:
            return
        checks = [check for check in self._seeds(1) if check[1] == "declared"]
        drawn = [(case, *self._inputs(case, family, seed)) for case, family, seed in checks]
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

    def _race_findings(
        self, built: Built, drawn: Sequence[tuple[int, Arrays, Mapping[str, Any]]]
    ) -> tuple[CpuFinding, ...]:
        """ThreadSanitizer's findings on these cases with their inputs, in several orders of threads."""
        jobs = [self._job(built, case, (b, v), i % _ORDERS) for i, (case, b, v) in enumerate(drawn)]
        return self._machine.races(built.extra, jobs)

    def _admit(self, built: Built) -> None:
        """Add checks that the original passes: secret cases, those of other callers, contents that the spec's fills leave out."""
        self._secret.draw(built.program)
        self._admitted.admit_secret()
        self._known += self._admitted.screening

    def _drawn(self, wanted: Sequence[tuple[int, str]]) -> tuple[list[KnownRun], list[CpuRun], list[CpuRun]]:
        assert self._original is not None
        seeds = [(case, family, self._random.getrandbits(40)) for case, family in wanted]
        return self._run_original(self._original.extra, seeds, turned=True, deadline_s=_DEADLINE_S)

    def _again(self, drawn: Sequence[tuple[KnownRun, Arrays, Case | None]]) -> list[CpuRun]:
        """The original on other buffers, or as another case has it."""
        assert self._original is not None
        places = [self._cases.index(case) if case is not None else item.case for item, _, case in drawn]
        jobs = [self._job(self._original, at, (b, k.scalars), 0) for at, (k, b, _) in zip(places, drawn, strict=True)]
        return self._machine.run_many(self._original.extra, jobs, deadline_s=_DEADLINE_S) if jobs else []

    def _repeats(self, known: Sequence[KnownRun], again: Sequence[CpuRun]) -> list[str]:
        """The original in other orders: it must not depend on them by more than its tolerance."""
        for item, run in zip(known, again, strict=True):
            self._noise.record_order(item, run.outputs)
        for item, run in zip(known, again, strict=True):
            if failure := self._noise.compare(item, run.outputs):
                return [f"case {failure.case}: {_ORDER}, {failure.reason}"]
        return []

    def _controls(self, binary: CpuBinary, known: Sequence[KnownRun]) -> list[str]:
        assert self._original is not None
        original = self._original

        def run(drawn: Sequence[Exchange]) -> Sequence[CpuRun]:
            jobs = [self._job(original, each.of.case, (each.buffers, each.of.scalars), 0) for each in drawn]
            return self._machine.run_many(binary, jobs) if jobs else []

        declared = [k for k in known[: len(known) // _VALIDATION_SEEDS] if k.family == "declared"]
        fresh = [self._inputs(k.case, k.family, self._random.getrandbits(40))[0] for k in declared]
        found = Controls(self._spec, run, lambda item, outputs: self._noise.compare(item, outputs) is not None)
        return [*found.accepted(known, declared), *found.independent(declared, fresh)]

    # ---- candidates

    def _build(self, built: Built) -> CpuBinary:
        return self._machine.build(
            built.text, self._spec.file, self._spec, self._builder.expressions, strict=self._strict
        )

    def complete(self, built: Built) -> Built:
        """Add the code for the CPU. Raises Unsupported, CompileError, and RefusedError where the code would switch checks off."""
        if self._original is not None and built.identity == self._original.identity:
            return replace(built, extra=self._original.extra)  # known already: no need to compile it for the CPU
        binary = self._build(built)
        if self._facts is not None and self._builder.defences.object_checks:
            try:
                against = objection(self._facts, facts_of(binary.object))
            except ValueError as error:
                against = str(error)
            if against:
                raise RefusedError(f"compiled for the CPU, the code {against}")
        return replace(built, extra=binary)

    def screen(self, built: Built, evaluation: Evaluation) -> Evaluation | None:
        """The evaluation of a candidate that is refuted on the check shapes; None: it is not."""
        return self._screen(built, self._known, evaluation)

    def _before(self, item: KnownRun) -> Arrays:
        """What stands in the buffers before a run."""
        if self._builder.defences.poison:
            return item.buffers
        stale = {a.name: item.original[a.name] for a in self._spec.outputs if a.role == "out"}
        return {**item.buffers, **stale}

    def _screen(self, built: Built, known: Sequence[KnownRun], evaluation: Evaluation) -> Evaluation | None:
        orders = _ORDERS if self._builder.defences.thread_orders else 1
        try:
            jobs = [
                self._job(built, item.case, (self._before(item), item.scalars), i % orders)
                for i, item in enumerate(known)
            ]
        except OptimlError as error:
            return replace(evaluation, outcome=Outcome.SCREENED_OUT, failure=Failure(error.what))
        # The first run alone, so that a candidate that never ends costs its deadline once.
        runs = self._machine.run_many(built.extra, jobs[:1], deadline_s=_DEADLINE_S)
        if not runs[0].findings or not self._builder.defences.access_checks:
            runs += self._machine.run_many(built.extra, jobs[1:], deadline_s=_DEADLINE_S)
        for item, run in zip(known, runs, strict=False):
            held = [f for f in run.findings if self._builder.defences.access_checks or f.kind not in _ACCESSES]
            if held:
                return refused(evaluation, held[0], self._case(item.case).name)
            if failure := self._noise.compare(item, run.outputs, loose=not self._builder.defences.scaled_tolerance):
                return replace(evaluation, outcome=Outcome.WRONG_RESULT, failure=failure)
            if item.compared is None:
                built.extra.saw(run)
        return None

    # ---- the suggestion

    def prepare(self) -> None:
        """Run the original as confirmations need it: seconds, once, before or in the first of them."""
        if self._prepared:
            return
        self._prepared = True
        assert self._original is not None
        assert self._runs is not None
        self._admitted.admit_callers(self._secret.callers(self._original.program))
        self._admitted.admit_undeclared()
        original = self._conditions.watched_original() if self._conditions else self._original
        samples = self._runs.samples(original, self._random)
        if self._builder.defences.equal_terms:
            self._equal = EqualTerms(self._spec, samples, self._random)
            self._equal.draw()
        if self._builder.defences.sampled_sizes:
            self._sampled = samples
            self._sampled.draw()
            for run in self._sampled.runs:
                original.extra.saw(run)
        self._mixed = MixedMagnitudes(self._spec, self._machine, self._original, self._wide, self._builder.defences)
        self._mixed.draw(self._random)
        self._fresh = self._drawn_afresh()

    def _drawn_afresh(self) -> list[KnownRun]:
        """The original on inputs that no candidate has been screened with, nor been told of."""
        assert self._original is not None
        return self._run_original(self._original.extra, [*self._seeds(1), *self._admitted.confirming(self._random)])[0]

    def confirm(self, built: Built, evaluation: Evaluation) -> tuple[Evaluation | None, tuple[Guardrail, ...]]:
        """Refute a suggestion: fresh seeds in every order, secret sizes and values, the race detector.

        The evaluation of what is refuted (None: it is not), and what was checked. An edit that differs by architecture is as correct as
        each of its texts. What has no code for the CPU gets it: raises as `complete`.
        """
        try:
            arms = [self.complete(arm) for arm in self._variants.arms(built)] if self._variants is not None else []
        except OptimlError as error:
            failure = Failure(f"differs by architecture, and one of its texts is not built: {error.what}")
            return replace(evaluation, outcome=Outcome.SCREENED_OUT, failure=failure), ()
        verdicts: tuple[Guardrail, ...] = ()
        for each in (*arms, built):
            wrong, verdicts = self._confirm(each, evaluation)
            if wrong:
                self._fresh = []  # the reason names one of these inputs
                return wrong, verdicts
        return None, verdicts

    def _confirm(self, built: Built, evaluation: Evaluation) -> tuple[Evaluation | None, tuple[Guardrail, ...]]:
        assert self._original is not None
        assert self._runs is not None
        self.prepare()
        known = self._fresh = self._fresh or self._drawn_afresh()
        # Races and addresses are those of sizes: other scalars alone bring none that they are worth running for.
        declared = [k for k in known if k.family == "declared" and not self._case(k.case).changed]
        unjudged = self._machine.degraded[0] if self._machine.degraded else self._no_race_verdict
        inputs = [(k.case, k.buffers, k.scalars) for k in declared]
        with ThreadPoolExecutor(2) as beside:  # compilers, and a few large jobs, leave most cores idle
            marking = beside.submit(self._conditions.watched, built) if self._conditions else None
            built = self.complete(built) if built.extra is None else built
            judged = not unjudged and self._builder.defences.races
            early = judged and self._machine.jobs >= MANY_CORES
            racing = beside.submit(self._race_findings, built, inputs) if early else None
            marked, unwatched = marking.result() if marking is not None else (built, None)
            watched = replace(built, extra=marked.extra or built.extra)
            if screened := self._screen(watched, known, evaluation):
                return screened, ()
            # Of few cores the race detector would take those that refute most of what is refuted.
            racing = beside.submit(self._race_findings, built, inputs) if judged and not early else racing
            pairs = [ComparedJob(k, self._first_job(built, k), self._first_job(self._original, k)) for k in declared]
            wrong, sampled = self._runs.moved(watched, pairs) or self._runs.after_another(watched, pairs), None
            if wrong is None and self._mixed:
                wrong = self._mixed.judge(watched)
            if wrong is None and self._sampled:
                wrong, sampled = self._sampled.judge(watched, watched.extra.saw)
            if wrong is None and self._equal:
                wrong = self._equal.judge(watched)
        if wrong:
            return replace(evaluation, outcome=Outcome.WRONG_RESULT, failure=wrong), ()
        if racing is not None and (findings := racing.result()):
            if not self._race_findings(self._original, inputs):  # at sizes of other callers it may have races itself
                return refused(evaluation, findings[0], ""), ()
            unjudged = f"the original has races at sizes beyond the spec's: {findings[0].message}"
        passed = ("passed", "by ThreadSanitizer, on check shapes")
        races = Guardrail("races", *(("not checked", unjudged) if unjudged else passed))
        wrong, met = self._met(watched, known, unwatched)
        if wrong:
            return replace(evaluation, outcome=Outcome.WRONG_RESULT, failure=wrong), ()
        if met is not None and met.verdict == "failed":
            wrong = Failure(f"{met.name}: {met.detail}")
            return replace(evaluation, outcome=Outcome.GUARDRAIL, failure=wrong, guardrails=(met,)), ()
        kept = None
        if self._variants is not None and self._builder.defences.helpers and not built.by_rules:
            refuted, kept = self._variants.helpers(built, evaluation)
            if refuted:
                return refuted, ()
        return None, tuple(verdict for verdict in (races, sampled, met, kept) if verdict is not None)

    def _met(
        self, watched: Built, known: Sequence[KnownRun], unwatched: Guardrail | None
    ) -> tuple[Failure | None, Guardrail | None]:
        """Whether each condition was met in a check, with further ones where one was not; what is wrong in those."""
        if self._conditions is None or unwatched is not None:
            return None, unwatched
        assert self._original is not None
        assert self._runs is not None
        # Only runs that are compared whole count for a candidate, and so for the original.
        counted = [k for k in known if k.compared is None]
        jobs = [self._job(self._original, k.case, (k.buffers, k.scalars), 0) for k in counted]
        verdict = self._conditions.judge(watched, jobs)
        if verdict.verdict == "passed":
            return None, verdict
        if wrong := self._runs.named_values(watched, self._conditions.words(watched), self._random):
            return wrong, verdict
        if (verdict := self._conditions.judge(watched, jobs)).verdict == "failed":
            self._runs.other_blocks(watched, [k for k in counted if k.case < len(self._spec.check)])
            verdict = self._conditions.judge(watched, jobs)
        return None, verdict
