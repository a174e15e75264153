"""Bayesian optimisation by Optuna (tree-structured Parzen estimators), held to the feasible points."""

from __future__ import annotations

import random
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from engine.errors import MachineError
from engine.tune.space import Point
from engine.tune.strategy import Known, Trial

_TRIES = 40  # suggestions outside of the feasible set before one of it is taken by chance


class Bayes:
    """Optuna's TPE sampler, which is told of every evaluation. Raises MachineError where Optuna is not installed."""

    name = "bayes"
    patient = True

    def __init__(self, known: Known) -> None:
        try:
            # Two seconds, for one strategy of several.
            import optuna
        except ImportError:
            raise MachineError("the strategy 'bayes' needs Optuna", do="pip install 'optiml-cuda[tune]'") from None
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._optuna: Any = optuna
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that both options are experimental is no news to a user
            sampler = optuna.samplers.TPESampler(seed=known.seed, multivariate=True, constant_liar=True)
        self._study: Any = optuna.create_study(direction="maximize", sampler=sampler)
        self._names = [f"p{k}" for k in range(len(known.points[0]))]
        self._space = {
            name: optuna.distributions.CategoricalDistribution(sorted({p[k] for p in known.points}))
            for k, name in enumerate(self._names)
        }
        self._left: dict[Point, None] = dict.fromkeys(known.points)
        self._open: dict[Point, Any] = {}
        self._random = random.Random(known.seed)

    def ask(self, count: int) -> Sequence[Trial]:
        while len(self._open) < min(count, len(self._left)):
            self._suggest()
        return [Trial(p) for p, _ in zip(self._open, range(count), strict=False)]

    def _suggest(self) -> None:
        for _ in range(_TRIES):
            trial = self._study.ask(self._space)
            point = tuple(int(trial.params[n]) for n in self._names)
            if point in self._left and point not in self._open:
                self._open[point] = trial
                return
            self._study.tell(trial, state=self._optuna.trial.TrialState.FAIL)
        point = self._random.choice([p for p in self._left if p not in self._open])
        self._study.enqueue_trial(dict(zip(self._names, point, strict=True)))
        self._open[point] = self._study.ask(self._space)

    def tell(self, trial: Trial, value: float | None) -> None:
        point = trial.point
        if point not in self._left:
            return
        del self._left[point]
        opened = self._open.pop(point, None)
        state = self._optuna.trial.TrialState
        if opened is not None:
            if value is None:
                self._study.tell(opened, state=state.FAIL)
            else:
                self._study.tell(opened, value)
        elif value is not None:
            params = dict(zip(self._names, point, strict=True))
            self._study.add_trial(
                self._optuna.trial.create_trial(params=params, distributions=self._space, value=value)
            )

    def describe(self, point: Point, features: Mapping[str, float]) -> None:
        pass
