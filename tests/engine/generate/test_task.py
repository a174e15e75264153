from __future__ import annotations

import json
from typing import Any

import pytest

from engine.errors import OptimlError
from engine.generate.check_cases import TaskError
from engine.generate.messages import Prompts
from engine.generate.task import Task, described, read_task
from engine.model import Program, Target
from engine.spec.reader import specs_in

from .scripts import RECORDED

X = {"name": "x", "type": "float", "role": "in", "shape": ["rows", "cols"], "fill": "normal", "low": "", "high": ""}
Y = {"name": "y", "type": "float", "role": "out", "shape": ["rows", "cols"], "fill": "", "low": "", "high": ""}
ROWS = {"name": "rows", "type": "int32", "role": "scalar", "shape": [], "fill": "", "low": "", "high": ""}
SIZES = [{"name": "rows", "values": [4096]}, {"name": "cols", "values": [8192]}]


def told(*arguments: dict[str, Any], sizes: Any = SIZES, kernel: Any = "softmax_kernel") -> str:
    return json.dumps({"kernel": kernel, "sizes": sizes, "arguments": list(arguments)})


def specs(task: Task) -> Any:
    return specs_in(Program({"k.cu": task.file(("a comment",)).encode()}, "k.cu"), None)[0]


@pytest.mark.parametrize("name", ["softmax", "saxpy", "column_sum"])
@pytest.mark.parametrize("cpu", [True, False])
def test_a_task_becomes_a_file_whose_spec_the_engine_reads(name: str, cpu: bool) -> None:
    task = read_task((RECORDED / name / "task.md").read_text(), cpu=cpu)
    spec = specs(task)
    assert spec.kernel == task.kernel == name.removesuffix("_kernel") + "_kernel"
    assert [a.name for a in spec.arguments] == [a.name for a in task.arguments]
    assert spec.check == task.check
    assert [dict(c.sizes) for c in spec.time] == [dict(c.sizes) for c in task.time]
    assert spec.tolerance is None
    assert spec.deterministic
    assert all(a.tolerance is None for a in spec.arguments)


def test_check_shapes_are_awkward_and_reach_the_real_length() -> None:
    task = read_task((RECORDED / "softmax" / "task.md").read_text())
    shapes = [(c.sizes["rows"], c.sizes["cols"]) for c in task.check]
    assert (1, 1) in shapes
    assert (7, 129) in shapes
    assert any(cols == 8192 and rows < 10 for rows, cols in shapes)
    assert (4096, 8192) not in shapes


def test_a_factor_comes_in_several_values_of_one_sign() -> None:
    task = read_task((RECORDED / "saxpy" / "task.md").read_text())
    factors = {c.sizes["a"] for c in task.check}
    assert len(factors) >= 3
    assert all(f > 0 for f in factors)
    assert task.time[0].sizes["a"] == 2.5


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ("I cannot do that.", "no JSON object"),
        (told(X, Y, kernel="x;y"), "no name for a kernel"),
        (told(X, Y, kernel="optiml_k"), "no name for a kernel"),
        (told({**X, "name": "x, float* z"}, Y), "no name for a argument"),
        (told({**X, "name": "threadIdx"}, Y), "no name"),
        (told({**X, "type": "float4"}, Y), "has a type that is none of"),
        (told({**X, "role": "secret"}, Y), "the role of 'x'"),
        (told({**X, "shape": ["rows; system()"]}, Y), "no arithmetic"),
        (told({**X, "shape": ["rows/*", "*/cols"]}, Y), "no arithmetic"),
        (told({**X, "shape": ["depth"]}, Y), "has no value"),
        (told({**X, "shape": ["rows - 4096"]}, Y), "extent of 0"),
        (told({**X, "shape": []}, Y), "one to 6 extents"),
        (told({**X, "fill": "constant"}, Y), "fill of 'x'"),
        (told({**X, "fill": "uniform", "low": "0\n", "high": 'a" }'}, Y), "no arithmetic"),
        (told({**X, "type": "int32", "fill": "normal"}, Y), "no normal fill"),
        (told(X, Y, {**ROWS, "name": "depth"}), "is no size"),
        (told(X, Y, {**ROWS, "type": "half"}), "write one of"),
        (told(X, Y, X), "same name"),
        (told(X), "at least one input and one output"),
        (told(Y), "at least one input and one output"),
        (told(X, Y, sizes=[]), "one to 8 sizes"),
        (told(X, Y, sizes=[{"name": "rows", "values": [0]}]), "a length is at least 1"),
        (told(X, Y, sizes=[{"name": "rows", "values": ["many"]}]), "is no number"),
        (told(X, Y, sizes=[{"name": "rows", "values": [8]}, {"name": "cols", "values": [16]}]), "no size is over"),
        (told(X, Y, sizes=[{"name": "rows", "values": [1 << 20]}, {"name": "cols", "values": [1 << 20]}]), "GiB"),
        (told(X, Y, sizes=[{"name": "rows", "values": [1, 2]}, {"name": "cols", "values": [1, 2, 3]}]), "others have 3"),
        (told(X, Y, sizes=[{"name": "x", "values": [4096]}, *SIZES]), "both a buffer and a size"),
    ],
)  # fmt: skip
def test_a_bad_task_is_refused_with_one_sentence(answer: str, says: str) -> None:
    with pytest.raises(TaskError, match=says):
        read_task(answer)


