from types import SimpleNamespace

import pytest

from engine import guardrails
from engine.config import Guardrails
from engine.gpu.sanitize import Sanitized, read_log
from engine.model import CaseTiming, Evaluation, Guardrail, LaunchConfig, Measurement, Outcome, Resources
from engine.predict.targets import figures_for


def measured(*ratios, predicted=False):
    cases = tuple(CaseTiming(f"c{i}", 1.0, 100.0, 100 / r, r, r * 0.99, r * 1.01, 9) for i, r in enumerate(ratios))
    return Measurement(cases, ratios[0], ratios[0] * 0.99, ratios[0] * 1.01, predicted=predicted)


def test_one_slow_case_fails_however_much_the_others_win():
    assert guardrails.timing(measured(9.0, 0.99)).verdict == "passed"
    verdict = guardrails.timing(measured(9.0, 0.8))
    assert verdict.verdict == "failed"
    assert "c1 became 1.25 times slower" in verdict.detail


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


def test_what_the_original_is_guilty_of_is_not_held_against_a_candidate():
    found = [
        Sanitized("memcheck", 0),
        Sanitized("racecheck", 2, "Race reported"),
        Sanitized("initcheck", None, "timed out"),
    ]
    verdicts = {g.name: g.verdict for g in guardrails.sanitizers(found, ())}
    assert verdicts == {
        "memcheck": "passed", "racecheck": "failed", "initcheck": "not checked", "synccheck": "not checked",
    }  # fmt: skip
    again = guardrails.sanitizers(found, [Sanitized("racecheck", 1, "Race reported")])
    assert {g.name: g.verdict for g in again}["racecheck"] == "passed"


def test_tools_that_did_not_run_are_named_with_the_reason():
    details = {g.name: g.detail for g in guardrails.sanitizers((), (), Guardrails(sanitizers=("racecheck",)))}
    assert details["racecheck"] == "compute-sanitizer is not there"
    assert details["memcheck"] == "the settings leave it out"


def test_thresholds_are_the_settings():
    loose, strict = Guardrails(case=1.5), Guardrails(spills=2.0)
    assert guardrails.timing(measured(9.0, 0.8), loose).verdict == "passed"
    assert guardrails.timing(measured(9.0, 0.8), loose).name == "no timing case slower than 1.5×"
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


@pytest.mark.parametrize(
    ("text", "errors", "first"),
    [
        ("========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\n", 0, "COMPUTE-SANITIZER"),
        (
            "========= COMPUTE-SANITIZER\n========= Invalid __global__ read of size 4 bytes\n=========     at k+0x10 in k.cu:7\n"
            "========= ERROR SUMMARY: 3 errors\n",
            3,
            "Invalid __global__ read of size 4 bytes",
        ),
        (
            "========= COMPUTE-SANITIZER\n========= Error: Race reported between Write access at k+0x40 and Read access\n"
            "========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)\n",
            1,
            "Error: Race reported between Write access at k+0x40 and Read access",
        ),
        ("========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)\n", 0, "RACECHECK SUMMARY"),
        ("========= COMPUTE-SANITIZER\n========= Target application returned an error\n", None, "COMPUTE-SANITIZER"),
        ("", None, ""),
    ],
)  # fmt: skip
def test_logs_of_compute_sanitizer_are_read(tmp_path, text, errors, first):
    path = tmp_path / "log"
    path.write_text(text)
    found = read_log(path)
    assert found[0] == errors
    assert found[1].startswith(first)


def test_a_missing_log_gives_no_verdict(tmp_path):
    assert read_log(tmp_path / "none") == (None, "")
