"""The record of what kernels of other repositories gain."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.foreign_gains import folder_of, listed, main, row_of, summary


def result(ratio: float | None, share: int) -> dict[str, Any]:
    case = {"original_us": 10.0, "candidate_us": 10.0 / (ratio or 1.0)}
    measured = {"ratio": ratio or 1.0, "low": ratio or 1.0, "high": ratio or 1.0, "cases": [case]}
    return {
        "best": {"evaluation": {"measurement": measured}} if ratio else None,
        "original": {"measurement": measured},
        "diagnosis": [f"memory-bound: 3.00 TB/s to and from device memory, {share} % of copy (4.20 TB/s)"],
        "counts": {"candidates": 7},
        "elapsed_s": 20.0,
        "stopped": "the budget is spent",
        "signals": {"device": {"name": "NVIDIA H200"}},
        "provenance": {"date": "2026-01-01T00:00:00+00:00"},
    }


def test_a_kernel_without_a_suggestion_counts_as_one() -> None:
    rows = [
        {"worked_on": False, "error": None, **row_of(result(4.0, 50))},
        {"worked_on": False, "error": None, **row_of(result(None, 60))},
        {"worked_on": False, "error": None, **row_of(result(None, 90))},
        {"worked_on": False, "error": "did not end"},
    ]
    told = summary(rows)["not looked at before"]
    assert told["geometric_mean"] == pytest.approx(4.0 ** (1 / 3))
    assert (told["kernels"], told["results"], told["improved_or_at_roof"]) == (4, 3, 2)
    assert summary(rows)["worked on"]["geometric_mean"] is None


def test_results_that_are_there_are_taken(tmp_path: Path) -> None:
    first = listed()[0]
    kernel, folder = first["kernel"], tmp_path / "work" / folder_of(first)
    folder.mkdir(parents=True)
    (folder / "result.json").write_text(json.dumps(result(2.0, 70)))
    record = tmp_path / "record.json"
    assert (
        main(["--checkouts", str(tmp_path), "--work", str(tmp_path / "work"), "--there", "--record", str(record)]) == 0
    )
    rows = json.loads(record.read_text())["rows"]
    assert [(r["kernel"], r["ratio"], r["of_copy_pct"]) for r in rows if r["error"] is None] == [(kernel, 2.0, 70)]
    assert {r["error"] for r in rows if r["kernel"] != kernel} == {"did not end"}


def test_a_checkout_at_another_commit_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--checkouts", str(tmp_path), "--work", str(tmp_path / "work")])
    assert "is not at" in capsys.readouterr().err


def test_each_kernel_has_a_folder_of_its_own() -> None:
    assert len({folder_of(kernel) for kernel in listed()}) == len(listed())
