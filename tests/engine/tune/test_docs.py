import dataclasses
from pathlib import Path

import pytest

from engine.tune import result
from engine.tune.space import Excluded
from engine.tune.strategy import NAMES
from engine.tune.tuner import Mark

TEXT = (Path(__file__).resolve().parents[3] / "docs" / "tune.md").read_text()


@pytest.mark.parametrize(
    "part",
    [
        result.TuneResult, result.TemplateInfo, result.SpaceInfo, result.General, result.ShapeBest, result.Dispatch,
        result.Branch, Mark, Excluded,
    ],
)  # fmt: skip
def test_every_field_of_the_result_is_documented(part):
    assert [f.name for f in dataclasses.fields(part) if f"`{f.name}`" not in TEXT] == []


def test_every_strategy_is_documented_and_offered():
    from engine.commands.tune import _STRATEGIES

    assert set(_STRATEGIES) == set(NAMES)
    assert [n for n in NAMES if f"`{n}`" not in TEXT] == []
    assert f"`{result.SCHEMA}`" in TEXT
