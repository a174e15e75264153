"""Bundles and results for tests: real types, figures given by the test."""

from __future__ import annotations

from bot.bundle import Bundle, Comparison, Looked
from bot.changed import ChangedKernel, Skipped
from engine.model import CaseTiming, Evaluation, Guardrail, Measurement, Outcome, Resources
from engine.run.result import Best, OptimizationResult, TrajectoryStep

HEAD, BASE = "a" * 40, "b" * 40


def measurement(ratio: float, *, predicted: bool = False, spread: float = 0.02, case: str = "n=4096") -> Measurement:
    low, high = (ratio, ratio) if predicted else (ratio * (1 - spread), ratio * (1 + spread))
    timing = CaseTiming(case, 1.0, 100.0, 100.0 / ratio, ratio, low, high, 0 if predicted else 40)
    return Measurement((timing,), ratio, low, high, predicted=predicted)


def evaluation(ratio: float, *, predicted: bool = False) -> Evaluation:
    outcome = Outcome.SCREENED if predicted else Outcome.ACCEPTED
    guards = (
        Guardrail("no spills", "passed", "0 bytes"),
        Guardrail("racecheck", "not checked", "compute-sanitizer is not installed"),
    )
    return Evaluation(
        outcome, measurement(ratio, predicted=predicted), resources=(Resources(24, 1024, 0, 0, 0),),
        guardrails=() if predicted else guards,
    )  # fmt: skip


def result(
    ratio: float | None, *, kernel: str = "scale", file: str = "src/a.cu", predicted: bool = False, summary: str = "block of 256"
) -> OptimizationResult:  # fmt: skip
    before = () if predicted else ("memory-bound: 32 sectors per request (ideal: 4), line 17",)
    after = () if predicted else ("compute-bound: 71 % of peak",)
    mode = "predicted" if predicted else "measured"
    best = Best(2, evaluation(ratio, predicted=predicted), "best.patch", (file,)) if ratio else None
    steps = (
        (
            TrajectoryStep(1, "rules", "restrict", "mark x as restrict", {}, evaluation(1.1, predicted=predicted)),
            TrajectoryStep(
                2,
                "rules",
                "block_size",
                summary,
                {"block": 256},
                evaluation(ratio, predicted=predicted),
                after,
                ("sectors -75 %",),
            ),
        )
        if ratio
        else ()
    )
    said = f"No improvement found for {kernel}: 12 candidates tried, 9 correct."
    return OptimizationResult(
        file=file, kernel=kernel, mode=mode, verdict=said if best is None else f"{kernel}: {ratio:.2f}×", best=best,
        trajectory=steps, original=evaluation(1.0, predicted=predicted), diagnosis=before, refused=(),
        counts={"candidates": 12, "verified": 9, "accepted": 9, "wrong_result": 2, "race": 1}, budget={"seconds": 60.0, "candidates": None},
        seed=0, search="mcts", stopped="the budget is spent", elapsed_s=58.2, stages={}, spec={"tolerance": None},
        signals={"mode": mode, "device": {"name": "NVIDIA H200", "arch": "sm_90"}, "missing": []},
        provenance={"command": ["optiml", "optimize", file, "--kernel", kernel], "versions": {"optiml": "0.1.0"}},
    )  # fmt: skip


def changed(kernel: str = "scale", path: str = "src/a.cu", line: int = 4, *, new: bool = False) -> ChangedKernel:
    return ChangedKernel(path, kernel, line, ("new",) if new else ("body",), "" if new else path)


def looked(
    ratio: float | None = 2.0, *, against: float | None = None, kernel: str = "scale", path: str = "src/a.cu", line: int = 4,
    patch: str = "", predicted: bool = False, new: bool = False, summary: str = "block of 256",
) -> Looked:  # fmt: skip
    comparison = None
    if against is not None:
        standing = "faster" if against > 1.03 else "slower" if against < 0.97 else "no difference"
        comparison = Comparison(standing, measurement(against, predicted=predicted))  # type: ignore[arg-type]
    found = result(ratio, kernel=kernel, file=path, predicted=predicted, summary=summary)
    return Looked(changed(kernel, path, line, new=new), "head" if new else "base", comparison, found, patch)


def bundle(*kernels: Looked, skipped: tuple[Skipped, ...] = (), head: str = HEAD, complete: bool = True) -> Bundle:
    return Bundle(head, BASE, kernels, skipped, complete)
