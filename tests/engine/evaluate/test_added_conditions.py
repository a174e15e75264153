"""Which conditions of an edit count as met, and what is excused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from engine.compile.built import Built
from engine.cpu.condition_marks import MarkedCondition, mark_conditions
from engine.cpu.jobs import CpuBinary, CpuRun
from engine.evaluate.added_conditions import NAME, AddedConditions, positive_parameters, unseen
from engine.spec.kernel_spec import Argument, Case, KernelSpec, Step

SPEC = KernelSpec(
    "k.cu", (Step("k", "", ("y", "n", "k")),),
    (Argument("y", "float", "out", "n"), Argument("n", "int", "scalar", ""), Argument("k", "int", "scalar", "")),
    (Case("small", {"n": 3, "k": 2}),), (Case("large", {"n": 100, "k": 7}),),
)  # fmt: skip
TESTED = MarkedCondition(3, "n % 97 == 5")


@pytest.mark.parametrize(
    ("mask", "missing"),
    [(4 | 1 | 2, set()), (4 | 1, {True}), (4 | 2, {False}), (1, set()), (0, set())],
    ids=["both", "never true", "never false", "a constant", "behind another condition"],
)
def test_a_condition_is_met_when_it_was_true_and_false(mask: int, missing: set[bool]) -> None:
    assert {outcome for _, outcome in unseen([TESTED], {0: mask})} == missing


def test_a_label_that_no_run_reached_and_a_declaration_are_unmet() -> None:
    conditions = [MarkedCondition(3, "case 7", label=True), MarkedCondition(4, "int m = n", marked=False)]
    assert set(unseen(conditions, {})) == {("case7", True), ("intm=n", True)}
    assert set(unseen(conditions, {0: 6})) == {("intm=n", True)}


@pytest.mark.parametrize(
    ("body", "excused"),
    [
        ("if (0 < k) y[0] = 1;", True),
        ("int at = k; if (k >= 1) y[at] = 1;", True),
        ("int k2 = k; if (0 < k2) y[0] = 1;", False),
        ("{ int k = n % 97 - 5; if (0 < k) y[0] = 1; }", False),
        ("k = n % 97 - 5; if (k != 0) y[0] = 1;", False),
        ("int& r = k; r = n % 97 - 5; if (k != 0) y[0] = 1;", False),
        ("change(k); if (k != 0) y[0] = 1;", False),
        ("if (k == 1) y[0] = 1;", False),
    ],
)
def test_a_size_is_above_zero_where_nothing_changes_or_hides_it(body: str, excused: bool) -> None:
    marked = mark_conditions(f'# 1 "k.cu"\nvoid f(float* y, int n, int k) {{ {body} }}\n', "k.cu", "end")
    (condition,) = marked.conditions
    assert positive_parameters(SPEC) == {"n", "k"}
    assert bool(unseen([condition], {0: 4 | 2}, positive_parameters(SPEC))) is not excused


def _judge(candidate: CpuBinary, original: CpuBinary, outcomes: dict[int, int]) -> Any:
    """The verdict on a candidate beside an original whose one run has these outcomes."""
    run = CpuRun({}, (), None, 0.0, seen=outcomes)
    machine: Any = SimpleNamespace(marked=lambda *a, **k: original, run_many=lambda binary, jobs: [run for _ in jobs])
    nothing: Any = None
    built = Built(nothing, "", (), nothing, ())
    judge = AddedConditions(machine, built, strict=True, positive=frozenset())
    job: Any = None
    return judge.judge(SimpleNamespace(extra=candidate, by_rules=False), [job])  # type: ignore[arg-type]


def test_what_the_original_leaves_unmet_in_the_same_words_is_excused_and_nothing_else() -> None:
    binary = CpuBinary(Path("k.so"), SPEC, "k.cu", conditions=(TESTED,), seen={0: 4 | 1})
    same = replace(binary, conditions=(replace(TESTED, line=9, text="n%97 == 5"),), seen={})
    assert _judge(binary, same, {0: 4 | 1}).verdict == "passed"
    assert _judge(binary, replace(same, seen={}), {0: 4 | 1 | 2}).verdict == "failed"
    other = replace(same, conditions=(MarkedCondition(3, "n % 98 == 5"),), seen={})
    verdict = _judge(binary, other, {0: 4 | 1})
    assert (verdict.name, verdict.verdict) == (NAME, "failed")
    assert "no check met line 3: 'n%97==5'" in verdict.detail


def test_what_cannot_be_read_is_refused() -> None:
    binary = CpuBinary(Path("k.so"), SPEC, "k.cu", unread=12)
    assert "line 12" in _judge(binary, binary, {}).detail
