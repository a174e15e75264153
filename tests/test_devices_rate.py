"""The command that measures one search on several devices, with results that stand in for those of a GPU."""

from __future__ import annotations

import argparse
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks import devices_rate


def _result(command: Sequence[str], out: Path) -> Mapping[str, Any]:
    count = int(command[command.index("--workers") + 1])
    if "--seed" in command and command[command.index("--seed") + 1] == "1" and count == 4:
        raise subprocess.CalledProcessError(3, "optiml")
    best = {"evaluation": {"measurement": {"ratio": 2.0 + count / 100, "low": 1.9, "high": 2.1}}}
    if command[0] == "tune":
        booked = [100 + at / (20 * count) for at in range(50)]
        return {"best": best, "booked_at": booked, "elapsed_s": 9.0, "stages": {"time": 5.0}}
    booked = [100 + at / (10 * count) for at in range(100 * count)]
    program = {"examples/matmul.cu": b"faster"}
    return {
        "best": best,
        "booked_at": booked,
        "elapsed_s": 14.0,
        "stages": {"start": 2.0, "verify": 5.0},
        "program": program,
    }


def test_rates_are_of_the_search_alone_and_a_failed_run_is_named() -> None:
    options = argparse.Namespace(repeats=2, device="gpu", budget="20s")
    rows = devices_rate.measure(["examples/matmul.cu", "benchmarks/tuning/gemm.cu"], [1, 4], options, _result)
    assert rows["optimize examples/matmul.cu"]["rates"] == pytest.approx({"1": 10.0, "4": 40.0})
    assert rows["tune benchmarks/tuning/gemm.cu"]["rates"] == pytest.approx({"1": 20.0, "4": 80.0})
    assert [error.partition(":")[0] for error in rows["tune benchmarks/tuning/gemm.cu"]["errors"]] == [
        "4 devices, seed 1"
    ]
    seconds = {"whole": 9.0, "time": 5.0}
    assert rows["tune benchmarks/tuning/gemm.cu"]["seconds"] == {"1": [seconds, seconds], "4": [seconds]}
    table = devices_rate.render(rows)
    assert "| optimize examples/matmul.cu | 10.00 | 1.00 | 2.010× | 40.00 | 4.00 | 2.040× |" in table


def test_ratios_agree_where_their_intervals_meet() -> None:
    assert devices_rate.agree([(2.0, 1.9, 2.1), (2.1, 2.0, 2.2), (2.05, 2.0, 2.1)])
    assert not devices_rate.agree([(2.0, 1.9, 2.1), (2.3, 2.2, 2.4)])


def test_a_suggestion_is_read_from_its_patch(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "k.cu").write_text("one\ntwo\n")
    patch = tmp_path / "best.patch"
    patch.write_text("--- a/a/k.cu\n+++ b/a/k.cu\n@@ -1,2 +1,2 @@\n one\n-two\n+three\n")
    assert devices_rate.patched(tmp_path, patch, ["a/k.cu"]) == {"a/k.cu": b"one\nthree\n"}
    assert (tmp_path / "a" / "k.cu").read_text() == "one\ntwo\n"


def test_the_command_ends_with_1_where_a_run_failed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(devices_rate.measure, "__defaults__", (_result,))
    monkeypatch.setattr(
        devices_rate, "on_each_device", lambda file, changed, options: {"0": (2.0, 1.9, 2.1), "1": (2.0, 1.9, 2.2)}
    )
    record = tmp_path / "record.json"
    given = ["examples/matmul.cu", "--devices", "1,4", "--repeats", "2", "--record", str(record)]
    assert devices_rate.main(given) == 1
    assert "the intervals have a value in common" in capsys.readouterr().out
    assert record.exists()
    assert devices_rate.main([*given[:2], "1,2", "--repeats", "1"]) == 0
