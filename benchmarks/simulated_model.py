"""Where to ask a model and what helps it: arms with a simulated model on simulated kernels, at equal candidates and at equal tokens.

    python benchmarks/simulated_model.py --record benchmarks/results/simulated_model.json

No language model takes part. The kernels are those of benchmarks/landscapes.py. Rules propose a part of each kernel's edits. The model is
asked where the policy selects a question, answers some candidates later, and draws its edits from all that the program admits; the rates
at which its edits are unusable, fail or change nothing are declared in `RATES` and in the record. Compared are the geometric means of the
best speedup, as a ratio to the first arm on the same kernels, with a 95 % interval (percentile bootstrap over kernels).

Three groups of arms beside the policies:

- *Parts of a prompt.* What diagnosis, techniques and memory say to a model cannot be simulated; what they cost can. `no-…` leaves a part
  out, which saves its tokens and changes nothing else: the most that leaving it out can bring. `half-informed` and `uninformed` choose
  worse for the same tokens: the most that a part which informs can be worth.
- *The judge.* The product's own judge (`engine.llm.judge`) with estimates of a declared quality: good, useless, inverted. Its requests cost
  tokens until its record switches it off.
- *Templates.* A model that knows which rule pays, but not which size: `direct` writes one size, `template` leaves it open and the tuner
  tries all, each of them a candidate. Repeated for each kernel: the spread is the standard deviation over repetitions, in doublings.

Exit code 0.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import random
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.examples import head
from benchmarks.landscapes import KINDS, Edit, Landscape, landscape, lead
from engine.llm.chat import ChatAnswer, ChatRequest
from engine.llm.judge import MOST_JUDGED, Estimate, Judge
from engine.model import Evaluation, Failure, Measurement, Outcome, Program
from engine.rewrite.proposal import Proposal
from engine.search.policies import Strategy
from engine.search.progress import Budget, in_flight
from engine.search.question import ANSWERED, FAILED, MODEL, Answer, Question, question
from engine.search.tree import Node, Tree

SCHEMA = "optiml.simulated_model/2"
CANDIDATES = (25, 50, 100, 400)
TOKENS = (50_000, 100_000, 200_000, 400_000)
_NOISE = 0.01  # of a doubling
_FRUITLESS = 20  # answers in a row without an edit: as in the product the model is asked no more
_REPETITIONS = 5  # of each kernel, where a spread is asked for
_JOBS = 16  # compilers of the machine that is simulated


@dataclass(frozen=True)
class Rates:
    """What a simulated model is: shares of its edits, what a question costs, and how well it chooses.

    `unusable`: cannot be placed, costs no candidate. `failing`: does not build or is incorrect. `useless`: changes nothing. The rest are
    edits of the kernel, drawn with weights 2 ** (gain / `temper`), gains in doublings. `hidden`: share of rules that the model alone has.
    `tokens` of a question with its answer, `edits` in it; it comes `late` candidates after it was asked, and `at_once` are awaited.
    """

    unusable: float = 0.10
    failing: float = 0.15
    useless: float = 0.35
    temper: float = 0.5
    hidden: float = 0.5
    tokens: int = 8_300
    edits: int = 3
    late: int = 5
    at_once: int = 2


# As recorded: `failing` (model_arms-h200.json: 34 of 39 candidates pass) and `tokens` (answers/: medians 4,747 and 3,600). Others: ours.
RATES = Rates()


@dataclass(frozen=True)
class Judging:
    """How a judge estimates: `sign` times the true gain in doublings plus noise of that deviation, and its risk of what fails and of
    what does not."""

    sign: float
    noise: float
    risk_failing: float
    risk_passing: float
    tokens: int = 4_000


# Tokens as estimated for four kernels (message_passing, attention, softmax, scan): medians of a judge's question with its answer, and of
# the parts of a prompt. Qualities: ours.
JUDGES = {
    "good": Judging(1.0, 0.3, 0.6, 0.15),
    "useless": Judging(0.0, 0.5, 0.2, 0.2),
    "inverted": Judging(-1.0, 0.3, 0.1, 0.4),
}
PARTS = {"diagnosis": 140, "retrieval": 850, "memory": 230}


@dataclass(frozen=True)
class Arm:
    """A policy, with a model or by rules alone; how the model chooses, who judges, and whether it names sizes or leaves them open."""

    strategy: Strategy
    model: bool = True
    rates: Rates = RATES
    judge: str = ""
    sizes: str = ""  # "" it knows them, "drawn" one by chance, "open" all are tried


ARMS: Mapping[str, Arm] = {
    "greedy": Arm("greedy"), "mcts": Arm("mcts"), "epsilon-greedy": Arm("epsilon-greedy"), "beam": Arm("beam"),
    "best-of": Arm("best-of"), "refine": Arm("refine"), "random": Arm("random"),
    "rules-greedy": Arm("greedy", model=False), "rules-mcts": Arm("mcts", model=False),
    **{f"no-{part}": Arm("greedy", rates=replace(RATES, tokens=RATES.tokens - tokens)) for part, tokens in PARTS.items()},
    "half-informed": Arm("greedy", rates=replace(RATES, temper=1.0)), "uninformed": Arm("greedy", rates=replace(RATES, temper=1e9)),
    **{f"judge-{quality}": Arm("greedy", judge=quality) for quality in JUDGES},
}  # fmt: skip
TEMPLATES: Mapping[str, Arm] = {"direct": Arm("greedy", sizes="drawn"), "template": Arm("greedy", sizes="open")}
_OPEN = -3  # stands for all variants of a rule


@dataclass(frozen=True)
class State:
    """A program: the edits that were made, and marks of edits that change nothing or fail."""

    made: frozenset[Edit] = frozenset()
    marks: frozenset[str] = frozenset()

    @property
    def program(self) -> Program:
        return Program({"k.cu": repr((sorted(self.made), sorted(self.marks))).encode()}, "k.cu")


class _Nobody:
    """A client that is never asked: a simulated judge's estimates come without one."""

    def complete(self, request: ChatRequest) -> ChatAnswer:
        raise AssertionError(request.label)


