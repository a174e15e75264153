"""Measures how many kernels a second the profiler takes, with the cheap and with the full set of counters.

    python benchmarks/profile_rate.py --record benchmarks/results/profile_rate.json

For each kernel: the original and candidates that the rules propose and that pass their checks are profiled in batches of
16, with one set and then the other. The rate counts everything from asking for the first batch, the profiler's starts
included; the record also says how long the GPU was held and where the rest went. Then each kernel is searched for
`--search` seconds with the profiler beside it: for how long the GPU was held for the profiler, for how long timing waited for that,
and how many of the candidates that passed were counted. `--probe` profiles the original with each counter alone and says what it
costs; `--logs DIR` keeps what the profiler wrote. Exit code 0 when every batch gave every profile, 1 when one did not, 2 on wrong
use.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import sqlite3
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import examples  # noqa: E402
from engine.compile.built import Built, NotBuilt  # noqa: E402
from engine.cuda.edit import edit_program  # noqa: E402
from engine.cuda.load import load_program, repository_root  # noqa: E402
from engine.errors import OptimlError  # noqa: E402
from engine.evaluate.evaluator import Evaluator  # noqa: E402
from engine.model import Outcome  # noqa: E402
from engine.profile.counters import CHEAP, FULL, LINES, MetricSet, Profile, ProfileRequest  # noqa: E402
from engine.profile.ncu import BATCH  # noqa: E402
from engine.rules import make_site, proposals  # noqa: E402
from engine.run.machine import (  # noqa: E402
    Machine,
    make_machine,
    make_profiler,
)
from engine.run.optimization import Options, optimize  # noqa: E402
from engine.search.profiling import HELD, WAITED  # noqa: E402
from engine.search.progress import Budget  # noqa: E402
from engine.spec.find import find_spec  # noqa: E402
from engine.spec.kernel_spec import KernelSpec  # noqa: E402

SCHEMA = "optiml.profile_rate/1"
_DEFAULT = ("softmax.cu", "matmul.cu", "transpose.cu")
_PASSED = (Outcome.ACCEPTED, Outcome.NO_DIFFERENCE, Outcome.SLOWER)


def main(given: Sequence[str] | None = None) -> int:
    """Run; see the module's docstring."""
    parser = argparse.ArgumentParser(description="Measure the profiler's rate on the example kernels.")
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE", help=f"kernels (default: {', '.join(_DEFAULT)})")
    parser.add_argument(
        "--batches",
        type=int,
        default=6,
        help="of each set for each kernel; a search of half a minute has about six (default: 6)",
    )
    parser.add_argument("--search", type=float, default=30.0, help="seconds of each search (default: 30; 0: none)")
    parser.add_argument("--sets", default="cheap,full", help="which sets: cheap, full, lines (default: cheap,full)")
    parser.add_argument("--probe", action="store_true", help="what each counter costs alone, on the first kernel")
    parser.add_argument("--no-prime", action="store_true", help="let each batch pay for the profiler's first kernel")
    parser.add_argument("--spares", type=int, default=2, help="workers that wait for each set (default: 2)")
    parser.add_argument("--logs", type=Path, help="a folder for what the profiler wrote")
    parser.add_argument("--record", type=Path, required=True, help="the JSON record to write")
    options = parser.parse_args(given)
    known = {s.name: s for s in (CHEAP, FULL, LINES)}
    names = options.sets.split(",")
    if options.batches < 1 or not all(name in known for name in names):
        parser.error("--batches is at least 1, --sets names cheap, full or lines")
    files = [f.resolve() for f in options.files] or [ROOT / "examples" / name for name in _DEFAULT]
    begin = datetime.datetime.now(datetime.UTC)
    runs: list[dict[str, Any]] = []
    try:
        gpu = make_machine(device="gpu")
        try:
            for number, file in enumerate(files):
                probed = options.probe and number == 0
                runs.append(_run(gpu, file, [known[n] for n in names], options, probed))
                if options.search:
                    runs[-1]["search"] = _searched(gpu, file, options.search)
                    print(f"  {runs[-1]['search']}", file=sys.stderr, flush=True)
                record = {
                    "schema": SCHEMA,
                    "command": ["python", "benchmarks/profile_rate.py", *(sys.argv[1:] if given is None else given)],
                    "date": begin.isoformat(timespec="seconds"),
                    "commit": examples.commit(),
                    "machine": examples.machine(),
                    "summary": summary(runs),
                    "runs": runs,
                }
                options.record.parent.mkdir(parents=True, exist_ok=True)
                options.record.write_text(json.dumps(record, indent=2, sort_keys=True) + "\n", encoding="utf-8")
        finally:
            gpu.close()
    except OptimlError as error:
        print(f"profile_rate: {error}", file=sys.stderr)
        return 1
    print(table(record))
    return 0 if runs and all(b["profiled"] == b["candidates"] for run in runs for b in run["batches"]) else 1


