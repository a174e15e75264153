"""Whether the fitted constants of the prediction hold for kernels that had no part in fitting them.

For each kernel in turn, every constant of `engine.predict.timing_model.Fitted` is chosen anew, from a few factors of its value
and by the other kernels alone; the kernel left out is then predicted with what they chose.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from engine.model import Binary, LaunchConfig
    from engine.predict.counts import AccessCounts
    from engine.predict.predictor import Predictor
    from engine.predict.sass import KernelCode
    from engine.predict.targets import TargetParameters
    from engine.predict.timing_model import Fitted, Prediction

FACTORS = (0.5, 0.7, 1.0, 1.4, 2.0)


@dataclass(frozen=True)
class Recorded:
    """What one prediction was made from."""

    binary: Binary
    launches: Sequence[LaunchConfig]
    counts: AccessCounts
    code: Mapping[str, KernelCode]
    figures: TargetParameters

    def again(self, fitted: Fitted) -> float:
        """The time in microseconds with other constants."""
        from engine.predict.timing_model import predict

        return predict(self.binary, self.launches, self.counts, self.figures, self.code, fitted).time_us


class Recorder:
    """A Predictor that keeps what it was asked since `taken` was last called."""

    def __init__(self, predictor: Predictor) -> None:
        self.inner = predictor
        self._asked: list[Recorded] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def predict(self, binary: Binary, launches: Sequence[LaunchConfig], counts: AccessCounts) -> Prediction:
        self._asked.append(Recorded(binary, launches, counts, self.inner.code(binary), self.inner.figures))
        return self.inner.predict(binary, launches, counts)

    def taken(self) -> tuple[Recorded, ...]:
        """What was asked since the last call."""
        asked, self._asked = tuple(self._asked), []
        return asked


@dataclass(frozen=True)
class Sampled:
    """One measured candidate: the measured times and what the predictions of the same cases were made from."""

    measured_us: tuple[float, ...]
    asked: tuple[Recorded, ...]


def error(samples: Sequence[Sampled], fitted: Fitted) -> float:
    """The median of |log2(predicted / measured time)| over candidates and cases."""
    return statistics.median(
        abs(math.log2(asked.again(fitted) / measured))
        for one in samples
        for asked, measured in zip(one.asked, one.measured_us, strict=True)
    )


def leave_one_out(kernels: Mapping[str, Sequence[Sampled]]) -> dict[str, dict[str, Any]]:
    """By kernel: `factors` that the other kernels chose (those that are not 1), `error` of its times with the published
    constants, and `error_left_out` with those chosen without it.
    """
    from engine.predict.timing_model import Fitted

    published = Fitted()
    names = [field.name for field in dataclasses.fields(Fitted)]
    errors = {
        (name, factor, kernel): error(samples, _scaled(published, {name: factor}))
        for name in names
        for factor in FACTORS
        for kernel, samples in kernels.items()
    }
    result = {}
    for left, samples in kernels.items():
        others = [kernel for kernel in kernels if kernel != left]
        chosen = {
            name: min(FACTORS, key=lambda f, n=name: (statistics.fmean(errors[n, f, k] for k in others), abs(f - 1)))  # type: ignore[misc]
            for name in names
        }
        result[left] = {
            "factors": {name: factor for name, factor in chosen.items() if factor != 1.0},
            "error": error(samples, published),
            "error_left_out": error(samples, _scaled(published, chosen)),
        }
    return result


def _scaled(fitted: Fitted, factors: Mapping[str, float]) -> Fitted:
    changed = {name: getattr(fitted, name) * factor for name, factor in factors.items()}
    # A norm below 1 would make two parts of a launch take longer than one after the other.
    return dataclasses.replace(fitted, **{k: max(1.0, v) if k == "norm" else v for k, v in changed.items()})
