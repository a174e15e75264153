"""Inputs that are huge, far from zero, alike or NaN: what an edit must keep there, and what no order of rounding decides."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from engine.cpu.jobs import CpuFinding, CpuJob, CpuRun
from engine.evaluate.mixed_magnitudes import MixedMagnitudes
from engine.model import Failure, LaunchConfig
from engine.spec.kernel_spec import Argument, Case, Fill, KernelSpec, Step
from engine.spec.magnitudes import HUGE, MOST, SMALL, SPREAD, mixed, mixes

NORMAL, N = Fill("normal"), 4096
Kernel = Callable[[Any, Any], Any]
TEXT = "float unit = most / 127.0f;"


def _spec(*types: str, fill: Fill = NORMAL, output: str = "") -> KernelSpec:
    inputs = tuple(Argument(f"x{i}", name, "in", "rows * 64", fill=fill) for i, name in enumerate(types))
    arguments = (*inputs, Argument("y", output or types[0], "out", "rows * 64"))
    case = Case("c", {"rows": N // 64})
    return KernelSpec("k.cu", (Step("k", "", tuple(a.name for a in arguments)),), arguments, (case,), (case,))


class _Machine:
    """Runs Python functions of the two inputs; the arrays' own type is that of the arithmetic."""

    def run_many(self, binary: Any, jobs: Sequence[CpuJob], *, deadline_s: float = 0.0) -> list[CpuRun]:
        runs = []
        for job in jobs:
            with np.errstate(all="ignore"):
                made = binary(job.buffers["x0"], job.buffers["x1"])
            found = made if isinstance(made, tuple) else ()
            runs.append(CpuRun({} if found else {"y": made}, found, None, 0.0))
        return runs


