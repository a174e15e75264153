"""A small arithmetic evaluator with C's rules for integers. It is the only way text becomes a number here."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from engine.errors import OptimlError

Number = int | float
_Function = Callable[[Mapping[str, Number]], Number]

_TOKEN = re.compile(
    r"\s*(?:(?P<number>0[xX][0-9a-fA-F]+|(?:\d+\.\d*|\.\d+|\d+)(?:[eE][+-]?\d+)?)(?P<suffix>[uUlLfF]*)(?![\w.])"
    r"|(?P<name>[A-Za-z_]\w*(?:(?:::|\.)[A-Za-z_]\w*)*)"
    r"|(?P<op><<|>>|<=|>=|==|!=|&&|\|\||[-+*/%()<>?:,&|^~!]))",
    re.ASCII,
)
_LEVELS: tuple[tuple[str, ...], ...] = (
    ("||",), ("&&",), ("|",), ("^",), ("&",), ("==", "!="), ("<", "<=", ">", ">="), ("<<", ">>"), ("+", "-"), ("*", "/", "%"),
)  # fmt: skip
_LEVEL_OF = {op: level for level, found in enumerate(_LEVELS) for op in found}
_COMPARISONS = frozenset({"==", "!=", "<", "<=", ">", ">="})
_BOTH = 2  # from this level on, C evaluates both operands
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
    "ceil_log2": (1, lambda a: max(0, math.ceil(a) - 1).bit_length()),
}
FUNCTIONS = frozenset(_FUNCTIONS)


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


def _bounded(value: Number) -> Number:
    fits = value.bit_length() <= _MAX_BITS if isinstance(value, int) else math.isfinite(value)
    if not fits:
        raise NoValue("a value too large")
    return value


def _whole(a: Number, b: Number, op: str) -> tuple[int, int]:
    if isinstance(a, int) and isinstance(b, int):
        return a, b
    raise ArithmeticError_(f"'{op}' needs integers")


def _divided(a: Number, b: Number) -> Number:
    if b == 0:
        raise NoValue("division by zero")
    if isinstance(a, int) and isinstance(b, int):
        # C truncates toward zero where Python floors.
        return _bounded((abs(a) // abs(b)) * (1 if (a < 0) == (b < 0) else -1))
    return _bounded(a / b)


def _remainder(a: Number, b: Number) -> Number:
    a, b = _whole(a, b, "%")
    if b == 0:
        raise NoValue("division by zero")
    return abs(a) % abs(b) * (1 if a >= 0 else -1)


def _shifted(a: Number, b: Number, op: str) -> Number:
    a, b = _whole(a, b, op)
    if not 0 <= b < 64:
        raise NoValue(f"a shift by {b}")
    return _bounded(a << b if op == "<<" else a >> b)


def _inverted(value: Number) -> Number:
    if not isinstance(value, int):
        raise ArithmeticError_("'~' needs an integer")
    return ~value


def _bits(op: str, join: Callable[[int, int], int]) -> Callable[[Number, Number], Number]:
    return lambda a, b: _bounded(join(*_whole(a, b, op)))


_OPERATORS: Mapping[str, Callable[[Number, Number], Number]] = {
    "+": lambda a, b: _bounded(a + b),
    "-": lambda a, b: _bounded(a - b),
    "*": lambda a, b: _bounded(a * b),
    "/": _divided,
    "%": _remainder,
    "<<": lambda a, b: _shifted(a, b, "<<"),
    ">>": lambda a, b: _shifted(a, b, ">>"),
    "&": _bits("&", operator.and_),
    "|": _bits("|", operator.or_),
    "^": _bits("^", operator.xor),
    "==": lambda a, b: int(a == b),
    "!=": lambda a, b: int(a != b),
    "<": lambda a, b: int(a < b),
    "<=": lambda a, b: int(a <= b),
    ">": lambda a, b: int(a > b),
    ">=": lambda a, b: int(a >= b),
}


@dataclass(frozen=True)
class _Constant:
    """A whole number with its C type, which literals alone have: a name stands for a size of whatever type."""

    value: int
    bits: int = 32
    unsigned: bool = False

    def of_type(self, bits: int, unsigned: bool) -> _Constant:
        """The value in another type, modulo 2 to the power of its bits ([conv.integral])."""
        value = self.value & ((1 << bits) - 1)
        return _Constant(value if unsigned or value < 1 << bits - 1 else value - (1 << bits), bits, unsigned)


def _typed(value: int, suffix: str, *, decimal: bool) -> _Constant:
    """A literal's type: the first that holds it of those that its suffix and base allow ([lex.icon])."""
    signs = (True,) if "u" in suffix else (False,) if decimal else (False, True)
    for bits in (64,) if "l" in suffix else (32, 64):
        for unsigned in signs:
            if value < 1 << bits - (not unsigned):
                return _Constant(value, bits, unsigned)
    return _Constant(value, _MAX_BITS, "u" in suffix)


