"""A model as judge: scores proposals before a GPU is spent on them. It counts little, and less when it proves wrong."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from engine.cuda.edit import edit_program
from engine.errors import OptimlError
from engine.llm.answers import json_objects
from engine.llm.chat import ChatClient, ChatError, ChatRequest, Fault
from engine.llm.edits import plain
from engine.llm.node_context import Context, node_key, program_diff
from engine.llm.prompts import TOLD, PromptError, Telling, judge
from engine.model import Outcome
from engine.rewrite.proposal import Proposal
from engine.search.reward import CONSTANTS, failed
from engine.search.tree import Node

SCORE = "judge_percent"  # the parameter of a proposal that keeps its score, in percent
MOST_JUDGED = 16  # proposals in one request
_MOST_ANSWER_TOKENS = 1_500
_TEMPERATURE = 0.0
_PRIOR_WEIGHT = 0.5  # of a prior that a judge who is always right may change. Ours.
# Before anything was measured a judge is trusted half, and that counts as much as four measured candidates. Ours.
_TRUST_AT_FIRST, _TRUST_COUNTS = 0.5, 4
_GAINS = (0.25, 8.0)  # a factor outside is no estimate

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
                "required": ["edit", "gain", "risk"],
                "properties": {"edit": {"type": "string"}, "gain": {"type": "number"}, "risk": {"type": "number"}},
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
    """How the judge did: pairs of score and measured reward, their rank correlation (None: too few, or all alike), its weight."""

    scored: int
    measured: int
    rank_correlation: float | None
    weight: float


class Judge:
    """Scores proposals in [0, 1] by likely gain and risk, and keeps count of how well that went. Thread-safe; never raises.

    `model` "" leaves the choice to the client.
    """

    def __init__(self, client: ChatClient, model: str = "", telling: Telling = TOLD) -> None:
        self._client, self._model, self._telling = client, model, telling
        self._lock = threading.Lock()
        self._pairs: list[tuple[float, float]] = []
        self._scored = 0
        self.faults: list[Fault] = []

    def scored(self, context: Context, proposals: Sequence[Proposal], round: int) -> list[Proposal]:
        """The proposals with the judge's part in their priors; as they were where it gave no score."""
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
        weight = _PRIOR_WEIGHT * self.trust
        changed: dict[int, Proposal] = {}
        for key, proposal in programs.items():
            score = scores.get(key)
            if score is not None:
                prior = (1 - weight) * proposal.prior + weight * score
                parameters = {**proposal.parameters, SCORE: round_percent(score)}
                changed[id(proposal)] = replace(proposal, prior=min(1.0, max(0.01, prior)), parameters=parameters)
        with self._lock:
            self._scored += len(changed)
        return [changed.get(id(p), p) for p in proposals]

    def _ask(self, context: Context, shown: Sequence[Judged], round: int) -> dict[str, float]:
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

    def _failed(self, fault: Fault) -> dict[str, float]:
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
        if failed(node.evaluation.outcome) or measurement is None:
            worth = CONSTANTS.wrong_result
        else:
            before = node.parent.evaluation.measurement if node.parent and node.parent.evaluation else None
            worth = math.log2(max(measurement.ratio, 1e-3) / (before.ratio if before is not None else 1.0))
        with self._lock:
            self._pairs.append((score, worth))

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
            pairs, scored = list(self._pairs), self._scored
        found = rank_correlation([s for s, _ in pairs], [w for _, w in pairs])
        trust = (len(pairs) * (found or 0.0) + _TRUST_COUNTS * _TRUST_AT_FIRST) / (len(pairs) + _TRUST_COUNTS)
        return Calibration(scored, len(pairs), found, min(1.0, max(0.0, trust)))


def _score_of(node: Node) -> float | None:
    percent = node.proposal.parameters.get(SCORE) if node.proposal is not None else None
    return percent / 100 if isinstance(percent, int) else None


def round_percent(score: float) -> int:
    """A score as whole percent."""
    return int(100 * score + 0.5)


def read_scores(text: str, known: set[str]) -> dict[str, float]:
    """Scores in [0, 1] by the key of the edit, from an answer by `SCHEMA`; what is no number or unknown is left out."""
    for value in json_objects(text):
        listed = value.get("scores", []) if isinstance(value, dict) else value
        found: dict[str, float] = {}
        for one in listed if isinstance(listed, list) else ():
            key = one.get("edit") if isinstance(one, dict) else None
            if isinstance(key, str) and key in known and _number(one.get("gain")) and _number(one.get("risk")):
                found[key] = score(float(one["gain"]), float(one["risk"]))
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
