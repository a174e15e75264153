"""The arithmetic evaluator against C's rules, and against text meant to break it."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.arith import ArithmeticError_, UnknownName, evaluate, evaluate_int, expression
from tests.spent import spent

NAMES = {"n": 10, "m": -7, "x": 2.5, "block.x": 256, "a::b": 3}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1 + 2 * 3", 7),
        ("(1 + 2) * 3", 9),
        ("7 / 2", 3),
        ("-7 / 2", -3),
        ("7 / -2", -3),
        ("-7 % 3", -1),
        ("7 % -3", 1),
        ("7 / 2.0", 3.5),
        ("1 << 4 + 1", 32),
        ("6 & 3 == 3", 0),
        ("1 | 2 ^ 3 & 2", 1 | (2 ^ (3 & 2))),
        ("~0", -1),
        ("!3", 0),
        ("!0", 1),
        ("- - 3", 3),
        ("1 < 2 == 1", 1),
        ("3 > 2 > 1", 0),
        ("n ? 1 : 2", 1),
        ("0 ? 1 : 0 ? 2 : 3", 3),
        ("0 ? 1 / 0 : 4", 4),
        ("1 ? 4 : 1 / 0", 4),
        ("0 && 1 / 0", 0),
        ("1 || 1 / 0", 1),
        ("n / 3 * 3", 9),
        ("(n + block.x - 1) / block.x", 1),
        ("a::b * 2", 6),
        ("0x10 + 0XfF", 271),
        ("16u + 1UL", 17),
        ("1.5f * 2", 3.0),
        ("2f / 4", 0.5),
        ("1e-5", 1e-5),
        ("010 + 0", 8),
        (".5 + 1.", 1.5),
        ("min(n, 3) + max(n, 30)", 33),
        ("std::min(2, 1)", 1),
        ("cdiv(10, 3)", 4),
        ("cdiv(9, 3)", 3),
        ("ceil(2.1) + floor(2.9) + abs(m)", 12),
        ("round_up(10, 4)", 12),
        ("ceil_log2(1)", 0),
        ("ceil_log2(5)", 3),
        ("ceil_log2(8)", 3),
        ("ceil_log2(0)", 0),
        ("sqrt(16)", 4.0),
    ],
)
def test_values(text: str, value: float) -> None:
    got = evaluate(text, NAMES)
    assert got == value
    assert type(got) is type(value)


@pytest.mark.parametrize(
    "text",
    [
        "", " ", "1 +", "+", "()", "(1", "1)", "1 2", "n n", "1 = 2", "n++", "9**9**9", "1 // 2", "1;2", "n[0]",
        "'a'", "1 ? 2", "1 ? : 2", "? 1 : 2", "1 : 2", "min(1)", "min(1, 2, 3)", "min()", "min", "min(1,", "1 / 0",
        "1 % 0", "1.0 / 0", "1 << 64", "1 << -1", "1 >> 64", "1.5 << 1", "1.5 % 2", "~1.5", "sqrt(-1)",
        "cdiv(1, 0)", "08", "0x", "0xg", "1e", "1.2.3", "08x", "__import__('os')", "n.real", "n.__class__",
        "lambda: 1", "[1]", "{}", "\x00", "n\x00", "１ + １", "ｎ", "1 ? 1 / 0 : 4", "0 ? 4 : 1 / 0", "1 && 1 / 0",
        "0 || 1 / 0", "0 && (1", "1 || )", "1e400 - 1e400 + k",
    ],
)  # fmt: skip
def test_what_is_no_arithmetic_or_has_no_value_is_refused(text: str) -> None:
    with pytest.raises(ArithmeticError_):
        evaluate(text, NAMES)


@pytest.mark.parametrize("text", ["k", "k + 1", "0 ? 1 : k", "f(1)", "std::f(1)", "k.x", "1 || k"])
def test_unknown_names_are_named(text: str) -> None:
    with pytest.raises(UnknownName) as caught:
        evaluate(text, NAMES)
    assert caught.value.name in ("k", "f", "std::f", "k.x")


@pytest.mark.parametrize(
    "text",
    [
        "(" * 2000 + "1" + ")" * 2000,
        "(" * 4000,
        "-" * 4000 + "1",
        "!" * 4000 + "1",
        "1 ? " * 1000 + "1" + " : 1" * 1000,
        "min(" * 500 + "1" + ", 1)" * 500,
        "*".join(["999999999999999999"] * 200),
        "<<".join(["1", *["63"] * 500]),
        "9" * 4000,
        "1" * 5000,
        "0x" + "f" * 4000,
        "1e" + "9" * 4000,
        "+".join(["1"] * 2000) + "+",
        "(1/0?" * 55 + "1",
        "?".join(["1"] * 50) + ":1/0" * 20,
        " " * 4000 + "$",
    ],
    ids=range(16),
)
def test_hostile_text_ends_soon_with_an_error(text: str) -> None:
    with spent() as cost, pytest.raises(ArithmeticError_):
        evaluate(text, NAMES)
    assert cost.seconds < 1


def test_nested_conditionals_do_not_take_exponential_time() -> None:
    text = "1/0"
    for _ in range(25):
        text = f"(1 ? {text} : {text})" if len(text) < 1500 else f"(1 ? {text} : 0)"
    with spent() as cost, pytest.raises(ArithmeticError_):
        evaluate(text, {})
    assert cost.seconds < 2


def test_whole_numbers() -> None:
    assert evaluate_int("4.0", {}) == 4
    assert isinstance(evaluate_int("4.0", {}), int)
    for text in ("4.5", "1e400", "1e400 - 1e400"):
        with pytest.raises(ArithmeticError_):
            evaluate_int(text, {})


def test_an_expression_is_read_once_for_many_values() -> None:
    read = expression("a * b == 7 || a / (b - 3) > k")
    assert read.names == ("a", "b", "k")
    for a, b, k in ((7, 1, 0), (1, 7, 9), (9, 4, 8), (9, 4, 9)):
        assert read({"a": a, "b": b, "k": k}) == evaluate(read.text, {"a": a, "b": b, "k": k})
    with pytest.raises(ArithmeticError_, match="division by zero in the expression 'a"):
        read({"a": 1, "b": 3, "k": 0})
    with pytest.raises(UnknownName, match="unknown name 'k'"):
        read({"a": 1, "b": 2})


def test_a_chain_of_thousands_and_all_levels_within_each_other_have_a_value() -> None:
    assert evaluate("+".join(["1"] * 2000), {}) == 2000
    assert evaluate("||".join(["0"] * 1000), {}) == 0
    deep = "-1||1&&1|1^1&1==1<1<<1+1*("
    assert evaluate(deep * 50 + "1" + ")" * 50, {}) == 1


def test_who_asks_from_deep_within_gets_the_error_of_the_family() -> None:
    """It was a RecursionError."""
    unit = "-1||1&&1|1^1&1==1<1<<1+1*min(1,"

    def deep(calls: int) -> None:
        if calls:
            deep(calls - 1)
        else:
            evaluate(unit * 55 + "1" + ")" * 55, {})

    with pytest.raises(ArithmeticError_, match="too many parentheses"):
        deep(int(0.7 * sys.getrecursionlimit()))


# ---- against Python's own arithmetic with C's division


def _c_div(a: int, b: int) -> int:
    return int(a / b) if abs(a) < 2**50 and abs(b) < 2**50 else abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


_OPERATORS = {
    "+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b, "/": _c_div,
    "%": lambda a, b: a - _c_div(a, b) * b, "<": lambda a, b: int(a < b), "==": lambda a, b: int(a == b),
    "&": lambda a, b: a & b, "|": lambda a, b: a | b, "^": lambda a, b: a ^ b,
    "&&": lambda a, b: int(bool(a and b)), "||": lambda a, b: int(bool(a or b)),
}  # fmt: skip
_tree = st.recursive(
    st.integers(-100, 100), lambda inner: st.tuples(st.sampled_from(sorted(_OPERATORS)), inner, inner), max_leaves=12
)


def _text(tree: object) -> str:
    return f"({_text(tree[1])} {tree[0]} {_text(tree[2])})" if isinstance(tree, tuple) else str(tree)


def _expected(tree: object) -> int:
    if not isinstance(tree, tuple):
        return int(str(tree))
    operator, left, right = tree
    a = _expected(left)
    if (operator == "&&" and not a) or (operator == "||" and a):
        return int(operator == "||")
    return int(_OPERATORS[operator](a, _expected(right)))


@given(_tree)
def test_trees_of_operators_have_cs_value(tree: object) -> None:
    try:
        expected = _expected(tree)
    except ZeroDivisionError:
        with pytest.raises(ArithmeticError_):
            evaluate(_text(tree), {})
        return
    assert evaluate(_text(tree), {}) == expected


@given(st.integers(-(2**62), 2**62), st.integers(-(2**62), 2**62).filter(bool))
def test_division_truncates_and_the_remainder_fits(a: int, b: int) -> None:
    q, r = evaluate("a / b", {"a": a, "b": b}), evaluate("a % b", {"a": a, "b": b})
    assert q * b + r == a
    assert abs(r) < abs(b)
    assert r == 0 or (r > 0) == (a > 0)
    assert evaluate("cdiv(a, b)", {"a": a, "b": b}) == -(-a // b)


@given(st.text(max_size=60))
def test_any_text_gives_a_number_or_the_error(text: str) -> None:
    _number_or_error(text)


_WORDS = ["n", "m", "x", "k", "1", "0", "2.5", "1e300", "0x7f", "99999999999999999999"]
_CALLS = ["min(", "cdiv(", "ceil(", "sqrt(", "round_up(", "ceil_log2("]
_SIGNS = [
    "+",
    "-",
    "*",
    "/",
    "%",
    "<<",
    ">>",
    "<",
    "<=",
    "==",
    "&&",
    "||",
    "|",
    "^",
    "&",
    "~",
    "!",
    "?",
    ":",
    "(",
    ")",
    ",",
]
_pieces = st.sampled_from([*_WORDS, *_CALLS, *_SIGNS])


@given(st.lists(_pieces, max_size=25))
def test_any_tokens_give_a_number_or_the_error(tokens: list[str]) -> None:
    _number_or_error(" ".join(tokens))


def _number_or_error(text: str) -> None:
    try:
        value = evaluate(text, NAMES)
    except ArithmeticError_:
        return
    assert isinstance(value, int | float)


@pytest.mark.parametrize(
    ("text", "value"),
    [("1u - 2u", 4294967295), ("1 << 31", -2147483648), ("1u << 31", 2147483648), ("1ll << 31", 2147483648), ("1ull - 2", 2**64 - 1),
     ("-1 < 1u", 0), ("-1 < 1", 1), ("~0u", 4294967295), ("~0", -1), ("-1 / 2u", 2147483647), ("0xFFFFFFFF + 1", 0),
     ("4294967295 + 1", 4294967296), ("2147483647 + 0u", 2147483647), ("(1u - 2u) / 2 + n", 2147483647 + 8), ("n - 10", -2),
     ("n * 65536 * 65536", 8 << 32), ("1 << 10", 1024), ("7 / 2 * 2.0f", 6.0)],
)  # fmt: skip
def test_literals_have_types_as_in_c(text: str, value: float) -> None:
    """`1u - 2u` was -1, `1 << 31` was positive: a launch was evaluated to other figures than the user's program launches."""
    assert evaluate(text, {"n": 8}) == value
