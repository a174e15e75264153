import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.arith import evaluate
from engine.errors import RefusedError, UsageError
from engine.tune.space import Condition, ParameterSpace, TuneParameter, _Checked, parse_values
from tests.spent import spent


def space(conditions=(), **parameters):
    return ParameterSpace(
        tuple(TuneParameter(n, tuple(v)) for n, v in parameters.items()), tuple(Condition(c) for c in conditions)
    )


def test_every_point_that_meets_the_conditions_is_listed_in_order():
    points, excluded = space(["BLOCK * ITEMS <= 256"], BLOCK=[64, 128, 256], ITEMS=[1, 2, 4]).points()
    assert points == ((64, 1), (64, 2), (64, 4), (128, 1), (128, 2), (256, 1))
    assert [(e.condition, e.points) for e in excluded] == [("BLOCK * ITEMS <= 256", 3)]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.integers(1, 12), min_size=1, max_size=4, unique=True), min_size=1, max_size=4),
    st.lists(
        st.sampled_from(["a <= b", "a * b < 30", "b % 2 == 0 || a > 3", "c != a", "a + b + c < 20", "d >= c"]),
        max_size=3,
    ),
)
def test_pruning_leaves_what_going_through_all_would(values, conditions):
    names = "abcd"[: len(values)]
    conditions = [c for c in dict.fromkeys(conditions) if Condition(c).names <= set(names)]
    tested = space(conditions, **dict(zip(names, values, strict=True)))
    wanted = tuple(
        p for p in itertools.product(*values) if all(evaluate(c, dict(zip(names, p, strict=True))) for c in conditions)
    )
    if not wanted:
        with pytest.raises(RefusedError, match="no point of the space is feasible"):
            tested.points()
        return
    points, excluded = tested.points()
    assert points == wanted
    assert sum(e.points for e in excluded) == tested.size - len(wanted)


def test_an_empty_set_names_the_condition_that_empties_it():
    with pytest.raises(RefusedError) as caught:
        space(["BLOCK >= 64", "BLOCK * ITEMS <= 32"], BLOCK=[32, 64, 128], ITEMS=[1, 2]).points()
    assert "'BLOCK >= 64' excludes 2; 'BLOCK * ITEMS <= 32' excludes the last 4" in caught.value.what
    with pytest.raises(RefusedError, match="'BLOCK > 1000' excludes all 3"):
        space(["BLOCK > 1000"], BLOCK=[32, 64, 128]).points()


def test_a_huge_product_with_tight_conditions_is_listed_and_a_huge_set_refused():
    wide = {name: range(1, 101) for name in "abcd"}
    points, _ = space(["b == a", "c == b", "d == c"], **wide).points()
    assert len(points) == 100
    with pytest.raises(UsageError, match=r"over 100000 of the 100000000 combinations of 'a', 'b', 'c', 'd'"):
        space([], **wide).points()


def test_a_million_combinations_are_gone_through_in_a_second_or_two():
    """Eleven seconds: the condition was read anew for each of them."""
    with spent() as cost:
        points, excluded = space(["BLOCK * ITEMS == 7"], BLOCK=range(1, 1025), ITEMS=range(1, 1025)).points()
    assert points == ((1, 7), (7, 1))
    assert [e.points for e in excluded] == [1024 * 1024 - 2]
    assert cost.seconds < 3


def test_what_is_too_large_is_refused_after_so_many_steps(monkeypatch):
    """Half a minute went by, and more the longer the conditions were."""
    wide = {"A": range(1, 1025), "B": range(1, 1025), "C": range(1, 1025)}
    monkeypatch.setattr("engine.tune.space._MOST_VISITED", 20_000)
    asked = []
    plain = _Checked.holds
    monkeypatch.setattr(_Checked, "holds", lambda self, values: asked.append(self) or plain(self, values))
    for condition, least, most in (
        ("A * B * C == 7", 15_000, 22_000),
        (" + ".join(["A", "B", "C"] * 40), 2_500, 4_500),
    ):
        with pytest.raises(UsageError, match="combinations of 'A', 'B', 'C' are too many to enumerate"):
            space([condition + " && 0"], **wide).points()
        assert least < len(asked) < most
        asked.clear()


