"""Paired timing on the device: original, incumbent and candidate in turn, caches cold, inputs new. Worker only.

Kernels of 20 µs and more are timed one launch at a time, shorter ones as CUDA graphs of many launches, each on a set of buffers
of its own. L2 is flushed before. Every round draws new inputs in every set, and a program sees each set once a round: work that
was done in one timed launch serves no other, and no launch finds its data in the cache.
"""

from __future__ import annotations

import math
import secrets
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import cupy as cp
import numpy as np

from engine.gpu.buffers import CaseBuffers
from engine.gpu.checks import Checker
from engine.gpu.copy_parts import copy_parts
from engine.gpu.device import Call, Loaded, Salt
from engine.gpu.pace import Pace
from engine.gpu.timing_order import turns
from engine.gpu.yardsticks import Yardsticks
from engine.model import LaunchConfig
from engine.statistics import paired_ratio

GRAPH_BELOW_US = 20.0  # a launch this short drowns in the events' own noise (coefficient of variation 20 % at 4 µs)
GRAPH_SPAN_US = 200.0  # what one graph launch should last, so that events resolve it to 0.1 %
MAX_SETS = 32
MAX_SET_BYTES = 2 << 30
FLUSHED = 2  # times the L2: what more pushes out no more of what a kernel reads (benchmarks/against_itself.py)
COPIES = 9  # launches of the yardstick copy; their spread is below 1 %
WARM_UP_S = 0.003
PAUSE_S = 0.02  # a GPU that was busy so short a time ago has not lowered its clocks
# Of the bar, the speed below which a candidate is given up after so many cold launches: two tell 30 % apart, three 15 %.
GIVE_UP = ((2, 0.7), (3, 0.85))
_SET_SEED = 1  # of the first set's inputs; the salt, new in every round, makes them new


@dataclass(frozen=True)
class Effort:
    """When to stop: relative half width of the interval, most rounds, seconds per case; asked after every `batch` of rounds."""

    half_width: float
    rounds: int
    budget_s: float
    batch: int = 4


LOOK = Effort(half_width=0.02, rounds=9, budget_s=0.1, batch=3)
DUEL = Effort(half_width=0.008, rounds=20, budget_s=0.15)  # whether a candidate beats the incumbent at all
CLOSE = Effort(half_width=0.004, rounds=60, budget_s=0.8)
FINAL = Effort(half_width=0.002, rounds=152, budget_s=2.0)


@dataclass
class Contestant:
    """One program in a comparison; `samples_us` holds one time per round."""

    calls: list[Call]  # one per set of buffers
    graph: Any = None
    samples_us: list[float] = field(default_factory=list)

    def launch_each(self) -> None:
        for call in self.calls:
            call.launch(cp.cuda.get_current_stream())


