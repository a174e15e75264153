"""The tuner on a GPU: points verified and timed, a template that is wrong refused, dispatch code confirmed."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.errors import RefusedError
from engine.machine import make_machine
from engine.search.loop import Budget
from engine.tune import TuneOptions, tune

from ..engine.tune.kernels import SAXPY

pytestmark = pytest.mark.gpu
TUNING = Path(__file__).resolve().parents[2] / "benchmarks" / "tuning"


@pytest.fixture(scope="module")
def machine():
    found = make_machine(device="gpu")
    yield found
    found.close()


@pytest.mark.parametrize("strategy", ["model", "halving", "exhaustive"])
def test_a_transpose_finds_its_tile(machine, tmp_path, strategy):
    result = tune(
        TuneOptions(path=TUNING / "transpose.cu", strategy=strategy, budget=Budget(candidates=25), out=tmp_path),
        machine,
    )
    assert result.mode == "measured"
    assert result.best is not None
    assert result.best.evaluation.measurement.low > 1.3
    assert result.best.values["STAGED"] == 1
    assert result.counts["configurations"] <= 25
    assert (tmp_path / "best.patch").is_file()


def test_a_wrong_template_is_refused(machine, tmp_path):
    text = (
        (TUNING / "transpose.cu")
        .read_text()
        .replace("(row0 + y) * cols", "(row0 + y + (STAGED ? 0 : SWEEP - 1)) * cols")
    )
    text = text.replace("tune SWEEP = 1, 2, 4", "tune SWEEP = 2, 4").replace("tune STAGED = 0, 1", "tune STAGED = 0")
    (tmp_path / "k.cu").write_text(text)
    with pytest.raises(RefusedError, match="does not reproduce the original at"):
        tune(TuneOptions(path=tmp_path / "k.cu", budget=Budget(candidates=12), out=tmp_path / "out"), machine)


def test_dispatch_code_is_confirmed_on_the_device(machine, tmp_path):
    # Few threads with much work each starve the small shape; the large one does not mind.
    text = SAXPY.replace("tune BLOCK = 64, 128, 256, 2048", "tune BLOCK = 32, 256").replace(
        "#define BLOCK 256", "#define BLOCK 32"
    )
    text = text.replace("tune ITEMS = 1, 2, 4", "tune ITEMS = 1, 8, 64").replace("int ITEMS = 1;", "int ITEMS = 64;")
    (tmp_path / "saxpy.cu").write_text(text)
    result = tune(
        TuneOptions(path=tmp_path / "saxpy.cu", budget=Budget(candidates=12), out=tmp_path / "out", dispatch=True),
        machine,
    )
    assert result.best is not None
    assert len(result.shapes) == 2
    if result.dispatch is None:
        assert any("no dispatch code" in note for note in result.notes)
        return
    assert result.dispatch.key == "n"
    assert result.dispatch.ratio > 1
    assert all(e.measurement is not None for e in result.dispatch.evaluations)
    assert b"template <int BLOCK, int ITEMS>" in (tmp_path / "out" / "dispatch.patch").read_bytes()
