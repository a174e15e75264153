from types import SimpleNamespace

import pytest

from engine import guardrails
from engine.gpu.sanitize import Sanitized, read_log
from engine.model import CaseTiming, Evaluation, Guardrail, Measurement, Outcome, Resources


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
    assert verdicts == {"memcheck": "passed", "racecheck": "failed", "initcheck": "not checked"}
    again = guardrails.sanitizers(found, [Sanitized("racecheck", 1, "Race reported")])
    assert {g.name: g.verdict for g in again}["racecheck"] == "passed"


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
