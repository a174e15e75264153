"""The readers of strangers' bytes: seeds and past findings replayed, and a short search for new ones guided by coverage."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from .targets import TARGETS, Target, by_name

ROOT = Path(__file__).parents[2]

# What fuzzing found, by reader.
FINDINGS: tuple[tuple[str, bytes], ...] = (
    # An escape in JSON that names half a character, and bytes that are no UTF-8: no file could hold the edit.
    ("answer", json.dumps({"proposals": [{"idea": "x", "kernel": "__global__ void scale(\ud800) { }"}]}).encode()),
    ("answer", b"### Another block\n```cuda\n__global__ void sc float* y, int n) \xa7 }\n```\n"),
    # Offsets beyond what a file can have.
    ("cubin", next(iter(by_name("cubin").seeds()))[:40] + b"\xff" * 8 + next(iter(by_name("cubin").seeds()))[48:]),
)


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_seeds_and_their_pieces(target: Target) -> None:
    seeds = list(target.seeds())
    assert seeds
    for seed in seeds[:5]:
        for piece in (seed, seed[: len(seed) // 2], seed[len(seed) // 2 :], b"", seed.replace(b" ", b"\x00")):
            target.run(piece)


@pytest.mark.parametrize(("name", "data"), FINDINGS)
def test_what_was_found_stays_mended(name: str, data: bytes) -> None:
    by_name(name).run(data)


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("atheris") is None,
    reason="atheris is not installed: it has no wheel for this Python or system",
)
def test_a_short_search(tmp_path: Path) -> None:
    """The same few thousand inputs each time; `python -m tests.fuzz.run --help` says how to look longer."""
    command = [sys.executable, "-m", "tests.fuzz.run", "all", "--runs", "1500", "--seconds", "4", "--seed", "1"]
    done = subprocess.run(
        [*command, "--length", "2048", "--findings", str(tmp_path)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert "stat::number_of_executed_units" in done.stderr