def _run(
    gpu: Machine, file: Path, sets: Sequence[MetricSet], options: argparse.Namespace, probed: bool
) -> dict[str, Any]:
    print(f"{file.name} …", file=sys.stderr, flush=True)
    root = repository_root(file)
    spec, spec_path = find_spec(root, file, None)
    evaluator = gpu.evaluator(spec, root, spec_path)
    try:
        candidates = _candidates(gpu, evaluator, spec, file, spec_path)
        case = len(spec.check)
        batch = [ProfileRequest(str(i), b.binary, b.launches[case], case) for i, b in enumerate(candidates)]
        batch = [batch[i % len(batch)] for i in range(BATCH)]
        run: dict[str, Any] = {
            "file": file.name, "kernel": spec.kernel, "distinct": len(candidates),
            "device": dict(evaluator.signals.device), "batches": [],
        }  # fmt: skip
        for metrics in sets:
            run["batches"] += _batches(gpu, spec, batch, metrics, options, file.stem)
            run["profiler"] = run["batches"][-1].pop("profiler")
        if probed:
            run["probe"] = _probe(gpu, spec, batch[:1] * 4, options)
        return run
    finally:
        evaluator.close()


def _candidates(gpu: Machine, evaluator: Evaluator, spec: KernelSpec, file: Path, spec_path: str | None) -> list[Built]:
    """The original and what the rules make of it, as far as it passes its checks: at most one batch."""
    program = load_program(file, spec_file=spec_path, kernels=[s.kernel for s in spec.steps])
    original, _ = evaluator.open(program)
    found = [original]
    for proposal in proposals(make_site(program, spec, 0, gpu.target)):
        if len(found) == BATCH:
            break
        try:
            built = evaluator.build(edit_program(program, proposal.edits), by_rules=True)
        except NotBuilt:
            continue
        if evaluator.evaluate(built, None)[0].outcome in _PASSED:
            found.append(built)
    return found


def _batches(
    gpu: Machine,
    spec: KernelSpec,
    batch: Sequence[ProfileRequest],
    metrics: MetricSet,
    options: argparse.Namespace,
    stem: str,
) -> list[dict[str, Any]]:
    """Batches one after the other, as fast as they come; the profiler's start counts for the first one."""
    profiler = make_profiler(gpu, spec, prime=not options.no_prime, spares=options.spares)
    results: list[dict[str, Any]] = []
    try:
        begin = time.perf_counter()
        pending = profiler.begin(batch, metrics)
        for number in range(options.batches):
            # As the search's own thread does it: the next batch begins while the last one's report is written.
            later = profiler.begin(batch, metrics) if number + 1 < options.batches else None
            answers = profiler.finish(pending)
            wall, begin = time.perf_counter() - begin, time.perf_counter()
            pending = later or pending
            profiles = [a for a in answers if isinstance(a, Profile)]
            results.append(
                {
                    "set": metrics.name, "candidates": len(batch), "profiled": len(profiles), "wall_s": wall,
                    "failures": sorted({a.reason for a in answers if not isinstance(a, Profile)}),
                    "sessions": [dataclasses.asdict(c) for c in profiler.costs],
                    "passes": sorted({s.passes for p in profiles for s in p.steps}),
                    "missing": sorted({m for p in profiles for s in p.steps for m in s.missing}),
                    "first": _asked_for(profiles[0], metrics) if profiles and number == 0 else None,
                    "profiler": {"version": profiler.version, "unusable": profiler.unusable, "dropped": sorted(profiler.dropped)},
                }
            )  # fmt: skip
            spent = [f"{c.ready_s:.2f} + {c.held_s:.2f} + {c.end_s:.2f} s" for c in profiler.costs]
            print(
                f"  {metrics.name} {number}: {len(profiles)} in {wall:.2f} s ({'; '.join(spent)})",
                file=sys.stderr,
                flush=True,
            )
            profiler.costs.clear()
            if options.logs:
                options.logs.mkdir(parents=True, exist_ok=True)
                (options.logs / f"{stem}-{metrics.name}-{number}.log").write_text(profiler.said, encoding="utf-8")
    finally:
        profiler.close()
    for result in results[:-1]:
        result.pop("profiler")
    return results


def _asked_for(profile: Profile, metrics: MetricSet) -> dict[str, Any]:
    """A profile without what the profiler says of the machine and its own settings."""
    steps = tuple(
        dataclasses.replace(s, counters={n: c for n, c in s.counters.items() if n in metrics.metrics})
        for s in profile.steps
    )
    return dataclasses.asdict(dataclasses.replace(profile, steps=steps))