_NOBODY = _Nobody()


class Run:
    """One search of one kernel. `curve`: the best gain (doublings) after so many candidates and tokens."""

    def __init__(self, where: Landscape, arm: Arm, seed: int, repetition: int = 0) -> None:
        self._where, self._rates, self._model, self._sizes = where, arm.rates, arm.model, arm.sizes
        again = f" {repetition}" if repetition else ""
        self._random, self._noise = (
            random.Random(f"model {seed}{again}"),
            random.Random(f"{seed}{again}" if again else seed),
        )
        rules = range(len(where.gains))
        self._hidden = set(random.Random(f"hidden {seed}").sample(list(rules), round(arm.rates.hidden * len(rules))))
        self._judging = JUDGES.get(arm.judge)
        self.judge = Judge(_NOBODY) if self._judging is not None else None
        self._states = {State().program.digest: State()}
        self._tree = Tree(State().program, self._propose, seed, arm.strategy)
        self._tree.mixture.counted = True
        if self.judge is not None:
            self._tree.opinion = self.judge.opinion
        self._tree.root.evaluation = Evaluation(Outcome.ACCEPTED, Measurement((), 1.0, 1.0, 1.0))
        self._seen = {self._code(State()): self._tree.root.evaluation}
        self._asked: list[tuple[int, Node, Question]] = []  # due after so many candidates
        self._answers = self._fruitless = 0
        self.best, self.done, self.tokens = 0.0, 0, 0
        self.curve: list[tuple[int, int, float]] = []
        self._pose(self._tree.root)

    def _propose(self, of: Program) -> list[Proposal]:
        state = self._states[of.digest]
        return [self._edit("rules", r, v) for r, v in self._where.edits(state.made) if r not in self._hidden]

    def _edit(self, proposer: str, rule: int, variant: int, rank: int = 0) -> Proposal:
        if proposer == MODEL:
            name = f"answer {self._answers}.{rank}"
            parameters = {"rule": str(rule), "variant": str(variant)}
            tries = len(self._where.gains[rule]) if variant == _OPEN else 1
            return Proposal(MODEL, name, name, {}, parameters, 0.6 - 0.05 * rank, tries=tries)
        prior = self._where.priors[rule][variant]
        return Proposal("rules", f"rule {rule}", f"variant {variant}", {}, self._where.parameters(rule, variant), prior)

    def _pose(self, node: Node) -> None:
        if self._model:
            self._tree.pose(node, question())

    def _answer(self, node: Node, posed: Question) -> None:
        """Edits drawn for a node. Unusable ones are left out; a question whose answer holds none has failed."""
        state, rates = self._states[node.program.digest], self._rates
        found: list[Proposal] = []
        there = self._where.edits(state.made)
        weights = [2.0 ** (self._known(r, v) / rates.temper) for r, v in there]
        for rank in range(rates.edits):
            drawn = self._random.random()
            if drawn < rates.unusable or not there:
                continue
            drawn -= rates.unusable
            kind = -2 if drawn < rates.failing else -1 if drawn < rates.failing + rates.useless else 0
            rule, variant = (
                (kind, self._answers * rates.edits + rank) if kind else self._random.choices(there, weights)[0]
            )
            found.append(self._edit(MODEL, rule, _OPEN if self._sizes == "open" and not kind else variant, rank))
        self._answers += 1
        self._fruitless = 0 if found else self._fruitless + 1
        found, judged = self._judged(node, found)
        self._tree.answered(Answer(node, posed, ANSWERED if found else FAILED, found, judged))
        self._tree.pose(node, question(round=posed.round + 1))

    def _known(self, rule: int, variant: int) -> float:
        """What the model knows of an edit's gain: of a model that does not know sizes, the mean over those."""
        gains = self._where.gains[rule]
        return statistics.fmean(gains) if self._sizes else gains[variant]

    def _judged(self, node: Node, found: list[Proposal]) -> tuple[list[Proposal], list[Proposal]]:
        """The edits of an answer and the best others of the node with the judge's part in their priors, for the tokens of its question."""
        if self.judge is None or self._judging is None or not found or self.judge.calibration.off:
            return found, []
        self.tokens += self._judging.tokens
        others = list(node.untried or ())[: -MOST_JUDGED - 1 : -1]
        shown = [*found, *others][:MOST_JUDGED]
        weighed = self.judge.weighed([*found, *others], {id(p): self._estimate(node, p) for p in shown})
        return weighed[: len(found)], weighed[len(found) :]

    def _estimate(self, node: Node, proposal: Proposal) -> Estimate:
        how, state = self._judging, self._state(node, proposal)
        assert how is not None
        before, after = self._where.worth(self._states[node.program.digest].made), self._where.worth(state.made)
        fails = after is None or any(mark.startswith("fails") for mark in state.marks)
        gain = 0.0 if after is None or before is None else after - before
        seen = how.sign * gain + self._random.gauss(0, how.noise)
        return Estimate(2.0**seen, how.risk_failing if fails else how.risk_passing)

    def _state(self, node: Node, proposal: Proposal) -> State:
        state, rule, variant = (
            self._states[node.program.digest],
            *(int(proposal.parameters[name]) for name in ("rule", "variant")),
        )
        if rule < 0:
            return State(state.made, state.marks | {f"{'fails' if rule == -2 else 'idle'} {variant}"})
        if variant == _OPEN:  # the best of its sizes
            made = [state.made | {(rule, each)} for each in range(len(self._where.gains[rule]))]
            return State(
                max(made, key=lambda edits: -math.inf if (worth := self._where.worth(edits)) is None else worth),
                state.marks,
            )
        return State(state.made | {(rule, variant)}, state.marks)

    def _code(self, state: State) -> tuple[frozenset[Edit], frozenset[str]]:
        """What compiles to the same code. An edit that changes nothing gives other code that is as fast."""
        return self._where.code(state.made), state.marks

    def _evaluated(self, state: State) -> Evaluation:
        worth = self._where.worth(state.made)
        if worth is None or any(mark.startswith("fails") for mark in state.marks):
            return Evaluation(Outcome.WRONG_RESULT, failure=Failure("simulated"))
        self.best = max(self.best, worth)
        seen = worth + self._noise.gauss(0, _NOISE)
        ratio = 2.0**seen
        outcome = Outcome.ACCEPTED if seen > _NOISE else Outcome.SLOWER if seen < -_NOISE else Outcome.NO_DIFFERENCE
        return Evaluation(outcome, Measurement((), ratio, ratio / 1.01, ratio * 1.01))

    def to(self, candidates: int) -> Run:
        """Search until so many candidates were tried, or nothing is left."""
        ahead = in_flight(_JOBS, Budget(candidates=min(candidates, 100)))
        pending: list[tuple[Node, Proposal, State]] = []
        while self.done < candidates:
            for due in [one for one in self._asked if one[0] <= self.done]:
                self._asked.remove(due)
                self._answer(*due[1:])
            while len(pending) < ahead and (chosen := self._select()) is not None:
                node, proposal = chosen
                if isinstance(proposal, Question):
                    self._asked.append((self.done + self._rates.late, node, proposal))
                    self.tokens += self._rates.tokens
                    continue
                state = self._state(node, proposal)
                digest = state.program.digest
                if digest in self._tree.digests or any(digest == other.program.digest for *_, other in pending):
                    self._tree.settle(node)
                else:
                    pending.append((node, proposal, state))
            if pending:
                self._take(*pending.pop(0))
            elif self._asked:  # nothing to do but wait
                due = self._asked.pop(0)
                self._answer(*due[1:])
            else:
                break
            self.curve.append((self.done, self.tokens, self.best))
        return self

    def best_after(self, candidates: int) -> float:
        """The best gain after at most so many candidates: a template may go beyond a budget."""
        return max((best for done, _, best in self.curve if done <= candidates), default=0.0)

    def _select(self) -> tuple[Node, Proposal] | None:
        asking = self._model and len(self._asked) < self._rates.at_once and self._fruitless < _FRUITLESS
        return self._tree.select(asking=asking)

    def _take(self, node: Node, proposal: Proposal, state: State) -> None:
        self._tree.settle(node)
        self.done += proposal.tries
        program, code = state.program, self._code(state)
        self._states[program.digest] = state
        if code in self._seen:
            evaluation = Evaluation(Outcome.DUPLICATE, self._seen[code].measurement)
        else:
            evaluation = self._seen[code] = self._evaluated(state)
        added = self._tree.add(self.done, node, proposal, program, evaluation)
        if self.judge is not None:
            self.judge.booked(added)
        if evaluation.outcome not in (Outcome.DUPLICATE, Outcome.WRONG_RESULT):
            self._pose(added)


