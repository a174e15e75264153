"""The tables that are searches of the installed command: the examples, the suite, the controls."""

from __future__ import annotations

import json
import math
import os
import sqlite3
import subprocess
import tempfile
import threading
import zlib
from base64 import b64decode
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from benchmarks import roofline
from benchmarks.bench import Place, Row, Settings, Table
from benchmarks.examples import optiml
from engine.cuda.load import repository_root
from engine.errors import MachineError
from engine.search.progress import NOTHING_LEFT

# What a run may take beyond its budget: setting up, validating and confirming. Ours; a run over it counts as failed.
_GRACE_S = 240.0
_SETUP_S = (
    20.0  # what a search takes beyond its budget on a machine with a GPU: 12 to 20 s with set-up and confirmation
)
SUITE = "benchmarks/suite"
PROPOSERS = (
    "--proposers",
    "rules,tuner",
)  # of suite and controls; the examples are searched as the command does unasked
CONTROL_SEEDS = 3
WANTED_SHARE = 0.8  # of the copy bandwidth, for kernels bound by memory
WANTED_MEAN = 3.0
WANTED_OVERHEAD = 0.1
WANTED_BYTES = 500_000_000
# Stages that stand in the run's one line of time: what they say adds up to at most the run's time. "wait" is for compilers.
_AT_WORK = (
    "wait", "verify", "time", "restart", "confirm", "guardrails", "profile", "waited for the profiler", "lost", "screen", "predict",
)  # fmt: skip


def examples_table() -> Table:
    """The ten examples, searched 30 s each."""
    return _searches("examples", "the ten example kernels, one search each", 30.0, "examples")


def suite_table() -> Table:
    """The suite's kernels, searched 60 s each."""
    return _searches("suite", "the suite's kernels, one search each", 60.0, SUITE, PROPOSERS)


def controls_table() -> Table:
    """Kernels at the roofline, searched 20 s each with three seeds: nothing must be suggested."""

    def rows(place: Place, settings: Settings) -> list[str]:
        found = sorted(p.stem for p in (place.root / SUITE).glob("control_*.cu"))
        return [f"{name}#{seed}" for name in found for seed in range(settings.seeds or CONTROL_SEEDS)]

    def measure(place: Place, settings: Settings, key: str) -> Row:
        name, _, seed = key.partition("#")
        return search(place, f"{SUITE}/{name}.cu", settings.seconds or 20.0, int(seed), settings.device, PROPOSERS)

    return Table(
        "controls", "kernels at the roofline: no suggestion expected", Settings(seconds=20.0, seeds=CONTROL_SEEDS),
        rows, measure, summary, render, lambda settings, row: (settings.seconds or 20.0) + _SETUP_S,
    )  # fmt: skip


def names(place: Place, folder: str) -> list[str]:
    """The kernels in a folder of the checkout, by file name without ending; the suite's controls are not among them."""
    return sorted(p.stem for p in (place.root / folder).glob("*.cu") if not p.name.startswith("control_"))


def _searches(name: str, title: str, seconds: float, folder: str, more: Sequence[str] = ()) -> Table:
    def measure(place: Place, settings: Settings, key: str) -> Row:
        return search(place, f"{folder}/{key}.cu", settings.seconds or seconds, 0, settings.device, more)

    return Table(
        name, title, Settings(seconds=seconds), lambda place, settings: names(place, folder), measure, summary, render,
        lambda settings, row: (settings.seconds or seconds) + _SETUP_S,
    )  # fmt: skip


def search(place: Place, file: str, seconds: float, seed: int, device: str, more: Sequence[str] = ()) -> Row:
    """One run of the installed command on a file of the checkout, as a row. Raises MachineError when it gives no result."""
    with tempfile.TemporaryDirectory(prefix="optiml-bench") as name:
        command = [
            optiml(), "optimize", str(place.root / file), "--budget", f"{seconds:g}s", "--seed", str(seed), "--device", device,
            "--out", name, "--format", "json", *more,
        ]  # fmt: skip
        code, out, err, peak_bytes = watched(command, seconds + _GRACE_S)
        if code != 0 or not out.strip():
            raise MachineError(err.strip()[-1500:] or f"exit code {code} without a word", file)
        result: dict[str, Any] = json.loads(out)
        best = result["best"]
        patch = (Path(name) / "best.patch").read_text(encoding="utf-8") if best else ""
        files = _files(Path(name) / "journal.sqlite", best["id"]) if best else {}
        files = {
            os.path.relpath(repository_root(place.root / file) / path, place.root): text for path, text in files.items()
        }
    return {
        "file": file, "kernel": result["kernel"], "mode": result["mode"], "verdict": result["verdict"], "seed": seed,
        **_times(result), **_roofline(place, file, result), "patch": patch, "files": files,
        "steps": [step["summary"] for step in result["trajectory"]],
        "diagnosis": (result["trajectory"][-1]["diagnosis"] if result["trajectory"] else result["diagnosis"])[:1],
        "candidates": result["counts"]["candidates"], "counts": result["counts"], "elapsed_s": result["elapsed_s"],
        "stopped": result["stopped"],
        "stages": result["stages"], "overhead": overhead(result), "peak_bytes": peak_bytes,
        "device": result["signals"]["device"], "versions": result["provenance"]["versions"],
    }  # fmt: skip


