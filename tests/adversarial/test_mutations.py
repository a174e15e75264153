"""Each defence is needed: with it off, an attack passes that is refused with it on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields

import pytest

from benchmarks.mutate_verifier import CPU, GPU, Row, shown, worth
from engine.cpu.toolchain import find_toolchain
from engine.machine import Machine, make_machine
from engine.sandbox import available
from engine.verify.defences import Defences

SANDBOX, WHY = available()


@pytest.fixture(scope="module")
def cpu() -> Iterator[Machine]:
    if not SANDBOX:
        pytest.skip(f"no sandbox here: {WHY}")
    if find_toolchain() is None:
        pytest.skip("no C++ compiler here")
    machine = make_machine(device="cpu")
    yield machine
    machine.close()


def test_every_row_names_a_defence() -> None:
    known = {field.name for field in fields(Defences)}
    for row in (*CPU, *GPU):
        assert {row.defence, *row.also_off} <= known


def test_every_defence_has_a_row() -> None:
    # The roofline floor stands alone: it needs a kernel that does not do its work and yet leaves the right result.
    assert {row.defence for row in (*CPU, *GPU)} == {field.name for field in fields(Defences)} - {"roofline_floor"}


@pytest.mark.parametrize("row", CPU, ids=lambda row: row.defence)
def test_on_the_cpu(cpu: Machine, row: Row) -> None:
    before, after = worth(row, cpu)
    assert shown(before, after), (before.outcome, after.outcome, after.reason)


@pytest.mark.gpu
@pytest.mark.parametrize("row", GPU, ids=lambda row: row.defence)
def test_on_the_gpu(row: Row) -> None:
    machine = make_machine(device="gpu")
    try:
        before, after = worth(row, machine)
    finally:
        machine.close()
    assert shown(before, after), (before.outcome, after.outcome, after.reason)
