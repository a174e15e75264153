"""The content of a review before it is text: kernels without a spec, regressions, faster versions, what was not searched."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from bot.bundle import Bundle, Comparison, Looked
from bot.changed import Skipped
from bot.clickable import Placed, place, separate
from bot.diff import FileDiff
from engine.model import Measurement
from engine.predicted_number import approximate
from engine.run.result import OptimizationResult

# A review shows no more findings than this, and reading a patch takes time.
_PLACED = 60

Conclusion = Literal["success", "neutral", "failure"]


@dataclass(frozen=True)
class Settings:
    """What to post. `least_speedup` is the smallest that is suggested; a changed kernel under `regression` got slower.

    `artifact_url` is where the whole run can be had, `run` its number (0: not known). The flags say which voices speak.
    """

    least_speedup: float = 1.05
    regression: float = 1.0
    fail_on_regression: bool = False
    post_predicted: bool = True
    most_inline: int = 10
    artifact_url: str = ""
    run: int = 0
    review: bool = True
    status: bool = True
    check: bool = True
    summary: bool = True


@dataclass(frozen=True)
class Finding:
    """One kernel that could be faster. `number` is what slash commands call it by, from 1."""

    number: int
    looked: Looked
    result: OptimizationResult
    measurement: Measurement
    placed: Placed

    @property
    def predicted(self) -> bool:
        return self.measurement.predicted


@dataclass(frozen=True)
class Review:
    """All that is said about one head commit."""

    head: str
    base: str
    regressions: tuple[Looked, ...]
    findings: tuple[Finding, ...]
    compared: tuple[Looked, ...]  # every kernel that was compared, slowest first
    unimproved: tuple[Looked, ...]
    not_looked: tuple[Skipped, ...]
    complete: bool
    conclusion: Conclusion
    settings: Settings
    restores: tuple[Placed, ...] = ()  # of each regression: where the base's version can be offered
    drafts: tuple[tuple[Looked, Placed], ...] = ()  # kernels without a spec, and where the drafted one can be offered

    @property
    def not_compared(self) -> tuple[Looked, ...]:
        """Changed kernels whose speed against the base is not known."""
        return tuple(k for k in self.compared if k.comparison is not None and k.comparison.standing == "not compared")

    @property
    def drifted(self) -> tuple[Looked, ...]:
        """Kernels that are slower than the default branch once was, and that do not stand among the regressions."""
        return tuple(k for k in self.compared if k.history is not None and k not in self.regressions)

    @property
    def worth_posting(self) -> bool:
        """Whether there is something that a reviewer should read. If not, only the status says so."""
        return bool(self.regressions or self.findings or self.drafts)

    def why_not(self, looked: Looked) -> str:
        """Why nothing is suggested for a kernel that was searched, in words of the result; not escaped."""
        result = looked.result
        assert result is not None
        measurement = result.best.evaluation.measurement if result.best is not None else None
        if measurement is None:
            return f"{result.verdict} The search ended because {result.stopped}."
        least = f"{self.settings.least_speedup:.2f}×"
        if not measurement.predicted:
            found = f"{measurement.ratio:.2f}× (95 % interval {measurement.low:.2f} to {measurement.high:.2f})"
            return f"the best version reached {found}; the low end must be at least {least}"
        found = f"the best version is predicted {approximate(measurement.ratio)}× faster, not measured"
        if measurement.ratio < self.settings.least_speedup:
            return f"{found}; the threshold is {least}"
        return f"{found}; the setting post.predicted hides predicted suggestions"

    @property
    def headline(self) -> str:
        """The review in one sentence of ours, without a word of the pull request's."""
        parts = []
        for predicted in (False, True):
            slower = sum(_predicted(looked) is predicted for looked in self.regressions)
            faster = [finding.measurement.ratio for finding in self.findings if finding.predicted is predicted]
            word = " (predicted, not measured)" if predicted else ""
            if slower:
                parts.append(f"{_count(slower, 'kernel')} got slower{word}")
            if faster:
                most = f"predicted {approximate(max(faster))}×, not measured" if predicted else f"{max(faster):.2f}×"
                parts.append(
                    f"{_count(len(faster), 'kernel')} could be faster ({'up to ' if len(faster) > 1 else ''}{most})"
                )
            quicker = sum(
                k.comparison.standing == "faster" for k in self.compared if k.comparison and _predicted(k) is predicted
            )
            if quicker:
                parts.append(f"{_count(quicker, 'kernel')} got faster{word}")
        nothing = not self.worth_posting
        if nothing:
            looked = len(self.unimproved) + len(self.compared)
            unknown = "no changed kernel was analysed" if self.not_looked or not self.complete else "no kernel changed"
            parts.insert(0, "no suggestion" if looked else unknown)
        if self.drafts:
            count = len(self.drafts)
            parts.insert(0, f"{_count(count, 'kernel')} {'has' if count == 1 else 'have'} no spec (draft ready)")
        if self.not_compared:
            parts.append(f"{_count(len(self.not_compared), 'changed kernel')} not compared with the base")
        if self.drifted:
            parts.append(f"{_count(len(self.drifted), 'kernel')} slower than at an earlier commit")
        # Of what got slower the base's version is the faster one.
        unimproved = [looked for looked in self.unimproved if looked not in self.regressions]
        if unimproved and nothing:
            parts.append(f"no faster version found for {_count(len(unimproved), 'kernel')}")
        if self.not_looked:
            parts.append(f"{len(self.not_looked)} not searched")
        text = "; ".join(parts)
        return (
            text[0].upper()
            + text[1:]
            + ("" if self.complete else "; the run ended before all kernels were analysed")
            + "."
        )


