"""The compiled probe: which points it takes away, how few it compiles for that, and what it leaves alone."""

import dataclasses
import re
from concurrent.futures import Future
from pathlib import Path

import pytest

from engine import cli
from engine.cuda.load import load_program
from engine.errors import CompileError, RefusedError
from engine.evaluate.build import Builder
from engine.model import Binary, LaunchConfig, Resources, Target
from engine.run.machine import make_machine
from engine.run.template_run import tune
from engine.spec.find import find_spec
from engine.tune.compiled_probe import Compilers, probe, shapes_code
from engine.tune.feasible import feasible, fits
from engine.tune.offers import rule_templates
from engine.tune.tune_options import TuneOptions
from tests.runtime import with_runtime

from .kernels import HELD, template
from .test_tuner import Evaluator

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
LIMIT = "registers * threads <= 65536"
NAMES = ("BLOCK", "ITEMS")


class Asked:
    """Stands in for the compilers: registers by the text, and what was asked for."""

    def __init__(self, registers):
        self.registers, self.texts = registers, []

    def __call__(self, translation):
        self.texts.append(translation.text)
        future = Future()
        found = self.registers(translation.text)
        if isinstance(found, Exception):
            future.set_exception(found)
        elif found is not None:
            resources = (Resources(found, 0, 0, 0, 0),)
            future.set_result(Binary(b"", "sm_90", ("k",), resources, "h"))
        return future


def items(text):
    return int(re.search(r"ITEMS (\d+)", text)[1])


def heavy(text):
    return 90 if items(text) == 80 else 20


def ask(text=HELD, registers=heavy, jobs=2, limit=None, made=None, spec=None, **options):
    made = made or template(text, **options)
    asked = Asked(registers)
    builder = Builder(spec or made.spec, Path("/nowhere"), None, Target())
    found = feasible(made, Target())
    return found, probe(made.original, made, found, builder, Compilers(asked, jobs), limit), asked


def test_points_that_one_compile_shows_to_be_too_large_leave_the_set():
    before, after, asked = ask()
    assert set(before.points) - set(after.points) == {(1024, 80)}
    assert [(e.condition, e.points) for e in after.excluded] == [(LIMIT, 1)]
    assert [items(t) for t in asked.texts] == [4, 80]
    # What is compiled is compiled in any case: the original, and the point with the smallest block.
    assert "BLOCK 256" in asked.texts[0]
    assert "BLOCK 64" in asked.texts[1]


def test_a_set_that_registers_empty_says_so():
    with pytest.raises(RefusedError, match=rf"no point .* is feasible: '{re.escape(LIMIT)}' excludes all 2"):
        ask(registers=lambda text: 200, where=(), parameters={"BLOCK": "512, 1024", "ITEMS": "80"})
    with pytest.raises(
        RefusedError, match=rf"of 8, 'BLOCK > 256' excludes 4; '{re.escape(LIMIT)}' excludes the last 4"
    ):
        ask(registers=lambda text: 200, where=("BLOCK > 256",))
    with pytest.raises(RefusedError, match="the only feasible point is the original: BLOCK = 256, ITEMS = 4"):
        ask(registers=lambda text: 200, parameters={"BLOCK": "256, 1024", "ITEMS": "4"})


def test_a_block_that_the_compiler_sees_is_asked_for_only_where_all_points_will_be_tried():
    seen = HELD.replace("blockDim.x", "BLOCK")
    _, after, asked = ask(seen)
    assert set(after.points) == {(b, i) for b in (64, 256, 512, 1024) for i in (4, 80)} - {(1024, 80)}
    assert len(asked.texts) == 4  # blocks up to 256 fit with any code
    before, after, asked = ask(seen, limit=5)
    assert (after, asked.texts) == (before, [])
    many = {"BLOCK": "512..1024 step 32"}
    assert ask(seen, parameters=many)[2].texts == []
    assert len(ask(parameters=many)[2].texts) == 2


def test_a_bound_on_threads_keeps_the_registers_and_is_itself_a_limit():
    _, after, asked = ask(HELD.replace("void held", "void __launch_bounds__(BLOCK, 1) held"))
    assert (len(after.points), after.excluded, asked.texts) == (8, (), [])
    _, after, asked = ask(HELD.replace("void held", "void __launch_bounds__(2 * 256) held"))
    assert [(e.condition, e.points) for e in after.excluded] == [("threads per block <= 512 (__launch_bounds__)", 2)]
    assert asked.texts == []
    # A bound that the text does not tell is the compiler's.
    _, after, asked = ask(HELD.replace("void held", "void __launch_bounds__(most()) held"))
    assert [(e.condition, e.points) for e in after.excluded] == [(LIMIT, 1)]


def test_no_more_is_asked_than_the_compilers_do_at_once_and_the_most_doubtful_first():
    parameters = {"BLOCK": "64, 512, 1024", "ITEMS": "1..32"}
    _, after, asked = ask(
        registers=lambda text: 90, parameters=parameters, where=("BLOCK < 1024 || ITEMS > 16",), jobs=1
    )
    assert [items(t) for t in asked.texts] == [17, 18, 19, 20]
    assert [e.points for e in after.excluded if e.condition == LIMIT] == [4]
    assert len(ask(registers=heavy, parameters=parameters, jobs=64)[2].texts) == 16


def test_what_has_no_answer_stays(monkeypatch):
    monkeypatch.setattr("engine.tune.compiled_probe._FIRST_S", 0.05)
    monkeypatch.setattr("engine.tune.compiled_probe._MOST_S", 0.05)
    before, after, asked = ask(registers=lambda text: None)
    assert after == before
    assert len(asked.texts) == 2
    _, after, _ = ask(registers=lambda text: None if items(text) == 4 else 90)  # what the others say counts
    assert (1024, 80) not in after.points
    before, after, _ = ask(registers=lambda text: CompileError("no such thing", "k.cu:1"))
    assert after == before