def test_nothing_of_an_answer_reaches_the_file_but_what_was_checked() -> None:
    """A task that asks for a loose judgement gets ours: tolerance, shapes and determinism are not its own to say."""
    loose = json.loads(told({**X, "tolerance": 0.1, "low": "1", "high": "2"}, {**Y, "tolerance": 0.1}))
    loose |= {
        "tolerance": 0.1,
        "deterministic": False,
        "check": [{"rows": 1, "cols": 1}],
        "compile": {"defines": ["A=1"]},
    }
    text = read_task(json.dumps(loose)).file(("",))
    assert "tolerance" not in text
    assert "deterministic" not in text
    assert "compile" not in text
    assert 'kind = "normal" }' in text  # neither mean nor deviation
    assert len(specs(read_task(json.dumps(loose))).check) >= 3


@pytest.mark.parametrize(
    ("required", "known", "says"),
    [
        (("matrix",), (), "takes 'matrix', which is no argument"),
        (("x", "y"), (), "'y' is an output"),
        (("rows",), (), "the input 'x' is none that the reference takes"),
    ],
)
def test_a_task_has_to_fit_the_reference(required: tuple[str, ...], known: tuple[str, ...], says: str) -> None:
    with pytest.raises(TaskError, match=says):
        read_task(told(X, Y), required=required, known=(*required, *known))


def test_fuzzed_answers_end_in_a_task_or_a_sentence() -> None:
    from hypothesis import given, settings
    from hypothesis import strategies as st

    keys = st.sampled_from(["name", "type", "role", "shape", "fill", "low", "high", "values"])
    leaf = st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8), st.just("rows"), st.just("in")
    )
    value = st.recursive(leaf, lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(
        keys, inner, max_size=5)), max_leaves=12)  # fmt: skip

    @given(arguments=st.lists(value, max_size=4), sizes=value)
    @settings(max_examples=150, deadline=None)
    def check(arguments: list[Any], sizes: Any) -> None:
        try:
            task = read_task(json.dumps({"kernel": "k", "sizes": sizes, "arguments": [X, Y, *arguments]}))
        except TaskError:
            return
        try:
            specs(task)
        except OptimlError:
            return  # the run turns it into a refusal

    check()


N = {"name": "n", "type": "int32", "role": "scalar", "shape": [], "fill": "", "low": "", "high": ""}
BINS = {"name": "bins", "type": "int32", "role": "scalar", "shape": [], "fill": "", "low": "", "high": ""}


def counts(type_: str, *scalars: dict[str, Any]) -> Task:
    found = {
        "name": "counts",
        "type": type_,
        "role": "zeroed",
        "shape": ["bins + 1"],
        "fill": "",
        "low": "",
        "high": "",
    }
    values = {**X, "shape": ["n"]}
    sizes = [{"name": "n", "values": [1 << 20]}, {"name": "bins", "values": [256]}]
    return read_task(told(values, found, *scalars, sizes=sizes, kernel="histogram"))


@pytest.mark.parametrize(("type_", "repeatable"), [("int32", True), ("float", False)])
def test_a_zeroed_output_is_zeroed_by_the_host_and_by_every_check(type_: str, repeatable: bool) -> None:
    task = counts(type_, N, BINS)
    text = task.file(())
    word = "int" if type_ == "int32" else "float"
    assert f"cudaMemsetAsync(counts, 0, sizeof({word}) * (((long long)bins + 1)), stream);" in text
    assert text.index("cudaMemsetAsync") < text.index("<<<1, 1, 0, stream>>>")
    spec = specs(task)
    argument = spec.argument("counts")
    assert (argument.role, argument.fill.kind, argument.fill.low) == ("inout", "constant", "0")
    assert spec.deterministic is repeatable  # atomics on floats add up in another order each time
    assert [a.name for a in task.inputs] == ["x"]  # the reference does not get it
    assert [a.name for a in task.outputs] == ["counts"]


