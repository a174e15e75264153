"""A model as judge: scores proposals before a GPU is spent on them. Its weight follows from its record, which can switch it off."""

import math
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from engine.cuda.edit import edit_program
from engine.errors import OptimlError
from engine.llm.answers import json_objects
from engine.llm.chat import ChatClient, ChatError, ChatRequest, Fault
from engine.llm.node_context import Context, node_key, program_diff
from engine.llm.plain_words import plain
from engine.llm.prompts import TOLD, PromptError, Telling, judge
from engine.model import Outcome
from engine.rewrite.proposal import Proposal
from engine.search.reward import CONSTANTS, failed
from engine.search.tree import Node

# Parameters of a proposal, so of its row in the journal: its score, the expected speedup and the risk, in percent, and the
# bottleneck that is expected after it.
SCORE, GAIN, RISK, BOUND = "judge_percent", "judge_gain_percent", "judge_risk_percent", "judge_bound"
BOUNDS = ("memory", "compute", "latency", "launch")  # those of a diagnosis (`engine.profile.diagnosis.Bound`)
MOST_JUDGED = 16  # proposals in one request
_MOST_ANSWER_TOKENS = 1_500
_TEMPERATURE = 0.0
_PRIOR_WEIGHT = 0.5  # of a prior that a judge who is always right may change. Ours.
# Before anything was measured a judge is trusted half, and that counts as much as four measured candidates. Ours.
_TRUST_AT_FIRST, _TRUST_COUNTS = 0.5, 4
_MOST_GAIN = 1000.0  # what a parameter keeps of it
_GAINS = (0.25, 8.0)  # a factor outside is no estimate
# After so many measured scores a judge below this weight is asked no more: a request costs more than it can tell. Ours.
_ENOUGH, _LEAST_WEIGHT = 12, 0.15

SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "required": ["scores"],
    "properties": {
        "scores": {
            "type": "array",
            "items": {
                "type": "object",
                "additionalProperties": False,
                "required": ["edit", "gain", "risk", "bound"],
                "properties": {
                    "edit": {"type": "string"},
                    "gain": {"type": "number"},
                    "risk": {"type": "number"},
                    "bound": {"type": "string", "enum": list(BOUNDS)},
                },
            },
        }
    },
}


@dataclass(frozen=True)
class Judged:
    """One proposal as a judge sees it: `key` names it by the code that it leads to."""

    key: str
    summary: str
    diff: str


@dataclass(frozen=True)
class Calibration:
    """How the judge did: pairs of score and measured reward, their rank correlation (None: too few, or all alike), its weight.

    `error_doublings` is the mean difference of expected and measured speedups of what passed, `risk_error` the mean square
    difference of the risk and what happened (0.25: a coin); None where there is none. `predicted` of the measured were predictions.
    `off`: it is asked no more.
    """

    scored: int
    measured: int
    rank_correlation: float | None
    weight: float
    error_doublings: float | None = None
    risk_error: float | None = None
    predicted: int = 0
    off: bool = False


@dataclass(frozen=True)
class Estimate:
    """What a judge expects of an edit: how many times as fast it is if it is right, the chance that it is not, and what limits it
    then ("": not said)."""

    gain: float
    risk: float
    bound: str = ""

    @property
    def score(self) -> float:
        """Both as one number in [0, 1]."""
        return score(self.gain, self.risk)


@dataclass(frozen=True)
class _Held:
    """A score beside what came of it. `worth` in doublings; `expected` and `risk` None where only the score is known."""

    score: float
    worth: float
    failed: bool
    predicted: bool
    expected: float | None
    risk: float | None


