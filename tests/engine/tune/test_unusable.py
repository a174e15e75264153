"""A declared template that cannot be searched is an error of `optimize` too, where the tuner proposes."""

import pytest

from engine.cli import main
from engine.model import Program, Target
from engine.spec.reader import specs_in
from engine.tune.offers import offers

from .kernels import SAXPY, program

USED = "int chunk() { return ITEMS; }\n"


@pytest.mark.parametrize(
    ("text", "code", "says"),
    [
        (SAXPY.replace("BLOCK * ITEMS <= 4096", "BLOCK > 2048"), 1, "k.cu:8: no point of the space is feasible"),
        (SAXPY.replace("BLOCK * ITEMS <= 4096", "WHAT <= 4096"), 2, "k.cu:8: the condition 'WHAT <= 4096' names 'WHAT'"),
        (SAXPY.replace("tune ITEMS = 1,", "tune ITEMS 1,"), 2, "k.cu:7: invalid declaration 'tune ITEMS 1, 2, 4'"),
        (SAXPY + USED, 1, "k.cu:7: 'ITEMS' cannot be tuned"),
    ],
)  # fmt: skip
def test_optimize_with_the_tuner_says_what_tune_says(tmp_path, capsys, text, code, says):
    """It went on without a word, and without the template."""
    (tmp_path / "k.cu").write_text(text)
    common = [
        str(tmp_path / "k.cu"),
        "--device",
        "cpu",
        "--arch",
        "sm_90",
        "--budget",
        "3",
        "--out",
        str(tmp_path / "out"),
    ]
    said = {}
    for command in (["tune"], ["optimize", "--proposers", "rules,tuner"]):
        assert main([*command, *common]) == code
        said[command[0]] = capsys.readouterr().err
    assert says in said["tune"]
    assert said["optimize"] == said["tune"]
    assert not (tmp_path / "out").exists()


def test_a_program_whose_template_became_unusable_keeps_those_of_the_rules():
    """They went with it."""
    original = program(SAXPY)
    spec = specs_in(original, None)[0]
    there = [o.template.name for o in offers(original, spec, None, Target())]
    twice = Program({"k.cu": SAXPY.replace("// optiml: where", "// optiml: tune ITEMS = 1, 2\n//").encode()}, "k.cu")
    assert there[0] == "constants"
    assert [o.template.name for o in offers(twice, spec, None, Target())] == there[1:] != []
