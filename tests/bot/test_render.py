"""The rendered review: golden files, hostile text, limits, and that measured and predicted are never mixed."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from bot.bundle import Bundle, Comparison
from bot.changed import Skipped
from bot.diff import FileDiff
from bot.escape import code, fence, length, prose, without_folders
from bot.render import LIMIT, check_annotations, explanation, inline_comments, review_body, status_body, summary_body
from bot.review import Review, Settings, make_review
from engine.model import Evaluation, Failure, Guardrail, Outcome, Refusal, VerifiedInstance
from tests.bot.make import bundle, looked, measurement
from tests.bot.test_clickable import diff, files

OLD, NEW, BEST = "a\nb\nc\n", "a\nB\nc\n", "a\nfaster\nc\n"
GOLDEN = Path(__file__).parent / "golden"


def review(what: Bundle, there: tuple[FileDiff, ...] = (), **settings: object) -> Review:
    return make_review(what, there, Settings(**settings))  # type: ignore[arg-type]


def rendered(what: Review) -> str:
    comments = inline_comments(what)
    text = review_body(what, inline={c.number for c in comments})
    for comment in comments:
        text += f"\n=== {comment.path}:{comment.start}-{comment.line}\n{comment.body}"
    return text


PATCH = diff(NEW, BEST, "src/a.cu")
MANY = "".join(f"line {i};\n" for i in range(200))


def rewrite(lines: int) -> str:
    """A patch with twice as many changed lines."""
    return diff(MANY, "".join(f"fast {i};\n" if i < lines else f"line {i};\n" for i in range(200)), "src/a.cu")


def rewritten() -> tuple[FileDiff, ...]:
    """A pull request that changed every line that `rewrite` does."""
    return files("".join(f"was {i};\n" for i in range(200)), MANY, "src/a.cu")


REVIEWS = {
    "measured": lambda: review(
        bundle(
            looked(2.0, against=0.8, patch=PATCH), looked(None, kernel="other", against=1.0), looked(1.4, kernel="third"),
            skipped=(Skipped("vendor", "a submodule: not analysed"),),
        ),
        files(OLD, NEW, "src/a.cu"),
    ),
    "predicted": lambda: review(bundle(looked(3.0, predicted=True, against=0.5, patch=PATCH, new=True))),
    "no_spec": lambda: review(bundle(replace(looked(None), result=None, error="no spec", draft=PATCH)), files(OLD, NEW, "src/a.cu")),
    "large": lambda: review(bundle(looked(4.0, patch=rewrite(30)), looked(3.0, kernel="b", patch=rewrite(90))), rewritten()),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(REVIEWS))
def test_the_review_reads_as_its_golden_file(name: str) -> None:
    path = GOLDEN / f"{name}.md"
    text = rendered(REVIEWS[name]())
    if os.environ.get("OPTIML_WRITE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert text == path.read_text()


def test_a_prediction_is_never_called_measured_or_verified() -> None:
    text = rendered(REVIEWS["predicted"]())
    assert "predicted" in text
    assert not re.search(r"(?<!not )\b(measured|verified)\b", text, re.I)
    assert "95" not in text
    assert "predicted" not in rendered(REVIEWS["measured"]()).lower()


def test_regressions_come_first_and_decide_the_conclusion() -> None:
    what = bundle(looked(2.0), looked(None, kernel="slow", against=0.5), looked(None, kernel="slower", against=0.4))
    text = review_body(review(what))
    assert text.index("`slower`") < text.index("`slow`") < text.index("`scale`")
    assert review(what).conclusion == "neutral"
    assert review(what, fail_on_regression=True).conclusion == "failure"
    assert [a["annotation_level"] for a in check_annotations(review(what))] == ["warning", "warning", "notice"]
    guess = bundle(looked(None, against=0.5, predicted=True))
    assert review(guess, fail_on_regression=True).conclusion == "neutral"


def test_nothing_to_say_is_not_posted_but_the_status_says_what_was_done() -> None:
    what = review(bundle(looked(None), looked(1.01, kernel="b")))
    assert not what.worth_posting
    assert what.conclusion == "success"
    assert "No suggestion" in what.headline
    assert "12 candidates tried" in status_body(what.headline, what.head, review=what)


def test_a_speedup_whose_interval_reaches_below_the_least_is_not_suggested() -> None:
    assert not review(bundle(looked(1.06))).findings  # 1.04 to 1.08
    assert review(bundle(looked(1.08))).findings  # 1.06 to 1.10


def test_a_regression_shows_the_worst_shapes() -> None:
    """It showed the first four, and not that there were more."""
    slower = looked(None, against=0.5)
    assert slower.comparison is not None
    m = slower.comparison.measurement
    assert m is not None
    cases = tuple(replace(m.cases[0], case=f"n={n}", ratio=1.0 - n / 10) for n in range(7))
    worse = replace(slower, comparison=replace(slower.comparison, measurement=replace(m, cases=cases)))
    text = review_body(review(bundle(worse)))
    assert re.findall(r"  - `(n=\d)`", text) == ["n=6", "n=5", "n=4", "n=3"]
    assert "  - and 3 more cases, slowed less or faster" in text


def test_why_nothing_is_suggested_is_said_for_each_kernel() -> None:
    """It said how many candidates were tried, also where something faster was found and held back."""
    said = status_body(
        "x", "a" * 40, review=review(bundle(looked(None), looked(1.06, kernel="close"), looked(1.01, predicted=True)))
    )
    assert (
        "No improvement found for scale: 12 candidates tried, 9 correct. The search ended because the budget is spent."
        in said
    )
    assert (
        "`close` in `src/a.cu`: the best version reached 1.06× &#40;95 % interval 1.04 to 1.08&#41;; the low end must be at least 1.05×"
        in said
    )
    assert "the best version is predicted &#126;1× faster, not measured; the threshold is 1.05×" in said
    held = review(bundle(looked(3.0, predicted=True)), post_predicted=False)
    assert "&#126;3× faster, not measured; the setting post.predicted hides predicted suggestions" in status_body(
        "x", held.head, review=held
    )


def test_the_headline_tells_every_kind() -> None:
    what = bundle(
        looked(None, against=1.5), looked(None, kernel="b", against=0.5, predicted=True), skipped=(Skipped("v", "no spec"),)
    )  # fmt: skip
    said = "1 kernel got faster; 1 kernel got slower (predicted, not measured); 1 not searched."
    assert review(what).headline == said
    nothing = review(bundle(looked(None, against=1.5)))
    assert nothing.headline == "No suggestion; 1 kernel got faster; no faster version found for 1 kernel."


def test_a_kernel_that_was_not_compared_is_in_the_headline_and_no_success() -> None:
    unknown = replace(looked(None), comparison=Comparison("not compared", None, "the head computes something else"))
    what = review(bundle(unknown))
    assert what.conclusion == "neutral"
    assert "1 changed kernel not compared with the base" in what.headline


def test_a_regression_offers_the_base_s_version() -> None:
    slower = replace(looked(None, against=0.5), restore=PATCH)
    what = review(bundle(slower), files(OLD, NEW, "src/a.cu"))
    assert what.headline == "1 kernel got slower."
    (comment,) = inline_comments(what)
    assert comment.number < 0
    assert "restores the base's version" in comment.body
    assert "```suggestion" in comment.body
    assert "slower than the base: the suggestion on line 2 restores it" in review_body(what, inline={-1})
    assert "slower than the base: the patch below restores it" in review_body(what)
    assert "<summary>Patch that restores the base's version</summary>" in review_body(what)


def test_the_runner_s_folders_are_nobody_s_business() -> None:
    text = "/home/runner/_work/r/r/k.cu:3: no '/tmp/optiml-x/head/inc/a.cuh'; see https://a.b/c/d and src/k.cu, 1/2"
    assert without_folders(text) == "k.cu:3: no 'a.cuh'; see https://a.b/c/d and src/k.cu, 1/2"


def test_a_pull_request_that_only_renames_a_file_changes_no_kernel() -> None:
    assert review(bundle()).headline == "No kernel changed."


def test_a_kernel_of_which_nothing_was_tried_was_not_searched() -> None:
    """On a busy runner the time went before the first candidate, and the review said that no faster version was found."""
    none = looked(None)
    assert none.result is not None
    what = review(bundle(replace(none, result=replace(none.result, counts={"candidates": 0}))))
    assert what.headline == "No changed kernel was analysed; 1 not searched."
    assert "`scale` in `src/a.cu`: no candidate was tried, because the budget is spent" in status_body(
        "x", what.head, review=what
    )


def test_a_review_names_the_other_instances_that_were_verified() -> None:
    """Their names are text of a repository."""
    finding = looked(2.0, patch=PATCH)
    assert finding.result is not None
    assert finding.result.best is not None
    best = finding.result.best.evaluation
    others = (
        VerifiedInstance("scale<__half>", measurement(1.5)),
        VerifiedInstance("scale<@octocat>", measurement(1.0)),
    )
    known = replace(finding.result.best, evaluation=replace(best, instances=others))
    text = review_body(review(bundle(replace(finding, result=replace(finding.result, best=known)))))
    said = "Also verified for `scale<__half>` (1.50× (1.47 to 1.53)), `scale<@octocat>` (1.00× (0.98 to 1.02)), which the patch"
    assert f"{said} changes too." in " ".join(text.split())
    assert "Also verified" not in review_body(review(bundle(finding)))


def test_what_is_left_out_of_a_list_is_counted() -> None:
    """A reader is told that a shape that is not listed was not timed."""
    finding = looked(2.0, patch=PATCH)
    assert finding.result is not None
    assert finding.result.best is not None
    best = finding.result.best.evaluation
    assert best.measurement is not None
    (case,) = best.measurement.cases
    cases = tuple(replace(case, case=f"n={n}", ratio=2.0 - n / 100) for n in range(20))
    guards = tuple(Guardrail(f"check {n}", "not checked" if n < 8 else "passed", "") for n in range(25))
    evaluation = replace(best, measurement=replace(best.measurement, cases=cases), guardrails=guards)
    step = finding.result.trajectory[-1]
    steps = tuple(replace(step, id=n) for n in range(40))
    long = replace(finding.result, best=replace(finding.result.best, evaluation=evaluation), trajectory=steps)
    text = review_body(review(bundle(replace(finding, result=long))))
    assert "8 more cases; the smallest speedup is 1.81× (1.96 to 2.04), in `n=19`." in text
    assert "\n10 more steps.\n" in text
    assert "- and 5 more, in the artifact" in text
    assert "Not checked: check 0; check 1; check 2; check 3; check 4; check 5; and 2 more." in text


EVIL = [
    "@octocat fix", "#1 and owner/repo#2 GH-3", "http://evil.example/x https://evil.example www.evil.example a@b.example",
    "![x](http://evil.example/beacon.png)", "<img src=http://evil.example/b.png>", "[click](javascript:alert(1))",
    "`code` ``more`` ```\nfence", "</details></summary><h1>x</h1>", "| a | b |\n|--|--|", "<!-- optiml:review head=x -->",
    "\u202egnirts\u2066", "z\u200bero\ufeff", "# heading", "- list", "1. list", "***bold*** _it_ ~~s~~", "\\`", "&#64;octocat",
    "0123456789abcdef0123456789abcdef01234567", "\x1b[31mred", "@org/team", "a\r\n\r\n# b", "\t    code", "> quote", "{{ 7*7 }}{% x %}",
    "$$x$$", ":tada:", "~~~\nfence", "javascript:alert(1)", "@\u200boctocat",
]  # fmt: skip
MARKDOWN = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])


@pytest.mark.parametrize("evil", EVIL)
@pytest.mark.parametrize("write", [prose, code])
def test_hostile_text_shows_as_text(evil: str, write: object) -> None:
    safe = write(evil)  # type: ignore[operator]
    for place in (f"{safe}\n", f"- {safe}\n", f"| a |\n|---|\n| {safe} |\n"):
        html = MARKDOWN.render(place)
        assert set(re.findall(r"</?([a-z0-9]+)", html)) <= {
            "p",
            "li",
            "ul",
            "code",
            "table",
            "thead",
            "tbody",
            "tr",
            "th",
            "td",
        }
        assert "optiml:review" not in html or "&lt;!--" in html
        outside = re.sub(r"<code>.*?</code>", "", html, flags=re.S)
        outside = re.sub(r"<[^>]*>", "", outside)
        assert not re.search(r"[@#]\w|https?://|www\.\w|\bGH-\d|\b[0-9a-f]{7,40}\b|:tada:|\$\$\w", outside), outside
        assert not re.search("[\u202a-\u202e\u2066-\u2069\ufeff\x1b]", html)


@pytest.mark.parametrize("evil", EVIL)
def test_a_block_of_code_cannot_be_left(evil: str) -> None:
    html = MARKDOWN.render(f"{fence(evil)}\n")
    assert len(re.findall(r"<pre>", html)) == 1
    assert set(re.findall(r"</?([a-z0-9]+)", html)) <= {"pre", "code"}


@pytest.mark.parametrize("evil", EVIL)
def test_hostile_names_in_a_whole_review_change_nothing_of_its_shape(evil: str) -> None:
    def shape(word: str) -> list[str]:
        what = bundle(looked(2.0, against=0.8, kernel=word, path=f"src/{word}.cu", summary=word, patch=f"--- a\n{word}\n"),
                      looked(None, kernel=word), skipped=(Skipped(word, word, word),))  # fmt: skip
        html = MARKDOWN.render(review_body(review(what)))
        return [t for t in re.findall(r"</?[a-z0-9]+", html) if "code" not in t]

    assert shape(evil) == shape("word")


@pytest.mark.parametrize("evil", EVIL)
def test_hostile_words_in_an_explanation_change_nothing_of_its_shape(evil: str) -> None:
    def shape(word: str) -> list[str]:
        one = looked(2.0, kernel=word, path=f"src/{word}.cu", summary=word, patch=f"--- a\n{word}\n")
        assert one.result is not None
        wrong = Evaluation(Outcome.WRONG_RESULT, failure=Failure(word))
        result = replace(
            one.result,
            notes=(word,),
            refused=(Refusal(3, word, wrong),),
            stopped=word,
            spec={"tolerance": word},
            diagnosis=(word,),
        )
        html = MARKDOWN.render(explanation(review(bundle(replace(one, result=result))).findings))
        return [t for t in re.findall(r"</?[a-z0-9]+", html) if "code" not in t]

    assert shape(evil) == shape("word")


@pytest.mark.parametrize("count", [1, 40, 500])
def test_every_body_stays_under_the_limits_and_whole(count: int) -> None:
    many = [
        looked(2.0, against=0.5, kernel=f"k{i}" + "😀" * 200, path=f"src/{i}.cu" * 30, patch="+x\n" * 4000)
        for i in range(count)
    ]
    what = review(
        bundle(*many, skipped=tuple(Skipped("p" * 900, "why " * 300) for _ in range(count))), artifact_url="https://x/y"
    )
    text = review_body(what)
    assert length(text) <= LIMIT
    assert text.count("<details>") == text.count("</details>")
    assert text.count("```") % 2 == 0
    assert count < 500 or "artifact of the run](https://x/y)" in text
    assert length(status_body("s", what.head, review=what)) <= LIMIT
    assert len(summary_body(what).encode()) < 1 << 20


def test_a_suggestion_with_a_fence_inside_stays_one_block() -> None:
    best = "a\n// ```\n// ````\nc\n"
    what = review(bundle(looked(2.0, patch=diff(NEW, best, "src/a.cu"))), files(OLD, NEW, "src/a.cu"))
    (comment,) = inline_comments(what)
    assert "`````suggestion\n// ```\n// ````\n`````" in comment.body
    assert (comment.path, comment.start, comment.line) == ("src/a.cu", None, 2)


def test_the_evidence_of_the_profiler_and_the_checks_are_lists_of_their_own() -> None:
    """Two lists with nothing between are one, drawn with a paragraph for each entry."""
    text = rendered(REVIEWS["measured"]())
    assert "- [x] verified" in text
    for part in text.split("- [x] verified")[:-1]:
        assert part.endswith("\n\nChecks:\n\n")


def test_points_of_a_template_are_told_from_candidates_that_were_wrong() -> None:
    found = looked(2.0)
    tuned = replace(found.result, counts={**found.result.counts, "candidates": 40})
    text = rendered(review(bundle(replace(found, result=tuned))))
    assert "40 candidates in 58 s" in text
    assert "9 of them correct, 28 of them template points other than the best; refused: 1 race, 2 wrong result" in text
    assert "template points" not in rendered(review(bundle(found)))


def asked(usd: float | None = 0.0425, estimated: int = 0) -> dict[str, object]:
    spent = {"requests": 7, "prompt_tokens": 41_000, "completion_tokens": 2_500, "usd": usd, "estimated": estimated}
    return {"requests": 7, "questions": 5, "proposals": 9, "known": 0, "faults": {}, "edits": [], "spent": spent}


def test_what_a_language_model_cost_is_said_whether_it_found_anything_or_not() -> None:
    found, none = looked(2.0), looked(None, kernel="other")
    both = bundle(*(replace(one, result=replace(one.result, model=asked())) for one in (found, none)))
    text = review_body(review(both))
    assert text.count("Language model: 5 questions, 9 usable edits, 43,500 tokens, 0.04 USD") == 2
    assert "Language model" not in review_body(review(bundle(looked(2.0), looked(None, kernel="other"))))
    guessed = replace(found, result=replace(found.result, model=asked(None, 2)))
    assert "5 questions, 9 usable edits, about 43,500 tokens" in review_body(review(bundle(guessed)))
    assert "USD" not in review_body(review(bundle(guessed)))
    cheap = replace(found, result=replace(found.result, model=asked(0.0004)))
    assert "0.0004 USD" in review_body(review(bundle(cheap)))


@pytest.mark.parametrize("model", [{}, {"spent": 3}, {"spent": {"prompt_tokens": "<b>"}, "questions": None}])
def test_a_bundle_with_other_words_of_a_model_costs_no_review(model: dict[str, object]) -> None:
    found = looked(2.0)
    assert "Language model" not in review_body(
        review(bundle(replace(found, result=replace(found.result, model=model))))
    )


def test_a_kernel_without_a_spec_leads_with_its_draft() -> None:
    """It was one line in a fold."""
    bare = replace(looked(None), result=None, comparison=None, error="has no spec for the kernel 'scale'", draft=PATCH)
    there = review(bundle(bare), files(OLD, NEW, "src/a.cu"))
    body = review_body(there, inline={-1})
    assert "### OptiML: 1 kernel has no spec" in body
    assert "commit the suggestion on line 2 |" in body
    assert "<details" not in body
    assert there.worth_posting
    assert there.headline == "1 kernel has no spec (draft ready)."
    (comment,) = inline_comments(there)
    assert "This draft passed the validation of a search" in comment.body
    assert "```suggestion" in comment.body
    nowhere = review(bundle(bare))
    assert inline_comments(nowhere) == ()
    text = review_body(nowhere)
    assert "commit the draft below |" in text
    assert "<details open><summary>Draft spec of <code>scale</code></summary>" in text
    assert text.index("Draft spec of") < text.index("+faster")


@pytest.mark.parametrize("name", sorted(REVIEWS))
def test_a_review_is_one_verdict_one_table_and_folds(name: str) -> None:
    what = REVIEWS[name]()
    text = review_body(what, inline={c.number for c in inline_comments(what)})
    while "<details" in text:
        text = re.sub(r"<details(?: open)?>(?:(?!<details).)*?</details>", "", text, flags=re.S)
    _, verdict, *table = [line for line in text.splitlines() if line]
    assert verdict.startswith("### OptiML: ")
    assert table[0] == "| kernel | before | after | speedup | confidence | action |"
    assert all(line.startswith("|") and line.count("|") == 7 for line in table)
    assert len(table) == 2 + len(what.findings) + len(what.regressions) + len(what.drafts)


def test_a_table_cell_holds_the_longest_case_of_several() -> None:
    several = looked(2.0)
    assert several.result is not None
    assert several.result.best is not None
    m = several.result.best.evaluation.measurement
    assert m is not None
    cases = tuple(replace(m.cases[0], case=f"n={n}", original_us=n, candidate_us=n / 2) for n in (64.0, 4096.0, 512.0))
    best = replace(
        several.result.best, evaluation=replace(several.result.best.evaluation, measurement=replace(m, cases=cases))
    )
    text = review_body(review(bundle(replace(several, result=replace(several.result, best=best)))))
    assert "largest of 3 cases | 4096 µs | 2048 µs | 2.00×<br>(1.96 to 2.04) |" in text.replace("\u00a0", " ")


@pytest.mark.parametrize(
    ("lines", "clickable", "command"), [(20, True, "apply"), (21, False, "apply"), (76, False, "pr")]
)
def test_a_large_rewrite_is_no_suggestion_to_click(lines: int, clickable: bool, command: str) -> None:
    """Four hundred lines stood in one suggestion block."""
    what = review(bundle(looked(2.0, patch=rewrite(lines))), rewritten())
    (finding,) = what.findings
    assert bool(finding.placed.suggestion) == bool(inline_comments(what)) == clickable
    assert f"`/optiml {command} 1` |" in review_body(what, inline={1} if clickable else ())
