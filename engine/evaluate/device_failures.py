"""Evaluations of what failed on the device, from what the worker reports."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from engine.compile.built import Built
from engine.errors import OptimlError
from engine.gpu.runner import DeviceFault
from engine.model import Evaluation, Failure, Outcome

_KINDS = {"wrong_result": Outcome.WRONG_RESULT, "memory_error": Outcome.MEMORY_ERROR}
FAULTS = {
    "launch": Outcome.CRASHED, "device": Outcome.MEMORY_ERROR, "out_of_memory": Outcome.CRASHED,
    "timeout": Outcome.TIMED_OUT, "died": Outcome.CRASHED,
}  # fmt: skip


def unlaunchable(built: Built, error: OptimlError) -> Evaluation:
    failure = Failure(error.what)
    return Evaluation(
        Outcome.SCREENED_OUT, None, failure, built.binary.resources, built.binary.code_hash, dict(built.stage_s)
    )


def refused(evaluation: Evaluation, failure: Mapping[str, Any]) -> Evaluation:
    names = ("argument", "index", "expected", "got", "error", "tolerance")
    family = failure.get("family", "")
    reason = failure["reason"] + (f" (inputs '{family}')" if family else "")
    return replace(
        evaluation, outcome=_KINDS[failure["kind"]], measurement=None,
        failure=Failure(reason, case=failure["case"], **{n: failure[n] for n in names if n in failure}),
    )  # fmt: skip


def sentence(fault: DeviceFault) -> str:
    return {
        "launch": f"the launch was refused: {fault.what}",
        "device": f"the kernel faulted: {fault.what}",
        "out_of_memory": "not enough device memory",
        "timeout": "did not finish in time",
        "died": "crashed the worker process",
    }[fault.kind]