def test_a_rules_template_is_asked_where_its_points_give_the_compiler_the_same_text():
    path = EXAMPLES / "gelu_bias.cu"
    spec, spec_path = find_spec(EXAMPLES.parent, path)
    made = load_program(path, spec_file=spec_path, kernels=[spec.kernel])
    blocks = next(t for t in rule_templates(made, spec, Target()) if t.name == "block_size")
    before, after, asked = ask(made=blocks, spec=spec, registers=lambda text: 90)
    assert len(asked.texts) == 1
    assert {p for p in before.points if p not in after.points} == {p for p in before.points if p[0] > 640}
    assert {e.condition: e.points for e in after.excluded}[LIMIT] == 12


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("#define BLOCK 1\n#define ITEMS 2\nvoid k() { int a = ITEMS; }", {"ITEMS"}),
        ("#ifndef BLOCK\n#define BLOCK 1\n#endif\n#if !defined(ITEMS)\n#define ITEMS 1\n#endif\nvoid k() {}", set()),
        ("#define BLOCK 1\n#if BLOCK > 3\n#endif\nvoid k() {}", {"BLOCK"}),
        ("#define BLOCK 1\n#define HALF (BLOCK / 2)\nvoid k() {}", set()),
        ("#define BLOCK 1\n#define HALF (BLOCK / 2)\n#define USED HALF\nvoid k() { USED; }", {"BLOCK"}),
        ("#define BLOCK 1\nvoid k() { /* BLOCK */ } // BLOCK", set()),
        ("#define ITEMS 1\nvoid k() {\n#pragma unroll ITEMS\nfor (;;); }", {"ITEMS"}),
        ('#define ITEMS 1\nvoid k() { _Pragma("unroll ITEMS") for (;;); }', {"ITEMS"}),
        ("#define BLOCK 1\n#define P(a, b) a##b\nvoid k() { P(BLO, CK); }", {"BLOCK", "ITEMS"}),
        ("#define BLOCK 1\n#include <cub/cub.cuh>\nvoid k() {}", {"BLOCK"}),
        ("constexpr int BLOCK = 1;\nvoid k() {}", {"BLOCK"}),
    ],
)
def test_which_constants_the_compiler_sees(text, seen):
    assert shapes_code(text, ("k",), (), NAMES) == seen


def test_template_arguments_and_defines_see_constants_too():
    text = "#define BLOCK 1\n#define ITEMS 1\nvoid k() { WIDTH; }"
    assert shapes_code(text, ("k<float, BLOCK>",), (), NAMES) == {"BLOCK"}
    assert shapes_code(text, ("k",), ("WIDTH=ITEMS",), NAMES) == {"ITEMS"}


def test_a_warp_lives_in_one_schedulers_registers():
    """288 threads of 224 registers were taken for possible: 9 warps of 7,168, where each scheduler's 16,384 hold two."""
    launch = ((LaunchConfig((1, 1, 1), (288, 1, 1)),),)
    assert fits((Resources(224, 0, 0, 0, 0),), launch, Target()) == LIMIT
    assert fits((Resources(168, 0, 0, 0, 0),), launch, Target()) == ""


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPTIML_CACHE", str(with_runtime(tmp_path_factory.mktemp("cache"), alone=True)))
        patch.setattr("engine.tune.compiled_probe._FIRST_S", 60)  # on a busy machine compilers start late
        patch.setattr("engine.tune.compiled_probe._MOST_S", 60)
        found = make_machine(device="cpu", jobs=2)
        yield found
        found.close()


class Compiled(Evaluator):
    """Builds for the target as every evaluator does, and runs nothing."""

    def __init__(self, machine, spec, root, path, **_):
        super().__init__()
        self._builder = machine.builder(spec, root, path)

    def build(self, program, *, by_rules=False):
        made = self._builder.candidate(program)
        point = (int(re.search(r"BLOCK (\d+)", made.text)[1]), items(made.text))
        self.built.append((point, made.binary.cached))
        return dataclasses.replace(made, text=str(point))


def test_what_cannot_be_launched_is_gone_before_any_point_is_compiled_as_a_candidate(machine, tmp_path, monkeypatch):
    (tmp_path / "held.cu").write_text(HELD)
    made = []
    monkeypatch.setattr(type(machine), "evaluator", lambda *a, **k: made.append(Compiled(*a, **k)) or made[0])
    options = TuneOptions(tmp_path / "held.cu", parameters={"BLOCK": "256, 1024"}, out=tmp_path / "out")
    result = tune(options, machine)
    # What was compiled to ask comes from the cache: it cost nothing beyond what the search needs.
    first = dict(reversed(made[0].built))
    assert first == {(256, 4): True, (256, 80): True, (1024, 4): False}
    assert (result.space.combinations, result.space.feasible) == (4, 3)
    assert [(e.condition, e.points) for e in result.space.excluded] == [(LIMIT, 1)]
    assert dict(result.space.by_compiler) == {}
    assert result.counts["configurations"] == 2  # and the original


def test_the_command_says_that_registers_leave_nothing(machine, tmp_path, capsys):
    (tmp_path / "held.cu").write_text(HELD)
    arguments = ["--device", "cpu", "--jobs", "2", "--param", "BLOCK=1024", "--param", "ITEMS=70,80"]
    assert cli.main(["tune", str(tmp_path / "held.cu"), "--out", str(tmp_path / "out"), *arguments]) == 1
    error = capsys.readouterr().err
    assert f"no point of the space is feasible: '{LIMIT}' excludes all 2" in " ".join(error.split())
    assert not (tmp_path / "out").exists()