def test_conditions_are_arithmetic_over_known_names():
    with pytest.raises(UsageError, match="names 'WIDTH'"):
        space(["WIDTH > 1"], BLOCK=[32]).points()
    with pytest.raises(UsageError, match="has no value at BLOCK = 32"):
        space(["BLOCK / (BLOCK - 32) > 1"], BLOCK=[32]).points()
    with pytest.raises(UsageError, match="invalid condition: unexpected"):
        space(["BLOCK.__class__ ; 1"], BLOCK=[32]).points()


def test_conditions_may_call_functions():
    """`min` was taken for the name `mi`."""
    points, _ = space(["min(BLOCK, 64) == 64 && cdiv (BLOCK, 48) <= max(2, 3)"], BLOCK=[32, 64, 128, 256]).points()
    assert points == ((64,), (128,))


def test_a_condition_without_a_value_says_how_to_write_it():
    """It was told to use the parameters, which it did."""
    with pytest.raises(UsageError) as caught:
        space(["BLOCK % (ITEMS - 1) == 0"], BLOCK=[32], ITEMS=[1, 2]).points()
    assert caught.value.what.startswith("the condition has no value at BLOCK = 32, ITEMS = 1: division by zero")
    assert caught.value.do == "guard it, e.g. ITEMS != 0 && BLOCK % ITEMS == 0"
    points, _ = space(["ITEMS == 1 || BLOCK % (ITEMS - 1) == 0"], BLOCK=[32], ITEMS=[1, 2]).points()
    assert len(points) == 2


def test_a_huge_set_says_how_large_and_where():
    wide = ParameterSpace(tuple(TuneParameter(n, tuple(range(1, 1001)), f"k.cu:{i}") for i, n in enumerate("abc", 1)))
    with pytest.raises(UsageError) as caught:
        wide.points()
    assert (caught.value.where, caught.value.what) == (
        "k.cu:1", "over 100000 of the 1000000000 combinations of 'a', 'b', 'c' meet the conditions",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("64, 128", (64, 128)),
        ("1..4", (1, 2, 3, 4)),
        ("32..128 step 32, 512", (32, 64, 96, 128, 512)),
        ("2*64, 1 << 8", (128, 256)),
        ("-1..1", (-1, 0, 1)),
    ],
)
def test_values_are_numbers_ranges_and_arithmetic(text, values):
    assert parse_values(text, "N") == values


@pytest.mark.parametrize(
    "text", ["", "64,", "a, b", "1..0", "1..999999999", "1.5", "4294967296", "8..1 step 2", "import os"]
)
def test_values_that_are_none_are_refused(text):
    with pytest.raises(UsageError):
        parse_values(text, "N")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("1..1000000000", r"'1\.\.1000000000' of 'N' has 1000000000 values; at most 1024"),
        ("1..99999999999999999999999", "has 99999999999999999999999 values"),
        ("8..1", r"the range '8\.\.1' of 'N' is empty; write the smaller number first"),
        ("1..8 step 0", "a step must be at least 1"),
        ("64, 99999999999999999999", "'99999999999999999999' is out of range for 'N'; use numbers below 2\\*\\*31"),
        ("64, 1.5", "'1.5' is not an integer for 'N'"),
        ("64,, 128", "a value of 'N' is missing"),
    ],
)
def test_what_is_wrong_with_values_is_said(text, says):
    """A range of 10 digits was `unexpected '1' in the expression`, a number of 20 no whole number."""
    with pytest.raises(UsageError, match=says):
        parse_values(text, "N")


def test_a_value_twice_and_no_values_are_refused():
    with pytest.raises(UsageError, match="'N' has the value 1 twice"):
        space([], N=[1, 1])
    with pytest.raises(UsageError, match="no values"):
        space([], N=[])
