"""A small arithmetic evaluator with C's rules for integers. It is the only way text becomes a number here."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from engine.errors import OptimlError

Number = int | float

_TOKEN = re.compile(
    r"\s*(?:(?P<number>0[xX][0-9a-fA-F]+|(?:\d+\.\d*|\.\d+|\d+)(?:[eE][+-]?\d+)?)(?P<suffix>[uUlLfF]*)(?![\w.])"
    r"|(?P<name>[A-Za-z_]\w*(?:(?:::|\.)[A-Za-z_]\w*)*)"
    r"|(?P<op><<|>>|<=|>=|==|!=|&&|\|\||[-+*/%()<>?:,&|^~!]))",
    re.ASCII,
)
_LEVELS: tuple[tuple[str, ...], ...] = (
    ("||",), ("&&",), ("|",), ("^",), ("&",), ("==", "!="), ("<", "<=", ">", ">="), ("<<", ">>"), ("+", "-"), ("*", "/", "%"),
)  # fmt: skip
_MAX_LENGTH = 4096
_MAX_BITS = 128
_MAX_DEPTH = 60


class ArithmeticError_(OptimlError):
    """The text is no arithmetic expression, or names something unknown, or has no value (division by zero)."""


def _cdiv(a: Number, b: Number) -> Number:
    return -int(-a // b) if isinstance(a, int) and isinstance(b, int) else math.ceil(a / b)


_FUNCTIONS: Mapping[str, tuple[int, Callable[..., Number]]] = {
    "min": (2, min),
    "max": (2, max),
    "abs": (1, abs),
    "cdiv": (2, _cdiv),
    "ceil": (1, math.ceil),
    "floor": (1, math.floor),
    "sqrt": (1, math.sqrt),
    "round_up": (2, lambda a, b: _cdiv(a, b) * b),
}


@dataclass
class _Parser:
    text: str
    tokens: list[tuple[str, str]]
    names: Mapping[str, Number]
    at: int = 0
    depth: int = 0
    dead: int = 0  # above 0: inside an operand that C would not evaluate, so what has no value there does not count

    def no_value(self, what: str) -> Number:
        if self.dead:
            return 1
        raise NoValue(f"{what} in the expression '{self.text[:200]}'")

    def fail(self, what: str) -> ArithmeticError_:
        return ArithmeticError_(f"{what} in the expression '{self.text[:200]}'")

    def peek(self) -> str:
        return self.tokens[self.at][1] if self.at < len(self.tokens) else ""

    def take(self, expected: str = "") -> tuple[str, str]:
        if self.at >= len(self.tokens):
            raise self.fail("something is missing at the end")
        token = self.tokens[self.at]
        if expected and token[1] != expected:
            raise self.fail(f"'{expected}' expected before '{token[1]}'")
        self.at += 1
        return token

    def ternary(self) -> Number:
        self.depth += 1
        if self.depth > _MAX_DEPTH:
            raise self.fail("too many parentheses")
        value = self.binary(0)
        if self.peek() == "?":
            self.take()
            self.dead += not value
            then = self.ternary()
            self.dead -= not value
            self.take(":")
            self.dead += bool(value)
            otherwise = self.ternary()
            self.dead -= bool(value)
            value = then if value else otherwise
        self.depth -= 1
        return value

    def binary(self, level: int) -> Number:
        if level == len(_LEVELS):
            return self.unary()
        value = self.binary(level + 1)
        while self.at < len(self.tokens) and self.tokens[self.at][0] == "op" and self.peek() in _LEVELS[level]:
            op = self.take()[1]
            skipped = (op == "&&" and not value) or (op == "||" and bool(value))
            self.dead += skipped
            right = self.binary(level + 1)
            self.dead -= skipped
            value = self.apply(op, value, right)
        return value

    def apply(self, op: str, a: Number, b: Number) -> Number:
        integers = isinstance(a, int) and isinstance(b, int)
        if op in ("<<", ">>", "&", "|", "^", "%") and not integers:
            raise self.fail(f"'{op}' needs integers")
        if op in ("/", "%") and b == 0:
            return self.no_value("division by zero")
        if op in ("<<", ">>") and not 0 <= b < 64:
            return self.no_value(f"a shift by {b}")
        value: Number
        match op:
            case "+":
                value = a + b
            case "-":
                value = a - b
            case "*":
                value = a * b
            case "/":
                # C truncates toward zero where Python floors.
                value = (abs(a) // abs(b)) * (1 if (a < 0) == (b < 0) else -1) if integers else a / b
            case "%":
                value = abs(a) % abs(b) * (1 if a >= 0 else -1)
            case "<<":
                value = int(a) << int(b)
            case ">>":
                value = int(a) >> int(b)
            case "&":
                value = int(a) & int(b)
            case "|":
                value = int(a) | int(b)
            case "^":
                value = int(a) ^ int(b)
            case "&&":
                value = int(bool(a) and bool(b))
            case "||":
                value = int(bool(a) or bool(b))
            case _:
                value = int({"==": a == b, "!=": a != b, "<": a < b, "<=": a <= b, ">": a > b, ">=": a >= b}[op])
        return self.bounded(value)

    def bounded(self, value: Number) -> Number:
        fits = value.bit_length() <= _MAX_BITS if isinstance(value, int) else math.isfinite(value)
        return value if fits else self.no_value("a value too large")

    def unary(self) -> Number:
        op = self.peek()
        if op in ("-", "+", "!", "~"):
            self.take()
            self.depth += 1
            if self.depth > _MAX_DEPTH:
                raise self.fail("too many signs")
            value = self.unary()
            self.depth -= 1
            if op == "~":
                if not isinstance(value, int):
                    raise self.fail("'~' needs an integer")
                return ~value
            return -value if op == "-" else value if op == "+" else int(not value)
        return self.primary()

    def primary(self) -> Number:
        kind, text = self.take()
        if kind == "number":
            try:
                return self.bounded(_number(text))
            except ValueError:
                raise self.fail(f"'{text}' is no octal number") from None
        if kind == "name":
            if self.peek() == "(":
                return self.call(text)
            if text in self.names:
                return self.names[text]
            raise UnknownName(f"unknown name '{text}' in the expression '{self.text[:200]}'", name=text)
        if text == "(":
            value = self.ternary()
            self.take(")")
            return value
        raise self.fail(f"unexpected '{text}'")

    def call(self, name: str) -> Number:
        short = name.removeprefix("std::")
        if short not in _FUNCTIONS:
            raise UnknownName(f"unknown function '{name}' in the expression '{self.text[:200]}'", name=name)
        self.take("(")
        arguments = [self.ternary()]
        while self.peek() == ",":
            self.take()
            arguments.append(self.ternary())
        self.take(")")
        count, function = _FUNCTIONS[short]
        if len(arguments) != count:
            raise self.fail(f"'{name}' takes {count} argument{'s' if count > 1 else ''}")
        try:
            return self.bounded(function(*arguments))
        except (ValueError, ZeroDivisionError, OverflowError):
            return self.no_value(f"'{name}' has no value")


class NoValue(ArithmeticError_):
    """Well formed, but without a value for these names."""


@dataclass
class UnknownName(ArithmeticError_):
    """The expression uses a name that is not given; `name` says which."""

    name: str = ""


def _number(text: str) -> Number:
    if text[:2] in ("0x", "0X"):
        return int(text, 16)
    if any(c in text for c in ".eE"):
        return float(text)
    return int(text, 8 if text[0] == "0" else 10)


def evaluate(text: str, names: Mapping[str, Number]) -> Number:
    """The value of a C-like arithmetic expression.

    Integers divide as in C (toward zero). Known functions: min, max, abs, cdiv, ceil, floor, sqrt, round_up.
    Names may be dotted (`block.x`) or qualified. Raises UnknownName for a name not in `names`, and ArithmeticError_
    for anything else that has no value.
    """
    if len(text) > _MAX_LENGTH:
        raise ArithmeticError_(f"an expression of {len(text)} characters is over the limit of {_MAX_LENGTH}")
    tokens: list[tuple[str, str]] = []
    at = 0
    stripped = text.rstrip()
    while at < len(stripped):
        match = _TOKEN.match(stripped, at)
        if not match:
            raise ArithmeticError_(f"unexpected '{stripped[at:].lstrip()[:1]}' in the expression '{text[:200]}'")
        kind = "number" if match["number"] else "name" if match["name"] else "op"
        literal = match[kind]
        if kind == "number" and match["suffix"] and set(match["suffix"]) & set("fF") and "x" not in literal.lower():
            literal = literal if any(c in literal for c in ".eE") else literal + ".0"
        tokens.append((kind, literal))
        at = match.end()
    parser = _Parser(text, tokens, names)
    try:
        value = parser.ternary()
    except OverflowError:
        raise NoValue(f"a value too large in the expression '{text[:200]}'") from None
    if parser.at != len(tokens):
        raise parser.fail(f"unexpected '{parser.peek()}'")
    return value


def evaluate_int(text: str, names: Mapping[str, Number]) -> int:
    """As `evaluate`, for what must be a whole number (sizes, launches)."""
    value = evaluate(text, names)
    if isinstance(value, float):
        if not value.is_integer():
            raise ArithmeticError_(f"the expression '{text[:200]}' gives {value}, not a whole number")
        value = int(value)
    return value
