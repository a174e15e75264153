import dataclasses
import re
from pathlib import Path

import pytest

from engine.model import Target
from engine.tune import tuning_result as result
from engine.tune.evaluated_point import Mark
from engine.tune.feasible import feasible
from engine.tune.space import Excluded
from engine.tune.strategy_choice import NAMES
from engine.tune.template import tunable

from .kernels import SAXPY, template

ROOT = Path(__file__).resolve().parents[3]
TEXT = (ROOT / "docs" / "tune.md").read_text()


@pytest.mark.parametrize(
    "part",
    [
        result.TuneResult, result.TemplateInfo, result.SpaceInfo, result.General, result.ShapeBest, result.Dispatch,
        result.Branch, result.Constants, Mark, Excluded,
    ],
)  # fmt: skip
def test_every_field_of_the_result_is_documented(part):
    assert [f.name for f in dataclasses.fields(part) if f"`{f.name}`" not in TEXT] == []


def test_the_form_of_an_optiml_toml_can_be_tuned():
    """It was refused for any file: the names in that table were taken for another use of the constants."""
    block = re.search(r"```toml\n(.*?)```", TEXT, re.S)
    assert block is not None
    toml = f"""[[kernel]]
file = "k.cu"
kernel = "saxpy"
check = [{{ n = 1 }}]
time = [{{ n = 65536 }}]
args.x = {{ size = "n", fill = "normal" }}
args.y = {{ role = "inout", size = "n", fill = "normal" }}
args.a = {{ value = "3" }}
{block[1]}"""
    bare = "".join(line for line in SAXPY.splitlines(True) if "optiml:" not in line)
    made = template(bare, "optiml.toml", {"optiml.toml": toml})
    tunable(made)
    assert made.space.names == ("BLOCK", "ITEMS")
    assert len(feasible(made, Target()).points) == 24


def test_every_rule_that_writes_templates_is_documented():
    """`unroll_jam` was missing, and `tile_size` when it came."""
    section = TEXT.partition("## A template that a rule writes")[2].partition("\n## ")[0]
    listed = section.partition("leave them open:")[2].partition(".")[0]
    rows = [line.split() for line in (ROOT / "tests" / "golden" / "proposals.txt").read_text().splitlines()]
    parametric = {row[2] for row in rows if int(row[-2])}  # with points of a family for some kernel
    assert set(re.findall(r"`(\w+)`", listed)) == parametric


def test_every_strategy_is_documented_and_offered():
    from engine.commands.command_line import STRATEGIES

    assert set(STRATEGIES) == set(NAMES)
    assert [n for n in NAMES if f"`{n}`" not in TEXT] == []
    assert f"`{result.SCHEMA}`" in TEXT
