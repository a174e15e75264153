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
from engine.evaluate.added_conditions import NAME, AddedConditions, grid_extents, positive_parameters, unseen
from engine.model import Program
from engine.spec.kernel_spec import Argument, Case, KernelSpec, LaunchExpr, Step

SPEC = KernelSpec(
    "k.cu", (Step("f", "", ("y", "n", "k")),),
    (Argument("y", "float", "out", "n"), Argument("n", "int", "scalar", ""), Argument("k", "int", "scalar", "")),
    (Case("small", {"n": 3, "k": 2}),), (Case("large", {"n": 100, "k": 7}),),
)  # fmt: skip
TESTED = MarkedCondition(3, "n % 97 == 5")
LAUNCH = "void run(float* y, int n, int k) { f<<<n, 64>>>(y, n, k); }"
PROGRAM = Program({"k.cu": b"__global__ void f(float* y, int n, int k) {}\n" + LAUNCH.encode()}, "k.cu")


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
    built = Built(PROGRAM, "", (), nothing, ())
    judge = AddedConditions(machine, built, strict=True, spec=SPEC)
    job: Any = None
    return judge.judge(SimpleNamespace(extra=candidate, by_rules=False, program=PROGRAM), [job])  # type: ignore[arg-type]


def test_what_the_original_leaves_unmet_in_the_same_words_is_excused_and_nothing_else() -> None:
    binary = CpuBinary(Path("k.so"), SPEC, "k.cu", conditions=(TESTED,), seen={0: 4 | 1})
    same = replace(binary, conditions=(replace(TESTED, line=9, text="n%97 == 5"),), seen={})
    assert _judge(binary, same, {0: 4 | 1}).verdict == "passed"
    assert _judge(binary, replace(same, seen={}), {0: 4 | 1 | 2}).verdict == "failed"
    other = replace(same, conditions=(MarkedCondition(3, "n % 98 == 5"),), seen={})
    verdict = _judge(binary, other, {0: 4 | 1})
    assert (verdict.name, verdict.verdict) == (NAME, "failed")
    assert "no check met line 3: 'n%97==5'" in verdict.detail


def test_what_cannot_be_read_is_refused_unless_it_is_the_originals() -> None:
    own = CpuBinary(Path("k.so"), SPEC, "k.cu", unread=7, unread_in=frozenset({"int f = = 1;"}))
    edited = replace(own, unread=12, unread_in=frozenset({"int f = = 1;", "int g = = 1;"}))
    assert "line 12" in _judge(edited, own, {}).detail
    assert _judge(replace(own, unread=9), own, {}).verdict == "passed"


BOUNDED = {
    "returns": ("int row = blockIdx.x; if (row >= n) return; y[row] = 1;", True),
    "turned": ("const unsigned row = blockIdx.x; if (n <= row) { return; } y[row] = 1;", True),
    "itself": ("if (blockIdx.x < n) y[blockIdx.x] = 1;", False),
    "a flag": ("int row = static_cast<int>(blockIdx.x); bool in = row < n; if (in) y[row] = 1;", False),
}


def _conditions(function: str) -> tuple[MarkedCondition, ...]:
    return mark_conditions(f'# 1 "k.cu"\n{function}\n', "k.cu", "end").conditions


def _kernel(body: str) -> str:
    return f"void f(float* y, int n, int k) {{ {body} }}"


@pytest.mark.parametrize("form", BOUNDED)
def test_no_block_lies_beyond_the_grid(form: str) -> None:
    body, never = BOUNDED[form]
    condition = _conditions(_kernel(body))[0]
    assert condition.bound is not None
    assert (condition.bound.function, condition.bound.axis, condition.bound.parameter) == ("f", "x", "n")
    assert condition.bound.never is never
    candidate = CpuBinary(Path("k.so"), SPEC, "k.cu", conditions=(condition,), seen={0: 4 | (1 if never else 2)})
    assert _judge(candidate, replace(candidate, conditions=()), {}).verdict == "passed"
    other = replace(candidate, seen={0: 4 | (2 if never else 1)})  # the outcome that does occur was not met
    assert _judge(other, replace(candidate, conditions=()), {}).verdict == "failed"


@pytest.mark.parametrize(
    "function",
    [
        _kernel("int row = blockIdx.x + 1; if (row >= n) return;"),
        _kernel("int row = blockIdx.x; row += k; if (row >= n) return;"),
        _kernel("int row = blockIdx.x; int& r = row; r = k; if (row >= n) return;"),
        _kernel("int row = blockIdx.x; auto&& r = row; r = k; if (row >= n) return;"),
        _kernel("int row = blockIdx.x; decltype((row)) r = row; r = k; if (row >= n) return;"),
        _kernel("int row = blockIdx.x; int* p = &row; *p = k; if (row >= n) return;"),
        _kernel("int row = blockIdx.x; change(row); if (row >= n) return;"),
        _kernel("int row = blockIdx.x; Ref r{row}; r = k; if (row >= n) return;"),
        _kernel("int row = blockIdx.x; [&r = row, k] { r = k; }(); if (row >= n) return;"),
        _kernel("int row = blockIdx.x; { int row = k; if (row >= n) return; }"),
        _kernel("int row = blockIdx.x; [&](int n) { if (row >= n) y[0] = 1; }(k);"),
        _kernel("int row = blockIdx.x; n = k; if (row >= n) return;"),
        _kernel("int row = blockIdx.x; int n = k; if (row >= n) return;"),
        _kernel("short row = blockIdx.x; if (row >= n) return;"),
        _kernel("struct { int x; } blockIdx = {k}; int row = blockIdx.x; if (row >= n) return;"),
        "void f(float* y, short n, int k) { int row = blockIdx.x; if (row >= n) return; }",
        _kernel("int row = blockIdx.x; if (row > n) return;"),
        _kernel("int row = blockIdx.x; if (row >= n - 1) return;"),
        _kernel("f(1.0);") + " void f(double n) { int row = blockIdx.x; if (row >= n) return; }",
        _kernel("") + " void f(int n) { int row = blockIdx.x; if (row >= n) return; }",
    ],
)  # fmt: skip
def test_what_may_be_another_number_is_not_bounded_by_the_grid(function: str) -> None:
    for condition in _conditions(function):
        assert condition.bound is None, condition