def _folded(op: str, a: _Constant, b: _Constant) -> _Constant | None:
    """What C makes of two literals; None where it has no rule: a signed sum or product that overflows, a division by zero."""
    if op in ("<<", ">>"):
        if not 0 <= b.value < a.bits:
            return None
        return _Constant(a.value << b.value if op == "<<" else a.value >> b.value).of_type(a.bits, a.unsigned)
    bits = max(a.bits, b.bits)
    unsigned = any(one.unsigned for one in (a, b) if one.bits == bits)
    a, b = a.of_type(bits, unsigned), b.of_type(bits, unsigned)
    try:
        value = _OPERATORS[op](a.value, b.value)
    except ArithmeticError_:
        return None
    if not isinstance(value, int):
        return None
    if op in _COMPARISONS:
        return _Constant(value)
    found = _Constant(value).of_type(bits, unsigned)
    return found if unsigned or found.value == value else None


@dataclass
class _Parser:
    """Makes functions of the names' values out of tokens: an operand that C would not evaluate is not called."""

    text: str
    tokens: list[tuple[str, str]]
    at: int = 0
    depth: int = 0
    names: dict[str, None] = field(default_factory=dict)
    constants: dict[_Function, _Constant] = field(default_factory=dict)  # of operands that are made of literals alone

    def fail(self, what: str) -> ArithmeticError_:
        return ArithmeticError_(f"{what}{_of(self.text)}")

    def peek(self) -> str:
        return self.tokens[self.at][1] if self.at < len(self.tokens) else ""

    def take(self, expected: str = "") -> tuple[str, str]:
        if self.at >= len(self.tokens):
            raise self.fail("unexpected end of expression")
        token = self.tokens[self.at]
        if expected and token[1] != expected:
            raise self.fail(f"'{expected}' expected before '{token[1]}'")
        self.at += 1
        return token

    def ternary(self) -> _Function:
        self.depth += 1
        if self.depth > _MAX_DEPTH:
            raise self.fail("too many parentheses")
        value = self.binary(0)
        if self.peek() == "?":
            self.take()
            then = self.ternary()
            self.take(":")
            value = _choice(value, then, self.ternary())
        self.depth -= 1
        return value

    def binary(self, level: int) -> _Function:
        """An operand with the operators after it that bind at least so tightly (`_LEVELS`)."""
        value = self.unary()
        while (found := self.level()) >= level:
            # What is chained is gone through in a loop: text may have thousands of operands.
            rest: list[tuple[str, _Function]] = []
            while self.level() == found:
                op = self.take()[1]
                rest.append((op, self.binary(found + 1)))
            if found < _BOTH:
                value = _all_or_any(value, [right for _, right in rest], all_of=rest[0][0] == "&&")
            else:
                value, rest = self.fold(value, rest)
                value = _chain(value, [(_OPERATORS[op], right) for op, right in rest]) if rest else value
        return value

    def fold(
        self, value: _Function, rest: list[tuple[str, _Function]]
    ) -> tuple[_Function, list[tuple[str, _Function]]]:
        """An operand with what of the chain behind it is made of literals, and the rest of the chain."""
        at = 0
        for op, right in rest:
            known, other = self.constants.get(value), self.constants.get(right)
            found = _folded(op, known, other) if known is not None and other is not None else None
            if found is None:
                break
            value, at = self.constant(found), at + 1
        return value, rest[at:]

    def constant(self, found: _Constant) -> _Function:
        """The function that gives a constant's value."""

        def value(names: Mapping[str, Number], known: int = found.value) -> Number:
            return known

        self.constants[value] = found
        return value

    def level(self) -> int:
        """How tightly the next token binds; -1 where it is no binary operator."""
        return _LEVEL_OF.get(self.tokens[self.at][1], -1) if self.at < len(self.tokens) else -1

    def unary(self) -> _Function:
        op = self.peek()
        if op in ("-", "+", "!", "~"):
            self.take()
            self.depth += 1
            if self.depth > _MAX_DEPTH:
                raise self.fail("too many signs")
            value = self.unary()
            self.depth -= 1
            known = self.constants.get(value)
            if known is not None and op in ("-", "~"):
                number = -known.value if op == "-" else ~known.value
                return self.constant(_Constant(number).of_type(known.bits, known.unsigned))
            match op:
                case "-":
                    return lambda names: -value(names)
                case "!":
                    return lambda names: int(not value(names))
                case "~":
                    return lambda names: _inverted(value(names))
            return value
        return self.primary()

    def primary(self) -> _Function:
        kind, text = self.take()
        if kind == "number":
            digits = text.rstrip("uUlL")
            try:
                literal = _number(digits)
            except ValueError:
                raise self.fail(f"'{text}' is not an octal number") from None
            try:
                _bounded(literal)
            except NoValue:
                return lambda names: _bounded(literal)
            if isinstance(literal, int):
                return self.constant(_typed(literal, text[len(digits) :].lower(), decimal=digits[0] != "0"))
            return lambda names: literal
        if kind == "name":
            if self.peek() == "(":
                return self.call(text)
            self.names[text] = None
            return lambda names: names[text]
        if text == "(":
            value = self.ternary()
            self.take(")")
            return value
        raise self.fail(f"unexpected '{text}'")

    def call(self, name: str) -> _Function:
        short = name.removeprefix("std::")
        if short not in _FUNCTIONS:
            raise UnknownName(f"unknown function '{name}'{_of(self.text)}", name=name)
        self.take("(")
        arguments = [self.ternary()]
        while self.peek() == ",":
            self.take()
            arguments.append(self.ternary())
        self.take(")")
        count, function = _FUNCTIONS[short]
        if len(arguments) != count:
            raise self.fail(f"'{name}' takes {count} argument{'s' if count > 1 else ''}")

        def called(names: Mapping[str, Number]) -> Number:
            given = [argument(names) for argument in arguments]
            try:
                return _bounded(function(*given))
            except (ValueError, ZeroDivisionError, OverflowError):
                raise NoValue(f"'{name}' has no value") from None

        return called