def measured(kinds: Sequence[str], seeds: int, arms: Sequence[str]) -> dict[str, dict[str, list[float]]]:
    """By setting ("100 candidates"), by arm: the best gain on each kernel, kinds and seeds in order."""
    found: dict[str, dict[str, list[float]]] = {}
    for arm in arms:
        for at, kind in enumerate(kinds):
            for seed in range(seeds):
                where = landscape(kind, seed)
                for name, run in runs(where, ARMS[arm], 1000 * at + seed).items():
                    found.setdefault(name, {}).setdefault(arm, []).append(run)
        print(f"{arm} done", file=sys.stderr, flush=True)
    return found


def runs(where: Landscape, arm: Arm, seed: int, repetition: int = 0) -> dict[str, float]:
    """The best gain at each number of candidates and of tokens; tokens only where a model takes part."""
    searched = {n: Run(where, arm, seed, repetition).to(n) for n in CANDIDATES}
    found = {f"{n} candidates": run.best_after(n) for n, run in searched.items()}
    if arm.model:
        curve = searched[CANDIDATES[-1]].curve
        found |= {f"{t} tokens": max((best for _, spent, best in curve if spent <= t), default=0.0) for t in TOKENS}
    return found


def spread(kinds: Sequence[str], seeds: int) -> dict[str, Any]:
    """By setting: a model that writes one size against one that leaves sizes open, and how far repetitions of each lie apart."""
    gains: dict[str, dict[str, list[list[float]]]] = {}
    for arm, how in TEMPLATES.items():
        for at, kind in enumerate(kinds):
            for seed in range(seeds):
                for repetition in range(_REPETITIONS):
                    found = runs(landscape(kind, seed), how, 1000 * at + seed, 1 + repetition)
                    for setting, gain in found.items():
                        of = gains.setdefault(setting, {}).setdefault(arm, [])
                        if not repetition:
                            of.append([])
                        of[-1].append(gain)
        print(f"{arm} done", file=sys.stderr, flush=True)
    rows: dict[str, Any] = {}
    for setting, of_arm in gains.items():
        means = {arm: [statistics.fmean(each) for each in every] for arm, every in of_arm.items()}
        apart = {arm: [statistics.stdev(each) for each in every] for arm, every in of_arm.items()}
        middle, low, high = (2.0**value for value in lead(means["template"], means["direct"]))
        rows[setting] = {
            "geometric_mean": {arm: 2.0 ** statistics.fmean(values) for arm, values in means.items()},
            "template_over_direct": middle, "low": low, "high": high,
            "spread": {arm: statistics.fmean(values) for arm, values in apart.items()},
            "spread_difference": dict(zip(("mean", "low", "high"), lead(apart["template"], apart["direct"]), strict=True)),
        }  # fmt: skip
    return rows


