"""The command that measures one campaign on several devices, with lines that stand in for those of `optiml all`."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from benchmarks import campaign_rate


def _lines(command: Sequence[str], folder: Path) -> Iterator[tuple[float, str]]:
    """Eight kernels that take ten seconds each, after five of setting up and before three of writing the patch."""
    workers = int(command[command.index("--workers") + 1])
    if workers == 3:
        raise subprocess.CalledProcessError(3, "optiml")
    assert (folder / ".git").is_dir()
    assert (folder / "examples" / "dot.cu").read_text().count("__global__")
    yield 4.0, json.dumps({"schema": "optiml.event/1", "event": "cluster", "workers": workers, "dashboard": ""})
    events = []
    for number in range(8):
        kernel = {"kernel": f"k{number}", "worker": str(number % workers), "candidates": 0, "best": 1.0}
        begin = 5.0 + 10.0 * (number // workers)
        events.append((begin, json.dumps({"event": "begin", **kernel})))
        events.append((begin + 10.0, json.dumps({"event": "end", **kernel, "candidates": 15, "best": 2.0})))
    yield from sorted(events)
    yield 8.0 + 80.0 / workers, json.dumps({"schema": "optiml.all/1", "verdict": "8 suggestions"})


def test_a_campaign_is_its_searches_and_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = tmp_path / "record.json"
    files = [str(campaign_rate.ROOT / "examples" / "dot.cu")]
    assert campaign_rate.main([*files, "--workers", "1,4", "--record", str(record)], _lines) == 0
    said = capsys.readouterr().out
    assert "| 1 | 80 s | 1.00 | 88 s | 1.00 | 80 s | 8 |" in said
    assert "| 4 | 20 s | 4.00 | 28 s | 3.14 | 80 s | 8 |" in said
    found = json.loads(record.read_text())["campaigns"]["4"]["kernels"]["k5"]
    assert found == {"begin_s": 15.0, "end_s": 25.0, "candidates": 15, "best": 2.0, "worker": "1"}


def test_a_failed_campaign_is_named_and_leaves_the_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [str(campaign_rate.ROOT / "examples" / "dot.cu")]
    assert campaign_rate.main([*files, "--workers", "1,3", "--record", str(tmp_path / "r.json")], _lines) == 1
    said = capsys.readouterr()
    assert "3 workers:" in said.err
    assert list(json.loads((tmp_path / "r.json").read_text())["campaigns"]) == ["1"]
