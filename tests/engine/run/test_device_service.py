"""A worker's side of a search over several devices, with the real CPU path: the same verdicts as without a cluster."""

from __future__ import annotations

import os
from concurrent.futures import Future
from contextlib import closing
from pathlib import Path
from typing import ClassVar

import pytest

from engine.compile.built import NotBuilt
from engine.cuda.load import load_program
from engine.errors import MachineError
from engine.evaluate.device_frames import Request, head_of, pack, read_reply
from engine.evaluate.remote import RemoteEvaluator
from engine.model import Outcome
from engine.run import device_service
from engine.run.machine import Machine
from engine.settings.config import Guardrails
from engine.spec.find import find_spec
from tests.adversarial.conftest import cpu as cpu

TEXT = """\
// optiml: args.x = { role = "inout", size = "n" }
// optiml: check = [{ n = 1 }, { n = 333 }]
// optiml: time = [{ n = 1000000 }]
__global__ void twice(float* x, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] = 2.0f * x[i];
}
void launch(float* x, int n) {
    twice<<<(n + 255) / 256, 256>>>(x, n);
}
"""


class Here:
    """A link to this process."""

    name = "here"
    identity: ClassVar[dict[str, object]] = {}
    cores = tuple(sorted(os.sched_getaffinity(0)))[:1]

    def call(self, frame: bytes) -> Future[bytes]:
        answer: Future[bytes] = Future()
        answer.set_result(device_service.answer(frame))
        return answer

    def drop(self) -> None: ...


def test_a_device_gives_the_verdicts_of_this_machine_and_frees_its_cores(cpu: Machine, tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    path = tmp_path / "k.cu"
    path.write_text(TEXT)
    spec, spec_path = find_spec(tmp_path, path)
    original = load_program(path, spec_file=spec_path)

    def changed(before: str, after: str) -> object:
        return original.replace({original.kernel_file: TEXT.replace(before, after).encode()})

    wider = changed("<<<(n + 255) / 256, 256>>>", "<<<(n + 511) / 512, 512>>>")
    wrong = changed("2.0f * x[i]", "3.0f * x[i]")
    foreign = changed("2.0f * x[i]", '2.0f * x[i]; asm volatile("nop;")')
    cores = os.sched_getaffinity(0)
    with closing(cpu.evaluator(spec, tmp_path, spec_path)) as local:
        _, held = local.open(original)
        here, _ = local.evaluate(local.build(wider, by_rules=False), None)  # type: ignore[arg-type]
    builder = cpu.builder(spec, tmp_path, spec_path, limits=Guardrails())
    with closing(RemoteEvaluator(spec, spec_path, builder, [Here()], "predicted")) as remote:
        built, evaluation = remote.open(original)
        assert os.sched_getaffinity(0) == set(Here.cores)
        assert evaluation.measurement == held.measurement
        assert remote.signals.mode == "predicted"
        there, against = remote.evaluate(remote.build(wider, by_rules=False), built)  # type: ignore[arg-type]
        assert (there.outcome, there.measurement) == (here.outcome, here.measurement)
        assert against == pytest.approx(here.measurement.ratio)  # type: ignore[union-attr]
        assert remote.footprint(remote.build(wider, by_rules=False), 0) is not None  # type: ignore[arg-type]
        assert remote.evaluate(remote.build(wrong, by_rules=False), None)[0].outcome is Outcome.WRONG_RESULT  # type: ignore[arg-type]
        with pytest.raises(NotBuilt):
            remote.evaluate(remote.build(foreign, by_rules=False), None)  # type: ignore[arg-type]
    assert os.sched_getaffinity(0) == cores
    head, blobs = head_of(built, original)
    late = read_reply(device_service.answer(pack(Request("evaluate", "gone", candidate=head), blobs)))
    assert late.problem is not None
    assert late.problem.kind == MachineError.__name__


def test_what_is_no_request_is_answered_with_a_sentence() -> None:
    for frame in (b"", b"OML1", pack(Request("evaluate", "s")).replace(b'"brief"', b'"chief"')):
        said = read_reply(device_service.answer(frame)).problem
        assert said is not None
        assert "cannot be read" in said.what
