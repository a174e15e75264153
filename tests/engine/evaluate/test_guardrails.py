from types import SimpleNamespace

import pytest

from engine.evaluate import guardrails
from engine.gpu.sanitize import Sanitized
from engine.model import CaseTiming, Evaluation, Guardrail, LaunchConfig, Measurement, Outcome, Resources
from engine.predict.targets import figures_for
from engine.settings.config import Guardrails


def measured(*ratios, predicted=False):
    cases = tuple(CaseTiming(f"c{i}", 1.0, 100.0, 100 / r, r, r * 0.99, r * 1.01, 9) for i, r in enumerate(ratios))
    return Measurement(cases, ratios[0], ratios[0] * 0.99, ratios[0] * 1.01, predicted=predicted)


def test_one_slow_case_fails_however_much_the_others_win():
    assert guardrails.timing(measured(9.0, 0.99)).verdict == "passed"
    verdict = guardrails.timing(measured(9.0, 0.8))
    assert verdict.verdict == "failed"
    assert "c1 takes 1.25× the original's time" in verdict.detail


@pytest.mark.parametrize(
    ("before", "after", "predicted", "verdict"),
    [(0, 0, False, "passed"), (64, 8, True, "passed"), (0, 64, False, "passed"), (0, 64, True, "failed")],
)
def test_spills_need_measured_time_to_pay_for_them(before, after, predicted, verdict):
    def used(n):
        return [Resources(32, 0, 0, n, 0)]

    assert guardrails.spills(used(before), used(after), measured(1.5, predicted=predicted)).verdict == verdict


def test_output_must_repeat_where_the_originals_does():
    assert guardrails.repeatable(None, "", wanted=True).verdict == "passed"
    assert guardrails.repeatable("y", "n=7", wanted=True).verdict == "failed"
    assert guardrails.repeatable("y", "n=7", wanted=False).verdict == "passed"


def test_a_report_fails_and_no_verdict_is_no_pass():
    found = [
        Sanitized("memcheck", 0),
        Sanitized("racecheck", 2, "Race reported"),
        Sanitized("initcheck", None, "timed out"),
    ]
    verdicts = {g.name: g.verdict for g in guardrails.sanitizers(found, ())}
    assert verdicts == {
        "memcheck": "passed", "racecheck": "failed", "initcheck": "not checked", "synccheck": "not checked",
    }  # fmt: skip


def test_a_report_in_the_original_excuses_nothing():
    """It said: passed, the original has the same kind of report."""
    found = guardrails.sanitizers(
        [Sanitized("racecheck", 2, "Race reported")], [Sanitized("racecheck", 1, "Race reported")]
    )
    assert {g.name: g.verdict for g in found}["racecheck"] == "failed"


def test_a_candidate_whose_run_fails_under_a_tool_that_judged_the_original_fails():
    lost = Sanitized("memcheck", None, "the GPU worker ended", lost=True)

    def judged(original: Sanitized) -> str:
        return {g.name: g.verdict for g in guardrails.sanitizers([lost], [original])}["memcheck"]

    assert judged(Sanitized("memcheck", 0)) == "failed"
    assert judged(Sanitized("memcheck", None, "the GPU worker ended", lost=True)) == "not checked"


def test_tools_that_did_not_run_are_named_with_the_reason():
    details = {g.name: g.detail for g in guardrails.sanitizers((), (), Guardrails(sanitizers=("racecheck",)))}
    assert details["racecheck"] == "compute-sanitizer was not found"
    assert details["memcheck"] == "disabled in the settings"


def test_thresholds_are_the_settings():
    loose, strict = Guardrails(case=1.5), Guardrails(spills=2.0)
    assert guardrails.timing(measured(9.0, 0.8), loose).verdict == "passed"
    assert guardrails.timing(measured(9.0, 0.8), loose).name == "no case more than 50 % slower"
    used = [Resources(32, 0, 0, 64, 0)]
    assert guardrails.spills([Resources(32, 0, 0, 0, 0)], used, measured(1.5), strict).verdict == "failed"
    assert guardrails.spills([Resources(32, 0, 0, 0, 0)], used, measured(2.5), strict).verdict == "passed"


@pytest.mark.parametrize(
    ("threads", "shared", "registers", "verdict", "says"),
    [
        (256, 1024, 32, "passed", "at least"),
        (256, 300_000, 32, "failed", "limited by shared memory"),
        (1024, 0, 128, "failed", "limited by registers"),
        (2048, 0, 16, "failed", "does not fit"),
    ],
)
def test_a_launch_must_fit_the_target(threads, shared, registers, verdict, says):
    found = guardrails.fits(
        [Resources(registers, 0, 0, 0, 0)],
        [(LaunchConfig((100, 1, 1), (threads, 1, 1), shared),)],
        figures_for("sm_90"),
    )
    assert found.verdict == verdict
    assert says in found.detail


def test_other_targets_and_the_patchs_reach():
    assert guardrails.compiles("sm_80", None).verdict == "passed"
    assert guardrails.compiles("sm_80", "no cp.async here").verdict == "failed"
    assert guardrails.compiles("sm_80", None, "needs sm_90").verdict == "not checked"
    assert guardrails.scope(None).verdict == "passed"
    assert guardrails.scope("changes host code").detail == "changes host code"


def test_the_first_failed_guardrail_is_named():
    evaluation = Evaluation(Outcome.ACCEPTED, guardrails=(Guardrail("a", "passed"), Guardrail("b", "failed", "why")))
    assert guardrails.broken(evaluation).name == "b"
    assert guardrails.broken(SimpleNamespace(guardrails=())) is None
