"""Ablations: the same search with one part of it changed, at the same number of candidates, on the ten examples.

Runs of one kernel share one store of measurements (benchmarks/store.py), so that arms are paired exactly: what differs is what
they asked for. A row is one kernel with all its arms and seeds; a run's figure is the speedup of its best candidate after so many
candidates. Arms that use counters run on every seed before the recorded runs, some times, to have counted and diagnosed what they
will ask about.
"""

from __future__ import annotations

import dataclasses
import json
import math
import sqlite3
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from benchmarks.bench import Place, Row, Settings, Table
from benchmarks.searches import names
from benchmarks.store import SharedMachine
from engine.errors import MachineError
from engine.statistics import weighted_ratio

MARKS = (10, 25, 50, 100)  # candidates after which the best so far is looked at
CANDIDATES, SEEDS = 100, 5
_COUNTED_S = 60.0  # for counters that are still missing when the recorded runs begin
_LEARN = "learn:"
_LEARN_AT_MOST = 3  # times; what a run asks about depends on what it knew
# What a row takes of 100 candidates on an H200 when nothing was measured before: for the limit of a call, and what begins first.
_ROW_S, _PROFILED_ROW_S, _LEARN_S = 60.0, 120.0, 40.0
_LONG_ROW_S = {"histogram": 270.0, "softmax": 150.0, "layer_norm": 140.0}

# What each arm changes in the options of a run. The first arm is what the others are held against. Without a profiler a search
# sees times alone; only arms that are about counters or diagnoses use one.
_PLAIN = {"profile": "none"}
ARMS: dict[str, dict[str, dict[str, Any]]] = {
    "ablation-search": {name: {**_PLAIN, "search": name} for name in ("mcts", "greedy", "random")},
    "ablation-profile": {"with profile": {}, "without profile": _PLAIN},
    "ablation-proposers": {
        "rules and tuner": {**_PLAIN, "proposers": ("rules", "tuner")},
        "rules": {**_PLAIN, "proposers": ("rules",)},
        "tuner": {**_PLAIN, "proposers": ("tuner",)},
    },
    "ablation-proxies": {"with proxies": {}, "without proxies": {"proxies": False}},
    "ablation-memory": {"with memory": {**_PLAIN, "memory": True}, "without memory": _PLAIN},
}
_TITLES = {
    "ablation-search": "tree search, greedy search, random search",
    "ablation-profile": "with and without the profiler's diagnosis and counters",
    "ablation-proposers": "proposals of rules, of the tuner, of both",
    "ablation-proxies": "with and without counters in the reward",
    "ablation-memory": "with and without lessons of the other kernels",
}


def tables() -> list[Table]:
    """The five ablations."""
    return [_table(name) for name in ARMS]


def _table(name: str) -> Table:
    arms = ARMS[name]

    def rows(place: Place, settings: Settings) -> list[str]:
        kernels = names(place, "examples")
        return [_LEARN + kernel for kernel in kernels if name == "ablation-memory"] + kernels

    def measure(place: Place, settings: Settings, key: str) -> Row:
        if key.startswith(_LEARN):
            return {"runs": [], "lessons": _learn(place, settings, key.removeprefix(_LEARN))}
        return compare(place, settings, key, arms)

    def needs(place: Place, key: str) -> list[tuple[str, str]]:
        return [(name, row) for row in rows(place, Settings()) if row.startswith(_LEARN) and not key.startswith(_LEARN)]

    return Table(
        name, _TITLES[name], Settings(candidates=CANDIDATES, seeds=SEEDS), rows, measure, summary, render,
        lambda settings, row: _row_s(settings, row, _PROFILED_ROW_S if any(map(_profiled, arms.values())) else _ROW_S),
        needs, lambda row: f"examples {row.removeprefix(_LEARN)}",
    )  # fmt: skip


def _row_s(settings: Settings, row: str, most_s: float) -> float:
    seconds = _LEARN_S if row.startswith(_LEARN) else max(most_s, _LONG_ROW_S.get(row, 0.0))
    return seconds * (settings.candidates or CANDIDATES) / CANDIDATES


