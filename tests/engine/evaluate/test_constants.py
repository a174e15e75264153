"""Constant memory that host code fills, through the evaluator of the CPU path: edits that take other contents are refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.errors import OptimlError
from engine.model import Outcome
from engine.run.machine import make_machine
from tests.gpu.test_constants import FILTER, RIGHT, SUM
from tests.gpu.test_evaluate import Bench


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    folder: Path = tmp_path_factory.mktemp("filter")
    machine = make_machine(device="cpu")
    found = Bench(machine, folder, FILTER.replace("TIMED", "65536"))
    yield found
    found.evaluator.close()
    machine.close()


def test_an_honest_edit_passes(bench: Bench) -> None:
    assert bench(SUM, RIGHT).outcome is Outcome.SCREENED


@pytest.mark.parametrize(
    ("old", "new"),
    [("gain * (", "0.75f * 1.01f * ("), ("taps[2] * x", "taps[1] * x"), ("+ shape.bias[i]", "+ shape.bias[0]")],
)
def test_an_edit_that_takes_other_contents_is_incorrect(bench: Bench, old: str, new: str) -> None:
    assert bench(old, new).outcome is Outcome.WRONG_RESULT


def test_an_edit_of_the_declaration_is_refused(bench: Bench) -> None:
    with pytest.raises(OptimlError, match="taps"):
        bench.build("float taps[3];", "float taps[4];")