def calibrations(kinds: Sequence[str], seeds: int) -> dict[str, Any]:
    """By judge, over the searches of 100 candidates: its rank correlation and weight at the end, and in how many it was switched off."""
    rows = {}
    for quality in JUDGES:
        ends = []
        for at, kind in enumerate(kinds):
            for seed in range(seeds):
                run = Run(landscape(kind, seed), ARMS[f"judge-{quality}"], 1000 * at + seed).to(100)
                assert run.judge is not None
                ends.append(run.judge.calibration)
        known = [one.rank_correlation for one in ends if one.rank_correlation is not None]
        rows[quality] = {
            "searches": len(ends), "off": sum(one.off for one in ends), "weight": statistics.median(one.weight for one in ends),
            "rank_correlation": statistics.median(known), "measured": statistics.median(one.measured for one in ends),
        }  # fmt: skip
    return rows


def summary(found: Mapping[str, Mapping[str, Sequence[float]]]) -> dict[str, Any]:
    """By setting and arm: the geometric mean speedup, and its ratio to the first arm with an interval."""
    rows: dict[str, Any] = {}
    for setting, arms in found.items():
        first = next(iter(arms.values()))
        rows[setting] = {}
        for arm, gains in arms.items():
            middle, low, high = (2.0**value for value in lead(gains, first))
            mean = 2.0 ** (sum(gains) / len(gains))
            rows[setting][arm] = {"geometric_mean": mean, "over_first": middle, "low": low, "high": high}
    return rows


