"""The table of what kernels of other repositories gain."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from benchmarks import foreign_gains
from benchmarks.bench import Place, Settings
from benchmarks.foreign_gains import Kernel, listed, measure, render, row_of, summary
from engine import cli
from engine.errors import MachineError, UsageError


def result(ratio: float | None, share: int) -> dict[str, Any]:
    case = {"original_us": 10.0, "candidate_us": 10.0 / (ratio or 1.0)}
    measured = {"ratio": ratio or 1.0, "low": ratio or 1.0, "high": ratio or 1.0, "cases": [case]}
    return {
        "kernel": "k",
        "mode": "measured",
        "best": {"evaluation": {"measurement": measured}} if ratio else None,
        "original": {"measurement": measured},
        "diagnosis": [f"memory-bound: 3.00 TB/s to and from device memory, {share} % of copy (4.20 TB/s)"],
        "counts": {"candidates": 7},
        "elapsed_s": 20.0,
        "stopped": "the budget is spent",
        "signals": {"device": {"name": "NVIDIA H200"}},
        "provenance": {"versions": {}},
    }


def test_a_kernel_without_a_suggestion_counts_as_one() -> None:
    fresh = [kernel.key for kernel in listed() if not kernel.worked_on]
    found = zip(fresh, (result(4.0, 50), result(None, 60), result(None, 90)), strict=False)
    rows = {key: {"error": None, **row_of(each)} for key, each in found}
    told = summary(rows)["not looked at before"]
    assert told["geometric_mean"] == pytest.approx(4.0 ** (1 / 3))
    assert (told["kernels"], told["results"], told["improved_or_at_roof"]) == (len(fresh), 3, 2)
    assert summary(rows)["worked on"]["geometric_mean"] is None
    rows[fresh[3]] = {"error": "did not end"}
    shown = render({"rows": rows, "summary": summary(rows)})
    assert "4.00 (4.00 to 4.00) | 10.0, 2.5 | 50 % | 7" in shown
    assert "did not end" in shown


def test_each_kernel_has_a_row_of_its_own_and_none_with_a_comma() -> None:
    keys = [kernel.key for kernel in listed()]
    assert len(set(keys)) == len(keys)
    assert not any("," in key for key in keys)  # `--only` separates rows by them


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Place, Kernel]:
    """A repository of one file beside a list that names it."""
    folder = tmp_path / "an__other"
    folder.mkdir()
    (folder / "k.cu").write_text("__global__ void k(float* x) {}\n")
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(folder)]
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "x"]):
        subprocess.run([*git, *command], check=True)
    asked = [*git, "rev-parse", "HEAD"]
    commit = subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip()
    kernel = Kernel("an/other", commit, "k.cu", "k", worked_on=False)
    monkeypatch.setattr(foreign_gains, "listed", lambda: [kernel])
    return Place(tmp_path, tmp_path, tmp_path, tmp_path), kernel


def test_a_row_is_what_the_command_says_in_the_repository(
    checkout: tuple[Place, Kernel], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, kernel = checkout
    script = tmp_path / "optiml"
    said = tmp_path / "said"
    script.write_text(
        f"#!/bin/sh\npwd > {said}; echo \"$@\" >> {said}\ncat <<'END'\n{json.dumps(result(2.0, 70))}\nEND\n"
    )
    script.chmod(0o755)
    monkeypatch.setattr(foreign_gains, "optiml", lambda: str(script))
    row = measure(place, Settings(seconds=3.0, candidates=12, device="cpu"), kernel.key)
    assert (row["ratio"], row["of_copy_pct"], row["worked_on"]) == (2.0, 70, False)
    where, arguments = said.read_text().splitlines()
    assert Path(where).name == "an__other"
    assert arguments.startswith("optimize k.cu:k --device cpu --no-memory --budget 12 --out ")
    script.write_text("#!/bin/sh\necho first >&2; echo 'optiml: no spec' >&2; exit 1\n")
    with pytest.raises(MachineError, match="optiml: no spec"):
        measure(place, Settings(seconds=3.0), kernel.key)


def test_a_checkout_at_another_commit_is_named(checkout: tuple[Place, Kernel], monkeypatch: pytest.MonkeyPatch) -> None:
    place, kernel = checkout
    other = Kernel(kernel.repository, "0" * 40, kernel.file, kernel.kernel, worked_on=False)
    monkeypatch.setattr(foreign_gains, "listed", lambda: [other])
    with pytest.raises(UsageError, match=f"an__other is not at {'0' * 40}"):
        measure(place, Settings(seconds=3.0), other.key)


def test_without_checkouts_nothing_is_begun(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "foreign", "--out", str(tmp_path)]) == 2
    assert "optiml: the table 'foreign' requires checkouts" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
