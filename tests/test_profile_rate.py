"""The profiler benchmark's batches, arithmetic and table, with a stand-in for Nsight Compute."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest

from benchmarks import profile_rate
from engine.model import Binary, LaunchConfig
from engine.profile import ncu
from engine.profile.counters import CHEAP, ProfileRequest
from tests.engine.profile.fake_ncu import profiler, spec


def _batch(count: int) -> list[ProfileRequest]:
    launch = (LaunchConfig((4, 1, 1), (32, 1, 1)),)
    return [ProfileRequest(str(i), Binary(b"x" * (i + 1), "sm_90", ("k",), (), ""), launch, 1) for i in range(count)]


def _run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str = "") -> dict[str, Any]:
    monkeypatch.setattr(ncu, "_PARAMETERS", tmp_path / "params")
    made = profiler(tmp_path, mode)
    monkeypatch.setattr(profile_rate, "make_profiler", lambda *given, **options: made)
    options = argparse.Namespace(batches=2, no_prime=False, spares=1, logs=tmp_path / "logs")
    batches = profile_rate._batches(None, spec(), _batch(3), CHEAP, options, "k")  # type: ignore[arg-type]
    return {"kernel": "k", "batches": batches}


def test_every_profile_counts_once_and_the_logs_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = _run(tmp_path, monkeypatch)
    summary = profile_rate.summary([run])
    assert summary["cheap"]["kernels"] == 6
    wall = sum(b["wall_s"] for b in run["batches"])
    assert summary["cheap"]["per_s"] == pytest.approx(6 / wall)
    assert [b["passes"] for b in run["batches"]] == [[2], [2]]
    assert "gpu__time_duration.sum" in (tmp_path / "logs" / "k-cheap-1.log").read_text()
    run["search"] = {
        "elapsed_s": 30.0, "waited_s": 1.5, "trajectory_s": 0.6, "waited_share": 0.07, "verified": 90, "counted": {"cheap": 80},
    }  # fmt: skip
    text = profile_rate.table({"runs": [run], "summary": summary})
    assert "7.0 % of its time; 90 passed, counted: cheap 80." in text
    assert "| k | cheap | 1 | 3/3 |" in text


def test_what_failed_is_in_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = _run(tmp_path, monkeypatch, "permission")
    assert [b["profiled"] for b in run["batches"]] == [0, 0]
    text = profile_rate.table({"runs": [run], "summary": profile_rate.summary([run])})
    assert "ERR_NVGPUCTRPERM" in text
    assert "cheap: 0.0 kernels/s" in text


def test_wrong_use(tmp_path: Path) -> None:
    for wrong in (["--sets", "all"], ["--batches", "0"]):
        with pytest.raises(SystemExit) as error:
            profile_rate.main([*wrong, "--record", str(tmp_path / "r.json")])
        assert error.value.code == 2
