"""The predicted time of one text repeats, whatever inputs its accesses are counted with."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import predict_repeats
from engine.run.machine import make_machine
from tests.runtime import with_runtime

ROOT = Path(__file__).resolve().parent.parent
# Loops as long as a row of a sparse matrix, atomics that meet by chance, borders of a cube, indices of a graph.
FEW = [
    "spmv",
    *(pytest.param(name, marks=pytest.mark.slow) for name in ("histogram_float", "stencil3d", "message_passing")),
]


@pytest.mark.parametrize("name", FEW)
def test_the_same_text_has_the_same_prediction(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Predictions of spmv went from 6 microseconds to 11 seconds."""
    monkeypatch.setenv("OPTIML_CACHE", str(with_runtime(tmp_path)))
    machine = make_machine(device="cpu", arch="sm_90")
    try:
        row = predict_repeats.predictions(ROOT / "benchmarks" / "suite" / f"{name}.cu", machine, range(3))
    finally:
        machine.close()
    assert row["refused"] == []
    assert len(row["times_us"]) == 3
    assert row["spread"] <= predict_repeats.MOST


def test_the_table_names_what_varies_and_what_was_not_predicted() -> None:
    rows = [
        {"file": "a/steady.cu", "times_us": [[5.0], [5.0]], "refused": [], "spread": 1.0},
        {"file": "a/noisy.cu", "times_us": [[5.0], [6.0]], "refused": [], "spread": 1.2},
        {"file": "a/none.cu", "times_us": [], "refused": ["not predicted: other inputs"], "spread": None},
    ]
    table = predict_repeats.table({"kernels": rows})
    assert "steady" not in table
    assert "| noisy | 5.0 to 6.0 | 1.20 |" in table
    assert "| none | | | not predicted: other inputs |" in table