def _choice(condition: _Function, then: _Function, otherwise: _Function) -> _Function:
    return lambda names: then(names) if condition(names) else otherwise(names)


def _all_or_any(first: _Function, rest: Sequence[_Function], *, all_of: bool) -> _Function:
    operands = (first, *rest)
    if all_of:
        return lambda names: int(all(operand(names) for operand in operands))
    return lambda names: int(any(operand(names) for operand in operands))


def _chain(first: _Function, rest: Sequence[tuple[Callable[[Number, Number], Number], _Function]]) -> _Function:
    if len(rest) == 1:
        ((join, second),) = rest
        return lambda names: join(first(names), second(names))

    def joined(names: Mapping[str, Number]) -> Number:
        value = first(names)
        for join, right in rest:
            value = join(value, right(names))
        return value

    return joined


def _of(text: str) -> str:
    return f" in the expression '{text[:200]}'"


@dataclass(frozen=True)
class Expression:
    """Text that was read once, to be evaluated for any values of its names; `names` are in the order of the text."""

    text: str
    names: tuple[str, ...]
    _value: _Function

    def __call__(self, names: Mapping[str, Number]) -> Number:
        """Its value. Raises as `evaluate` does, for a name that is not given UnknownName."""
        try:
            return self._value(names)
        except ArithmeticError_ as error:
            raise type(error)(f"{error.what}{_of(self.text)}") from None
        except OverflowError:
            raise NoValue(f"a value too large{_of(self.text)}") from None
        except RecursionError:  # the caller is deep within other calls itself
            raise ArithmeticError_(f"too many parentheses{_of(self.text)}") from None
        except KeyError as error:
            name = str(error.args[0])
            raise UnknownName(f"unknown name '{name}'{_of(self.text)}", name=name) from None


@lru_cache(maxsize=256)
def expression(text: str) -> Expression:
    """A C-like arithmetic expression, read. Raises ArithmeticError_ for text that is none."""
    if len(text) > _MAX_LENGTH:
        raise ArithmeticError_(f"an expression of {len(text)} characters exceeds the limit of {_MAX_LENGTH}")
    tokens: list[tuple[str, str]] = []
    at = 0
    stripped = text.rstrip()
    while at < len(stripped):
        match = _TOKEN.match(stripped, at)
        if not match:
            raise ArithmeticError_(f"unexpected '{stripped[at:].lstrip()[:1]}'{_of(text)}")
        kind = "number" if match["number"] else "name" if match["name"] else "op"
        literal = match[kind]
        if kind == "number" and match["suffix"] and set(match["suffix"]) & set("fF") and "x" not in literal.lower():
            literal = literal if any(c in literal for c in ".eE") else literal + ".0"
        elif kind == "number" and not ("x" not in literal.lower() and any(c in literal for c in ".eE")):
            literal += match["suffix"]
        tokens.append((kind, literal))
        at = match.end()
    parser = _Parser(text, tokens)
    try:
        value = parser.ternary()
    except OverflowError:
        raise NoValue(f"a value too large{_of(text)}") from None
    except RecursionError:
        raise parser.fail("too many parentheses") from None
    if parser.at != len(tokens):
        raise parser.fail(f"unexpected '{parser.peek()}'")
    return Expression(text, tuple(parser.names), value)


def evaluate(text: str, names: Mapping[str, Number]) -> Number:
    """The value of a C-like arithmetic expression.

    Integers divide as in C (toward zero). Known functions: min, max, abs, cdiv, ceil, floor, sqrt, round_up, ceil_log2.
    Names may be dotted (`block.x`) or qualified. Raises UnknownName for a name not in `names`, and ArithmeticError_
    for anything else that has no value.
    """
    read = expression(text)
    for name in read.names:  # C knows every name of an operand that it does not evaluate, too
        if name not in names:
            raise UnknownName(f"unknown name '{name}'{_of(text)}", name=name)
    return read(names)


def evaluate_int(text: str, names: Mapping[str, Number]) -> int:
    """As `evaluate`, for what must be a whole number (sizes, launches)."""
    value = evaluate(text, names)
    if isinstance(value, float):
        if not value.is_integer():
            raise ArithmeticError_(f"the expression '{text[:200]}' gives {value}, not a whole number")
        value = int(value)
    return value