def _files(journal: Path, candidate: int) -> dict[str, str]:
    """The files that a candidate changed, whole, from the run's journal: what peers are measured beside is built from them.

    Paths are relative to the run's repository.
    """
    with closing(sqlite3.connect(journal)) as db:
        (packed,) = db.execute("SELECT files FROM candidates WHERE id = ?", (candidate,)).fetchone()
    return {path: b64decode(data).decode("utf-8") for path, data in json.loads(zlib.decompress(packed)).items()}


def watched(command: Sequence[str], limit_s: float, folder: Path | None = None) -> tuple[int, str, str, int]:
    """Exit code, both outputs, and the largest resident set of the command's own process in bytes (without its workers).

    Nobody answers what it may ask.
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, cwd=folder)
        timer = threading.Timer(limit_s, process.kill)
        timer.start()
        try:
            _, status, usage = os.wait4(process.pid, 0)
        except BaseException:
            process.kill()
            raise
        finally:
            timer.cancel()
        process.returncode = os.waitstatus_to_exitcode(status)
        texts = []
        for stream in (out, err):
            stream.seek(0)
            texts.append(stream.read().decode("utf-8", "replace"))
    return process.returncode, texts[0], texts[1], usage.ru_maxrss * 1024


def _times(result: Mapping[str, Any]) -> Row:
    """Original and suggestion; a run without a suggestion has the ratio 1."""
    best = result["best"]
    measurement = (best["evaluation"] if best else result["original"])["measurement"]
    cases = [
        {"case": c["case"], "original_us": c["original_us"], "best_us": c["candidate_us"] if best else c["original_us"]}
        for c in measurement["cases"]
    ]
    if not best:
        same = {"ratio": 1.0, "low": 1.0, "high": 1.0, "predicted": measurement["predicted"]}
        return {"cases": cases, "suggested": False, **same}
    kept = {key: measurement[key] for key in ("ratio", "low", "high", "predicted")}
    return {"cases": cases, "suggested": True, **kept}


def _roofline(place: Place, file: str, result: Mapping[str, Any]) -> Row:
    """The floor of the longest timing case, and what share of it the suggestion reaches; nothing for kernels outside the suite."""
    from engine.predict.targets import figures_for
    from engine.spec.find import find_spec

    entry = roofline.table().get(Path(file).stem)
    if entry is None:
        return {}
    spec, _ = find_spec(place.root, place.root / file)
    device = result["signals"]["device"]
    figures = figures_for(device["arch"])
    times = _times(result)["cases"]
    at = max(range(len(times)), key=lambda i: times[i]["best_us"])
    of_its_size = device.get("case_copy_bytes_per_s", {}).get(spec.time[at].name)
    bandwidth = float(of_its_size or device.get("copy_bytes_per_s") or figures.dram_bytes_s)
    floor = roofline.floor(spec, spec.time[at], entry, bandwidth, figures)
    return {
        "bound": floor.bound, "bytes_moved": floor.bytes_moved, "flops": floor.flops, "floor_us": floor.floor_us,
        "limit": floor.limit,
        "share_of_floor": floor.floor_us / times[at]["best_us"], "copy_bytes_per_s": bandwidth,
    }  # fmt: skip


def overhead(result: Mapping[str, Any]) -> float:
    """The share of a run's time that is neither waiting for compilers, nor running kernels, nor profiling.

    The search has one line of time: it selects, waits for a build, has it evaluated, books it. Starting the evaluator
    counts as overhead; validating the original is running it.
    """
    stages = {**result["stages"]}
    first = result["original"].get("stage_s", {})
    busy = sum(stages.get(name, 0.0) for name in _AT_WORK) + sum(first.values())
    return max(0.0, 1.0 - busy / result["elapsed_s"]) if result["elapsed_s"] else 0.0


def summary(rows: Mapping[str, Row]) -> dict[str, Any]:
    """What the project promises of these tables, computed from the rows."""
    kept = list(rows.values())
    memory = [r for r in kept if r.get("bound") == "memory"]
    elapsed = sum(r["elapsed_s"] for r in kept)
    return {
        "kernels": len(kept),
        "modes": sorted({r["mode"] for r in kept}),
        "geometric_mean": math.exp(sum(math.log(r["ratio"]) for r in kept) / len(kept)),
        "suggested": sum(r["suggested"] for r in kept),
        "untried": sum(not r["candidates"] for r in kept),
        "without_edits": sum(not r["candidates"] and r.get("stopped") == NOTHING_LEFT for r in kept),
        "memory_bound": len(memory),
        "memory_bound_at_share": sum(r["share_of_floor"] >= WANTED_SHARE for r in memory),
        "below_share": {
            Path(r["file"]).stem: (r["diagnosis"] or [""])[0] for r in memory if r["share_of_floor"] < WANTED_SHARE
        },
        "candidates_per_s": sum(r["candidates"] for r in kept) / elapsed if elapsed else None,
        "overhead": sum(r["overhead"] * r["elapsed_s"] for r in kept) / elapsed if elapsed else None,
        "overhead_most": max(r["overhead"] for r in kept),
        "peak_bytes": max(r["peak_bytes"] for r in kept),
    }


def render(record: Mapping[str, Any]) -> str:
    """The table and what follows from it, in Markdown."""
    rows, total = record["rows"], record["summary"]
    floors = any("floor_us" in r for r in rows.values())
    head = "| kernel | speedup | 95 % interval | before µs | after µs | candidates |"
    rule = "|---|---:|---|---:|---:|---:|"
    if floors:
        head, rule = head + " roofline floor µs | share of floor |", rule + "---:|---:|"
    lines = [head, rule]
    for key, row in rows.items():
        name = key.partition("#")[0] + (f" (seed {row.get('seed')})" if "#" in key else "")
        if row["error"] is not None:
            lines.append(
                f"| {name} | failed: {' '.join(row['error'].split())[:100].replace('|', '/')} | | | | |"
                + " | |" * floors
            )
            continue
        worst = max(row["cases"], key=lambda c: c["best_us"])
        unchanged = "no suggestion" if row["candidates"] else "no candidate tried"
        ratio = f"{row['ratio']:.2f}" if row["suggested"] else unchanged
        ratio += " (predicted)" if row["predicted"] else ""
        interval = f"{row['low']:.2f} to {row['high']:.2f}" if row["suggested"] and not row["predicted"] else ""
        line = f"| {name} | {ratio} | {interval} | {worst['original_us']:.1f} | {worst['best_us']:.1f} | {row['candidates']} |"
        if floors:
            line += f" {row['floor_us']:.1f} ({row['bound']}) | {100 * row['share_of_floor']:.0f} % |"
        lines.append(line)
    return "\n".join([*lines, "", *_sentences(record["name"], rows, total)])


def _sentences(name: str, rows: Mapping[str, Row], total: Mapping[str, Any]) -> list[str]:
    said = []
    without_edits = total.get("without_edits", 0)
    if without_edits:
        said.append(
            f"In {without_edits} of {total['kernels']} runs no rule had an edit to try: they give no information on the kernel."
        )
    if untried := total.get("untried", 0) - without_edits:
        said.append(f"{untried} of {total['kernels']} runs had no time to try a candidate, and give no information.")
    if name == "controls":
        said.append(f"{total['suggested']} of {total['kernels']} runs made a suggestion; target: none.")
    else:
        wanted = f" (target: at least {WANTED_MEAN:g})" if name == "suite" else ""
        said.append(
            f"Geometric mean {total['geometric_mean']:.2f} over {total['kernels']} kernels{wanted}; a kernel without a suggestion "
            "counts as 1."
        )
    if name == "suite":
        said.append(
            f"{total['memory_bound_at_share']} of {total['memory_bound']} memory-bound kernels reach {100 * WANTED_SHARE:.0f} % of "
            f"the {'measured ' * (total['modes'] == ['measured'])}copy bandwidth with their compulsory bytes."
        )
        said += [
            f"- Below {100 * WANTED_SHARE:.0f} %, {kernel}: {why or 'no diagnosis'}"
            for kernel, why in total["below_share"].items()
        ]
    said.append(
        f"Overhead (time neither waiting for compilers, running nor profiling): {100 * total['overhead']:.1f} % of the time, "
        f"at most {100 * total['overhead_most']:.1f} % of a run (target: under {100 * WANTED_OVERHEAD:.0f} %; "
        f"{sum(row['overhead'] >= WANTED_OVERHEAD for row in rows.values())} of {len(rows)} runs above). "
        f"Memory of the command's own process: at most {total['peak_bytes'] / 1e6:.0f} MB (target: under {WANTED_BYTES / 1e6:.0f} MB)."
    )
    return [line for sentence in said for line in ((sentence,) if sentence.startswith("- ") else ("", sentence))][1:]
