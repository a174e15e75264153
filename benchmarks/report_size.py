"""How large the report of a run is, and how long a browser takes to open it.

    python benchmarks/report_size.py --record benchmarks/results/report.json
    python benchmarks/report_size.py --folder .optiml/softmax-softmax_kernel

Without `--folder` it makes a run of `--nodes` candidates: result, steps and machine are those of a recorded run on an H200
(benchmarks/recorded_run.json), the journal is synthesised: a tree by chance, outcomes in the recorded run's shares with failures
added, and summaries, reasons and edits as long as real ones. Opening is timed in headless Chromium: processor seconds of the page's thread
until the frame after the load event; the median of `--repeats`, each in a new context. Exit code 1 when a limit is passed.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import os
import platform
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.review_screenshot import chromium  # noqa: E402 - the path above makes it importable as a script
from engine.cuda.patch import make_patch  # noqa: E402
from engine.model import Evaluation, Failure, Measurement, Outcome, Program  # noqa: E402
from engine.process.decode import decode  # noqa: E402
from engine.profile.counters import DRAM_BYTES, DURATION, INSTRUCTIONS  # noqa: E402
from engine.report.page import render  # noqa: E402
from engine.report.run_folder import read_run  # noqa: E402
from engine.run.result import OptimizationResult, write  # noqa: E402
from engine.search.journal import Entry, Journal  # noqa: E402
from engine.search.reward import Proxies  # noqa: E402

if TYPE_CHECKING:
    from playwright.sync_api import Browser

LIMIT_BYTES, LIMIT_S = 2_000_000, 1.0
_RECORD = ROOT / "benchmarks" / "recorded_run.json"  # a fixed one: tests look for its figures
_FAILED = (
    (Outcome.COMPILE_ERROR, 'error: identifier "tile" is undefined (line 23 of the device slice), and 3 errors more'),
    (
        Outcome.WRONG_RESULT,
        "'out' differs at element 40962 in case rows=33,cols=64: 0.7310586 expected, 0.7213475 found",
    ),
    (Outcome.RACE, "two threads write 'tile' without a barrier between them, at line 31 and line 37"),
    (Outcome.TIMED_OUT, "did not end within its deadline of 10 s"),
)
_EDITS = (
    ("unroll", "Unroll the loop of line 13 {0} times"), ("block_size", "Launch blocks of {0} threads"),
    ("transpose_tile", "Stage in through a {0} x {0} tile in shared memory"),
    ("vectorize", "Load and store {0} neighbouring elements at once"),
    ("restrict", "Say that the pointers of transpose_kernel never overlap, for {0} parameters"),
)  # fmt: skip


def recorded() -> OptimizationResult:
    """A real result of an H200; records leave the spec out."""
    found = json.loads(_RECORD.read_text(encoding="utf-8"))["result"]
    return decode(OptimizationResult, {"spec": {}, **found}, later=True)


def synthesise(
    folder: Path, nodes: int = 500, seed: int = 0, result: OptimizationResult | None = None,
    texts: Mapping[str, tuple[bytes, bytes]] | None = None, edit: str = "",
) -> OptimizationResult:  # fmt: skip
    """An output folder with a recorded result and a synthesised journal of `nodes` candidates.

    `texts` maps each file to its bytes before and after (default: the example, its kernel bounded by hand); `edit` takes the
    place of every summary.
    """
    chance = random.Random(seed)
    result = result or recorded()
    if texts is None:
        before = (ROOT / result.file).read_bytes()
        texts = {result.file: (before, before.replace(b"__global__ void", b"__global__ void __launch_bounds__(256)"))}
    original = Program({name: pair[0] for name, pair in texts.items()}, result.file)
    best = Program({name: pair[1] for name, pair in texts.items()}, result.file)
    steps = {step.id: step for step in result.trajectory}
    counts: dict[str, int] = {}
    journal = Journal(folder / "journal.sqlite", original, {"kernel": result.kernel}, resume=False)
    try:
        alive, last = [0], 0
        written = {0: texts[result.file][0]}  # the kernel's file of each candidate
        for id in range(nodes):
            if id == 0:
                entry = _entry(0, None, "", "", "", result.original, {}, 0.1)
            elif id in steps:
                step = steps[id]
                final = result.best is not None and id == result.best.id
                written[id] = best.files[result.file] if final else _edited(chance, written[last], id)
                files = dict(best.files) if final else {result.file: written[id]}
                entry = _entry(
                    id, last, step.proposer, step.rule, edit or step.summary, step.evaluation, files, id * 0.05
                )
                last = id
                alive.append(id)
            else:
                rule, summary = chance.choice(_EDITS)
                evaluation = _chance_evaluation(chance, result)
                parent = chance.choice(alive[-40:])
                summary = edit or summary.format(2 ** chance.randrange(1, 6))
                written[id] = _edited(chance, written[parent], id)
                files = {result.file: written[id]}
                proposer = "tuner" if rule == "block_size" else "rules"
                entry = _entry(id, parent, proposer, rule, summary, evaluation, files, id * 0.05)
                if evaluation.outcome in (Outcome.ACCEPTED, Outcome.SLOWER):
                    alive.append(id)
            journal.book(entry)
            counts[entry.evaluation.outcome.value] = counts.get(entry.evaluation.outcome.value, 0) + 1
            seen = entry.evaluation.measurement
            if result.mode == "measured" and (id == 0 or id in steps) and seen is not None and seen.cases:
                time_us = seen.cases[0].candidate_us
                counters = {
                    DURATION: (time_us * 1e3, "ns"),
                    DRAM_BYTES: (5.4e8, "byte"),
                    INSTRUCTIONS: (4.1e7 + 1e6 * id, "inst"),
                }
                journal.book_profile(id, "cheap", [counters], Proxies())
    finally:
        journal.close()
    passed = sum(n for o, n in counts.items() if o in ("accepted", "screened", "slower", "no_difference"))
    result = dataclasses.replace(result, counts={"candidates": nodes - 1, "verified": passed, **counts})
    write(result, folder, make_patch(original, best) if result.best is not None else None)
    return result


def _edited(chance: random.Random, text: bytes, id: int) -> bytes:
    """The text with two to eight of its lines replaced by two lines, as long as edits of rules are."""
    lines = text.splitlines(keepends=True)
    for at in sorted(chance.sample(range(len(lines)), min(len(lines), chance.randrange(2, 9))), reverse=True):
        row = lines[at].rstrip(b"\n")[:120]
        lines[at : at + 1] = [
            row + b"  // candidate %d\n" % id,
            b"    float part_%d = in[row * cols + col + %d];\n" % (id, at),
        ]
    return b"".join(lines[:400])


def _entry(
    id: int, parent: int | None, proposer: str, rule: str, summary: str, evaluation: Evaluation, files: dict[str, bytes],
    elapsed_s: float,
) -> Entry:  # fmt: skip
    return Entry(id, parent, proposer, rule, {}, summary, f"{id:064x}", (), evaluation, files, elapsed_s)


def _chance_evaluation(chance: random.Random, result: OptimizationResult) -> Evaluation:
    draw = chance.random()
    if draw < 0.25:
        outcome, reason = chance.choice(_FAILED)
        return Evaluation(outcome, failure=Failure(reason))
    ratio = chance.uniform(0.4, 3.3)
    predicted = result.mode == "predicted"
    measurement = Measurement((), ratio, ratio * 0.995, ratio * 1.005, predicted=predicted)
    if draw < 0.5:
        return Evaluation(Outcome.DUPLICATE, measurement, Failure("same machine code and launch as candidate 6"))
    if predicted:
        return Evaluation(Outcome.SCREENED, measurement)
    return Evaluation(Outcome.ACCEPTED if ratio > 1 else Outcome.SLOWER, measurement)


def opening_s(browser: Browser, page: Path, repeats: int) -> list[float]:
    """Processor seconds of the page's thread until the frame after its load event, each time in a new context."""
    found = []
    for _ in range(repeats):
        context = browser.new_context(viewport={"width": 1280, "height": 900})
        tab = context.new_page()
        session = context.new_cdp_session(tab)
        session.send("Performance.enable", {"timeDomain": "threadTicks"})
        tab.goto(page.as_uri())
        tab.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
        metrics = {entry["name"]: entry["value"] for entry in session.send("Performance.getMetrics")["metrics"]}
        found.append(float(metrics["TaskDuration"]))
        context.close()
    return found


