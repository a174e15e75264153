"""The machine of the CPU path, one for all attacks and honest edits."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from engine.cpu.toolchain import find_toolchain
from engine.model import Binary
from engine.predict.predictor import Predictor
from engine.process.sandbox import available
from engine.run.machine import Machine, make_machine
from tests.runtime import prepare_runtime


@pytest.fixture(scope="package")
def cpu() -> Iterator[Machine]:
    works, why = available()
    if not works:
        pytest.skip(f"no sandbox here: {why}")
    if find_toolchain() is None:
        pytest.skip("no C++ compiler here")
    prepare_runtime()
    machine = make_machine(device="cpu", jobs=1)  # tests run beside each other on the other cores
    yield machine
    machine.close()


@pytest.fixture(autouse=True)
def _disassembled_when_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Builds in the pool disassemble ahead what a search would need soon. What is refused never needs it: 0.4 s of a core each.

    For one test at a time: a fixture of the package's scope outlived it in a worker that took tests of others.
    """
    code, here = Predictor.code, threading.current_thread()

    def later(self: Predictor, binary: Binary) -> Any:
        return code(self, binary) if threading.current_thread() is here else {}

    monkeypatch.setattr(Predictor, "code", later)