def table(rows: Mapping[str, Mapping[str, Mapping[str, float]]], arms: Sequence[str]) -> str:
    """The summary in Markdown."""
    lines = ["| simulated | " + " | ".join(arms) + " |", "|---|" + "---:|" * len(arms)]
    for setting, found in rows.items():
        cells = []
        for arm in arms:
            one = found.get(arm)
            cells.append("" if one is None else f"{one['over_first']:.3f} ({one['low']:.3f} to {one['high']:.3f})")
        cells[0] = f"{found[arms[0]]['geometric_mean']:.2f}×"
        lines.append(f"| {setting} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main(given: Sequence[str] | None = None) -> int:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description="Search policies with a simulated model on simulated kernels.")
    parser.add_argument("--kinds", default=",".join(KINDS), help="of benchmarks/landscapes.py (default: all)")
    parser.add_argument("--seeds", type=int, default=20, help="kernels of each kind (default: 20)")
    parser.add_argument("--arms", default=",".join(ARMS), help="the first is compared with (default: all)")
    parser.add_argument("--record", type=Path)
    options = parser.parse_args(given)
    kinds, arms = options.kinds.split(","), options.arms.split(",")
    if not set(kinds) <= set(KINDS) or not set(arms) <= set(ARMS):
        parser.error(f"kinds: {', '.join(KINDS)}; arms: {', '.join(ARMS)}")
    begin = datetime.datetime.now(datetime.UTC)
    found = measured(kinds, options.seeds, arms)
    rows = summary(found)
    print(table(rows, arms))
    templates, judges = spread(kinds, options.seeds), calibrations(kinds, options.seeds)
    print(json.dumps({"templates": templates, "judges": judges}, indent=1))
    if options.record:
        record = {
            **head(SCHEMA, __file__, given, begin),
            "simulated": "the kernels and the model are simulated; no number here is of a GPU or of a language model",
            "rates": asdict(RATES),
            "kinds": kinds,
            "seeds": options.seeds,
            "judging": {name: asdict(how) for name, how in JUDGES.items()},
            "parts": PARTS,
            "summary": rows,
            "templates": templates,
            "judges": judges,
            "by_kind": {
                kind: summary({s: {a: g[at * options.seeds : (at + 1) * options.seeds] for a, g in of.items()} for s, of in found.items()})
                for at, kind in enumerate(kinds)
            },
        }  # fmt: skip
        options.record.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