def test_the_size_of_a_zeroed_output_has_to_be_known_to_the_host() -> None:
    with pytest.raises(TaskError, match="'counts' is zeroed, and its size 'bins' is no scalar argument"):
        counts("int32", N)


N = {**ROWS, "name": "n"}
K = {**ROWS, "name": "k"}
TOP = [{**X, "shape": ["n"]}, {**Y, "shape": ["k"]}, N, K]


def with_conditions(*conditions: Any, n: Any = (1 << 20,), k: Any = (100,)) -> str:
    sizes = [{"name": "n", "values": list(n)}, {"name": "k", "values": list(k)}]
    return json.dumps({**json.loads(told(*TOP, sizes=sizes)), "conditions": list(conditions)})


@pytest.mark.parametrize("cpu", [True, False])
def test_every_check_shape_meets_the_conditions_and_is_near_an_awkward_one(cpu: bool) -> None:
    free = read_task(with_conditions(), cpu=cpu)
    assert any(c.sizes["k"] > c.sizes["n"] for c in free.check)
    task = read_task(with_conditions("k <= n", "k % 2 == 0"), cpu=cpu)
    assert all(c.sizes["k"] <= c.sizes["n"] and c.sizes["k"] % 2 == 0 for c in task.check)
    assert len(task.check) >= 4
    assert any(c.sizes["k"] == c.sizes["n"] for c in task.check)
    assert specs(task).check == task.check


def test_a_condition_names_the_values_that_are_tried() -> None:
    task = read_task(with_conditions("k % 48 == 0", k=[4800]), cpu=True)
    assert {c.sizes["k"] for c in task.check} >= {48}
    assert all(c.sizes["k"] % 48 == 0 for c in task.check)


@pytest.mark.parametrize(
    ("condition", "says"),
    [
        ("k > n", "is not met by the case n=1048576,k=100"),
        ("k <= m", "has no value"),
        ("k <= n; system()", "no comparison"),
        (3, "no comparison"),
        ("k % 77 == 1 && n % 2 == 0 && n % 97 == 71", "is not met"),
    ],
)
def test_a_bad_condition_is_refused_with_one_sentence(condition: Any, says: str) -> None:
    with pytest.raises(TaskError, match=says):
        read_task(with_conditions(condition))


def test_conditions_stand_in_the_prompt_of_a_kernel_and_of_a_reference() -> None:
    prompts = Prompts("a sentence", Target("sm_90"))
    task, free = (read_task(with_conditions(*c)) for c in (["k <= n"], []))
    assert "\nTrue for every size that it is used with:\n- k <= n\n" in prompts.kernel(task, "", "")[1].content
    assert '"k <= n"' in prompts.reference(task)[1].content
    assert "True for every size" not in prompts.kernel(free, "", "")[1].content


def test_a_small_size_is_checked_in_each_of_its_real_values() -> None:
    task = read_task(with_conditions(n=[1 << 20, 1 << 16], k=[3, 5]), cpu=True)
    assert {c.sizes["k"] for c in task.check} == {3, 5}


def test_a_length_whose_square_fills_memory_still_has_three_shapes() -> None:
    square = [{**X, "shape": ["n", "n"]}, {**Y, "shape": ["n", "n"]}, N]
    task = read_task(told(*square, sizes=[{"name": "n", "values": [500]}]), cpu=True)
    assert len({c.sizes["n"] for c in task.check}) == len(task.check) >= 3


def test_a_table_of_a_fixed_size_does_not_make_a_task_impossible() -> None:
    """Its bytes count for every shape, and no shape makes them fewer."""
    table = {**X, "name": "table", "shape": ["1000000"]}
    task = read_task(told(table, {**X, "shape": ["n"]}, {**Y, "shape": ["n"]}, sizes=[{"name": "n", "values": [4096]}]))
    assert {c.sizes["n"] for c in task.check} >= {1, 129}


def test_names_may_begin_with_a_capital_letter() -> None:
    upper = [{**X, "name": "Q", "shape": ["N"]}, {**Y, "shape": ["N"]}, {**N, "name": "N"}]
    task = read_task(told(*upper, sizes=[{"name": "N", "values": [4096]}]))
    assert "const float* Q, float* y, int N" in task.signatures[0]
    assert specs(task).check == task.check


