"""Nsight Compute missing, forbidden, of another version, killed midway: the search finds what it finds without, and says so."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from engine.profile import ncu
from engine.run.optimization import optimize
from engine.run.result import OptimizationResult
from tests.engine.profile.fake_ncu import install

from .scripted import ScriptedEvaluator, kernel, options, scripted


@pytest.fixture(autouse=True)
def _no_driver(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(ncu, "_PARAMETERS", tmp_path / "params")


def _run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, found: Path | None) -> OptimizationResult:
    monkeypatch.setattr("engine.run.machine.find_ncu", lambda: found)
    with scripted(ScriptedEvaluator(0.002), tmp_path) as machine:
        result, _ = optimize(options(kernel(tmp_path), tmp_path / "out"), machine)
    assert result.counts["candidates"] == 88
    assert result.best is not None
    assert result.best.evaluation.measurement is not None
    assert result.best.evaluation.measurement.ratio == pytest.approx(1.97, abs=0.01)
    return result


def test_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = _run(tmp_path, monkeypatch, None)
    assert any("Nsight Compute (ncu) is not installed" in note for note in result.notes)


@pytest.mark.parametrize(
    ("mode", "says"),
    [
        ("permission", "NVreg_RestrictProfilingToAdminUsers"),
        ("dies before its report", "the profiler ended without a report"),
        ("cannot start", "libcuda.so.1 is missing"),
    ],
)
def test_refused_or_killed_midway(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, says: str) -> None:
    result = _run(tmp_path, monkeypatch, install(tmp_path, mode))
    assert any(says in note for note in result.notes), result.notes


def test_another_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A counter that this version does not know is left out; the others count."""
    result = _run(tmp_path, monkeypatch, install(tmp_path, unknown=("dram__bytes.sum",)))
    assert not [note for note in result.notes if "no counters" in note]
    assert result.diagnosis


def test_one_that_speaks_another_language(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "ncu"
    path.write_text("#!/bin/sh\nprintf '\\033[31mwhat?\\377\\000'; head -c 100000 /dev/zero; exit 3\n")
    path.chmod(0o755)
    result = _run(tmp_path, monkeypatch, path)
    told = [note for note in result.notes if "no counters" in note]
    assert told
    assert all(len(note) < 500 for note in told)
    assert not any(ord(c) < 32 for note in told for c in note)


def test_killed_by_somebody_while_it_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever runs under it when it dies: the next one takes over, or profiling is given up with its reason."""
    import os
    import signal

    fake = install(tmp_path)

    def kill_all(program: object) -> None:
        for start in (tmp_path / "starts").iterdir():
            start.unlink()  # its number may be another's from now on
            with contextlib.suppress(OSError):
                os.kill(int(start.name), signal.SIGKILL)

    monkeypatch.setattr("engine.run.machine.find_ncu", lambda: fake)
    with scripted(ScriptedEvaluator(0.002, kill_all), tmp_path) as machine:
        result, _ = optimize(options(kernel(tmp_path), tmp_path / "out"), machine)
    assert result.counts["candidates"] == 88
    assert result.best is not None
