"""Every known way to cheat must be refused with a reason, every honest edit accepted, on whatever this machine has."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

import pytest

from engine.model import PASSED
from engine.run.machine import Machine, make_machine
from engine.selftest.case_runs import Verdict, run_cases
from engine.selftest.cases import SelfCase, load_cases, original_text, originals
from engine.verify.defences import ALL

pytestmark = pytest.mark.slow

ATTACKS, HONEST = load_cases("attacks"), load_cases("honest")


def _groups(mode: str) -> list[str]:
    return [o for o in originals() if any(c.original == o and c.expected(mode) for c in (*ATTACKS, *HONEST))]


def _of(original: str) -> list[SelfCase]:
    return [case for case in (*ATTACKS, *HONEST) if case.original == original]


def _unexpected(verdicts: list[Verdict]) -> list[str]:
    return [f"{v.case.name}: {v.outcome}: {v.reason}" for v in verdicts if v.as_expected is False]


def test_the_suite_is_as_large_as_promised() -> None:
    assert len(ATTACKS) >= 40
    assert len(HONEST) >= 40
    assert {case.original for case in (*ATTACKS, *HONEST)} == set(originals())


@pytest.mark.parametrize("case", [*ATTACKS, *HONEST], ids=lambda case: f"{case.suite}-{case.name}")
def test_a_case_fits_its_original_and_says_what_it_is(case: SelfCase) -> None:
    assert case.text() != original_text(case.original)
    assert len(case.idea) > 15
    assert case.gpu or case.cpu
    if case.suite == "attacks":
        assert not PASSED & {*case.gpu, *case.cpu}, "an attack that passes is no attack that was refused"


# One thread writes one element and reads none that another writes, in every right edit of these: their threads have nothing to
# race for. ThreadSanitizer on each costs half of the suite's time here; `optiml selftest` does not leave it out.
ELEMENTWISE = frozenset({"blend", "brains", "doubles", "faint", "halves", "mix", "nudge", "pair", "relu", "scale"})


def test_threads_share_nothing_in_what_is_called_elementwise() -> None:
    shared = re.compile(rb"__shared__|__sync|atomic|__shfl|cooperative")
    for case in HONEST:
        if case.original in ELEMENTWISE:
            assert not shared.search(case.text()), case.name


@pytest.mark.timeout(900)
@pytest.mark.parametrize("original", _groups("predicted"))
def test_on_the_cpu(cpu: Machine, original: str) -> None:
    verdicts = run_cases(_of(original), cpu, defences=replace(ALL, races=original not in ELEMENTWISE))
    assert any(v.as_expected for v in verdicts)
    assert not _unexpected(verdicts)


@pytest.fixture(scope="module")
def gpu() -> Iterator[Machine]:
    machine = make_machine(device="gpu")
    yield machine
    machine.close()


@pytest.mark.gpu
@pytest.mark.timeout(600)
@pytest.mark.parametrize("original", _groups("measured"))
def test_on_the_gpu(gpu: Machine, original: str) -> None:
    verdicts = run_cases(_of(original), gpu)
    assert any(v.as_expected for v in verdicts)
    assert not _unexpected(verdicts)
