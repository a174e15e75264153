"""CUDA with holes: what a pattern matches, and what it must not."""

from __future__ import annotations

import pytest
from tree_sitter import Node

from engine.cuda.parse import parse
from engine.cuda.syntax import children, text
from engine.rewrite.pattern import Pattern


def statement(source: str) -> Node:
    unit = parse(f"__global__ void k() {{ {source} }}".encode())
    assert not unit.errors
    return children(unit.functions[0].block)[0]


@pytest.mark.parametrize(
    ("pattern", "source"),
    [
        ("$a += $b", "x = x + y;"),
        ("$a += $b", "x = (y) + x;"),
        ("$a -= $b", "x = x - y;"),
        ("$a <<= $b", "x = x << 1;"),
        ("$s += $x * $y", "s = s + (a[i]) * (b - c);"),
        ("if ($a > $b) $a = $b;", "if (y < x) { x = y; }"),
        ("$T $x = $v;", "const unsigned int x = 3;"),
        ("for ($I $i = 0; $i < $n; $step) $body;", "for (int i = 0u; n > i; ++i) { f(i); g(i); }"),
        ("$f($a[$i], $a[$i + 1])", "fmaxf(p[(size_t)i], p[i + 1]);"),
    ],
)
def test_spellings_that_mean_the_same(pattern: str, source: str) -> None:
    assert Pattern(pattern).match(statement(source)) is not None


@pytest.mark.parametrize(
    ("pattern", "source"),
    [
        ("$a += $b", "x = y - x;"),
        ("$a -= $b", "x = y - x;"),
        ("if ($a > $b) $a = $b;", "if (x > y) x = z;"),
        ("if ($a > $b) $a = $b;", "if (x > y) x = y; else y = x;"),
        ("$a[$i] = $b", "a[i][j] = b[i], c = d;"),
        ("$x % 2", "x % 3;"),
        ("$x / $y", "(float)x / y * z;"),
    ],
)
def test_what_only_looks_alike(pattern: str, source: str) -> None:
    assert Pattern(pattern).match(statement(source)) is None


def test_holes_hold_the_nodes_as_written() -> None:
    found = Pattern("$x / $k").match(statement("sum / (float)(n);"), x=lambda node: text(node) == "sum")
    assert found is not None
    assert text(found["k"]) == "(float)(n)"
    assert Pattern("$x / $k").match(statement("sum / n;"), k=lambda node: text(node) == "m") is None


@pytest.mark.parametrize("source", ["$x", "int x = ; y", "a(); b();", "$x;", "x y"])
def test_a_pattern_is_one_statement_or_expression(source: str) -> None:
    with pytest.raises(ValueError, match=r"pattern|statement"):
        Pattern(source)