class Judge:
    """Scores proposals in [0, 1] by likely gain and risk, and keeps count of how well that went. Thread-safe; never raises.

    `model` "" leaves the choice to the client.
    """

    def __init__(self, client: ChatClient, model: str = "", telling: Telling = TOLD) -> None:
        self._client, self._model, self._telling = client, model, telling
        self._lock = threading.Lock()
        self._held: list[_Held] = []
        self._scored = 0
        self.faults: list[Fault] = []

    def scored(self, context: Context, proposals: Sequence[Proposal], round: int) -> list[Proposal]:
        """The proposals with the judge's part in their priors; as they were where it gave no score, or is switched off."""
        if self.calibration.off:
            return list(proposals)
        programs = {}
        for proposal in proposals[:MOST_JUDGED]:
            try:
                programs[node_key(context.place.original, edit_program(context.program, proposal.edits))[:8]] = proposal
            except (OptimlError, LookupError, ValueError):
                continue
        shown = [
            Judged(key, plain(p.summary), program_diff(context.program, edit_program(context.program, p.edits)))
            for key, p in programs.items()
        ]
        if not shown:
            return list(proposals)
        scores = self._ask(context, shown, round)
        return self.weighed(proposals, {id(p): scores[key] for key, p in programs.items() if key in scores})

    def weighed(self, proposals: Sequence[Proposal], estimates: Mapping[int, Estimate]) -> list[Proposal]:
        """The proposals with the judge's part in the priors of those that have an estimate, by their `id`."""
        weight, changed = _PRIOR_WEIGHT * self.trust, []
        for proposal in proposals:
            found = estimates.get(id(proposal))
            if found is not None:
                prior = (1 - weight) * proposal.prior + weight * found.score
                estimated = {SCORE: found.score, GAIN: found.gain, RISK: found.risk}
                bound = {BOUND: found.bound} if found.bound else {}
                parameters = {**proposal.parameters, **{k: round_percent(v) for k, v in estimated.items()}, **bound}
                proposal = replace(proposal, prior=min(1.0, max(0.01, prior)), parameters=parameters)
            changed.append(proposal)
        with self._lock:
            self._scored += len(estimates)
        return changed

    def _ask(self, context: Context, shown: Sequence[Judged], round: int) -> dict[str, Estimate]:
        try:
            messages = judge(context, shown, self._telling)
            label = f"judge/{node_key(context.place.original, context.program)}/{round}/0"
            request = ChatRequest(
                messages, label, self._model, _TEMPERATURE, _MOST_ANSWER_TOKENS, SCHEMA, f"judge: {context.about}"
            )
            answer = self._client.complete(request)
        except PromptError:
            return self._failed(Fault.TOO_LONG)
        except ChatError as error:
            return self._failed(error.fault)
        found = read_scores(answer.text, {one.key for one in shown})
        return found or self._failed(Fault.UNREADABLE)

    def _failed(self, fault: Fault) -> dict[str, Estimate]:
        with self._lock:
            self.faults.append(fault)
        return {}

    # ---- how it did

    def booked(self, node: Node) -> None:
        """A node was evaluated: hold its score, if it has one, against what was measured."""
        score = _score_of(node)
        if score is None or node.evaluation is None or node.evaluation.outcome is Outcome.DUPLICATE:
            return
        measurement = node.evaluation.measurement
        wrong = failed(node.evaluation.outcome) or measurement is None
        worth = CONSTANTS.wrong_result
        if measurement is not None and not wrong:
            worth = math.log2(step_gain(node))
        parameters = node.proposal.parameters if node.proposal is not None else {}
        gain, risk = parameters.get(GAIN), parameters.get(RISK)
        expected = math.log2(min(_GAINS[1], max(_GAINS[0], gain / 100))) if isinstance(gain, int) else None
        predicted = measurement is not None and measurement.predicted
        with self._lock:
            self._held.append(
                _Held(score, worth, wrong, predicted, expected, min(1.0, risk / 100) if isinstance(risk, int) else None)
            )

    def opinion(self, node: Node) -> float:
        """What the score adds to a candidate's reward, at most `judge_cap`; nothing to one that failed or never got a score."""
        score = _score_of(node)
        if score is None or node.evaluation is None or failed(node.evaluation.outcome):
            return 0.0
        return CONSTANTS.judge_cap * self.trust * (2 * score - 1)

    @property
    def trust(self) -> float:
        """The judge's weight in [0, 1]: the rank correlation of scores and measurements, none where it is not positive."""
        return self.calibration.weight

    @property
    def calibration(self) -> Calibration:
        with self._lock:
            held, scored = list(self._held), self._scored
        found = rank_correlation([one.score for one in held], [one.worth for one in held])
        trust = (len(held) * (found or 0.0) + _TRUST_COUNTS * _TRUST_AT_FIRST) / (len(held) + _TRUST_COUNTS)
        weight = min(1.0, max(0.0, trust))
        away = [abs(one.expected - one.worth) for one in held if one.expected is not None and not one.failed]
        square = [(one.risk - one.failed) ** 2 for one in held if one.risk is not None]
        return Calibration(
            scored, len(held), found, weight,
            sum(away) / len(away) if away else None, sum(square) / len(square) if square else None,
            sum(one.predicted for one in held), len(held) >= _ENOUGH and weight < _LEAST_WEIGHT,
        )  # fmt: skip


