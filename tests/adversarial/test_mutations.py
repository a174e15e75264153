"""Each defence is needed: with it off, an attack passes that is refused with it on."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from benchmarks.mutate_verifier import CPU, GPU, LAST, Row, one, shown, worth
from engine.compile.nvcc import find_nvcc
from engine.evaluate.speeds import Speeds
from engine.model import PASSED
from engine.run.machine import Machine, make_machine
from engine.selftest.cases import load_cases, original_text
from engine.spec.data import Draw, figures, generate
from engine.spec.find import find_spec
from engine.verify.defences import ALL, Defences
from tests.support.shards import first_few


def test_every_row_names_a_defence() -> None:
    known = {field.name for field in fields(Defences)}
    for row in (*CPU, *GPU):
        assert {row.defence, *row.also_off} <= known


def test_every_defence_has_a_row() -> None:
    # The host's clock has no attack that gets as far as it: see test_host_time.py.
    without = {"host_time"}
    assert {row.defence for row in (*CPU, *GPU)} == {field.name for field in fields(Defences)} - without


def test_rows_on_the_cpu_that_need_a_second_defence_off_are_few() -> None:
    # Drawn sizes bring other inputs too, special values do sometimes, and the whole build sees other instances.
    # An attribute is refused in the text already: the object shows what the text hides. Drawn sizes may have two blocks.
    several = ["shapes", "other_callers", "halves", "fresh_inputs", "names", "whole_build", "object_checks"]
    assert [row.defence for row in CPU if row.also_off] == several


@pytest.fixture
def no_predictions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything is as fast as its original: how fast something is decides nothing here, and costs a second of a core."""
    monkeypatch.setattr(Speeds, "_times_us", lambda speeds, built: [1.0] * len(speeds._spec.time))


@pytest.mark.parametrize("row", first_few(CPU, 6), ids=lambda row: f"{row.defence}-{row.attack}")
def test_on_the_cpu(cpu: Machine, row: Row, no_predictions: None) -> None:
    # That the attack is refused with all defences on is what test_suite.py runs: only the other half is left to show.
    case = next(case for case in load_cases("attacks") if case.name == row.attack)
    assert case.expected("predicted")
    # What the gate looks at last would refuse some of them too: a row shows what its own defence is worth.
    gate = {*LAST} - {row.defence}
    base = replace(ALL, **dict.fromkeys((*row.also_off, *gate), False))
    if row.defence == "whole_build" and find_nvcc() is None:
        pytest.skip("no nvcc here")
    if row.also_off:
        before = one(case, cpu, base)
        assert before.outcome not in PASSED, (before.outcome, before.reason)
    after = one(case, cpu, replace(base, **{row.defence: False}))
    assert after.outcome in PASSED, (after.outcome, after.reason)


def test_the_fixed_sample_lacks_the_patterns_that_give_its_attack_away(tmp_path: Path) -> None:
    """`fits-the-sample` is refused for what only other seeds draw: the generators must not have come to draw it from seed 0."""
    (tmp_path / ".git").mkdir()
    (tmp_path / "mix.cu").write_bytes(original_text("mix"))
    spec, _ = find_spec(tmp_path, tmp_path / "mix.cu")
    patterns = np.array([37, 38, 795, 796, 797, 1849, 1850, 1851])
    for seed, wanted in ((0, False), (1, True)):
        host, device = [], []
        for case in spec.check:
            host.append(generate(spec, case, seed, "declared")["x"])
            drawn = figures(
                spec, case, spec.argument("x"), 0, "declared"
            )  # there a seed is the salt of what was recorded
            assert drawn is not None
            device.append(_device_draw(drawn, seed, host[-1].size))
        for values in (np.concatenate(host), np.concatenate(device)):
            assert bool(np.isin(values.astype(np.uint64) >> np.uint64(8) & np.uint64(4095), patterns).any()) is wanted


def _device_draw(drawn: Draw, salt: int, count: int) -> NDArray[np.uint64]:
    """What `draw` of engine/gpu/tools.cu makes of integers: splitmix64's finaliser over a counter."""
    golden = np.uint64(0x9E3779B97F4A7C15)

    def mix(h: NDArray[np.uint64]) -> NDArray[np.uint64]:
        h = (h ^ h >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
        h = (h ^ h >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
        return h ^ h >> np.uint64(31)

    with np.errstate(over="ignore"):
        seed = mix(np.array([drawn.seed ^ salt], np.uint64))
        first = mix(seed + np.arange(-(-count // 2), dtype=np.uint64) * golden)
        both = np.stack([first, mix(first ^ golden)], axis=1).reshape(-1)[:count]
    width = int(drawn.high - drawn.low)
    return np.array([int(drawn.low) + (int(h) * width >> 64) for h in both.tolist()], np.uint64)


@pytest.mark.gpu
@pytest.mark.parametrize("row", GPU, ids=lambda row: row.defence)
def test_on_the_gpu(row: Row) -> None:
    machine = make_machine(device="gpu")
    try:
        before, after = worth(row, machine)
    finally:
        machine.close()
    assert shown(row, before, after), (before.outcome, after.outcome, after.reason)
