"""The last conditions on a suggestion, on a kernel built for real targets."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from engine.compile.nvcc import find_nvcc
from engine.cuda.load import load_program
from engine.evaluate.build import Builder
from engine.evaluate.guardrails import LIMITS
from engine.model import Evaluation, Measurement, Outcome
from engine.run.instance_check import INSTANCES
from engine.run.machine import make_machine
from engine.run.suggestion_gate import Gate, SuggestionConditions
from engine.run.whole_check import BUILT, HOST, OTHERS, VERIFIED
from engine.settings.config import Guardrails
from engine.spec.find import find_spec
from engine.verify.names import NAMES
from tests.runtime import with_runtime

PATH = Path(__file__).resolve().parents[3] / "benchmarks" / "kernels" / "saxpy.cu"
CONFIRMED = Evaluation(Outcome.SCREENED, Measurement((), 2.0, 2.0, 2.0, predicted=True))


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    root = tmp_path_factory.mktemp("repository")
    (root / ".git").mkdir()
    (root / "saxpy.cu").write_bytes(PATH.read_bytes())
    # The user's benchmark: it ends with 1 once the file has the word `float4`.
    (root / "bench").write_text("#!/bin/sh\n! grep -q float4 saxpy.cu\n")
    (root / "bench").chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPTIML_CACHE", str(with_runtime(tmp_path_factory.mktemp("cache"))))
        machine = make_machine(device="cpu")
    spec, spec_path = find_spec(root, root / "saxpy.cu", None)
    original = load_program(root / "saxpy.cu", spec_file=spec_path, kernels=["saxpy"])
    yield machine, spec, root, spec_path, original
    machine.close()


def judge(repository, old, new, limits=LIMITS, targets=()):
    machine, spec, root, spec_path, original = repository
    builder = Builder(spec, root, machine.compiler, machine.target, spec_path)
    assert old in original.data
    candidate = original.replace({original.kernel_file: original.data.replace(old, new)})
    built = dataclasses.replace(builder.original(original), program=candidate)
    gate = Gate(machine, spec, root, spec_path, SuggestionConditions(limits, targets))
    return gate.judge(CONFIRMED, original, built)


def verdicts(evaluation):
    return {g.name: g.verdict for g in evaluation.guardrails}


def test_a_prediction_alone_carries_no_compiler_hint(repository):
    found = judge(repository, b"__global__ void", b"__global__ void __launch_bounds__(128)")
    assert found.outcome is Outcome.GUARDRAIL
    assert "contains only compiler hints" in found.failure.reason


def test_an_honest_edit_passes_for_every_declared_target(repository):
    found = judge(repository, b"threads = 128", b"threads = 256", targets=("sm_90", "sm_80"))
    assert found.outcome is Outcome.SCREENED
    assert verdicts(found) == {
        "changes only device code and launch arguments": "passed",
        "threads and shared memory within the limits of sm_90": "passed",
        "compiles for sm_80": "passed",
        "threads and shared memory within the limits of sm_80": "passed",
        NAMES: "passed",
        INSTANCES: "passed",
        **({BUILT: "not checked"} if find_nvcc() is None else dict.fromkeys((HOST, OTHERS, VERIFIED), "passed")),
    }


def test_what_another_target_cannot_compile_is_not_suggested(repository):
    new = b'y[i] = a * x[i] + y[i]; asm volatile("fence.proxy.async;");'  # of sm_90 and newer
    machine, spec, root, spec_path, original = repository
    gate = Gate(machine, spec, root, spec_path, SuggestionConditions(Guardrails(), ("sm_80",)))
    candidate = original.replace({original.kernel_file: original.data.replace(b"y[i] = a * x[i] + y[i];", new)})
    found = gate._other_target("sm_80", original, candidate)
    assert [(g.name, g.verdict) for g in found] == [("compiles for sm_80", "failed")]
    assert "inline assembly" not in found[0].detail  # the compiler says so, not the screening


def test_a_patch_that_reaches_host_code_is_not_suggested(repository):
    found = judge(repository, b"void launch_saxpy(", b"static int calls; void launch_saxpy(")
    assert found.outcome is Outcome.GUARDRAIL
    assert verdicts(found)["changes only device code and launch arguments"] == "failed"


def test_the_users_command_has_the_last_word(repository):
    limits = Guardrails(command=("./bench",), time=20.0, end_to_end=3.0)
    passed = judge(repository, b"threads = 128", b"threads = 256", limits)
    assert (passed.outcome, verdicts(passed)["end-to-end command"]) == (Outcome.SCREENED, "passed")
    refused = judge(repository, b"y[i] = a * x[i]", b"float4 v; y[i] = a * x[i]", limits)
    assert refused.outcome is Outcome.GUARDRAIL
    assert refused.failure.reason == "end-to-end command: ends with exit code 1 where it ended with exit code 0"
    assert refused.measurement is CONFIRMED.measurement  # the speedup is reported all the same


def test_an_interrupted_run_does_not_say_that_nothing_was_found() -> None:
    """It said `No improvement found`, whatever the search had in hand."""
    from engine.run.optimization_result import verdict
    from engine.search.progress import INTERRUPTED, Progress

    progress = Progress(11, 9, 27.2, stopped=INTERRUPTED)
    assert verdict("saxpy", None, progress, {}, None) == (
        "The search for a faster saxpy was interrupted, and nothing was confirmed: 11 candidates tried, 9 correct."
    )
    assert verdict("saxpy", None, Progress(), {}, None).startswith("No improvement found for saxpy: ")


def test_a_run_without_a_candidate_does_not_say_that_nothing_was_found() -> None:
    """A budget that went into setting up gave `No improvement found …: 0 candidates tried, 0 correct`."""
    from engine.run.optimization_result import verdict
    from engine.search.progress import Progress

    said = verdict("saxpy", None, Progress(0, 0, 9.0, stopped="the budget is spent"), {}, None)
    assert (
        said
        == "No candidate was tried for saxpy: the budget is spent by preparing and validating the kernel; give a larger --budget."
    )


def test_points_of_a_template_are_not_passed_off_as_wrong() -> None:
    """Three right ones and seven points beside the best of one template were `10 candidates tried, 3 correct`."""
    from engine.run.optimization_result import verdict
    from engine.search.progress import Progress

    said = verdict("scale", None, Progress(10, 3, outcomes={Outcome.SCREENED: 3}), {}, None)
    assert said.endswith(
        ": 10 candidates tried, 3 correct, including 7 template points other than the best of each template."
    )


def test_duplicates_of_right_candidates_are_not_passed_off_as_wrong() -> None:
    """Five duplicates were `5 candidates tried, 0 correct`."""
    from engine.run.optimization_result import verdict
    from engine.search.progress import Progress

    progress = Progress(5, 0, outcomes={Outcome.DUPLICATE: 5})
    assert verdict("scale", None, progress, {}, None) == (
        "No improvement found for scale: 5 candidates tried, 0 correct, 5 duplicates (same SASS and launch)."
    )


def test_a_refusal_by_a_guardrail_reports_the_speedup(repository):
    from engine.model import Refusal
    from engine.run.optimization_result import verdict
    from engine.search.progress import Progress

    limits = Guardrails(command=("false",), prepare=("false",), time=5.0)
    refused = judge(repository, b"threads = 128", b"threads = 256", limits)
    said = verdict("saxpy", None, Progress(), {}, None, [Refusal(3, "Use blocks of 256", refused)])
    assert said.startswith("No suggestion for saxpy: a version ~2× as fast (predicted) fails the guardrail")
    assert "the preparation fails without the patch" in said


def test_faster_versions_that_were_not_confirmed_are_said_with_the_reason():
    """`No improvement found` hid them, and the reader did not look for the lines above."""
    from engine.model import Evaluation, Failure, Refusal
    from engine.run.optimization_result import verdict
    from engine.search.progress import Progress

    wrong = Evaluation(Outcome.WRONG_RESULT, failure=Failure("'y' differs in 3 of 64 elements"))
    refused = [Refusal(3, "Use blocks of 256", wrong), Refusal(4, "Unroll", wrong)]
    assert verdict("saxpy", None, Progress(4, 3), {}, None, refused) == (
        "No suggestion for saxpy: 2 faster versions were not confirmed (the first): 'y' differs in 3 of 64 elements"
        " (4 candidates tried, 3 correct)."
    )
    assert verdict("saxpy", None, Progress(4, 3), {}, None, refused[:1]).startswith(
        "No suggestion for saxpy: a faster version was not confirmed: 'y' differs"
    )


def test_a_verdict_names_the_other_instances_that_it_holds_for() -> None:
    from engine.model import VerifiedInstance
    from engine.run.result import faster

    measured, predicted = Measurement((), 1.21, 1.2, 1.22), Measurement((), 1.6, 1.6, 1.6, predicted=True)
    others = (VerifiedInstance("k<half>", Measurement((), 1.1, 1.09, 1.11)),)
    assert faster("k", Evaluation(Outcome.ACCEPTED, measured, instances=others), {}, "3 tried") == (
        "k is 1.21× faster (95 % interval 1.20 to 1.22), verified (3 tried). "
        "Also verified for k<half> (1.10×), which the patch changes too."
    )
    others = (VerifiedInstance("k<half>", predicted), VerifiedInstance("k<double>", predicted))
    assert faster("k", Evaluation(Outcome.SCREENED, predicted, instances=others), {}, "3 tried").endswith(
        "not verified (3 tried). Also screened for k<half> (~1.6×), k<double> (~1.6×), which the patch changes too."
    )
