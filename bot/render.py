"""Writes a review as GitHub's Markdown, by the templates beside this file. Whatever a template prints is escaped."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import jinja2

from bot.bundle import Comparison, History, Looked
from bot.escape import Safe, code, fence, html, length, prose
from bot.marker import STATUS_MARKER, RunMark, answer_marker, digest, review_marker, run_line
from bot.review import Finding, Review
from engine.model import CaseTiming, Measurement, Resources
from engine.predicted_number import approximate
from engine.run.result import OptimizationResult

LIMIT = 60_000  # UTF-16 units of one body; GitHub refuses above 65,536
_PATCH = 15_000  # of one patch in a fold; a longer one is in the artifact
_SUMMARY_BYTES = 900 << 10  # a job summary over 1 MiB is dropped whole
_MOST = 60  # entries of one list
_MOST_ROWS = 20  # of the table
_MOST_FULL, _MOST_FINDINGS = 20, 60  # findings with their evidence, and all of them


@dataclass(frozen=True)
class Comment:
    """One comment beside the code. `start` is None for a single line."""

    number: int
    path: str
    line: int
    start: int | None
    body: str


@dataclass(frozen=True)
class Row:
    """One line of the review's table, as Markdown."""

    kernel: Safe
    before: Safe
    after: Safe
    speedup: Safe
    confidence: Safe
    action: Safe


def review_body(review: Review, *, inline: Collection[int] = (), comment: int = 0) -> str:
    """The review's text, of at most LIMIT. `inline` are the numbers of the findings that have a comment beside the code.

    `comment` is the comment whose command asked for it, 0: the event did.

    What does not fit is left out from the end, a whole part at a time: first the evidence, then whole folds.
    """
    patches = tuple(digest(finding.looked.patch) for finding in review.findings[:_MOST_FINDINGS])
    remembered = run_line(RunMark(review.settings.run, review.head, patches))
    marker = "\n".join(line for line in (review_marker(review.head, comment), remembered) if line)
    return _fit(review, inline, marker, lambda text: length(text) <= LIMIT)