@contextmanager
def headless(executable: str) -> Iterator[Browser]:
    """Headless Chromium. The pages are ours, and root cannot have Chromium's sandbox."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        yield browser
        browser.close()


def main(given: Sequence[str] | None = None) -> int:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description="Size and load time of a report.")
    parser.add_argument("--folder", type=Path, help="of a real run (default: a synthesised one)")
    parser.add_argument("--nodes", type=int, default=500)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--record", type=Path)
    options = parser.parse_args(given)
    browser = chromium()
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.folder or Path(scratch)
        if options.folder is None:
            synthesise(folder, options.nodes)
        run = read_run(folder)
        begin = time.process_time()
        text = render(run)
        made_s = time.process_time() - begin
        page = Path(scratch) / "page.html"
        page.write_text(text, encoding="utf-8")
        size = page.stat().st_size
        opened: list[float] = []
        if browser is not None:
            with headless(browser) as started:
                opened = opening_s(started, page, options.repeats)
    opens_s = statistics.median(opened) if opened else None
    record: dict[str, Any] = {
        "schema": "optiml.report_size/1",
        "command": "python benchmarks/report_size.py " + " ".join(given if given is not None else sys.argv[1:]),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": {"system": platform.platform(), "cpus": os.cpu_count(), "python": platform.python_version()},
        "browser": "headless Chromium" if browser is not None else None,
        "run": "real" if options.folder is not None else "recorded result of an H200, synthesised journal",
        "candidates": len(run.nodes),
        "bytes": size,
        "limit_bytes": LIMIT_BYTES,
        "made_s": round(made_s, 3),
        "opens_s": None if opens_s is None else round(opens_s, 3),
        "opens_all_s": [round(s, 3) for s in opened],
        "limit_s": LIMIT_S,
    }
    print(
        f"{len(run.nodes)} candidates: {size / 1e6:.2f} MB of at most {LIMIT_BYTES / 1e6:.0f} MB, made in {made_s:.2f} s"
    )
    print(
        f"opens in {opens_s:.2f} s of a core, of at most {LIMIT_S:.0f} s"
        if opens_s is not None
        else "there is no Chromium to open it in"
    )
    if options.record is not None:
        options.record.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    return int(size > LIMIT_BYTES or (opens_s is not None and opens_s > LIMIT_S))


if __name__ == "__main__":
    sys.exit(main())
