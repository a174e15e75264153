"""Writes a review as GitHub's Markdown, by the templates beside this file. Whatever a template prints is escaped."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import jinja2

from bot.bundle import Comparison, History
from bot.escape import Safe, code, fence, length, prose
from bot.marker import STATUS_MARKER, RunMark, answer_marker, digest, review_marker, run_line
from bot.review import Finding, Review
from engine.model import CaseTiming, Measurement, Resources

LIMIT = 60_000  # UTF-16 units of one body; GitHub refuses above 65,536
_PATCH = 15_000  # of one patch in a fold; a longer one is in the artifact
_SUMMARY_BYTES = 900 << 10  # a job summary over 1 MiB is dropped whole
_MOST = 60  # entries of one list
_MOST_FULL, _MOST_FINDINGS = 20, 60  # findings with their folds, and all of them


@dataclass(frozen=True)
class Comment:
    """One comment beside the code. `start` is None for a single line."""

    number: int
    path: str
    line: int
    start: int | None
    body: str


def review_body(review: Review, *, inline: Collection[int] = ()) -> str:
    """The review's text, of at most LIMIT. `inline` are the numbers of the findings that have a comment beside the code.

    What does not fit is left out from the end, a whole part at a time: first the folds, then whole findings.
    """
    patches = tuple(digest(finding.looked.patch) for finding in review.findings[:_MOST_FINDINGS])
    remembered = run_line(RunMark(review.settings.run, review.head, patches))
    marker = "\n".join(line for line in (review_marker(review.head), remembered) if line)
    return _fit(review, inline, marker, lambda text: length(text) <= LIMIT)


def _fit(review: Review, inline: Collection[int], marker: str, fits: Callable[[str], bool]) -> str:
    count = len(review.findings)
    long = [Safe(_finding(finding, True, finding.number in inline)) for finding in review.findings[:_MOST_FULL]]
    short = [Safe(_finding(finding, False, finding.number in inline)) for finding in review.findings[:_MOST_FINDINGS]]
    full, shown, most = len(long), len(short), _MOST
    while True:
        names = {"marker": Safe(marker), "pointer": _pointer(review), "left_out": count - shown, "most": most}
        text = _render("review.jinja", review=review, sections=[*long[:full], *short[full:shown]], **names)
        if fits(text):
            return text
        if full > 0:
            full -= max(1, full // 4)
        elif most > 10:
            most //= 2
        elif shown > 0:
            shown -= max(1, shown // 4)
        else:
            return _render("review.jinja", review=_bare(review), sections=[], **names)


def inline_comments(review: Review) -> tuple[Comment, ...]:
    """The suggestions beside the code, at most `settings.most_inline`."""
    found: list[Comment] = []
    for finding in review.findings:
        suggestion = finding.placed.suggestion
        if suggestion is None or len(found) >= review.settings.most_inline:
            continue
        body = _render("inline.jinja", **_names(finding), suggestion=fence(suggestion.text, "suggestion"))
        if length(body) <= LIMIT:
            start = suggestion.start if suggestion.start < suggestion.line else None
            found.append(Comment(finding.number, suggestion.path, suggestion.line, start, body))
    return tuple(found)


def status_body(
    sentence: str, head: str, *, url: str = "", run: int = 0, review: Review | None = None, moved: int = 0
) -> str:
    """The status comment's text. `sentence` may hold anything; `url` and `run` are the run's, from the machine's environment."""
    most = _MOST
    marker = "\n".join(line for line in (STATUS_MARKER, run_line(RunMark(run, head))) if line)
    while True:
        text = _render(
            "status.jinja", marker=Safe(marker), sentence=sentence, head=head, review=review, moved=moved, most=most,
            url=Safe(url) if url else "", pointer=_pointer(review) if review else "",
        )  # fmt: skip
        if length(text) <= LIMIT or most == 0:
            return text if length(text) <= LIMIT else status_body(sentence, head, url=url, run=run)
        most //= 2


def answer_body(comment: int, text: str) -> str:
    """The answer to a comment. `text` is Markdown of ours, cut where it is too long for GitHub."""
    body = f"{answer_marker(comment)}\n{text.strip()}\n"
    if length(body) <= LIMIT:
        return body
    return f"{answer_marker(comment)}\nThis is too long for a comment; it is in the artifact of the run.\n"