def make_review(bundle: Bundle, files: tuple[FileDiff, ...], settings: Settings) -> Review:
    """The review of a bundle. `files` is the pull request's diff as GitHub shows it: suggestions go where it allows them."""
    regressions = [looked for looked in bundle.kernels if regressed(looked.comparison, settings.regression)]
    regressions.sort(key=_ratio)
    wanted: list[tuple[Looked, OptimizationResult, Measurement]] = []
    unimproved: list[Looked] = []
    skipped = list(bundle.skipped)
    for looked in bundle.kernels:
        if looked.draft and looked.result is None:
            continue
        if looked.result is None:
            reason = looked.error or "the run ended before it"
            skipped.append(Skipped(looked.changed.path, reason, looked.changed.kernel))
            continue
        best = looked.result.best
        measurement = best.evaluation.measurement if best is not None else None
        if measurement is None and not looked.result.counts.get("candidates"):
            # Nothing was tried, so nothing can be said of what might be found.
            reason = f"no candidate was tried, because {looked.result.stopped}"
            skipped.append(Skipped(looked.changed.path, reason, looked.changed.kernel))
        elif measurement is None or not _enough(measurement, settings):
            unimproved.append(looked)
        else:
            wanted.append((looked, looked.result, measurement))
    wanted.sort(key=lambda item: (item[2].predicted, -item[2].ratio))
    drafted = [looked for looked in bundle.kernels if looked.draft and looked.result is None][:_PLACED]
    both = separate([place(looked.patch, files) for looked, _, _ in wanted[:_PLACED]] + [
        place(looked.restore, files) for looked in regressions[:_PLACED]
    ] + [place(looked.draft, files) for looked in drafted])  # fmt: skip
    here, there = len(wanted[:_PLACED]), len(wanted[:_PLACED]) + len(regressions[:_PLACED])
    placed, restores, drafts = both[:here], both[here:there], both[there:]
    placed += [Placed(None, f"only the first {_PLACED} get one")] * (len(wanted) - len(placed))
    findings = tuple(
        Finding(number, looked, result, measurement, where)
        for number, ((looked, result, measurement), where) in enumerate(zip(wanted, placed, strict=True), 1)
    )
    compared = sorted((k for k in bundle.kernels if k.comparison is not None), key=_ratio)
    measured_slower = any(not _predicted(looked) for looked in regressions)
    conclusion: Conclusion = "success"
    not_compared = any(k.comparison is not None and k.comparison.standing == "not compared" for k in bundle.kernels)
    if regressions or findings or skipped or drafted or not_compared or not bundle.complete:
        conclusion = "neutral"
    if settings.fail_on_regression and measured_slower:
        conclusion = "failure"
    return Review(
        bundle.head, bundle.base, tuple(regressions), findings, tuple(compared), tuple(unimproved), tuple(skipped),
        bundle.complete, conclusion, settings, tuple(restores), tuple(zip(drafted, drafts, strict=True)),
    )  # fmt: skip


def regressed(comparison: Comparison | None, least: float) -> bool:
    """Whether a changed kernel got slower than the settings allow: its whole interval lies below `least`."""
    if comparison is None or comparison.standing != "slower" or comparison.measurement is None:
        return False
    return comparison.measurement.high < least


def _enough(measurement: Measurement, settings: Settings) -> bool:
    if measurement.predicted:
        return settings.post_predicted and measurement.ratio >= settings.least_speedup
    # The end of the interval, not its middle: what is suggested is faster by that much for sure.
    return measurement.low >= settings.least_speedup


def _ratio(looked: Looked) -> float:
    measurement = looked.comparison.measurement if looked.comparison else None
    return measurement.ratio if measurement is not None else 1.0


def _predicted(looked: Looked) -> bool:
    measurement = looked.comparison.measurement if looked.comparison else None
    return measurement is not None and measurement.predicted


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