def _fit(review: Review, inline: Collection[int], marker: str, fits: Callable[[str], bool]) -> str:
    count = len(review.findings)
    long = [Safe(_finding(one, True, one.number in inline, True)) for one in review.findings[:_MOST_FULL]]
    short = [Safe(_finding(one, False, one.number in inline, True)) for one in review.findings[:_MOST_FINDINGS]]
    full, shown, most = len(long), len(short), _MOST
    rows = _rows(review, inline)
    while True:
        names = {
            "marker": Safe(marker), "pointer": _pointer(review), "left_out": count - shown, "most": most,
            "rows": rows, "most_rows": _MOST_ROWS, "inline": inline,
        }  # fmt: skip
        text = _render("review.jinja", review=review, sections=[*long[:full], *short[full:shown]], **names)
        if fits(text) or not (full or shown or most):
            return text
        if full > 0:
            full -= max(1, full // 4)
        elif most > 10:
            most //= 2
        elif shown > 0:
            shown -= max(1, shown // 4)
        else:
            most //= 2


def _rows(review: Review, inline: Collection[int]) -> list[Row]:
    """What a reader decides on: kernels without a spec, slower ones, faster versions."""
    rows = []
    for number, (looked, draft) in enumerate(review.drafts, 1):
        placed = -len(review.regressions) - number in inline and draft.suggestion is not None
        where = f"the suggestion on line {draft.suggestion.line}" if placed and draft.suggestion else "the draft below"
        none = Safe("–")
        rows.append(Row(_kernel(looked), none, none, none, Safe("no spec; draft validated"), Safe(f"commit {where}")))
    for number, looked in enumerate(review.regressions, 1):
        restore = review.restores[number - 1] if number <= len(review.restores) else None
        suggestion = restore.suggestion if restore and -number in inline else None
        how = "the patch below restores it" if looked.restore else "investigate"
        how = f"the suggestion on line {suggestion.line} restores it" if suggestion else how
        m = looked.comparison.measurement if looked.comparison else None
        if m is not None:
            rows.append(_row(looked, m, "", "predicted" if m.predicted else "measured", f"slower than the base: {how}"))
    for finding in review.findings:
        suggestion = finding.placed.suggestion if finding.number in inline else None
        command = (
            f"`/optiml {finding.placed.command} {finding.number}`" if finding.looked.patch else "patch in the artifact"
        )
        action = f"suggestion on line {suggestion.line}, or {command}" if suggestion else command
        rows.append(_row(finding.looked, finding.measurement, f"{finding.number}. ", _confidence(finding), action))
    return rows


def _row(looked: Looked, m: Measurement, number: str, confidence: str, action: str) -> Row:
    case = max(m.cases, key=lambda case: (case.weight, case.original_us), default=None)
    several = f"<br>largest of {len(m.cases)} cases" if len(m.cases) > 1 else ""
    times = (case.original_us, case.candidate_us) if case else ()
    before, after = (Safe(f"{_us(us, m.predicted)}\u00a0µs") for us in times) if times else (Safe(""), Safe(""))
    kernel = Safe(f"{number}{_kernel(looked)}{several}")
    speedup = Safe(_ratio(m, m.predicted).replace(" (", "<br>(").replace(" ", "\u00a0"))
    return Row(kernel, before, after, speedup, Safe(confidence), Safe(action))


def _kernel(looked: Looked) -> Safe:
    # A long path would push the action out of sight; it is in the fold.
    file = f"{looked.changed.path.rpartition('/')[2]}:{looked.changed.line}"
    return Safe(f"{code(looked.changed.kernel, 40)}<br>{code(file, 40)}")


def _confidence(finding: Finding) -> str:
    best = finding.result.best
    unchecked = sum(guard.verdict != "passed" for guard in best.evaluation.guardrails) if best else 0
    said = "predicted, screened on the CPU" if finding.predicted else "measured, verified"
    if finding.looked.spec_from == "head":
        said += "; spec from this pull request"
    return said + (f"; {unchecked} check{'s' if unchecked > 1 else ''} not run" if unchecked else "")


def inline_comments(review: Review) -> tuple[Comment, ...]:
    """The suggestions beside the code, at most `settings.most_inline`; those that restore the base's version have numbers below 0."""
    found: list[Comment] = []
    for finding in review.findings:
        suggestion = finding.placed.suggestion
        if suggestion is None or len(found) >= review.settings.most_inline:
            continue
        body = _render("inline.jinja", **_names(finding), suggestion=fence(suggestion.text, "suggestion"))
        if length(body) <= LIMIT:
            start = suggestion.start if suggestion.start < suggestion.line else None
            found.append(Comment(finding.number, suggestion.path, suggestion.line, start, body))
    for number, (looked, draft) in enumerate(review.drafts, 1):
        suggestion = draft.suggestion
        if suggestion is None or len(found) >= review.settings.most_inline:
            continue
        body = _render("draft.jinja", looked=looked, suggestion=fence(suggestion.text, "suggestion"))
        if length(body) <= LIMIT:
            start = suggestion.start if suggestion.start < suggestion.line else None
            found.append(Comment(-len(review.regressions) - number, suggestion.path, suggestion.line, start, body))
    for number, (looked, restore) in enumerate(zip(review.regressions, review.restores, strict=False), 1):
        suggestion, measurement = restore.suggestion, looked.comparison.measurement if looked.comparison else None
        if suggestion is None or measurement is None or len(found) >= review.settings.most_inline:
            continue
        text = fence(suggestion.text, "suggestion")
        body = _render("restore.jinja", looked=looked, m=measurement, suggestion=text)
        if length(body) <= LIMIT:
            start = suggestion.start if suggestion.start < suggestion.line else None
            found.append(Comment(-number, suggestion.path, suggestion.line, start, body))
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
    return f"{answer_marker(comment)}\nThis is too long for a comment; see the artifact of the run.\n"


def pull_body(finding: Finding, marker: str, origin: str) -> str:
    """The text of a pull request with a suggestion: the evidence; its diff is the patch. `origin` is a sentence of ours."""
    for full in (True, False):
        part = Safe(_finding(finding, full, False, False, alone=True))
        text = _render("pull.jinja", marker=Safe(marker), origin=Safe(origin), part=part)
        if length(text) <= LIMIT:
            return text
    return f"{marker}\n"


def explanation(findings: Sequence[Finding]) -> Safe:
    """All that is known of findings: with their folds, what was refused, the spec, what was not checked."""
    most = len(findings)
    while True:
        parts = [Safe(_finding(finding, index < most, False, False)) for index, finding in enumerate(findings)]
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
        "tolerance": "from the type and the original's own error against float64" if tolerance is None else tolerance,
        "spec_from": finding.looked.spec_from, "seed": result.seed,
    }  # fmt: skip


def summary_body(review: Review, inline: Collection[int] = ()) -> str:
    """The job summary: the review with all its folds, under GitHub's limit for summaries."""
    return _fit(review, inline, "", lambda text: len(text.encode()) <= _SUMMARY_BYTES)


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
        found.append(
            _annotation(changed.path, changed.line, "notice", f"a faster version is ready: {gain(finding.measurement)}")
        )
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


def _finding(finding: Finding, full: bool, placed: bool, folded: bool, *, alone: bool = False) -> str:
    patch = finding.looked.patch
    fits = not (placed or alone) and length(patch) <= _PATCH and full
    reason = finding.placed.reason or "GitHub rejected it on these lines"
    names = _names(finding)
    return _render(
        "finding.jinja", **names, full=full, placed=placed, folded=folded, alone=alone, reason=reason,
        patch=patch if fits else "", applicable=bool(patch),
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
        "instances": result.best.evaluation.instances if result.best is not None else (),
        "finding": finding, "looked": finding.looked, "m": finding.measurement, "result": result, "steps": result.trajectory,
        "device": name, "command": " ".join(words), "checks": _CHECKS_PREDICTED if finding.predicted else _CHECKS_MEASURED,
        "axis": Safe(", ".join(str(i) for i in range(len(ratios)))), "curve": Safe(", ".join(f"{r:.3f}" for r in ratios)),
        "points": max(0, points), "refused": ", ".join(f"{v} {k.replace('_', ' ')}" for k, v in sorted(refused.items())),
    }  # fmt: skip


_TOTALS = frozenset({"candidates", "verified"})
_REFUSALS = frozenset({"wrong_result", "memory_error", "race", "timed_out", "crashed", "guardrail"})
# What an accepted candidate has passed, by the definition of that outcome; see engine/gpu and engine/evaluate.
_CHECKS_MEASURED = (
    "verified: outputs match the original's on fresh inputs and on every check case, twice, the second time in a new process",
    "no out-of-bounds write, no input modified",
    "timed alternately with the original, caches flushed; the interval is above 1",
)
_CHECKS_PREDICTED = (
    "screened on the CPU: outputs match the original's on every check case, in several thread orders",
    "no out-of-bounds access",
)


def model_cost(result: OptimizationResult) -> str:
    """What asking a language model came to, in one clause; "" where none was asked, or the bundle has no such numbers."""
    model = result.model if isinstance(result.model, Mapping) else {}
    spent = model.get("spent")
    spent = spent if isinstance(spent, Mapping) else {}
    counts = [
        of.get(name)
        for of, names in ((model, ("questions", "proposals")), (spent, ("prompt_tokens", "completion_tokens")))
        for name in names
    ]
    numbers = [count for count in counts if isinstance(count, int) and count >= 0]
    if len(numbers) < len(counts):
        return ""
    questions, edits, read, written = numbers
    tokens = f"{'about ' if spent.get('estimated') else ''}{read + written:,} tokens"
    usd = spent.get("usd")
    price = ""
    if isinstance(usd, int | float) and 0 <= usd < math.inf:
        price = f", {usd:.2f} USD" if usd >= 0.01 else f", {usd:.2g} USD"
    asked = f"{questions} question{'' if questions == 1 else 's'}, {edits} usable edit{'' if edits == 1 else 's'}"
    return f"Language model: {asked}, {tokens}{price}"


def _pointer(review: Review) -> Safe:
    url = review.settings.artifact_url
    return Safe(
        f"the [artifact of the run]({url}) has all details" if url else "the artifact of the run has all details"
    )


def gain(m: Measurement) -> Safe:
    """A speedup in words; one that is predicted says so."""
    if m.predicted:
        return Safe(f"predicted {approximate(m.ratio)}× faster")
    return Safe(f"{m.ratio:.2f}× faster (95 % interval {m.low:.2f} to {m.high:.2f})")


def _change(m: Measurement) -> Safe:
    """A regression as the factor of time."""
    if m.predicted:
        return Safe(f"{approximate(1 / m.ratio)}× the base's time, predicted, not measured")
    return Safe(f"{1 / m.ratio:.2f}× the base's time (95 % interval {1 / m.high:.2f} to {1 / m.low:.2f})")


def _standing(comparison: Comparison) -> Safe:
    m = comparison.measurement
    if comparison.standing == "slower" and m is not None:
        return Safe(f"slower: {_change(m)}")
    if m is None:
        return Safe(f"{comparison.standing}{': ' if comparison.reason else ''}{prose(comparison.reason)}")
    interval = ", predicted, not measured" if m.predicted else f" (95 % interval {m.low:.2f} to {m.high:.2f})"
    ratio = approximate(m.ratio) if m.predicted else f"{m.ratio:.2f}"
    return Safe(f"{comparison.standing}: {ratio}×{interval}")


def _history(history: History) -> Safe:
    """Against the past: times of another run, never called an interval."""
    how = "predicted for" if history.predicted else "measured at"
    ratio = approximate(history.slower) if history.predicted else f"{history.slower:.2f}"
    return Safe(f"{ratio}× the time {how} {history.commit[:12]}{'' if history.predicted else ', in another run'}")


def _ratio(m: CaseTiming | Measurement, predicted: bool) -> Safe:
    return Safe(f"{approximate(m.ratio)}×" if predicted else f"{m.ratio:.2f}× ({m.low:.2f} to {m.high:.2f})")


def _us(us: float, predicted: bool) -> Safe:
    return Safe(approximate(us) if predicted else f"{us:.1f}" if us < 1000 else f"{us:.0f}")


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
        registers=_registers, model_cost=model_cost, shared=_shared, html=html, us=_us, seconds=lambda s: f"{s:.0f} s",
    )  # fmt: skip
    return environment
