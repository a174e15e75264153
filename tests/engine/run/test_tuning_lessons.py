"""What a tuning run teaches, and what earlier lessons change in one."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.cuda.load import load_program
from engine.errors import MachineError
from engine.llm.lesson_store import KernelTraits, Lesson, Memory, features_of, lesson_from
from engine.model import Evaluation, Failure, Measurement, Outcome, Target
from engine.rewrite.proposal import Proposal
from engine.rules import make_site
from engine.run.tuning_lessons import TuningLessons, parameter_gains
from engine.settings.memory_settings import MemorySettings
from engine.spec.find import find_spec
from engine.spec.reader import specs_in
from engine.tune.chosen_template import make_template
from engine.tune.evaluated_point import Tried
from engine.tune.template import UnusableTemplate
from engine.tune.tune_options import TuneOptions
from tests.engine.tune.kernels import program, template

ROOT = Path(__file__).resolve().parents[3]
GELU = ROOT / "examples" / "gelu_bias.cu"


def tried(number: int, point: tuple[int, int], value: float | None, *, predicted: bool = False) -> Tried:
    ratio = 2 ** (value or 0.0)
    measurement = Measurement((), ratio, ratio, ratio, predicted=predicted) if value is not None else None
    return Tried(number, point, Evaluation(Outcome.ACCEPTED, measurement), value)


POINTS = [tried(1, (64, 1), -1.0), tried(2, (128, 4), 1.5), tried(3, (256, 4), 0.5), tried(4, (128, 1), None)]


@pytest.fixture
def settings(tmp_path: Path) -> MemorySettings:
    return MemorySettings(tmp_path / "memory.sqlite", "here")


def lessons_in(settings: MemorySettings) -> list[Lesson]:
    memory = Memory(settings.path)
    found = list(memory.lessons())
    memory.close()
    return found


def saxpy(settings: MemorySettings | None) -> TuningLessons:
    return TuningLessons(settings, specs_in(program(), None)[0], Target(), program())


def test_each_parameter_gains_over_the_best_with_the_originals_value() -> None:
    """The original is BLOCK = 256, ITEMS = 1."""
    assert parameter_gains(template(), POINTS) == [
        ("Of constants: BLOCK = 128 instead of 256", "BLOCK", pytest.approx(2.0)),
        ("Of constants: ITEMS = 4 instead of 1", "ITEMS", pytest.approx(2**1.5)),
    ]
    assert parameter_gains(template(), POINTS[:1]) == []  # the original is the best


def test_the_best_point_and_its_parameters_are_kept(settings: MemorySettings) -> None:
    lessons = saxpy(settings)
    lessons.learn(template(), POINTS)
    lessons.learn(template(), POINTS)  # a run that goes on
    assert lessons.summary == {"learnt": 6, "told": 0, "reweighed": 0}
    lessons.close()
    found = lessons_in(settings)
    assert [(one.rule, one.ratio) for one in found] == [
        ("constants", pytest.approx(2**1.5)), ("constants:BLOCK", pytest.approx(2.0)), ("constants:ITEMS", pytest.approx(2**1.5)),
    ]  # fmt: skip
    assert not any(one.predicted for one in found)
    assert found[0].sentence == "Set BLOCK = 128, ITEMS = 4: gave 2.83x on sm_90"


def test_predicted_gains_say_so_and_a_template_that_fails_is_a_failure(settings: MemorySettings) -> None:
    lessons = saxpy(settings)
    lessons.learn(template(), [tried(1, (128, 1), 1.0, predicted=True)])
    wrong = Evaluation(Outcome.WRONG_RESULT, failure=Failure("differs"))
    lessons.failed(template(), UnusableTemplate("differs", point={"BLOCK": 64}, evaluation=wrong))
    lessons.learn(template(), [])
    lessons.close()
    said = [one.sentence for one in lessons_in(settings)]
    assert said == [
        "Set BLOCK = 128, ITEMS = 1: was predicted to give 2x on sm_90",
        "Of constants: BLOCK = 128 instead of 256: was predicted to give 2x on sm_90",
        "Set BLOCK, ITEMS: ended in wrong result on sm_90",
    ]


def test_without_a_memory_nothing_is_kept_or_changed() -> None:
    lessons = saxpy(None)
    lessons.learn(template(), POINTS)
    assert lessons.summary is None
    assert lessons.prior("unroll", 0.5) == 0.5
    assert lessons.notes == ()


def test_lessons_decide_which_rules_template_is_tuned(settings: MemorySettings) -> None:
    spec, spec_path = find_spec(ROOT, GELU)
    gelu, target = load_program(GELU, spec_file=spec_path, kernels=[spec.kernel]), Target()
    options = TuneOptions(path=GELU)
    assert make_template(options, gelu, spec, spec_path, target)[0].name == "vectorize"
    traits = KernelTraits("here", target.arch, (), features_of(make_site(gelu, spec, 0, target)))
    memory = Memory(settings.path)
    for rule, outcome, ratio in (("vectorize", Outcome.WRONG_RESULT, None), ("block_size", Outcome.ACCEPTED, 2.0)):
        edit = Proposal("rules", rule, "Do it", {})
        memory.add(lesson_from(traits, edit, outcome, ratio, predicted=False))
    memory.close()
    lessons = TuningLessons(settings, spec, target, gelu)
    assert make_template(options, gelu, spec, spec_path, target, lessons.prior)[0].name == "block_size"
    lessons.close()


def test_a_memory_that_cannot_be_opened_is_an_error_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "memory.sqlite").write_bytes(b"no database" * 100)
    with pytest.raises(MachineError, match="memory"):
        saxpy(MemorySettings(tmp_path / "memory.sqlite", "here"))