def compare(place: Place, settings: Settings, kernel: str, arms: Mapping[str, Mapping[str, Any]]) -> Row:
    """All runs of all arms on one kernel. Raises OptimlError."""
    from engine.run.machine import make_machine
    from engine.run.provenance import provenance

    machine = make_machine(device=settings.device)  # type: ignore[arg-type]
    shared = SharedMachine(machine, place.work / "store")
    begin = time.monotonic()
    try:
        if machine.mode == "predicted" and len({_profiled(arm) for arm in arms.values()}) > 1:
            raise MachineError("there is no profiler without a GPU, so the arms would not differ", do="run it with one")
        lessons = _others(place, settings, kernel) if any(arm.get("memory") for arm in arms.values()) else []

        def runs_of(some: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
            return [
                {"arm": name, "seed": seed}
                | _run(shared, place, kernel, seed, settings.candidates or CANDIDATES, arm, lessons)
                for seed in range(settings.seeds or SEEDS)
                for name, arm in some.items()
            ]

        missing = learnt = 0
        learning = {name: arm for name, arm in arms.items() if _profiled(arm) and machine.mode == "measured"}
        while learning and learnt < _LEARN_AT_MOST:
            learnt, shared.learns = learnt + 1, True
            runs_of(learning)
            put_off, missing = shared.insights.drain(_COUNTED_S) if shared.insights is not None else (0, 0)
            if not put_off:
                break
        learning_s, shared.learns = time.monotonic() - begin, False
        runs = runs_of(arms)
        evaluators = shared.evaluators
        assert evaluators is not None
        assert evaluators.store is not None
        found: Row = {
            "runs": runs, "learnt": learnt, "learning_s": learning_s, "uncounted": missing,
            "measured": evaluators.store.measured, "answered": evaluators.store.answered,
            "profiled": shared.counters.asked if shared.counters is not None else 0,
            "profiles_answered": shared.counters.answered if shared.counters is not None else 0,
            "waited_s": shared.insights.waited_s if shared.insights is not None else 0.0, "measuring_s": evaluators.measuring_s,
            "seconds": time.monotonic() - begin, "mode": machine.mode, "device": dict(evaluators.signals.device),
            "versions": provenance(())["versions"],
        }  # fmt: skip
        return found
    finally:
        shared.close()
        machine.close()


def _profiled(arm: Mapping[str, Any]) -> bool:
    return bool(arm.get("profile", "best") != "none")


def _run(
    shared: SharedMachine, place: Place, kernel: str, seed: int, candidates: int, arm: Mapping[str, Any], lessons: Sequence[Path]
) -> dict[str, Any]:  # fmt: skip
    from engine.llm.lesson_store import Memory
    from engine.run.optimization import Options, optimize
    from engine.search.progress import Budget
    from engine.settings.memory_settings import MemorySettings
    from engine.tune.inner import TunerPart

    with tempfile.TemporaryDirectory(prefix="optiml-bench") as name:
        out = Path(name)
        changed = dict(arm)
        if changed.pop("memory", False):
            memory = Memory(out / "memory.sqlite")
            for path in lessons:
                memory.load(path, str(place.root))
            memory.close()
            changed["memory"] = MemorySettings(out / "memory.sqlite", str(place.root), seed=seed)
        options = Options(
            place.root / "examples" / f"{kernel}.cu",
            budget=Budget(candidates=candidates),
            seed=seed,
            out=out,
            **changed,
        )
        begin = time.monotonic()
        result, _ = optimize(options, shared)  # type: ignore[arg-type]
        seconds = time.monotonic() - begin
        with closing(sqlite3.connect(out / "journal.sqlite")) as db:
            rows = list(db.execute("SELECT outcome, ratio, evaluation FROM candidates WHERE id > 0 ORDER BY id"))
    # A node of the tuner stands for as many candidates as it tried points.
    booked = [(outcome, ratio, TunerPart.points_of(json.loads(text)["notes"])) for outcome, ratio, text in rows]
    count = sum(points for _, _, points in booked)
    return {
        "best": best_after(booked, count), "after": {str(n): best_after(booked, n) for n in MARKS},
        "candidates": count, "seconds": seconds, "stopped": result.stopped,
    }  # fmt: skip


def best_after(booked: Sequence[tuple[str, float | None, int]], count: int) -> float:
    """The best speedup among the first `count` candidates that passed, at least 1.

    `booked` has outcome and speedup of each node, and how many candidates it stands for.
    """
    best, tried = 1.0, 0
    for outcome, ratio, points in booked:
        tried += points
        if tried > count:
            break
        if outcome in ("accepted", "screened") and ratio is not None:
            best = max(best, ratio)
    return best


def _others(place: Place, settings: Settings, kernel: str) -> list[Path]:
    """What a run on each other kernel taught, one file each; learnt now where it is not there."""
    found = []
    for other in names(place, "examples"):
        if other != kernel:
            if not _lessons_of(place, other).is_file():
                _learn(place, settings, other)
            found.append(_lessons_of(place, other))
    return found


def _lessons_of(place: Place, kernel: str) -> Path:
    return place.work / "lessons" / f"{kernel}.jsonl"


def _learn(place: Place, settings: Settings, kernel: str) -> int:
    """One run with an empty memory; how many lessons it left."""
    from engine.llm.lesson_store import Memory
    from engine.run.machine import make_machine
    from engine.run.optimization import Options, optimize
    from engine.search.progress import Budget
    from engine.settings.memory_settings import MemorySettings

    machine = make_machine(device=settings.device)  # type: ignore[arg-type]
    shared = SharedMachine(machine, place.work / "store")
    target = _lessons_of(place, kernel)
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        with tempfile.TemporaryDirectory(prefix="optiml-bench") as name:
            path = Path(name) / "memory.sqlite"
            options = Options(
                place.root / "examples" / f"{kernel}.cu", budget=Budget(candidates=settings.candidates or CANDIDATES),
                seed=SEEDS, out=Path(name), memory=MemorySettings(path, str(place.root)), **_PLAIN,
            )  # fmt: skip
            optimize(options, shared)  # type: ignore[arg-type]
            memory = Memory(path)
            count = memory.export(target)
            memory.close()
    finally:
        shared.close()
        machine.close()
    if not count:
        raise MachineError(f"the run on {kernel} left no lesson", do="try more --candidates")
    return count


def summary(rows: Mapping[str, Row]) -> dict[str, Any]:
    """For each arm: the geometric mean of its bests, and its ratio to the first arm with an interval, over kernels and seeds.

    A kernel's ratio is the median over its seeds of paired ratios, the table's the geometric mean over kernels, the interval 95 %
    by a bootstrap over seeds (`engine.statistics.weighted_ratio`).
    """
    kept = {k: r for k, r in rows.items() if r["runs"]}
    arms = list(dict.fromkeys(run["arm"] for row in kept.values() for run in row["runs"]))
    found: dict[str, Any] = {"kernels": len(kept), "arms": {}}
    for arm in arms:
        figures: dict[str, Any] = {}
        for mark in ("best", *map(str, MARKS)):
            pairs = [(_bests(row, arm, mark), _bests(row, arms[0], mark)) for row in kept.values()]
            if not pairs or len(pairs[0][0]) < 2:  # no interval
                continue
            mean = weighted_ratio([(mine, [1.0] * len(mine)) for mine, _ in pairs], [1.0] * len(pairs))
            against = weighted_ratio(pairs, [1.0] * len(pairs))
            flat = [a / b for mine, base in pairs for a, b in zip(mine, base, strict=True)]
            counts = [sum(r > 1.01 for r in flat), 0, sum(r < 1 / 1.01 for r in flat)]
            counts[1] = len(flat) - counts[0] - counts[2]
            figures[mark] = {"geometric_mean": mean.ratio, **dataclasses.asdict(against), "better_equal_worse": counts}
        found["arms"][arm] = figures
    return found


def _bests(row: Row, arm: str, mark: str) -> list[float]:
    runs = sorted((run for run in row["runs"] if run["arm"] == arm), key=lambda run: run["seed"])
    return [run["best"] if mark == "best" else run["after"][mark] for run in runs]


def render(record: Mapping[str, Any]) -> str:
    """The arms at the end and after fewer candidates, in Markdown."""
    # By the table's order: a record's keys are sorted, and the first arm is what the others are held against.
    arms = {arm: record["summary"]["arms"][arm] for arm in ARMS[record["name"]] if arm in record["summary"]["arms"]}
    first = next(iter(arms), "")
    settings = record["settings"]
    lines = [
        f"| arm | after | geometric mean | relative to {first} | 95 % interval | better, equal, worse |",
        "|---|---:|---:|---:|---|---|",
    ]
    for arm, figures in arms.items():
        for mark, f in sorted(figures.items(), key=lambda item: math.inf if item[0] == "best" else int(item[0])):
            if mark != "best" and int(mark) >= settings["candidates"]:
                continue
            after = f"{settings['candidates']}" if mark == "best" else mark
            counts = ", ".join(map(str, f["better_equal_worse"]))
            against = (
                ("1", "", "") if arm == first else (f"{f['ratio']:.3f}", f"{f['low']:.3f} to {f['high']:.3f}", counts)
            )
            lines.append(f"| {arm} | {after} | {f['geometric_mean']:.3f} | {' | '.join(against)} |")
    modes = sorted({row["mode"] for row in record["rows"].values() if row.get("mode")})
    said = (
        f"{record['summary']['kernels']} kernels, {settings['seeds']} seeds, {settings['candidates']} candidates a run, speeds "
        f"{' and '.join(modes)}. All runs of a kernel share one store of measurements: each program is measured once, against the "
        "original. Better or worse: by more than 1 %."
    )
    notes = [f"- {key}: {row['note']}" for key, row in record["rows"].items() if row.get("note")]
    return "\n".join([*lines, "", said, *([""] if notes else []), *notes])
