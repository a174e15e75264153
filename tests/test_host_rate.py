"""The script that measures the host's part of a candidate, on a small file."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks import host_rate


def test_it_reads_programs_and_feeds_devices(capsys: pytest.CaptureFixture[str]) -> None:
    file = Path(host_rate.ROOT) / "benchmarks" / "tuning" / "saxpy.cu"
    assert host_rate.main([str(file), "--devices", "1,2", "--seconds", "1.5", "--read", "1"]) == 0
    read, *fed = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"saxpy: read \d+ ms of a core", read)
    rates = [
        float(re.fullmatch(r"saxpy: feed \d of \d+ points: ([\d.]+) a second, [\d.]+ ms of a core each", line)[1])
        for line in fed
    ]  # type: ignore[index]
    assert len(rates) == 2
    assert all(0 < rate <= count / 0.02 for rate, count in zip(rates, (1, 2), strict=True))
