"""Correctness on the device: one check of a candidate, and the validation of a spec on the original. Worker only."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import cupy as cp
import numpy as np

from engine.gpu.buffers import CaseBuffers, tool_kind
from engine.gpu.device import Arena, Call, Compared, Loaded, Salt, Tools
from engine.gpu.replay import Replays
from engine.gpu.spec_controls import SpecControls
from engine.model import LaunchConfig
from engine.spec.data import families_for
from engine.spec.kernel_spec import Case, KernelSpec
from engine.verify.defences import ALL, Defences
from engine.verify.tolerance import Noise, allowed, relative_term

VALIDATION_SEEDS = 3
FEW_ELEMENTS_SEEDS = 8
_MANY_ELEMENTS = 1024  # the largest of so many errors is within a factor of two of any other draw's
_REAL_SHAPE_S = 1.0
_WAVE = 16  # checks that run before the device is waited for

Words = np.ndarray[Any, np.dtype[np.uint64]]


@dataclass(frozen=True)
class Run:
    """One run to check: a prepared candidate, the index of its case, the family and seed of its inputs.

    The seed of the first of a wave stands for all of it, and where it is odd outputs are filled with the other poison.
    """

    call: Call
    index: int
    family: str
    seed: int


@dataclass(frozen=True)
class WatchedInputs:
    """Where the board has the hashes of the inputs before and after a run, and what became of the guard zones."""

    before: slice
    after: slice
    zones: slice | None


@dataclass
class Checker:
    """Checks candidates of one spec against its original.

    `original` launches come per case (check cases first, then timing cases); `wide` is the original compiled with doubles.
    """

    spec: KernelSpec
    tools: Tools
    original: Loaded
    launches: Sequence[Sequence[LaunchConfig]]
    wide: Loaded | None
    wide_launches: Sequence[Sequence[LaunchConfig]]
    noise: dict[tuple[int, str, str], Noise] = field(default_factory=dict)
    defences: Defences = ALL
    _buffers: dict[int, CaseBuffers] = field(default_factory=dict)
    _calls: dict[int, tuple[Call, Call | None]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.cases: tuple[Case, ...] = (*self.spec.check, *self.spec.time)
        self.stream = cp.cuda.get_current_stream()
        self.replays = Replays(self.tools.board)
        self._salt = Salt()

    def buffers(self, index: int) -> CaseBuffers:
        """The buffers of a case, allocated once."""
        if index not in self._buffers:
            self._buffers[index] = CaseBuffers(self.spec, self.cases[index], self.tools, widened=self.wide is not None)
        return self._buffers[index]

    def _reference(self, index: int) -> tuple[Call, Call | None]:
        if index not in self._calls:
            buffers = self.buffers(index)
            other = buffers.other
            assert other is not None
            wide = None
            if self.wide is not None and buffers.wide is not None:
                wide = Call(self.wide, self.wide_launches[index], buffers.wide_arguments())
            self._calls[index] = (Call(self.original, self.launches[index], buffers.arguments(other)), wide)
        return self._calls[index]

    def run_reference(self, index: int, poison: int) -> None:
        """Run the original into `other` from the inputs that stand in `main`; on check shapes its wide twin into `wide`."""
        buffers = self.buffers(index)
        assert buffers.other is not None
        buffers.reset(buffers.other, poison)
        self._reference(index)[0](cp.cuda.get_current_stream())
        if index < len(self.spec.check):
            self.run_wide(index)

    def run_wide(self, index: int) -> None:
        """Run the widened original, if there is one, from the doubles that stand in `wide`."""
        wide = self._reference(index)[1]
        if wide is not None:
            self.buffers(index).reset_wide()
            wide(cp.cuda.get_current_stream())

    def _forget_references(self, indices: Iterable[int]) -> None:
        """Poison the expected values, so that no later candidate finds them in memory."""
        if not self.defences.poison:
            return
        for buffers in map(self.buffers, indices):
            for arena in (buffers.other, buffers.wide):
                if arena is not None:
                    for name in buffers.written:
                        self.tools.fill(arena.address(name), arena.sizes[name], self.tools.poison[0])

    # ---- one check

    def check(self, runs: Sequence[Run]) -> tuple[dict[str, Any] | None, int]:
        """Run a prepared candidate on fresh inputs, once for each of `runs` in order, and compare.

        Returns the first failure's data or None, and how many runs were looked at. Runs of different cases go as one wave: the
        device is waited for three times a wave, and no expected value exists while a candidate runs.
        """
        done = 0
        while done < len(runs):
            wave = list(runs[done : done + _WAVE])
            seen: set[int] = set()
            for place, run in enumerate(wave):
                if run.index in seen:
                    del wave[place:]
                    break
                seen.add(run.index)
            done += len(wave)
            failure = self._check_wave(wave)
            if failure:
                return failure, done
        return None, done

    def _check_wave(self, wave: Sequence[Run]) -> dict[str, Any] | None:
        watches, words = self._watched(wave, widen=[run.index < len(self.spec.check) for run in wave])
        for run, watch in zip(wave, watches, strict=True):
            touched, changed = self._strayed(run, watch, words)
            if touched and self.defences.guard_zones:
                return self._failure("memory_error", run.index, run.family, f"wrote outside an array, {touched}")
            if changed and self.defences.input_hash:
                return self._failure(
                    "memory_error", run.index, run.family, f"changed the input '{changed}'", argument=changed
                )
        return self.compare([(self.buffers(run.index).main, run.index, run.family) for run in wave], wave[0].seed & 1)

    def _watched(self, runs: Sequence[Run], *, widen: Sequence[bool]) -> tuple[list[WatchedInputs], Words]:
        """Make runs of different cases on fresh inputs, with all that tells whether one strays; what the board says of them.

        Nothing is looked at before the last has run: one run must not be able to undo what a look at another has found.
        """
        for run in runs:
            self.buffers(run.index).draw_rest(run.seed, run.family)
        self._salt.put(runs[0].seed)
        self.tools.board.clear()
        poison = runs[0].seed & 1 if self.defences.poison else None
        what = tuple((run.index, run.family, doubles) for run, doubles in zip(runs, widen, strict=True))
        before = self.replays.run(("before", what, poison), lambda: [self._prepare(*one, poison) for one in what])
        for run in runs:
            run.call(self.stream)
        after = self.replays.run(("after", what), lambda: [self._look(index) for index, _, _ in what])
        watches = [WatchedInputs(hashes, *found) for hashes, found in zip(before, after, strict=True)]
        return watches, self.tools.board.read()

    def _prepare(self, index: int, family: str, doubles: bool, poison: int | None) -> slice:
        """Fresh inputs from the salt, poisoned outputs, and the hashes of the inputs."""
        buffers = self.buffers(index)
        buffers.redraw(0, self._salt.address, family)
        if doubles:
            buffers.widen()
        buffers.reset(buffers.main, poison)
        if poison is None:
            buffers.leave_results()
        return buffers.hash_inputs()

    def _look(self, index: int) -> tuple[slice, slice | None]:
        buffers = self.buffers(index)
        return buffers.hash_inputs(), buffers.main.watch()

    def _strayed(self, run: Run, watch: WatchedInputs, words: Words) -> tuple[str | None, str | None]:
        """Which guard zone a run touched, which input it changed."""
        buffers = self.buffers(run.index)
        return buffers.main.touched(watch.zones, words), buffers.changed_input(watch.before, watch.after, words)

    def _uses_wide(self, index: int, name: str) -> bool:
        """Real shapes are compared with the original itself, whose error there was measured at validation: it saves a run."""
        return index < len(self.spec.check) and self._widened(name, index)

    def compare(self, wanted: Sequence[tuple[Arena, int, str]], poison: int = 0) -> dict[str, Any] | None:
        """Compare every output in these arenas (each with its case and family) with the reference, run on the inputs that stand there."""
        cases = tuple((index, family) for _, index, family in wanted)
        self.tools.board.clear()

        def refer() -> dict[tuple[int, str, str], slice]:
            for index, _ in cases:
                self.run_reference(index, poison)
            return self._errors(cases)

        places = self.replays.run(("reference", cases, poison), refer)
        tolerances = self._tolerances(cases, places, self.tools.board.read())
        self.tools.board.clear()
        compared = [
            (got, index, family, name, self._compare(got, index, name, *tolerances[index, family, name]))
            for got, index, family in wanted
            for name in self.buffers(index).written
        ]
        words = self.tools.board.read()
        failure: dict[str, Any] | None = None
        for got, index, family, name, place in compared:
            record = self.tools.comparison(words[place])
            if record["bad"]:
                tolerance = tolerances[index, family, name][0]
                failure = self._difference(got, index, family, name, record, tolerance)
                break
        self.replays.run(("forget", cases), lambda: self._forget_references(index for index, _ in cases))
        return failure

    def tolerances(self, wanted: Sequence[tuple[int, str]]) -> dict[tuple[int, str, str], tuple[float, float]]:
        """Absolute and relative tolerance of each output of these cases, from the reference just run on the inputs that stand there."""
        self.tools.board.clear()
        return self._tolerances(wanted, self._errors(wanted), self.tools.board.read())

    def _errors(self, wanted: Sequence[tuple[int, str]]) -> dict[tuple[int, str, str], slice]:
        """Where the board has the reference's own error, for the outputs whose tolerance depends on it."""
        return {
            (index, family, name): self._compare(cast(Arena, self.buffers(index).other), index, name, math.inf, 0.0)
            for index, family in wanted
            for name in self.buffers(index).written
            if self.buffers(index).dtypes[name].kind == "float" or self._declared(name) is not None
        }

    def _tolerances(
        self, wanted: Sequence[tuple[int, str]], places: Mapping[tuple[int, str, str], slice], words: Words
    ) -> dict[tuple[int, str, str], tuple[float, float]]:
        found = {(index, family, name): (0.0, 0.0) for index, family in wanted for name in self.buffers(index).written}
        for key, place in places.items():
            index, _, name = key
            dtype = self.buffers(index).dtypes[name]
            now, before = _as_noise(self.tools.comparison(words[place])), self.noise.get(key, Noise(0.0, 0.0))
            noise = Noise(max(now.error, before.error), max(now.rms, before.rms))
            declared, widened = self._declared(name), self._widened(name, index)
            loose = not self.defences.scaled_tolerance
            absolute = allowed(dtype, noise, declared=declared, widened=widened, loose=loose)
            found[key] = (absolute, relative_term(dtype, known=widened or declared is not None))
        return found

    def _declared(self, name: str) -> float | None:
        own = self.spec.argument(name).tolerance
        return self.spec.tolerance if own is None else own

    def _widened(self, name: str, index: int) -> bool:
        return self.wide is not None and self.buffers(index).dtypes[name].kind == "float"

    def _compare(
        self, got: Arena, index: int, name: str, tolerance: float, relative: float, *, wide: bool | None = None
    ) -> slice:
        buffers = self.buffers(index)
        assert buffers.other is not None
        wanted = self._uses_wide(index, name) if wide is None else wide
        twin = buffers.wide.address(name) if wanted and buffers.wide is not None else 0
        pair = Compared(
            tool_kind(buffers.dtypes[name]), got.address(name), buffers.other.address(name), twin, buffers.counts[name]
        )
        return self.tools.compare(pair, tolerance, relative)

    def differs(self, index: int, name: str, tolerance: tuple[float, float]) -> bool:
        """Whether an output in `main` differs from the reference by more than a tolerance (absolute, relative)."""
        self.tools.board.clear()
        place = self._compare(self.buffers(index).main, index, name, *tolerance)
        return bool(self.tools.comparison(self.tools.board.read()[place])["bad"])

    def _failure(self, kind: str, case: int, family: str, reason: str, **more: Any) -> dict[str, Any]:
        return {"kind": kind, "case": self.cases[case].name, "family": family, "reason": reason, **more}

    def _difference(
        self, got: Arena, index: int, family: str, name: str, record: np.void, tolerance: float
    ) -> dict[str, Any]:
        first, bad = int(record["first"]), int(record["bad"])
        buffers = self.buffers(index)
        dtype = buffers.dtypes[name]
        assert buffers.other is not None

        def value(arena: Arena, wide: bool = False) -> float:
            storage = np.dtype(np.float64) if wide else np.dtype(dtype.storage)
            if dtype.kind == "bytes":
                storage = np.dtype(np.uint8)
            element = cp.asnumpy(arena.view(name, storage)[first : first + 1])
            return float(element[0]) if wide or dtype.kind == "bytes" else float(dtype.to_float64(element)[0])

        use_wide = self._uses_wide(index, name) and buffers.wide is not None
        expected = value(buffers.wide, True) if use_wide and buffers.wide else value(buffers.other)
        actual = value(got)
        total = buffers.counts[name]
        return self._failure(
            "wrong_result", index, family,
            f"'{name}' differs at {bad} of {total} elements, first at index {first}: {actual:.9g} instead of {expected:.9g}",
            argument=name, index=first, expected=expected, got=actual, error=abs(actual - expected), tolerance=tolerance,
        )  # fmt: skip

    def differs_from_run_to_run(self, call: Call, index: int, family: str, seed: int) -> str | None:
        """The first output that two runs on the same inputs leave different, to the last bit."""
        buffers = self.buffers(index)
        buffers.draw(seed, family, widen=False)
        found: list[list[int]] = []
        for _ in range(2):
            buffers.reset(buffers.main, 0)
            call(self.stream)
            found.append(self.tools.hash([buffers.main.piece(name) for name in buffers.written]))
        return next((n for n, a, b in zip(buffers.written, *found, strict=True) if a != b), None)

    # ---- the spec's validation

    def validate(self) -> list[str]:
        """What keeps the spec from proving anything; empty when it validates. Measures the original's own error too."""
        problems: list[str] = []
        controls = SpecControls(self)
        rng = np.random.default_rng(0)
        for index, case in enumerate(self.cases):
            small = index < len(self.spec.check)
            families = families_for(self.spec) if small else ("declared",)
            call = Call(self.original, self.launches[index], self.buffers(index).arguments(self.buffers(index).main))
            for family in families:
                begin = time.monotonic()
                for turn in range(VALIDATION_SEEDS if small else self._real_shape_seeds(index)):
                    if turn and not small and time.monotonic() - begin > _REAL_SHAPE_S:
                        break
                    seed = int(rng.integers(1 << 31)) * 2
                    problem = self._original_runs(call, index, family, seed)
                    if problem:
                        problems.append(f"case {case.name}, inputs '{family}': {problem}")
                        return problems
                    if small:
                        controls.compare(index, family)
                if small:
                    controls.exchange(call, index, family, seed)
                self._forget_references([index])
        for index in range(len(self.spec.check), len(self.cases)):
            # From here on real shapes are compared with the original itself: their doubles are the largest buffers of all.
            self.buffers(index).wide = None
            self._calls.pop(index, None)
        self.replays.forget()
        problems += controls.problems()
        return problems

    def _real_shape_seeds(self, index: int) -> int:
        """How often the original's error is sampled: an output of few elements can be nearly exact by luck."""
        buffers = self.buffers(index)
        return 1 if min(buffers.counts[name] for name in buffers.written) >= _MANY_ELEMENTS else FEW_ELEMENTS_SEEDS

    def _original_runs(self, call: Call, index: int, family: str, seed: int) -> str | None:
        buffers = self.buffers(index)
        run = Run(call, index, family, seed)
        (watch,), words = self._watched([run], widen=[True])
        touched, changed = self._strayed(run, watch, words)
        if touched:
            return f"the original kernel writes outside an array, {touched}; check the array's size"
        if changed:
            return f"the original kernel changes the input '{changed}'; declare it as inout"
        self.run_reference(index, 1)
        self.stream.synchronize()
        for name in buffers.written:
            problem = self._repeats(index, name)
            if problem:
                return problem
        # The original against its wide twin, and against the twin of inputs perturbed by half an epsilon: its own error
        # and the problem's conditioning, the scale that a candidate's error is held against.
        if self.wide is not None:
            # A NaN leaves few of many results to compare, and among few the original's errors are small by luck.
            finite = self._perturbed(index, family, seed)
            if finite < _MANY_ELEMENTS:
                for turn in range(1, FEW_ELEMENTS_SEEDS):
                    self._perturbed(index, family, seed + turn)
            self._perturbed(index, family, None)
        else:
            self._book_noise(index, family)
        for name in buffers.written:
            noise = self.noise[index, family, name]
            if self._widened(name, index) and noise.error > 0.05 * noise.rms and buffers.dtypes[name].itemsize >= 4:
                self.wide = None
                self._calls.clear()
                self.noise.clear()
                self.replays.forget()
                return self._original_runs(call, index, family, seed)
        return None

    def _perturbed(self, index: int, family: str, noise_seed: int | None) -> int:
        self.buffers(index).widen(noise_seed)
        self.run_wide(index)
        return self._book_noise(index, family)

    def _book_noise(self, index: int, family: str) -> int:
        """Keep the largest error seen of each output; how many elements of the output with the fewest were compared."""
        buffers = self.buffers(index)
        # `main` holds the original's result, so where there is no wide twin its difference to `other` is the run-to-run noise.
        self.tools.board.clear()
        places = {
            name: self._compare(buffers.main, index, name, math.inf, 0.0, wide=self._widened(name, index))
            for name in buffers.written
        }
        words = self.tools.board.read()
        for name, place in places.items():
            now, old = (
                _as_noise(self.tools.comparison(words[place])),
                self.noise.get((index, family, name), Noise(0.0, 0.0)),
            )
            self.noise[index, family, name] = Noise(max(old.error, now.error), max(old.rms, now.rms))
        return min(int(self.tools.comparison(words[place])["finite"]) for place in places.values())

    def _repeats(self, index: int, name: str) -> str | None:
        buffers = self.buffers(index)
        assert buffers.other is not None
        hashes = self.tools.hash([arena.piece(name) for arena in (buffers.main, buffers.other)])
        if hashes[0] == hashes[1]:
            return None
        first, second = buffers.main.view(name, cp.uint8), buffers.other.view(name, cp.uint8)
        word = buffers.item_bytes(name)
        a, b = cp.asnumpy(first).reshape(-1, word), cp.asnumpy(second).reshape(-1, word)
        pattern = [np.frombuffer(np.uint32(w).tobytes() * 2, np.uint8) for w in self.tools.poison]
        offsets = np.arange(a.shape[0]) * word % 4
        stale = np.ones(a.shape[0], bool)
        for column in range(word):
            at = (offsets + column) % 4
            stale &= (a[:, column] == pattern[0][at]) & (b[:, column] == pattern[1][at])
        if self.spec.argument(name).role == "out" and stale.any():
            return (
                f"the kernel leaves {int(stale.sum())} of {len(stale)} elements of the output '{name}' unwritten, first at "
                f"index {int(stale.argmax())}; declare it as inout, or give its true size"
            )
        if self.spec.deterministic:
            different = int((a != b).any(axis=1).argmax())
            return (
                f"the kernel gives different values in '{name}' from run to run, first at index {different}; "
                "if that is intended, declare deterministic = false"
            )
        return None


def _as_noise(record: np.void) -> Noise:
    finite = int(record["finite"])
    return Noise(float(record["max_error"]), math.sqrt(float(record["sum_squares"]) / finite) if finite else 0.0)