def step_gain(node: Node) -> float:
    """How many times as fast a measured program is as the one that it was made from."""
    assert node.evaluation is not None
    assert node.evaluation.measurement is not None
    before = node.parent.evaluation.measurement if node.parent and node.parent.evaluation else None
    return max(node.evaluation.measurement.ratio, 1e-3) / (before.ratio if before is not None else 1.0)


def _score_of(node: Node) -> float | None:
    percent = node.proposal.parameters.get(SCORE) if node.proposal is not None else None
    return percent / 100 if isinstance(percent, int) else None


def round_percent(score: float) -> int:
    """A score as whole percent."""
    return int(100 * score + 0.5)


def read_scores(text: str, known: set[str]) -> dict[str, Estimate]:
    """Estimates by the key of the edit, from an answer by `SCHEMA`; what is no number or unknown is left out."""
    for value in json_objects(text):
        listed = value.get("scores", []) if isinstance(value, dict) else value
        found: dict[str, Estimate] = {}
        for one in listed if isinstance(listed, list) else ():
            key = one.get("edit") if isinstance(one, dict) else None
            if isinstance(key, str) and key in known and _number(one.get("gain")) and _number(one.get("risk")):
                bound = one.get("bound")
                found[key] = Estimate(
                    min(_MOST_GAIN, float(one["gain"])), min(1.0, float(one["risk"])), bound if bound in BOUNDS else ""
                )
        if found:
            return found
    return {}


def score(gain: float, risk: float) -> float:
    """The expected reward of an edit that is `gain` times as fast and fails with chance `risk`, squeezed into [0, 1]."""
    low, high = _GAINS
    risk = min(1.0, max(0.0, risk))
    expected = (1 - risk) * math.log2(min(high, max(low, gain))) + risk * CONSTANTS.wrong_result
    return 0.5 + 0.5 * math.tanh(expected)


def _number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and value >= 0


def rank_correlation(left: Sequence[float], right: Sequence[float]) -> float | None:
    """Spearman's rank correlation, ties sharing their mean rank; None for fewer than three pairs or a side of equals."""
    if len(left) < 3:
        return None
    a, b = _ranks(left), _ranks(right)
    mean = (len(a) + 1) / 2
    over = sum((x - mean) * (y - mean) for x, y in zip(a, b, strict=True))
    under = math.sqrt(sum((x - mean) ** 2 for x in a) * sum((y - mean) ** 2 for y in b))
    return over / under if under > 0 else None


def _ranks(values: Sequence[float]) -> list[float]:
    order = sorted(range(len(values)), key=lambda i: values[i])
    ranks = [0.0] * len(values)
    at = 0
    while at < len(order):
        end = at
        while end + 1 < len(order) and values[order[end + 1]] == values[order[at]]:
            end += 1
        for place in order[at : end + 1]:
            ranks[place] = (at + end) / 2 + 1
        at = end + 1
    return ranks
