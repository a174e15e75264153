"""Tree search against greedy and random search on simulated kernels, to set the search's constants without a GPU.

    python benchmarks/landscapes.py [--candidates 100] [--seeds 100] [--in-flight N] [--with NAME=VALUE]... [--record FILE]

A landscape is a dozen rules with up to six variants each. A variant has a gain (in doublings of the speed), a prior that knows a
little of it, and a chance to fail; pairs of rules help or harm each other. Kinds: `few` (two or three rules matter), `mixed`, `chain`
(some rules come into reach after others), `synergy` (the same, and pairs help), `deceptive` (what gains most at first excludes what
gains most in the end), and three like the example kernels: `saturated` (one rewrite brings nearly all, its variants differ by a few
per cent and their priors do not say how, the other rules bring one or two per cent each), `idle` (the same, and half of the edits
leave the machine code as it was or give that of another edit: such candidates count and bring nothing), `closing` (the same, and
after the rewrite most rules no longer fit, of which one to three gain when they come first). In `sizes` one rule fits at three
places with four sizes each: the place makes most of its gain, the size a good part, and most other edits bring nothing.
Measurements have one per cent of noise. The result is the mean of the best gain found, and by how much the tree search leads on the
same landscapes, with a 95 % interval (percentile bootstrap over landscapes). `--with` gives a constant of the tree search another
value, `--in-flight` another number of candidates that are chosen before the first of them is known. What holds here need not hold
on a GPU: benchmarks/ablation.py measures that. Exit code 0; 2 for a constant that there is not.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from engine.model import Evaluation, Failure, Measurement, Outcome, Program  # noqa: E402
from engine.rewrite.proposal import Proposal  # noqa: E402
from engine.search import experience, puct  # noqa: E402
from engine.search.policies import Strategy  # noqa: E402
from engine.search.progress import Budget, in_flight  # noqa: E402
from engine.search.tree import Node, Tree  # noqa: E402

KINDS = ("few", "mixed", "chain", "synergy", "deceptive", "saturated", "idle", "closing", "sizes")
STRATEGIES: tuple[Strategy, ...] = ("mcts", "greedy", "random")
_RULES = 12
_NOISE = 0.01  # of a doubling
_RESAMPLES = 2000
_SIZES = 4
_JOBS = 16  # compilers of the machine that is simulated

Edit = tuple[int, int]  # rule, variant


@dataclass(frozen=True)
class Landscape:
    """What every set of edits is worth, in doublings."""

    gains: tuple[tuple[float, ...], ...]
    priors: tuple[tuple[float, ...], ...]
    pairs: dict[tuple[int, int], float]
    needs: dict[int, int]
    excludes: frozenset[frozenset[int]]
    fails: frozenset[Edit]
    same: Mapping[Edit, Edit | None] = field(
        default_factory=dict
    )  # edits that give another's machine code, None: the one there was
    shuts: Mapping[int, frozenset[int]] = field(default_factory=dict)  # what no longer fits after a rule
    sized: int = -1  # the rule whose variants are so many sizes at each of several places

    def code(self, made: frozenset[Edit]) -> frozenset[Edit]:
        """What these edits make of the machine code: programs for which it is the same are one."""
        return frozenset(effect for edit in made if (effect := self.same.get(edit, edit)) is not None)

    def parameters(self, rule: int, variant: int) -> dict[str, int | str]:
        """What the search is told of an edit."""
        place = {"place": f"place {variant // _SIZES}"} if rule == self.sized else {}
        return {"rule": rule, "variant": variant, **place}

    def edits(self, made: frozenset[Edit]) -> list[Edit]:
        """What may come next."""
        have = {rule for rule, _ in made}
        return [
            (rule, variant)
            for rule, variants in enumerate(self.gains)
            if rule not in have and self.needs.get(rule, -1) in (have | {-1})
            if not any(frozenset((rule, other)) in self.excludes or rule in self.shuts.get(other, ()) for other in have)
            for variant in range(len(variants))
        ]

    def worth(self, made: frozenset[Edit]) -> float | None:
        """The gain, None where the program is wrong."""
        made = self.code(made)
        if made & self.fails:
            return None
        rules = sorted(rule for rule, _ in made)
        together = sum(self.pairs.get((a, b), 0.0) for i, a in enumerate(rules) for b in rules[i + 1 :])
        return sum(self.gains[rule][variant] for rule, variant in made) + together


def landscape(kind: str, seed: int) -> Landscape:
    """One of a kind; the same for the same seed."""
    if kind == "sizes":
        return _sizes(random.Random(f"{kind} {seed}"))
    if kind in ("saturated", "idle", "closing"):
        return _saturated(kind, random.Random(f"{kind} {seed}"))
    rng = random.Random(f"{kind} {seed}")
    bases = (0, 0, 0, 0, 0, 0.1, 1.0) if kind == "few" else (0, 0, 0, 0.05, 0.1, 0.3, 0.8, -0.1)
    gains: list[list[float]] = []
    priors: list[list[float]] = []
    for _ in range(_RULES):
        base, variants = rng.choice(bases), range(rng.choice((1, 2, 3, 4, 6)))
        prior = min(0.9, max(0.05, 0.3 + 0.4 * base + rng.gauss(0, 0.15)))
        gains.append([base + rng.gauss(0, 0.12) if base else rng.gauss(-0.03, 0.1) for _ in variants])
        priors.append([min(0.95, max(0.02, prior + rng.gauss(0, 0.05))) for _ in variants])
    help_ = 0.05 if kind == "synergy" else -0.05
    pairs = {(a, b): rng.gauss(help_, 0.25) for a in range(_RULES) for b in range(a + 1, _RULES) if rng.random() < 0.25}
    needs: dict[int, int] = {}
    excludes: frozenset[frozenset[int]] = frozenset()
    if kind in ("chain", "synergy"):
        for rule in rng.sample(range(_RULES), 4):
            needs[rule] = rng.choice([other for other in range(_RULES) if other != rule])
            gains[rule] = [gain + rng.choice((0.3, 0.6, 0.9)) for gain in gains[rule]]
    if kind == "deceptive":
        lure, first, second, third = rng.sample(range(_RULES), 4)
        for rule, gain, prior in ((lure, 0.8, 0.6), (first, 0.5, 0.45), (second, 1.0, 0.5), (third, 0.7, 0.4)):
            gains[rule], priors[rule] = [gain], [prior]
        needs = {second: first, third: second}
        excludes = frozenset({frozenset((lure, first))})
    fails = frozenset((r, v) for r, variants in enumerate(gains) for v in range(len(variants)) if rng.random() < 0.1)
    return Landscape(tuple(map(tuple, gains)), tuple(map(tuple, priors)), pairs, needs, excludes, fails)


def _saturated(kind: str, rng: random.Random) -> Landscape:
    strong, *others = rng.sample(range(_RULES), _RULES)
    gains = [[rng.gauss(0.0, 0.02) for _ in range(rng.choice((1, 2, 3, 4, 6)))] for _ in range(_RULES)]
    priors = [[min(0.9, max(0.05, rng.gauss(0.35, 0.15)))] * len(variants) for variants in gains]
    level, variants = rng.uniform(1.5, 5.5), range(rng.choice((4, 6, 8)))
    gains[strong] = [level + rng.gauss(0.0, 0.06) for _ in variants]
    priors[strong] = [0.5 + 0.02 * rng.random() for _ in variants]
    pairs = {(a, b): rng.gauss(0.0, 0.01) for a in range(_RULES) for b in range(a + 1, _RULES) if rng.random() < 0.25}
    same: dict[Edit, Edit | None] = {}
    shuts: dict[int, frozenset[int]] = {}
    if kind in ("idle", "closing"):
        for rule in others:
            for variant in range(len(gains[rule])):
                if rng.random() < 0.5:  # as many as of the examples' candidates on the worst of them
                    same[rule, variant] = (rule, variant - 1) if variant and rng.random() < 0.3 else None
        same = {e: same.get(twin, twin) if twin else None for e, twin in sorted(same.items())}
    if kind == "closing":
        shuts[strong] = frozenset(others[:7])
        for rule in others[: rng.choice((1, 2, 3))]:
            gains[rule] = [rng.uniform(0.05, 0.2) for _ in gains[rule]]
    edits = [(rule, variant) for rule, every in enumerate(gains) for variant in range(len(every))]
    fails = frozenset(edit for edit in edits if rng.random() < 0.1 and edit != (strong, 0) and edit not in same)
    return Landscape(tuple(map(tuple, gains)), tuple(map(tuple, priors)), pairs, {}, frozenset(), fails, same, shuts)


def _sizes(rng: random.Random) -> Landscape:
    strong, *others = rng.sample(range(_RULES), _RULES)
    gains = [[rng.gauss(0.0, 0.03) for _ in range(rng.choice((1, 2, 3, 4, 6)))] for _ in range(_RULES)]
    priors = [[min(0.9, max(0.05, rng.gauss(0.3, 0.1)))] * len(variants) for variants in gains]
    places = [rng.uniform(0.8, 2.5), rng.uniform(0.2, 0.8), rng.uniform(-0.2, 0.2)]
    rng.shuffle(places)
    gains[strong] = [place + rng.gauss(0.0, 0.4) for place in places for _ in range(_SIZES)]
    priors[strong] = [0.4 - 0.04 * size for _ in places for size in range(_SIZES)]
    edits = [(rule, variant) for rule in sorted(others) for variant in range(len(gains[rule]))]
    same: dict[Edit, Edit | None] = {edit: None for edit in edits if rng.random() < 0.6}
    fails = frozenset(edit for edit in edits if rng.random() < 0.1 and edit not in same)
    return Landscape(
        tuple(map(tuple, gains)), tuple(map(tuple, priors)), {}, {}, frozenset(), fails, same, sized=strong
    )


def search(where: Landscape, strategy: Strategy, seed: int, candidates: int, ahead: int | None = None) -> float:
    """The best gain that a search finds with so many candidates, `ahead` of them in flight (None: as many as the product has)."""
    ahead = in_flight(_JOBS, Budget(candidates=candidates)) if ahead is None else ahead
    made: dict[str, frozenset[Edit]] = {}

    def program(edits: frozenset[Edit]) -> Program:
        result = Program({"k.cu": repr(sorted(edits)).encode()}, "k.cu")
        made[result.digest] = edits
        return result

    def propose(of: Program) -> list[Proposal]:
        return [
            Proposal("rules", f"rule {r}", f"variant {v}", {}, where.parameters(r, v), where.priors[r][v])
            for r, v in where.edits(made[of.digest])
        ]

    noise = random.Random(seed)
    searched = Tree(program(frozenset()), propose, seed, strategy)
    searched.root.evaluation = Evaluation(Outcome.ACCEPTED, Measurement((), 1.0, 1.0, 1.0))
    seen: dict[frozenset[Edit], Evaluation] = {where.code(frozenset()): searched.root.evaluation}
    pending: list[tuple[Node, Proposal, Program]] = []
    best, done = 0.0, 0
    while done < candidates:
        while len(pending) < ahead and (chosen := searched.select()) is not None:
            node, proposal = chosen
            edit = (int(proposal.parameters["rule"]), int(proposal.parameters["variant"]))
            result = program(made[node.program.digest] | {edit})
            if result.digest in searched.digests or any(result.digest == p.digest for _, _, p in pending):
                searched.settle(node)
            else:
                pending.append((node, proposal, result))
        if not pending:
            break
        node, proposal, result = pending.pop(0)
        searched.settle(node)
        done += 1
        code = where.code(made[result.digest])
        if code in seen:
            evaluation = Evaluation(Outcome.DUPLICATE, seen[code].measurement)
        else:
            best = max(best, where.worth(code) or 0.0)
            evaluation = seen[code] = _evaluated(where.worth(code), noise)
        searched.add(done, node, proposal, result, evaluation)
    return best


def _evaluated(worth: float | None, noise: random.Random) -> Evaluation:
    if worth is None:
        return Evaluation(Outcome.WRONG_RESULT, failure=Failure("simulated"))
    seen = worth + noise.gauss(0, _NOISE)
    ratio = 2.0**seen
    outcome = Outcome.ACCEPTED if seen > _NOISE else Outcome.SLOWER if seen < -_NOISE else Outcome.NO_DIFFERENCE
    return Evaluation(outcome, Measurement((), ratio, ratio / 1.01, ratio * 1.01))


def table(candidates: int, seeds: int, ahead: int | None = None) -> dict[str, dict[str, list[float]]]:
    """The best gains by kind and strategy, one for each seed."""
    return {
        kind: {
            strategy: [search(landscape(kind, s), strategy, s, candidates, ahead) for s in range(seeds)]
            for strategy in STRATEGIES
        }
        for kind in KINDS
    }


def lead(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, float, float]:
    """The mean of the paired differences with its 95 % interval."""
    differences = np.asarray(ours) - np.asarray(theirs)
    rng = np.random.default_rng(0)
    means = rng.choice(differences, (_RESAMPLES, len(differences))).mean(axis=1)
    low, high = np.quantile(means, (0.025, 0.975))
    return float(differences.mean()), float(low), float(high)


def main(given: Sequence[str] | None = None) -> int:
    """Run; see the module's docstring."""
    parser = argparse.ArgumentParser(description="Compare ways to choose the next edit on simulated kernels.")
    parser.add_argument("--candidates", type=int, default=100, help="of each search (default: 100)")
    parser.add_argument("--seeds", type=int, default=100, help="landscapes of each kind (default: 100)")
    parser.add_argument(
        "--with", dest="changed", action="append", default=[], metavar="NAME=VALUE",
        help="another value for a constant of the search, as BEST_SHARE=0.95",
    )  # fmt: skip
    parser.add_argument("--in-flight", type=int, metavar="N", help="candidates in flight (default: as in the product)")
    parser.add_argument("--record", type=Path, help="a JSON record to write")
    options = parser.parse_args(given)
    modules = (puct, experience)
    constants = {
        name: value for module in modules for name, value in vars(module).items() if name.isupper() and isinstance(value, float)
    }  # fmt: skip
    changed: dict[str, float] = {}
    for text in options.changed:
        name, _, value = text.partition("=")
        try:
            changed[name] = float(value)
        except ValueError:
            parser.error(f"{text!r} is not NAME=VALUE with a number")
        if name not in constants:
            parser.error(f"{name!r} is not one of {', '.join(constants)}")
    try:
        for name, number in changed.items():
            for module in modules:
                if hasattr(module, name):
                    setattr(module, name, number)
        found = table(options.candidates, options.seeds, options.in_flight)
    finally:
        for name in changed:
            for module in modules:
                if hasattr(module, name):
                    setattr(module, name, constants[name])
    means = {kind: {s: statistics.mean(row[s]) for s in STRATEGIES} for kind, row in found.items()}
    first, *others = STRATEGIES
    leads = {
        kind: dict(zip(others, (lead(row[first], row[s]) for s in others), strict=True)) for kind, row in found.items()
    }
    print(
        "| mean best gain, in doublings | "
        + " | ".join(STRATEGIES)
        + "".join(f" | lead over {s}" for s in others)
        + " |"
    )
    print("|---|" + "---:|" * len(STRATEGIES) + "---|" * len(others))
    for kind, row in means.items():
        ahead = [f"{middle:+.3f} ({low:+.3f} to {high:+.3f})" for middle, low, high in leads[kind].values()]
        print(f"| {kind} | " + " | ".join([f"{row[s]:.3f}" for s in STRATEGIES] + ahead) + " |")
    if options.record:
        record = {
            "schema": "optiml.landscapes/2",
            "candidates": options.candidates,
            "seeds": options.seeds,
            "in_flight": options.in_flight or in_flight(_JOBS, Budget(candidates=options.candidates)),
            "constants": {**constants, **changed},
            "means": means,
            "leads": leads,
        }
        options.record.write_text(json.dumps(record, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