def explanation(findings: Sequence[Finding]) -> Safe:
    """All that is known of findings: with their folds, what was refused, the spec, what was not checked."""
    most = len(findings)
    while True:
        parts = [Safe(_finding(finding, index < most, False)) for index, finding in enumerate(findings)]
        more = [_more(finding) for finding in findings]
        text = _render("explain.jinja", parts=list(zip(parts, more, strict=True)))
        if length(text) <= LIMIT - 200 or most == 0:
            return Safe(text)
        most -= 1


def _more(finding: Finding) -> dict[str, Any]:
    result = finding.result
    tolerance = result.spec.get("tolerance") if isinstance(result.spec, Mapping) else None
    return {
        "refused": result.refused[:10], "notes": result.notes[:10], "verdict": result.verdict, "stopped": result.stopped,
        "tolerance": "by the type and the original's own error against float64" if tolerance is None else tolerance,
        "spec_from": finding.looked.spec_from, "seed": result.seed,
    }  # fmt: skip


def summary_body(review: Review) -> str:
    """The job summary: the review with all its folds, under GitHub's limit for summaries."""
    return _fit(review, (), "", lambda text: len(text.encode()) <= _SUMMARY_BYTES)


def check_annotations(review: Review) -> list[dict[str, Any]]:
    """Annotations for a check run: plain text, no Markdown there. Regressions first."""
    found: list[dict[str, Any]] = []
    for looked in review.regressions:
        m = looked.comparison.measurement if looked.comparison else None
        if m is not None:
            found.append(
                _annotation(looked.changed.path, looked.changed.line, "warning", f"slower than the base: {_change(m)}")
            )
    for finding in review.findings:
        changed = finding.looked.changed
        found.append(_annotation(changed.path, changed.line, "notice", f"could be faster: {gain(finding.measurement)}"))
    return found


def _annotation(path: str, line: int, level: str, message: str) -> dict[str, Any]:
    return {
        "path": path,
        "start_line": line,
        "end_line": line,
        "annotation_level": level,
        "message": message,
        "title": "OptiML",
    }


def _finding(finding: Finding, full: bool, placed: bool) -> str:
    patch = finding.looked.patch
    fits = not placed and length(patch) <= _PATCH and full
    reason = finding.placed.reason or "it is not offered beside the code"
    names = _names(finding)
    return _render(
        "finding.jinja", **names, full=full, placed=placed, reason=reason, patch=patch if fits else "", applicable=bool(patch),
        least=min(finding.measurement.cases, key=lambda case: case.ratio, default=None),
        unchecked=[guard for guard in names["guardrails"] if guard.verdict != "passed"],
    )  # fmt: skip


def _names(finding: Finding) -> dict[str, Any]:
    result = finding.result
    ratios = [1.0, *(s.evaluation.measurement.ratio for s in result.trajectory if s.evaluation.measurement)][:31]
    device = result.signals.get("device", {})
    device = device if isinstance(device, dict) else {}
    name = device.get("arch", "unknown") if finding.predicted else device.get("name", "unknown")
    command = result.provenance.get("command", [])
    words = [str(word) for word in command] if isinstance(command, list | tuple) else []
    refused = {k: v for k, v in result.counts.items() if k in _REFUSALS and v}
    # Of the points that a tuned template tried, the best alone has an outcome.
    points = result.counts.get("candidates", 0) - sum(v for k, v in result.counts.items() if k not in _TOTALS)
    return {
        "guardrails": result.best.evaluation.guardrails if result.best is not None else (),
        "finding": finding, "looked": finding.looked, "m": finding.measurement, "result": result, "steps": result.trajectory,
        "device": name, "command": " ".join(words), "checks": _CHECKS_PREDICTED if finding.predicted else _CHECKS_MEASURED,
        "axis": Safe(", ".join(str(i) for i in range(len(ratios)))), "curve": Safe(", ".join(f"{r:.3f}" for r in ratios)),
        "points": max(0, points), "refused": ", ".join(f"{v} {k.replace('_', ' ')}" for k, v in sorted(refused.items())),
    }  # fmt: skip