def test_a_matrix_may_be_declared_symmetric() -> None:
    square = {**X, "shape": ["n", "n"], "fill": "symmetric", "type": "int32", "low": "0", "high": "2"}
    out = {**Y, "shape": ["n"], "type": "int32"}
    task = read_task(told(square, out, N, sizes=[{"name": "n", "values": [4096]}]))
    assert 'kind = "symmetric", low = "0", high = "2"' in task.file(("",))
    assert specs(task).argument("x").fill.kind == "symmetric"


@pytest.mark.parametrize("cpu", [True, False])
def test_a_shape_has_lengths_as_even_as_the_real_ones(cpu: bool) -> None:
    """All shapes of one length were odd: what a kernel does with vectors of four never ran on the CPU path."""
    vector = [{**X, "shape": ["n"]}, {**Y, "shape": ["n"]}, N]
    task = read_task(told(*vector, sizes=[{"name": "n", "values": [25_000_000]}]), cpu=cpu)
    assert any(c.sizes["n"] % 32 == 0 for c in task.check)
    matrix = read_task(told(X, Y), cpu=cpu)
    assert any(
        c.sizes["rows"] % 32 == c.sizes["cols"] % 32 == 0 and c.sizes["rows"] != c.sizes["cols"] for c in matrix.check
    )
    odd = read_task(told(*vector, sizes=[{"name": "n", "values": [10_007]}]), cpu=cpu)
    assert all(c.sizes["n"] % 4 for c in odd.check)


PART = {**Y, "name": "part", "role": "scratch", "shape": ["rows"]}
TWO = [("first", ["x", "part", "rows"]), ("second", ["part", "y", "rows"])]


def in_launches(launches: Any, *arguments: dict[str, Any]) -> str:
    """A task's text with launches, (kernel, arguments) each."""
    whole = json.loads(told(*(arguments or (X, PART, Y, ROWS)), kernel="norm"))
    whole["launches"] = [{"kernel": k, "arguments": a} for k, a in launches] if isinstance(launches, list) else launches
    return json.dumps(whole)


def test_several_launches_hand_on_scratch() -> None:
    task = read_task(in_launches(TWO))
    assert task.signatures == (
        "__global__ void first(const float* x, float* part, int rows)",
        "__global__ void second(float* part, float* y, int rows)",
    )
    assert [a.name for a in task.outputs] == ["y"]
    spec = specs(task)
    assert [(s.kernel, s.arguments) for s in spec.steps] == [(k, tuple(a)) for k, a in TWO]
    assert spec.argument("part").scratch
    assert [a.name for a in spec.outputs] == ["y"]
    text = task.file(("",))
    assert "void norm(const float* x, float* part, float* y, int rows, cudaStream_t stream) {" in text
    assert "// part is scratch of (rows) elements." in text
    assert "part" not in described(task)


def test_one_launch_needs_no_list() -> None:
    one = read_task(in_launches([("first", ["x", "y", "rows"])], X, Y, ROWS))
    assert one == read_task(told(X, Y, ROWS, kernel="norm"))


@pytest.mark.parametrize(
    ("launches", "says"),
    [
        ([], "there is one launch"),
        ("first", "at most 4 launches"),
        ([("k", ["x"])] * 5, "at most 4 launches"),
        ([("first", ["x", "part", "rows"])], "there is one launch"),
        ([*TWO[:1], ("second", ["part", "z"])], "takes 'z', which is no argument"),
        ([*TWO[:1], ("second", ["part"])], "no launch takes 'y'"),
        ([TWO[0], ("first", TWO[1][1])], "each launch is of another kernel"),
        ([TWO[0], ("second", ["y", "y"])], "each once"),
        ([TWO[0], ("second", "y")], "does not list its arguments"),
        ([TWO[0], ("norm", TWO[1][1])], "the same name"),
        ([TWO[0], ("part", TWO[1][1])], "the same name"),
        ([TWO[0], ("x; y", TWO[1][1])], "no name for a kernel"),
    ],
)
def test_launches_that_cannot_be(launches: Any, says: str) -> None:
    with pytest.raises(TaskError, match=says):
        read_task(in_launches(launches))


def test_scratch_alone_is_no_result() -> None:
    with pytest.raises(TaskError, match="one output buffer"):
        read_task(in_launches(TWO, X, PART, {**Y, "role": "scratch"}, ROWS))


def test_an_extent_may_have_pythons_whole_number_division() -> None:
    task = read_task(in_launches(TWO, X, {**PART, "shape": ["(rows + 1) // 2"]}, Y, ROWS))
    assert task.arguments[1].shape == ("(rows + 1) / 2",)
    assert '"((rows + 1) / 2)"' in task.file(("",))
