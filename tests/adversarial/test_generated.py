"""Generated attacks and honest edits through the real stages: a few of each generator here, all of them on a GPU."""

from __future__ import annotations

import secrets

import pytest

from engine.run.machine import Machine, make_machine
from engine.selftest.case_runs import Verdict, run_cases
from engine.selftest.cases import SelfCase
from engine.selftest.generators.protocol import generated, generators

SEED = 1


def _unexpected(verdicts: list[Verdict]) -> list[str]:
    return [f"{v.case.name}: {v.outcome}: {v.reason}" for v in verdicts if v.as_expected is False]


def _sample() -> list[SelfCase]:
    """One case of each generator, those of one original together."""
    return [generated(SEED, [one.name])[0] for one in generators()]


def test_there_are_as_many_as_promised() -> None:
    cases = generated(SEED, rounds=2)
    assert len(generators()) >= 30
    assert sum(case.suite == "attacks" for case in cases) >= 250


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_one_case_of_each_generator_on_the_cpu(cpu: Machine) -> None:
    verdicts = run_cases(_sample(), cpu)
    assert len(verdicts) == len(generators())
    assert not _unexpected(verdicts)


@pytest.mark.gpu
@pytest.mark.timeout(1800)
def test_all_of_a_new_seed_on_the_gpu() -> None:
    seed = secrets.randbits(32)
    machine = make_machine(device="gpu")
    try:
        verdicts = run_cases(generated(seed, rounds=2), machine)
    finally:
        machine.close()
    assert any(v.as_expected for v in verdicts)
    assert not _unexpected(verdicts), f"seed {seed}"