class Timer:
    """Times programs of one spec on one case at a time."""

    def __init__(self, checker: Checker) -> None:
        self.checker = checker
        self.stream = checker.stream
        l2 = int(cp.cuda.runtime.getDeviceProperties(cp.cuda.runtime.getDevice())["l2CacheSize"])
        self._flush = cp.zeros(max(1, FLUSHED * l2 // 4), cp.uint32)
        self._flush_sink = cp.zeros(1, cp.uint32)
        self._extra: dict[int, list[CaseBuffers]] = {}
        self._events = [(cp.cuda.Event(), cp.cuda.Event()) for _ in range(3 * FINAL.batch)]
        self._busy_until = 0.0
        self._yardsticks = Yardsticks()
        self._salt = Salt()
        self._drawn: set[int] = set()  # cases whose buffers hold inputs

    def _sets(self, index: int, count: int) -> list[CaseBuffers]:
        """The case's buffers and enough more of them, all with the same inputs."""
        first = self.checker.buffers(index)
        extra = self._extra.setdefault(index, [])
        while len(extra) < count - 1:
            extra.append(CaseBuffers(first.spec, first.case, self.checker.tools, widened=False))
        for twin in extra[: count - 1]:
            twin.copy_inputs(first)
        return [first, *extra[: count - 1]]

    def _warm_up(self, call: Call, buffers: CaseBuffers, most_us: float = math.inf) -> tuple[list[float], bool]:
        """Cold single launches in µs, and whether there is no hope: all are above `most_us` by more than so few can be wrong.

        Three launches, of which the last two count, and after a pause as many as warm the clocks up; fewer where there is no hope.
        """
        begin = time.perf_counter()
        needed_s = WARM_UP_S if begin - self._busy_until > PAUSE_S else 0.0
        times: list[float] = []
        hopeless = False
        while not hopeless and (len(times) < 3 or (time.perf_counter() - begin < needed_s and len(times) < 30)):
            buffers.reset(buffers.main, 0)
            times.append(self._once(call, 0))
            share = max((share for count, share in GIVE_UP if len(times) >= count), default=0.0)
            warm = time.perf_counter() - begin >= needed_s
            hopeless = warm and most_us < share * min(times[-2:]) and min(times[-2:]) > GRAPH_BELOW_US
        self._busy_until = time.perf_counter()
        return times[-2:], hopeless

    def _once(self, call: Call, slot: int) -> float:
        start, stop = self._events[slot]
        call.fill_constants(self.stream)
        self.flush()
        start.record(self.stream)
        call.launch(self.stream)
        stop.record(self.stream)
        stop.synchronize()
        return float(cp.cuda.get_elapsed_time(start, stop)) * 1e3

    def flush(self) -> None:
        """Replace everything in L2 by clean lines.

        Storing instead would leave dirty lines, whose write-back delays the launch that is timed next: by 8 to 9 µs for kernels
        that read, by 4 to 5 µs for kernels that write (docs/timing.md).
        """
        self.checker.tools.read(int(self._flush.data.ptr), self._flush.nbytes, int(self._flush_sink.data.ptr))

    def copy_us(self, read_bytes: int, written_bytes: int) -> float:
        """The median time in µs, behind the same flush, of the fastest kernel we know that only reads and writes so many bytes.

        0.0: no memory for it.
        """
        try:
            source, target = (
                cp.zeros(max(1, read_bytes // 4), cp.uint32),
                cp.empty(max(4, written_bytes // 4), cp.uint32),
            )
        except cp.cuda.memory.OutOfMemoryError:
            return 0.0
        forms = dict.fromkeys(((1, 1), copy_parts(read_bytes, written_bytes)))
        times: dict[tuple[int, int], list[float]] = {parts: [] for parts in forms}
        start, stop = self._events[0]
        for _ in range(COPIES + 2):  # the first two warm up
            for parts, own in times.items():
                self.flush()
                start.record(self.stream)
                self.checker.tools.move(int(source.data.ptr), read_bytes, int(target.data.ptr), written_bytes, parts)
                stop.record(self.stream)
                stop.synchronize()
                own.append(float(cp.cuda.get_elapsed_time(start, stop)) * 1e3)
        return min(statistics.median(own[2:]) for own in times.values())

    def time(
        self, index: int, programs: Sequence[tuple[Loaded, Sequence[LaunchConfig]]], effort: Effort, seed: int,
        bar: float = 0.0,
    ) -> dict[str, Any]:  # fmt: skip
        """Time programs (the first is the original, the last the candidate) on fresh inputs of one case.

        A candidate that is clearly below `bar` (a speedup over the first) is given up, after its first launches or a few rounds.
        Returns samples in µs per program (in the order given), the check after timing (`failure`), how far host and events disagree,
        and whether the candidate was `given_up` before any round.
        """
        buffers = self.checker.buffers(index)
        if index in self._drawn and self.checker.defences.timed_inputs:
            buffers.draw_rest(seed)  # each round draws the others anew
        else:
            buffers.draw(seed, "declared", widen=False)
            self._drawn.add(index)
        calls = [Call(loaded, launches, buffers.arguments(buffers.main)) for loaded, launches in programs]
        rested = time.perf_counter() - self._busy_until > PAUSE_S
        warm = [
            self._yardsticks.of(index, loaded, lambda call=call: self._warm_up(call, buffers)[0])  # type: ignore[misc]
            for (loaded, _), call in zip(programs[:-1], calls[:-1], strict=True)
        ]
        most_us = min(warm[0]) / bar if bar else math.inf
        candidate = programs[-1][0]
        own, hopeless = None if rested else self._yardsticks.kept(index, candidate), False
        if own is None:
            own, hopeless = self._warm_up(calls[-1], buffers, most_us)
        if hopeless:
            samples = [*(times[: len(own)] for times in warm), own]
            return {"samples_us": samples, "failure": None, "host_over_events": 1.0, "given_up": True}
        self._yardsticks.keep(index, candidate, own)
        estimates = [min(times) for times in (*warm, own)]
        # One module has its constants once: launches on several sets of buffers would need a copy between them.
        graph = min(estimates) < GRAPH_BELOW_US and not self.checker.spec.symbols
        spans = [max(1, min(MAX_SETS, round(GRAPH_SPAN_US / max(estimate, 1.0)))) for estimate in estimates]
        most = max(1, min(MAX_SETS, MAX_SET_BYTES // max(1, buffers.data_bytes)))
        sets = self._sets(index, min(most, max(spans)) if graph else 1)
        contestants = []
        for (loaded, launches), call, span in zip(programs, calls, spans, strict=True):
            others = sets[1:span] if graph else []
            contestant = Contestant([call, *(Call(loaded, launches, s.arguments(s.main)) for s in others)])
            if graph:
                contestant.graph = self.checker.replays.record(contestant.launch_each)
                contestant.graph.launch(self.stream)
            contestants.append(contestant)
        failure, host_over_events = self._rounds(index, contestants, sets, effort, seed, bar)
        return {
            "samples_us": [c.samples_us for c in contestants],
            "failure": failure,
            "host_over_events": host_over_events,
            "given_up": False,
        }

    def _rounds(
        self, index: int, contestants: list[Contestant], sets: list[CaseBuffers], effort: Effort, seed: int, bar: float
    ) -> tuple[dict[str, Any] | None, float]:  # fmt: skip
        begin = time.perf_counter()
        candidate = contestants[-1]
        order = np.random.default_rng(secrets.randbits(32))
        batch = done = 0
        failure: dict[str, Any] | None = None
        batches = -(-effort.rounds // effort.batch)
        pace = Pace(batches)
        checked_batch = int(order.integers(batches))
        last = False
        while not (failure or last):
            rounds = min(effort.batch, effort.rounds - done)
            host = time.perf_counter()
            pending = self._enqueue(index, contestants, sets, turns(len(contestants), rounds, order), order)
            self.stream.synchronize()
            host_us = (time.perf_counter() - host) * 1e6
            span_us = float(cp.cuda.get_elapsed_time(pending[0][1], pending[-1][2])) * 1e3
            if pace.spoilt(host_us, span_us) and self.checker.defences.host_time:
                continue
            for c, start, stop in pending:
                c.samples_us.append(float(cp.cuda.get_elapsed_time(start, stop)) * 1e3 / len(c.calls))
            done += rounds
            interval = paired_ratio(contestants[0].samples_us, candidate.samples_us)
            lost = interval.high < bar  # so it is not suggested, whatever it left
            last = (
                lost
                or interval.half_width < effort.half_width
                or done >= effort.rounds
                or time.perf_counter() - begin > effort.budget_s
            )
            if (batch == checked_batch or (last and not lost)) and self.checker.defences.timed_results:
                # One round more, like those before it: a candidate cannot know which of its launches is looked at. It does not count,
                # for whoever runs last takes 0.5 % less.
                self._enqueue(index, contestants, sets, [[0, len(contestants) - 1]], order)
                failure = self._after(index, candidate, sets, seed)
            batch += 1
        self._busy_until = time.perf_counter()
        return failure, pace.worst

    def _enqueue(
        self, index: int, contestants: Sequence[Contestant], sets: list[CaseBuffers], rounds: Sequence[Sequence[int]],
        order: np.random.Generator,
    ) -> list[tuple[Contestant, Any, Any]]:  # fmt: skip
        """Have these rounds run; who ran, with the events around it."""
        pending: list[tuple[Contestant, Any, Any]] = []
        for turn in rounds:
            if self.checker.defences.timed_inputs:
                self._refresh(index, sets)
            for position in turn:
                c = contestants[position]
                start, stop = self._events[len(pending)]
                self._before(index, c, sets, poison=int(order.integers(2)))
                start.record(self.stream)
                if c.graph is None:
                    c.launch_each()
                else:
                    c.graph.launch(self.stream)
                stop.record(self.stream)
                pending.append((c, start, stop))
        return pending

    def _refresh(self, index: int, sets: list[CaseBuffers]) -> None:
        """New inputs in every set; where none is drawn by a kernel of ours they stay as they are."""
        self._salt.put(secrets.randbits(63))

        def redraw() -> None:
            for i, buffers in enumerate(sets):
                buffers.redraw(_SET_SEED + i, self._salt.address)

        self.checker.replays.run(("redraw", index, len(sets)), redraw)

    def _before(self, index: int, contestant: Contestant, sets: list[CaseBuffers], poison: int) -> None:
        used = sets[: len(contestant.calls)]
        word = poison if self.checker.defences.poison else None
        contestant.calls[0].fill_constants(self.stream)

        def reset() -> None:
            for buffers in used:
                buffers.reset(buffers.main, word)
            self.flush()

        self.checker.replays.run(("reset", index, len(used), word), reset)

    def _after(self, index: int, candidate: Contestant, sets: list[CaseBuffers], seed: int) -> dict[str, Any] | None:
        """What is wrong with what the candidate's last timed launches left: guard zones of all, results of the last and the first.

        The inputs are drawn once more before the reference runs, so it does not matter what the candidate did to them.
        """
        first, used = sets[0], sets[: len(candidate.calls)]
        board = self.checker.tools.board
        board.clear()
        zones = [twin.main.watch() for twin in used]
        words = board.read()
        for twin, place in zip(used, zones, strict=True):
            touched = twin.main.touched(place, words)
            if touched and self.checker.defences.guard_zones:
                reason = f"wrote outside an array while timed, {touched}"
                return {"kind": "memory_error", "case": first.case.name, "reason": reason}
        failure = None
        for number in sorted({len(used) - 1, 0}, reverse=True):
            if self.checker.defences.timed_inputs:
                first.draw_rest(seed)
                first.redraw(_SET_SEED + number, self._salt.address)
            else:
                first.draw(seed, "declared", widen=False)
            failure = failure or self.checker.compare([(used[number].main, index, "declared")])
        if failure:
            failure["reason"] = f"correct before timing, but while timed {failure['reason']}"
        return failure
