"""A compiler that crashes, hangs or prints what it likes: it costs the candidate at hand, with a reason, and is replaced."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import engine.process.sandbox
from engine.compile.built import NotBuilt
from engine.compile.nvrtc import NvrtcCompiler
from engine.cuda.load import load_program
from engine.evaluate.build import Builder
from engine.model import Evaluation, Outcome, Program
from engine.predict.targets import target_for
from engine.process.sandbox import NoSandbox
from engine.spec.find import find_spec

from .scripted import kernel

_WORKER = """
import os, signal, sys, time
sys.path.insert(0, {root!r})
from engine.process import wire
source, sink = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
while True:
    try:
        header, _ = wire.receive(source)
    except wire.WireError:
        sys.exit(0)
    text = header["text"]
    if "crash_here" in text:
        print("Segmentation fault in /home/someone/secret/libnvrtc.so \\x1b[31m", file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGSEGV)
    if "hang_here" in text:
        time.sleep(60)
    if "busy_here" in text:
        signal.setitimer(signal.ITIMER_PROF, header["seconds"])
        while True:
            pass
    if "garbage_here" in text:
        os.write(1, b"no frame at all" * 100)
        time.sleep(60)
    if "odd_here" in text:
        odd = {{"entries": ["k"], "resources": [float("inf")], "code_hash": 1, "most_threads": [], "kept_bytes": 0}}
        wire.send(sink, {{"ok": True, "described": odd}})
        continue
    if "short_here" in text:
        used = dict.fromkeys(("registers", "shared_bytes", "stack_bytes", "spill_store_bytes", "spill_load_bytes"), 0)
        short = {{"entries": ["k"], "resources": [used], "code_hash": "h", "most_threads": [], "kept_bytes": 0}}
        wire.send(sink, {{"ok": True, "described": short}})
        continue
    if "useless_here" in text:
        wire.send(sink, {{"refused": "the compiler did not report the resources of 'k' uses", "log": ""}})
        continue
    wire.send(sink, {{"ok": False, "log": "k.cu(7): error: identifier \\"z\\" is undefined"}})
"""


@pytest.fixture
def builder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Builder, Program]]:
    path = kernel(tmp_path)
    script = tmp_path / "worker.py"
    script.write_text(_WORKER.format(root=str(Path(__file__).parents[2])))
    monkeypatch.setattr(
        engine.process.sandbox, "python_command", lambda module, *arguments: [sys.executable, str(script)]
    )
    spec, spec_path = find_spec(tmp_path, path)
    compiler = NvrtcCompiler("sm_90", cache=None, sandbox=NoSandbox(), jobs=1, timeout_s=60.0)
    yield Builder(spec, tmp_path, compiler, target_for("sm_90"), spec_path), load_program(path, kernels=["k"])
    compiler.close()


def _built(builder: Builder, original: Program, name: str) -> Evaluation:
    data = original.data.replace(b"int i =", f"int {name} = 0; int i = {name} +".encode())
    with pytest.raises(NotBuilt) as caught:
        builder.candidate(original.replace({"k.cu": data}))
    assert caught.value.evaluation is not None
    assert caught.value.evaluation.failure is not None
    return caught.value.evaluation


def test_each_costs_one_candidate_and_the_compiler_is_replaced(builder: tuple[Builder, Program]) -> None:
    compiler = builder[0]._compiler
    assert isinstance(compiler, NvrtcCompiler)
    plain = _built(*builder, "nothing")
    assert plain.failure is not None
    assert (plain.outcome, plain.failure.line) == (Outcome.COMPILE_ERROR, 7)
    for name, says in (
        ("crash_here", "crashed on this code"),
        ("hang_here", "did not finish within 1 s"),
        ("busy_here", "did not finish within 1 s"),
        ("garbage_here", "the compiler"),
        ("odd_here", "an invalid answer"),
        ("short_here", "an invalid answer"),
        ("useless_here", "did not report the resources of 'k'"),
    ):
        compiler._timeout_s = 1.0 if name in ("hang_here", "busy_here") else 60.0
        evaluation = _built(*builder, name)
        compiler._timeout_s = 60.0
        assert evaluation.outcome is Outcome.COMPILE_ERROR
        assert evaluation.failure is not None
        assert says in evaluation.failure.reason
        assert "/home" not in evaluation.failure.reason
        assert _built(*builder, "nothing").failure == plain.failure


def test_who_ends_ends_what_is_compiled_for_him_alone(builder: tuple[Builder, Program]) -> None:
    compiler = builder[0]._compiler
    assert isinstance(compiler, NvrtcCompiler)
    with ThreadPoolExecutor(1) as pool:
        building = pool.submit(_built, *builder, "hang_here")
        while not compiler._busy:
            time.sleep(0.01)
        compiler.give_up(object())
        with pytest.raises(TimeoutError):
            building.result(timeout=0.3)
        builder[0].close()
        assert building.result(timeout=30.0).outcome is Outcome.COMPILE_ERROR
    assert _built(*builder, "nothing").outcome is Outcome.COMPILE_ERROR  # another worker took its place