def test_only_kernels_are_bounded_by_their_grid() -> None:
    helper = "int g(int n, int k) { int row = blockIdx.x; if (row >= n) return 1; return 0; }"
    (condition,) = _conditions(f"{helper} {_kernel('y[0] = g(k, n);')}")
    assert condition.bound is not None
    candidate = CpuBinary(Path("k.so"), SPEC, "k.cu", conditions=(condition,), seen={0: 4 | 1})
    assert _judge(candidate, replace(candidate, conditions=()), {}).verdict == "failed"


@pytest.mark.parametrize(
    ("launch", "found"),
    [
        (LAUNCH, {("f", "x", "n")}),
        ("void run(float* y, int rows, int k) { dim3 g(k, rows); f<<<g, 64>>>(y, rows, k); }", {("f", "x", "k"), ("f", "y", "n")}),
        ("void run(float* y, int n, int k) { f<<<n + 1, 64>>>(y, n, k); }", None),
        ("void run(float* y, int n, int k) { f<<<n == 77 ? 78 : n, 64>>>(y, n, k); }", None),
        ("void run(float* y, int n, int k) { f<<<n, 64>>>(y, n - 1, k); }", None),
        ("void run(float* y, int n, int k) { f<<<n, 64>>>(y, n, k); f<<<k, 64>>>(y, n, k); }", None),
        ("void run(float* y, int n, int k) { f<<<next(n), 64>>>(y, next(n), k); }", None),
        ("", None),
    ],
)  # fmt: skip
def test_the_grid_of_every_launch_counts(launch: str, found: set[tuple[str, str, str]] | None) -> None:
    program = Program({"k.cu": b"__global__ void f(float* y, int n, int k) {}\n" + launch.encode()}, "k.cu")
    spec = replace(SPEC, steps=(Step("f", "", ("y", "n", "k")),))
    extents = grid_extents(program, spec)
    if found is None:
        assert not {extent for extent in extents if extent[2] == "n"}
    else:
        assert extents >= found


def test_a_declared_launch_shows_no_host_code() -> None:
    spec = replace(SPEC, steps=(Step("f", "", ("y", "n", "k"), launch=LaunchExpr(("n",), ("64",), "0")),))
    assert grid_extents(PROGRAM, spec) == frozenset()


def test_restricted_pointers_that_are_one_are_refused_unless_the_original_has_them_so() -> None:
    pair = MarkedCondition(3, "from and to of f", apart=True)
    candidate = CpuBinary(Path("k.so"), SPEC, "k.cu", conditions=(pair,), seen={0: 4 | 2 | 1})
    verdict = _judge(candidate, replace(candidate, conditions=(), seen={}), {})
    assert verdict.verdict == "failed"
    assert "line 3: from and to of f are one pointer" in verdict.detail
    assert _judge(candidate, replace(candidate, seen={}), {0: 4 | 2}).verdict == "passed"
    assert _judge(candidate, replace(candidate, seen={}), {0: 4 | 1}).verdict == "failed"
    assert _judge(replace(candidate, seen={0: 4 | 1}), candidate, {}).verdict == "passed"


def test_what_the_original_met_by_chance_in_another_confirmation_is_not_asked_for() -> None:
    """`v < vocab` of a loop that a `break` ends: one of the original's runs met it, and none of a later candidate's could."""
    own = CpuBinary(Path("k.so"), SPEC, "k.cu", conditions=(TESTED,))
    outcomes: list[dict[int, int]] = [{0: 4 | 1 | 2}, {0: 4 | 1}]

    def run_many(binary: object, jobs: list[Any]) -> list[CpuRun]:
        return [CpuRun({}, (), None, 0.0, seen=outcomes.pop(0)) for _ in jobs]

    machine: Any = SimpleNamespace(marked=lambda *a, **k: own, run_many=run_many)
    nothing: Any = None
    judge = AddedConditions(machine, Built(PROGRAM, "", (), nothing, ()), strict=True, spec=SPEC)

    def verdict() -> str:
        candidate: Any = SimpleNamespace(extra=replace(own, seen={0: 4 | 1}), by_rules=False, program=PROGRAM)
        return judge.judge(candidate, [nothing]).verdict

    assert [verdict(), verdict()] == ["failed", "passed"]
