"""What the tables of `optiml bench` say of their rows: summaries, pages, ablations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import ablation, bench, results_page, searches
from benchmarks.tables import TABLES
from engine.errors import MachineError, UsageError

ROOT = Path(__file__).resolve().parent.parent


def _result(elapsed_s: float, stages: dict[str, float], first: dict[str, float]) -> dict[str, Any]:
    return {"elapsed_s": elapsed_s, "stages": stages, "original": {"stage_s": first}}


def test_overhead_is_what_no_compiler_kernel_or_profiler_took() -> None:
    # `compile` ran in threads beside the search and may exceed it; what the search waited for is "wait".
    stages = {"compile": 40.0, "select": 0.5, "wait": 3.0, "verify": 2.0, "time": 3.0, "confirm": 0.5}
    assert searches.overhead(_result(10.0, stages, {"compile": 0.2, "validate": 0.3})) == pytest.approx(0.1)


def _row(kernel: str, ratio: float, share: float, suggested: bool = True) -> bench.Row:
    return {
        "error": None, "file": f"benchmarks/suite/{kernel}.cu", "kernel": kernel, "mode": "measured",
        "ratio": ratio, "low": ratio, "high": ratio,
        "suggested": suggested, "predicted": False, "bound": "memory", "share_of_floor": share, "floor_us": 10.0, "candidates": 5,
        "cases": [{"case": "", "original_us": 10.0 * ratio / share, "best_us": 10.0 / share}], "elapsed_s": 10.0, "overhead": 0.05,
        "peak_bytes": 1, "diagnosis": ["waits for memory"], "seed": 0,
    }  # fmt: skip


def test_the_suite_says_which_kernels_stay_below_the_copy_bandwidth_and_why() -> None:
    rows = {"fast": _row("fast", 8.0, 0.9), "slow": _row("slow", 2.0, 0.5)}
    total = searches.summary(rows)
    assert total["geometric_mean"] == pytest.approx(4.0)
    assert total["below_share"] == {"slow": "waits for memory"}
    text = searches.render({"name": "suite", "rows": rows, "summary": total})
    assert "1 of 2 memory-bound kernels reach 80 %" in text
    assert "slow: waits for memory" in text


def test_a_control_with_a_suggestion_is_counted() -> None:
    rows = {"c#0": _row("c", 1.0, 0.9, suggested=False), "c#1": _row("c", 1.03, 0.95)}
    text = searches.render({"name": "controls", "rows": rows, "summary": searches.summary(rows)})
    assert "1 of 2 runs made a suggestion" in text
    assert "| c (seed 0) | no suggestion |" in text


def test_a_run_that_tried_nothing_or_was_predicted_is_not_passed_off_as_one_that_found_nothing() -> None:
    """Four seconds without a GPU gave `no suggestion` for every kernel and control, after no candidate, as if measured."""
    row = _row("c", 1.0, 0.5, suggested=False) | {"mode": "predicted", "predicted": True}
    without = {"candidates": 0, "stopped": "nothing is left to try"}
    rows = {"c#0": row | {"candidates": 0}, "c#1": row | {"seed": 1}, "c#2": row | {"seed": 2} | without}
    total = searches.summary(rows)
    text = searches.render({"name": "controls", "rows": rows, "summary": total})
    assert "| c (seed 0) | no candidate tried (predicted) |" in text
    assert "In 1 of 3 runs no rule had an edit to try" in text
    assert "| c (seed 1) | no suggestion (predicted) |" in text
    assert "1 of 3 runs had no time to try a candidate" in text
    assert "measured" not in searches.render({"name": "suite", "rows": rows, "summary": total})


def test_the_best_after_so_many_candidates_counts_what_passed_alone() -> None:
    booked = [
        ("slower", 0.9, 1),
        ("accepted", 2.0, 1),
        ("wrong_result", None, 1),
        ("no_difference", 5.0, 1),
        ("accepted", 3.0, 1),
    ]
    assert [ablation.best_after(booked, n) for n in (0, 1, 2, 4, 5, 100)] == [1.0, 1.0, 2.0, 2.0, 3.0, 3.0]


def test_a_node_of_the_tuner_counts_for_all_the_points_it_tried() -> None:
    booked = [("accepted", 2.0, 1), ("accepted", 3.0, 16), ("accepted", 4.0, 1)]
    assert [ablation.best_after(booked, n) for n in (1, 16, 17, 18)] == [2.0, 2.0, 3.0, 4.0]


def test_an_ablation_pairs_runs_of_one_kernel_and_seed() -> None:
    def run(arm: str, seed: int, best: float) -> dict[str, Any]:
        return {"arm": arm, "seed": seed, "best": best, "after": {str(n): best for n in ablation.MARKS}}

    # The kernels differ by far more than the arms, and so do the seeds: only pairs show that one arm is 10 % better.
    rows = {
        name: {
            "runs": [run(arm, s, scale * (s + 1) * gain) for s in range(5) for arm, gain in (("a", 1.0), ("b", 1.1))]
        }
        for name, scale in (("one", 1.0), ("two", 40.0))
    }
    found = ablation.summary({**rows, "learn:one": {"runs": [], "lessons": 3}})
    assert found["kernels"] == 2
    against = found["arms"]["b"]["best"]
    assert (against["ratio"], against["low"], against["high"]) == pytest.approx((1.1, 1.1, 1.1))
    assert against["better_equal_worse"] == [10, 0, 0]
    assert found["arms"]["a"]["best"]["better_equal_worse"] == [0, 10, 0]
    # One seed has no interval; its row is kept all the same.
    single = {name: {"runs": [r for r in row["runs"] if r["seed"] == 0]} for name, row in rows.items()}
    assert ablation.summary(single) == {"kernels": 2, "arms": {"a": {}, "b": {}}}


def test_a_record_read_again_is_held_against_the_same_arm() -> None:
    """Records have sorted keys: "greedy" before "mcts", "100" before "25"."""
    gains = {"mcts": 1.0, "greedy": 1.1, "random": 0.5}
    runs = [
        {"arm": arm, "seed": seed, "best": gain, "after": {str(n): gain for n in ablation.MARKS}}
        for seed in range(2)
        for arm, gain in gains.items()
    ]
    rows = {"one": {"runs": runs, "mode": "measured", "note": "disturbed"}}
    record = {
        "name": "ablation-search", "settings": {"candidates": 100, "seeds": 2}, "rows": rows, "summary": ablation.summary(rows),
    }  # fmt: skip
    text = ablation.render(json.loads(json.dumps(record, sort_keys=True)))
    assert "relative to mcts" in text
    assert "- one: disturbed" in text
    marks = [line.split("|")[2].strip() for line in text.splitlines() if line.startswith("| greedy")]
    assert marks == ["10", "25", "50", "100"]
    assert "| greedy | 100 | 1.100 | 1.100 | 1.100 to 1.100 | 2, 0, 0 |" in text


def test_arms_that_would_not_differ_are_not_compared(tmp_path: Path) -> None:
    """Without a GPU there is no profiler: both arms would be the same search."""
    place = bench.Place(ROOT, tmp_path, tmp_path)
    with pytest.raises(MachineError, match="no profiler"):
        TABLES["ablation-profile"].measure(place, bench.Settings(candidates=1, seeds=1, device="cpu"), "dot")


def test_the_page_shows_each_whole_record_with_its_command(tmp_path: Path) -> None:
    rows = {"fast": {**_row("fast", 8.0, 0.9), "commit": "abcdef0123456", "date": "2026-01-02T03:04:05+00:00"}}
    record = {
        "schema": bench.SCHEMA, "name": "suite", "rows": rows, "summary": searches.summary(rows), "device": {"name": "a GPU"},
        "settings": {}, "versions": {},
        "commands": [["optiml", "bench", "suite", "--resume", "--limit", "540s", "--seconds", "60", "--out", "x"]],
    }  # fmt: skip
    (tmp_path / "suite.json").write_text(json.dumps(record))
    (tmp_path / "suite.part.json").write_text("there is a whole one, so it is not looked at")
    begun = {
        "control_scale#0": {**_row("control_scale", 1.0, 0.9), "suggested": False, "commit": "c", "date": "2026-01-03"}
    }
    settings = {"seconds": 20.0, "candidates": None, "seeds": 1, "device": "gpu"}
    part = {**record, "name": "controls", "rows": begun, "summary": searches.summary(begun), "settings": settings}
    (tmp_path / "controls.part.json").write_text(json.dumps(part))
    text = results_page.page(tmp_path)
    assert "**Begun, not finished**: 1 of 4 rows. Missing or failed: control_reduction#0, control_transpose#0, " in text
    assert "[controls.part.json](" in text
    assert "`optiml bench suite --seconds 60` at commit `abcdef0123`, 2026-01-02, a GPU." in text
    assert "| fast | 8.00 |" in text
    (tmp_path / "suite.json").write_text(json.dumps({**record, "gpus_at_once": 4}))
    assert "2026-01-02, a GPU, rows on up to 4 of one machine at once." in results_page.page(tmp_path)
    (tmp_path / "controls.json").write_text(json.dumps({**record, "schema": "optiml.bench/9"}))
    with pytest.raises(UsageError, match="another version"):
        results_page.page(tmp_path)
