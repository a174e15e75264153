"""A changed kernel at the base against the head: same spec, same inputs, timed in turn."""

from __future__ import annotations

from bot.bundle import Comparison
from engine.compile.built import NotBuilt
from engine.errors import OptimlError
from engine.evaluate.evaluator import Evaluator
from engine.model import Evaluation, Outcome, Program

# A model of a machine is not told apart at less. Ours.
_PREDICTED_MARGIN = 0.05


def compare(evaluator: Evaluator, base: Program, head: Program) -> Comparison:
    """How much faster the head's kernel is than the base's, under the evaluator's spec.

    Both programs carry their files under the head's names. A head that computes something else than the base is not
    compared: its times would say nothing. Raises nothing for what the programs hold; MachineError for the machine.
    """
    try:
        original, _ = evaluator.open(base)
    except OptimlError as error:
        return Comparison("not compared", None, f"the base fails with this spec: {error}")
    try:
        built = evaluator.build(head, by_rules=False)
    except NotBuilt as error:
        reason = error.evaluation.failure if error.evaluation else None
        return Comparison("not compared", None, reason.reason if reason else str(error))
    if built.identity == original.identity:
        return Comparison("no difference", None, "the same machine code and launch")
    evaluation, _ = evaluator.evaluate(built, None)
    return standing(evaluation)


def standing(evaluation: Evaluation) -> Comparison:
    """What an evaluation of the head against the base says."""
    measurement = evaluation.measurement
    if evaluation.outcome is Outcome.DUPLICATE:
        return Comparison("no difference", None, "the same machine code")
    if measurement is None or evaluation.outcome is Outcome.UNSTABLE or not measurement.stable:
        reason = evaluation.failure.reason if evaluation.failure else evaluation.outcome.value.replace("_", " ")
        if evaluation.outcome is Outcome.WRONG_RESULT:
            reason = f"the outputs of head and base differ: {reason}"
        return Comparison("not compared", None, reason)
    low, high = measurement.low, measurement.high
    if measurement.predicted:
        low, high = measurement.ratio * (1 - _PREDICTED_MARGIN), measurement.ratio * (1 + _PREDICTED_MARGIN)
    if low > 1.0:
        return Comparison("faster", measurement)
    if high < 1.0:
        return Comparison("slower", measurement)
    return Comparison("no difference", measurement)