class _Binary:
    """A kernel with the count of its runs whose conditions counted as met."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel, self.seen = kernel, 0

    def __call__(self, first: Any, second: Any) -> Any:
        return self._kernel(first, second)

    def saw(self, run: CpuRun) -> None:
        self.seen += 1


def _judge(
    original: Kernel, candidate: Kernel, seed: int = 3, *, by_rules: bool = False, output: str = ""
) -> Failure | None:
    def built(kernel: Kernel) -> Any:
        return SimpleNamespace(
            extra=_Binary(kernel), launches=[(LaunchConfig((1, 1, 1), (1, 1, 1), 0),)], by_rules=by_rules, text=TEXT
        )

    runs = MixedMagnitudes(_spec("float", "float", output=output), _Machine(), built(original), _Binary(original))  # type: ignore[arg-type]
    runs.draw(random.Random(seed))
    return runs.judge(built(candidate))


def _gated(g: Any, u: Any) -> Any:
    return g / (1 + np.exp(-g)) * u


WRONG: dict[str, tuple[Kernel, Kernel]] = {
    "overflows on the way": (_gated, lambda g, u: g * u / (1 + np.exp(-g))),
    "counts as zero": (_gated, lambda g, u: np.where(g < -18, 0, _gated(g, u))),
    "cancels": (_gated, lambda g, u: (g / 2 + g / 2 * np.tanh(g / 2)) * u),
    "a factor that is folded first": (
        lambda x, w: x / np.sqrt(np.mean(x * x) + x.dtype.type(1e-6)) * w,
        lambda x, w: x * (w / np.sqrt(np.mean(x * x) + x.dtype.type(1e-6))),
    ),
    "squares": (lambda x, u: np.abs(x) * 2, lambda x, u: np.sqrt(x * x) * 2),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_is_refused_at_every_seed(name: str) -> None:
    for seed in range(5):
        failure = _judge(*WRONG[name], seed)
        assert failure is not None
        assert "huge" in failure.reason
        assert failure.argument == "y"


def _spread(x: Any, w: Any) -> Any:
    row = x.reshape(64, 64)
    return ((row - row.max(axis=1, keepdims=True)) + w.reshape(64, 64)).ravel()


def _counted_as_constant(x: Any, w: Any) -> Any:
    row = x.reshape(64, 64)
    constant = (row[:, 0] == row[:, 21]) & (row[:, 0] == row[:, 63])
    return np.repeat(np.where(constant, row[:, 0], np.max(row, axis=1)), 64) + 0 * w


def _largest(x: Any, w: Any) -> Any:
    return np.repeat(np.fmax.reduce(np.abs(x).reshape(64, 64), axis=1), 64)


def _largest_of_bits(x: Any, w: Any) -> Any:
    bits = np.abs(x).reshape(64, 64).view(np.uint32 if x.dtype == np.float32 else np.uint64)
    return np.repeat(bits.max(axis=1).view(x.dtype), 64)


def _rows(kernel: Kernel, x: Any, w: Any) -> Any:
    found = kernel(x.reshape(64, 64).astype(np.float64), w.reshape(64, 64).astype(np.float64))
    return np.repeat(found, 64).astype(x.dtype)


OTHERWISE: dict[str, tuple[Kernel, Kernel, str]] = {
    "a large shift that is folded in": (
        _spread, lambda x, w: (x + (w.reshape(64, 64) - x.reshape(64, 64).max(axis=1, keepdims=True)).ravel()), "far from zero",
    ),
    "a row that counts as constant": (lambda x, w: np.repeat(x.reshape(64, 64).max(axis=1), 64), _counted_as_constant, "but for one"),
    "a floor that is left out": (
        lambda x, w: x / np.maximum(np.abs(x).max(), x.dtype.type(1e-15)) + 0 * w,
        lambda x, w: x / np.where(np.abs(x).max() > 0, np.abs(x).max(), x.dtype.type(1)) + 0 * w, "faint",
    ),
    "a maximum of bits": (_largest, _largest_of_bits, "NaN"),
    "a distance that is expanded": (
        lambda x, w: _rows(lambda x, w: ((x - w) ** 2).sum(axis=1), x, w),
        lambda x, w: _rows(lambda x, w: (x * x).sum(axis=1) + (w * w).sum(axis=1) - 2 * (x * w).sum(axis=1), x, w),
        "one large number in each row",
    ),
    "a quotient that is zero for large divisors": (
        lambda x, w: x / w, lambda x, w: np.where(np.abs(w) > 2.0**126, 0, x / w).astype(x.dtype), "near the end",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERWISE)
def test_is_refused_for_its_kind_of_inputs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "engine.evaluate.mixed_magnitudes.mixes", lambda spec, rng: ()
    )  # huge inputs show some of these too
    monkeypatch.setattr("engine.evaluate.mixed_magnitudes.all_magnitudes", lambda spec: None)
    original, candidate, words = OTHERWISE[name]
    for seed in range(5):
        failure = _judge(original, candidate, seed)
        assert failure is not None
        assert words in failure.reason


def _place(x: Any, w: Any) -> Any:
    """Where the first largest number of each row is."""
    return np.repeat(np.argmax(x.reshape(64, 64), axis=1), 64).astype(np.int32)


def _place_by_bits(x: Any, w: Any) -> Any:
    bits = x.astype(np.float64).view(np.int64).reshape(64, 64)
    return np.repeat(np.argmax(np.where(bits < 0, bits ^ 0x7FFFFFFFFFFFFFFF, bits), axis=1), 64).astype(np.int32)


def _codes(x: Any, w: Any) -> Any:
    rows = np.abs(x.reshape(64, 64)).max(axis=1, keepdims=True)
    return np.rint(x.reshape(64, 64) * (x.dtype.type(127) / rows)).astype(np.int32).ravel()


def _codes_of_fast_quotient(x: Any, w: Any) -> Any:
    rows = np.abs(x.reshape(64, 64)).max(axis=1, keepdims=True)
    unit = np.where(rows > 2.0**126, 0, x.dtype.type(127) / rows).astype(x.dtype)
    return np.rint(x.reshape(64, 64) * unit).astype(np.int32).ravel()


def _codes_by_reciprocal(x: Any, w: Any) -> Any:
    rows = np.abs(x.reshape(64, 64)).max(axis=1, keepdims=True)
    return np.rint(x.reshape(64, 64) * (x.dtype.type(127) * (x.dtype.type(1) / rows))).astype(np.int32).ravel()


@pytest.mark.parametrize(
    ("original", "wrong", "right", "words"),
    [
        (_place, _place_by_bits, _place, "zeros of both signs"),
        (_codes, _codes_of_fast_quotient, _codes_by_reciprocal, "near the end"),
    ],
)
def test_whole_numbers_that_come_of_rare_numbers_are_compared(
    original: Kernel, wrong: Kernel, right: Kernel, words: str
) -> None:
    """A key of bits has +0 above -0, and a fast quotient is zero for divisors beyond 2^126: no check had either."""
    for seed in range(5):
        failure = _judge(original, wrong, seed, output="int")
        assert failure is not None
        assert words in failure.reason
        assert _judge(original, right, seed, output="int") is None


def test_what_rules_make_of_nan_that_the_original_passes_over_is_not_asked() -> None:
    assert _judge(_largest, _largest_of_bits, by_rules=True) is None


HONEST: dict[str, tuple[Kernel, Kernel]] = {
    "a reciprocal": (_gated, lambda g, u: g * (1 / (1 + np.exp(-g))) * u),
    "a sum in another order": (lambda x, w: x + w.sum(), lambda x, w: x + np.add.accumulate(w)[-1]),
    "terms in another order": (
        lambda x, w: np.stack([np.add.accumulate((x * w).reshape(64, 64), axis=1)[:, -1]] * 64, 1).ravel(),
        lambda x, w: np.stack([(x * w).reshape(64, 4, 16).sum(axis=2, dtype=x.dtype).sum(axis=1, dtype=x.dtype)] * 64, 1).ravel(),
    ),
    "where the original overflows itself": (lambda x, w: np.sqrt(x * x) * w, lambda x, w: np.abs(x) * w),
    "a maximum in another order": (_largest, lambda x, w: np.repeat(np.fmax.reduce(np.abs(x).reshape(64, 2, 32), axis=(1, 2)), 64)),
    "a variance": (
        lambda x, w: np.repeat(np.var(x.reshape(64, 64), axis=1), 64),
        lambda x, w: np.repeat(np.mean((x.reshape(64, 64) - np.mean(x.reshape(64, 64)[:, ::-1], axis=1, keepdims=True)) ** 2, axis=1), 64),
    ),
    "where the original cancels": (lambda x, w: (x + w) - w, lambda x, w: x),
    "an exponential for a tangent": (
        lambda x, w: np.tanh(x) * w,
        lambda x, w: np.where(x > 9, 1, (np.exp(2 * np.minimum(x, 9)) - 1) / (np.exp(2 * np.minimum(x, 9)) + 1)).astype(x.dtype) * w,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", HONEST)
def test_is_accepted_at_every_seed(name: str) -> None:
    for seed in range(5):
        assert _judge(*HONEST[name], seed) is None


def test_a_fault_of_the_candidate_is_one_and_a_late_end_is_none() -> None:
    failure = _judge(_gated, lambda g, u: (CpuFinding("out_of_bounds", "reads x0[9000]"),))
    assert failure is not None
    assert failure.reason.startswith("reads x0[9000] (with '")
    assert _judge(_gated, lambda g, u: (CpuFinding("timeout", "did not end"),)) is None


def test_each_input_is_huge_beside_others_of_one_magnitude() -> None:
    found = mixes(_spec("float", "half"), random.Random(1))
    assert [dict(mix) for mix in found] == [
        {"x0": HUGE, "x1": SPREAD}, {"x0": HUGE, "x1": SMALL}, {"x0": SPREAD, "x1": HUGE}, {"x0": SMALL, "x1": HUGE},
    ]  # fmt: skip
    assert len(mixes(_spec(*["float"] * 9), random.Random(1))) == MOST
    assert [dict(mix) for mix in mixes(_spec("float"), random.Random(1))] == [{"x0": HUGE}]
    assert mixes(_spec("float", fill=Fill("uniform")), random.Random(1)) == ()  # its range says what the inputs are
    assert mixes(_spec("int"), random.Random(1)) == ()


@pytest.mark.parametrize(("name", "storage"), [("float", np.float32), ("half", np.float16), ("double", np.float64)])
def test_huge_values_are_finite_and_signs_stay(name: str, storage: type) -> None:
    spec = _spec(name, name)
    old = np.random.default_rng(1).standard_normal(N).astype(storage)
    made = mixed(spec, {"x0": old, "x1": old}, {"x0": HUGE, "x1": SPREAD}, 7)
    assert np.isfinite(made["x0"]).all()
    assert np.abs(made["x0"]).max() > np.finfo(storage).max ** 0.99
    smaller = mixed(spec, {"x0": old, "x1": old}, {"x0": HUGE, "x1": SPREAD}, 7, 8.0)
    assert (smaller["x1"] == made["x1"]).all()
    assert np.allclose(smaller["x0"].astype(np.float64) * 8, made["x0"].astype(np.float64), rtol=2e-3)
    assert (np.sign(made["x0"]) == np.sign(old)).all()
    assert 2**6 < np.abs(made["x1"]).max() < 2**7
    assert np.abs(made["x1"]).min() >= 2**-7.01
