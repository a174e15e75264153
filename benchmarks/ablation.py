"""Tree search against greedy and random search, with the diagnosis and without, at the same number of candidates.

    python benchmarks/ablation.py --candidates 100 --seeds 5 --record benchmarks/results/ablation.json [FILES]

Every arm shares rules, verification, timing and machine; only the choice of the next edit differs. A run's result is the
speedup of its best candidate as the search measured it. Runs of one kernel and seed are paired across the arms.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.examples import commit, machine  # noqa: E402 - the path above makes it importable as a script
from engine.evaluate.analysis import Analysis  # noqa: E402
from engine.machine import Machine, make_machine  # noqa: E402
from engine.optimize import Proposals, provenance  # noqa: E402
from engine.search.journal import Journal  # noqa: E402
from engine.search.loop import Budget, Search  # noqa: E402
from engine.search.tree import Tree  # noqa: E402
from engine.source.load import load_program, repository_root  # noqa: E402
from engine.spec.read import find_spec  # noqa: E402

ARMS = ("mcts", "mcts with diagnosis", "greedy", "random")


def main(given: Sequence[str] | None = None) -> int:
    """Run all arms; see the module's docstring. Exit code 0."""
    parser = argparse.ArgumentParser(description="Compare ways to choose the next edit.")
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE", help="kernels (default: examples/*.cu)")
    parser.add_argument("--candidates", type=int, default=100, help="of each run (default: 100)")
    parser.add_argument("--seeds", type=int, default=5, help="runs of each arm and kernel (default: 5)")
    parser.add_argument("--record", type=Path, required=True, help="the JSON record to write")
    options = parser.parse_args(given)
    files = [f.resolve() for f in options.files] or sorted((ROOT / "examples").glob("*.cu"))
    here = make_machine(device="gpu")
    rows: list[dict[str, Any]] = []
    device: dict[str, Any] = {}
    try:
        for file in files:
            found, device = one_kernel(here, file, options.candidates, options.seeds)
            rows += found
            print(f"{file.name}: {_geometric_means(found)}", file=sys.stderr, flush=True)
            record = {
                "schema": "optiml.ablation/1",
                "command": ["python", "benchmarks/ablation.py", *(sys.argv[1:] if given is None else given)],
                "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
                "commit": commit(), "machine": machine(), "device": device, "versions": provenance(())["versions"],
                "candidates": options.candidates, "seeds": options.seeds, "rows": rows, "geometric_means": _geometric_means(rows),
                "paired": {arm: _paired(rows, arm) for arm in ARMS[1:]},
            }  # fmt: skip
            options.record.parent.mkdir(parents=True, exist_ok=True)
            options.record.write_text(json.dumps(record, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    finally:
        here.close()
    print(
        "| arm | geometric mean | against mcts, geometric mean of pairs | better, equal, worse |\n|---|---:|---:|---|"
    )
    for arm in ARMS:
        pairs = _paired(rows, arm)
        print(f"| {arm} | {_geometric_means(rows)[arm]:.3f} | {pairs['ratio']:.3f} | {pairs['counts']} |")
    return 0


def one_kernel(here: Machine, file: Path, candidates: int, seeds: int) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """All runs on one kernel, and the device: the original is validated once and shared."""
    root = repository_root(file)
    spec, spec_path = find_spec(root, file)
    program = load_program(file, spec_file=spec_path, kernels=[s.kernel for s in spec.steps])
    evaluator = here.evaluator(spec, root, spec_path)
    rows = []
    try:
        built, original = evaluator.open(program)
        insight = here.insight(spec, evaluator)
        for seed in range(seeds):
            for arm in ARMS:
                asked = insight if arm == "mcts with diagnosis" else None
                source = Proposals(Analysis(spec, root, here.target, spec_path))
                strategy = arm.split()[0]
                weigh = asked.weigh if asked else (lambda digest, proposals: None)
                tree = Tree(program, source, seed, strategy, weigh)  # type: ignore[arg-type]
                begin = time.monotonic()
                with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(here.jobs) as executor:
                    journal = Journal(Path(name) / "journal.sqlite", program, {}, resume=False)
                    search = Search(
                        tree, evaluator, journal, executor, in_flight=here.jobs + 2, prefetch=source,
                        on_incumbent=asked.look if asked else (lambda built, evaluation: None),
                    )  # fmt: skip
                    search.start(built, original)
                    if asked:
                        asked.look(built, original)
                    search.run(Budget(candidates=candidates))
                    journal.close()
                rows.append(
                    {
                        "kernel": spec.kernel, "arm": arm, "seed": seed, "best": search.progress.best_ratio,
                        "candidates": search.progress.evaluated, "seconds": time.monotonic() - begin,
                    }
                )  # fmt: skip
        if insight is not None:
            insight.close()
        return rows, dict(evaluator.signals.device)
    finally:
        evaluator.close()


def _geometric_means(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    return {arm: _geometric([r["best"] for r in rows if r["arm"] == arm]) for arm in ARMS}


def _paired(rows: Sequence[dict[str, Any]], arm: str) -> dict[str, Any]:
    """Each run of an arm over the mcts run of the same kernel and seed; within 1 % counts as equal."""
    base = {(r["kernel"], r["seed"]): r["best"] for r in rows if r["arm"] == "mcts"}
    ratios = [r["best"] / base[r["kernel"], r["seed"]] for r in rows if r["arm"] == arm]
    better, worse = sum(r > 1.01 for r in ratios), sum(r < 1 / 1.01 for r in ratios)
    return {"ratio": _geometric(ratios), "counts": [better, len(ratios) - better - worse, worse]}


def _geometric(values: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values)) if values else 1.0


if __name__ == "__main__":
    sys.exit(main())