_TOTALS = frozenset({"candidates", "verified"})
_REFUSALS = frozenset({"wrong_result", "memory_error", "race", "timed_out", "crashed", "guardrail"})
# What an accepted candidate has passed, by the definition of that outcome; see engine/gpu and engine/evaluate.
_CHECKS_MEASURED = (
    "verified: outputs agree with the original's on fresh inputs and on every check case, twice, the second time in a new process",
    "no write outside of its buffers, no change of an input",
    "timed in turn with the original, caches flushed; the interval lies above 1",
)
_CHECKS_PREDICTED = (
    "screened on the CPU: outputs agree with the original's on every check case, in several orders of threads",
    "no access outside of its arrays",
)


def _pointer(review: Review) -> Safe:
    url = review.settings.artifact_url
    return Safe(
        f"all of it is in the [artifact of the run]({url})" if url else "all of it is in the artifact of the run"
    )


def _bare(review: Review) -> Review:
    return dataclasses.replace(review, regressions=review.regressions[:30], compared=(), unimproved=(), not_looked=())


def gain(m: Measurement) -> Safe:
    """A speedup in words; one that is predicted says so."""
    if m.predicted:
        return Safe(f"predicted to be {m.ratio:.2f}× faster")
    return Safe(f"{m.ratio:.2f}× faster (95 % interval {m.low:.2f} to {m.high:.2f})")


def _change(m: Measurement) -> Safe:
    """A regression as the factor of time."""
    if m.predicted:
        return Safe(f"{1 / m.ratio:.2f}× the base's time, predicted, not measured")
    return Safe(f"{1 / m.ratio:.2f}× the base's time (95 % interval {1 / m.high:.2f} to {1 / m.low:.2f})")


def _standing(comparison: Comparison) -> Safe:
    m = comparison.measurement
    if comparison.standing == "slower" and m is not None:
        return Safe(f"slower: {_change(m)}")
    if m is None:
        return Safe(f"{comparison.standing}{': ' if comparison.reason else ''}{prose(comparison.reason)}")
    interval = ", predicted, not measured" if m.predicted else f" (95 % interval {m.low:.2f} to {m.high:.2f})"
    return Safe(f"{comparison.standing}: {m.ratio:.2f}×{interval}")


def _history(history: History) -> Safe:
    """Against the past: another run's figures, and never called an interval."""
    how = "predicted for" if history.predicted else "measured at"
    return Safe(
        f"{history.slower:.2f}× the time {how} {history.commit[:12]}{'' if history.predicted else ', in another run'}"
    )


def _ratio(m: CaseTiming | Measurement, predicted: bool) -> Safe:
    return Safe(f"{m.ratio:.2f}" if predicted else f"{m.ratio:.2f} ({m.low:.2f} to {m.high:.2f})")


def _registers(resources: tuple[Resources, ...]) -> str:
    return str(max((r.registers for r in resources), default=""))


def _shared(resources: tuple[Resources, ...]) -> str:
    return str(max((r.shared_bytes for r in resources), default=""))


def _render(template: str, **names: Any) -> str:
    text = _environment().get_template(template).render(**names)
    # Blank lines part Markdown's blocks; more than one adds nothing.
    lines: list[str] = []
    fenced = ""
    for line in text.split("\n"):
        if line.startswith("```") and (not fenced or line.strip() == fenced):
            fenced = "" if fenced else line[: len(line) - len(line.lstrip("`"))]
        if line.strip() or fenced or (lines and lines[-1].strip()):
            lines.append(line)
    return "\n".join(lines).strip("\n") + "\n"


@lru_cache(maxsize=1)
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        finalize=lambda value: value if isinstance(value, Safe) else prose(value),
        undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True, autoescape=False,
    )  # fmt: skip
    environment.filters.update(
        code=code, fence=fence, ours=Safe, gain=gain, change=_change, standing=_standing, history=_history, ratio=_ratio,
        registers=_registers, shared=_shared, us=lambda us: Safe(f"{us:.1f}" if us < 1000 else f"{us:.0f}"), seconds=lambda s: f"{s:.0f} s",
    )  # fmt: skip
    return environment