def _searched(gpu: Machine, file: Path, seconds: float) -> dict[str, Any]:
    """One search with the profiler beside it: what it cost, and what it counted."""
    with tempfile.TemporaryDirectory() as folder:
        result, out = optimize(Options(file, budget=Budget(seconds=seconds), out=Path(folder)), gpu)
        with closing(sqlite3.connect(out / "journal.sqlite")) as db:
            counted = dict(db.execute("SELECT metrics, count(*) FROM profiles GROUP BY metrics"))
    held, waited = result.stages.get(HELD, 0.0), result.stages.get(WAITED, 0.0)
    return {
        "elapsed_s": result.elapsed_s, "verified": result.counts["verified"], "counted": counted, "held_s": held, "waited_s": waited,
        "trajectory_s": result.stages.get("profile", 0.0), "held_share": held / result.elapsed_s,
        "waited_share": (waited + result.stages.get("profile", 0.0)) / result.elapsed_s, "notes": list(result.notes),
    }  # fmt: skip


def _probe(
    gpu: Machine, spec: KernelSpec, batch: Sequence[ProfileRequest], options: argparse.Namespace
) -> list[dict[str, Any]]:
    """Each counter of the full set alone: passes over the kernel, and seconds for each launch."""
    found = []
    launches = [m for m in FULL.metrics if m.startswith("launch__")]
    parts = [("none but the launch", tuple(launches)), *((m, (m,)) for m in FULL.metrics if m not in launches)]
    parts += [("sampled stalls", ("group:smsp__pcsamp_warp_stall_reasons",)), ("sectors by instruction", LINES.metrics)]
    for name, metrics in parts:
        profiler = make_profiler(gpu, spec, prime=not options.no_prime, spares=1)
        try:
            answers = profiler.profile(batch, MetricSet(name, metrics))
        finally:
            profiler.close()
        profiles = [a for a in answers if isinstance(a, Profile)]
        found.append(
            {
                "counter": name,
                "seconds": profiler.costs[-1].held_s / len(batch) if profiler.costs else None,
                "passes": max((s.passes for p in profiles for s in p.steps), default=None),
                "values": {k: dataclasses.asdict(c) for k, c in profiles[0].steps[0].counters.items()}
                if profiles
                else {},
                "said": [a.reason for a in answers if not isinstance(a, Profile)][:1],
            }
        )
    return found


def summary(runs: Sequence[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """By set: kernels a second over all batches' time, and the same over the time that the GPU was held."""
    result: dict[str, dict[str, float]] = {}
    for name in sorted({b["set"] for run in runs for b in run["batches"]}):
        batches = [b for run in runs for b in run["batches"] if b["set"] == name]
        profiled = sum(b["profiled"] for b in batches)
        held = sum(s["held_s"] for b in batches for s in b["sessions"])
        result[name] = {
            "kernels": profiled,
            "per_s": profiled / sum(b["wall_s"] for b in batches),
            "per_held_s": profiled / held if held else 0.0,
        }
    return result


def table(record: dict[str, Any]) -> str:
    """The record as a Markdown table."""
    lines = [
        "| kernel | set | batch | profiled | wall s | ready s | GPU held s | end s | passes |",
        "|---|---|---:|---:|---:|---:|---:|---:|---|",
    ]
    for run in record["runs"]:
        for number, b in enumerate(run["batches"]):
            spent = {k: sum(s[k] for s in b["sessions"]) for k in ("ready_s", "held_s", "end_s")}
            lines.append(
                f"| {run['kernel']} | {b['set']} | {number} | {b['profiled']}/{b['candidates']} | {b['wall_s']:.2f} | "
                f"{spent['ready_s']:.2f} | {spent['held_s']:.2f} | {spent['end_s']:.2f} | {b['passes']} |"
            )
            lines += [f"| | | | {reason} | | | | | |" for reason in b["failures"]]
        for p in run.get("probe", ()):
            cost = "no answer" if p["seconds"] is None else f"{p['seconds']:.3f} s"
            lines.append(f"| {run['kernel']} | {p['counter']} | alone | | {cost} | | | | {p['passes']} |")
    lines.append("")
    for run in record["runs"]:
        if s := run.get("search"):
            lines.append(
                f"{run['kernel']}: a search of {s['elapsed_s']:.0f} s waited {s['waited_s']:.2f} s for the profiler and "
                f"{s['trajectory_s']:.2f} s for the trajectory, {100 * s['waited_share']:.1f} % of its time; {s['verified']} passed, "
                f"counted: {', '.join(f'{n} {c}' for n, c in s['counted'].items()) or 'none'}."
            )
    for name, total in record["summary"].items():
        lines.append(
            f"{name}: {total['per_s']:.1f} kernels/s with the starts, {total['per_held_s']:.1f} while the GPU was held."
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
