from __future__ import annotations

import pytest

from engine.compile.built import NotBuilt
from engine.errors import MachineError
from engine.evaluate.contained import contained_build, contained_evaluation, unexpected
from engine.model import Evaluation, Outcome


def _deep(count: int) -> int:
    return _deep(count + 1)


def _lost() -> None:
    raise MachineError("the GPU is gone")


def test_an_unexpected_exception_is_the_candidates_outcome() -> None:
    """A RecursionError over one candidate ended the run with exit code 3."""
    with pytest.raises(NotBuilt) as caught:
        contained_build(_deep)(0)
    assert caught.value.evaluation is not None
    assert caught.value.evaluation.outcome is Outcome.SCREENED_OUT
    evaluation, against = contained_evaluation(_deep)(0)  # type: ignore[arg-type]
    assert (evaluation.outcome, against) == (Outcome.CRASHED, None)
    assert evaluation.failure is not None
    assert "internal error: RecursionError" in evaluation.failure.reason


def test_what_the_machine_lacks_still_ends_the_run() -> None:
    for contained in (contained_build(_lost), contained_evaluation(_lost)):  # type: ignore[arg-type]
        with pytest.raises(MachineError):
            contained()


def test_what_is_right_passes_through() -> None:
    done = (Evaluation(Outcome.SCREENED), 1.5)
    assert contained_evaluation(lambda: done)() is done
    with pytest.raises(KeyboardInterrupt):
        contained_build(_interrupt)()


def _interrupt() -> None:
    raise KeyboardInterrupt


def test_the_sentence_names_the_place_and_no_folder_of_the_machine() -> None:
    try:
        contained_build(1)  # type: ignore[arg-type]
    except Exception:
        pytest.fail("decorating calls nothing")
    try:
        from engine.arith import evaluate_int

        evaluate_int(None, {})  # type: ignore[arg-type]
    except Exception as error:
        said = unexpected(error)
    assert "at engine/arith.py:" in said
    assert str(__file__) not in said
