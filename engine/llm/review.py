"""A judge's prediction of one step beside what was measured and diagnosed after it: was it right, and what limits the kernel now."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from engine.llm.judge import BOUND, BOUNDS, GAIN, RISK, step_gain
from engine.search.reward import failed
from engine.search.tree import Node

_SUFFIX = "_bound"  # of the code that a diagnosis has for its bottleneck


@dataclass(frozen=True)
class Review:
    """One judged step. `gain` is None where it failed or gave no time; a bottleneck is "" where it was not said or not diagnosed."""

    id: int
    outcome: str
    expected_gain: float
    gain: float | None
    risk: float
    expected_bound: str
    bound: str
    predicted: bool  # the gain is a prediction, no measurement

    @property
    def bound_right(self) -> bool | None:
        """Whether the bottleneck is the expected one; None where one of both is unknown."""
        return self.expected_bound == self.bound if self.expected_bound and self.bound else None

    @property
    def sentence(self) -> str:
        """Both for a model that is asked next; "" for a step without a time."""
        if self.gain is None:
            return ""
        how = "predicted" if self.predicted else "measured"
        said = f"A judge expected the last step to make it {self.expected_gain:.3g}x as fast; {how}: {self.gain:.3g}x."
        if self.bound_right:
            return f"{said} It is bound by {self.bound} now, as expected."
        if self.bound_right is False:
            return f"{said} It is bound by {self.bound} now, not by {self.expected_bound} as expected."
        return f"{said} It is bound by {self.bound} now." if self.bound else said


def review(node: Node, codes: Sequence[str]) -> Review | None:
    """The review of a node with the codes of its diagnosis; None where no judge said what it expected."""
    parameters = node.proposal.parameters if node.proposal is not None else {}
    gain, risk = parameters.get(GAIN), parameters.get(RISK)
    if not isinstance(gain, int) or not isinstance(risk, int) or node.evaluation is None:
        return None
    measurement = node.evaluation.measurement
    timed = measurement is not None and not failed(node.evaluation.outcome)
    expected = parameters.get(BOUND)
    found = next((code.removesuffix(_SUFFIX) for code in codes if code.removesuffix(_SUFFIX) in BOUNDS), "")
    return Review(
        node.id, node.evaluation.outcome.value, gain / 100, step_gain(node) if timed else None, min(1.0, risk / 100),
        expected if isinstance(expected, str) and expected in BOUNDS else "", found,
        measurement is not None and measurement.predicted,
    )  # fmt: skip


def bounds_right(reviews: Iterable[Review]) -> tuple[int, int]:
    """How many bottlenecks were as expected, of how many that were both expected and diagnosed."""
    compared = [one.bound_right for one in reviews if one.bound_right is not None]
    return sum(compared), len(compared)
