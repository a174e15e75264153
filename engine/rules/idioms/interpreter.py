"""Run statements that only compare, move and count values of which no more than the order is known.

For rules that decide what a piece of code does by what it does to a few inputs. Anything else (arithmetic on such values, memory, calls)
is unsupported.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from engine.cuda.questions import children, compact, strip, text, variables
from engine.rewrite import Node, Site

Env = dict[str, Any]
Value = Callable[[Env], Any]
Signal = Literal["break", "continue", None]
Step = Callable[[Env], Signal]
_MOST_TURNS = 4096  # of the loops of one insertion
_MISSING = object()


class NotInterpreted(Exception):
    """The statements have another form."""


@dataclass(frozen=True, eq=False)
class Key:
    """A value of which only its order is known."""

    rank: float


@dataclass(frozen=True, eq=False)
class Companion:
    """What stands beside a value in the list."""


@dataclass(frozen=True)
class Fresh:
    """A value that does not come from the list, by its text."""

    text: str


class Interpreter:
    """Statements as functions of an environment."""

    def __init__(self, site: Site) -> None:
        self.site = site

    def block(self, statements: Sequence[Node]) -> Step:
        steps = [self.statement(node) for node in statements]

        def run(env: Env) -> Signal:
            for step in steps:
                signal = step(env)
                if signal is not None:
                    return signal
            return None

        return run

    def scoped(self, node: Node | None) -> Step:
        """A statement whose declarations end with it."""
        if node is None:
            raise NotInterpreted
        statements = children(node) if node.type == "compound_statement" else [node]
        names = [v.name for s in statements if s.type == "declaration" for v in variables(s)]
        inner = self.block(statements)
        if not names:
            return inner

        def run(env: Env) -> Signal:
            outer = [(name, env.get(name, _MISSING)) for name in names]
            signal = inner(env)
            for name, value in outer:
                if value is _MISSING:
                    env.pop(name, None)
                else:
                    env[name] = value
            return signal

        return run

    def statement(self, node: Node) -> Step:
        match node.type:
            case "compound_statement":
                return self.scoped(node)
            case "declaration":
                return self.declaration(node)
            case "expression_statement":
                parts = children(node)
                if not parts:
                    return lambda env: None
                return self.effect(parts[0])
            case "if_statement":
                return self.branch(node)
            case "for_statement" | "while_statement":
                return self.loop(node)
            case "break_statement":
                return lambda env: "break"
            case "continue_statement":
                return lambda env: "continue"
            case _ if node.type.startswith("preproc"):
                return lambda env: None  # an unroll pragma: nothing else passes `sound`
        raise NotInterpreted

    def declaration(self, node: Node) -> Step:
        made: list[tuple[str, Value]] = []
        for variable in variables(node):
            if variable.shape == "array":
                made.append((variable.name, self.array(variable.node, variable.name, variable.value)))
            elif variable.shape == "scalar":
                made.append(
                    (variable.name, self.value(variable.value) if variable.value is not None else lambda env: None)
                )
            else:
                made.append((variable.name, lambda env: Fresh("pointer")))

        def run(env: Env) -> Signal:
            for name, value in made:
                env[name] = value(env)
            return None

        return run

    def array(self, declaration: Node, name: str, value: Node | None) -> Value:
        length = array_lengths(self.site, declaration).get(name)
        if length is None:
            raise NotInterpreted
        given = children(value) if value is not None else None
        if given is None:
            return lambda env: [None] * length
        if value is None or value.type != "initializer_list" or len(given) not in (0, length):
            raise NotInterpreted
        values = [self.value(g) for g in given]
        return lambda env: [v(env) for v in values] or [0] * length

    def branch(self, node: Node) -> Step:
        condition = self.value(node.child_by_field_name("condition"))
        then = self.scoped(node.child_by_field_name("consequence"))
        other = node.child_by_field_name("alternative")
        otherwise = (
            self.block(children(other) if other.type == "else_clause" else [other]) if other is not None else None
        )

        def run(env: Env) -> Signal:
            if _truth(condition(env)):
                return then(env)
            return otherwise(env) if otherwise is not None else None

        return run

    def loop(self, node: Node) -> Step:
        first, condition, update = (node.child_by_field_name(f) for f in ("initializer", "condition", "update"))
        start: Step | None = None
        name = ""
        if first is not None and first.type == "declaration":
            start, name = self.declaration(first), next(variables(first)).name
        elif first is not None:
            start = self.effect(first)
        test = self.value(condition)
        after = self.effect(update) if update is not None else None
        body = self.scoped(node.child_by_field_name("body"))

        def run(env: Env) -> Signal:
            outer = env.get(name, _MISSING)
            if start is not None:
                start(env)
            turns = 0
            while _truth(test(env)):
                if body(env) == "break":
                    break
                if after is not None:
                    after(env)
                turns += 1
                if turns > _MOST_TURNS:
                    raise NotInterpreted
            if name and outer is not _MISSING:
                env[name] = outer
            return None

        return run

    def effect(self, node: Node) -> Step:
        """An assignment or update."""
        if node.type == "update_expression":
            target, one = node.child_by_field_name("argument"), 1 if "++" in text(node) else -1
            if target is None or target.type != "identifier":
                raise NotInterpreted
            name = text(target)

            def update(env: Env) -> Signal:
                env[name] = _whole(env[name]) + one
                return None

            return update
        sign, left, right = (node.child_by_field_name(f) for f in ("operator", "left", "right"))
        if node.type != "assignment_expression" or sign is None or left is None or right is None:
            raise NotInterpreted
        value = self.value(right)
        if text(sign) in ("+=", "-="):
            own, times = self.value(left), 1 if text(sign) == "+=" else -1
            added = value
            value = lambda env: _whole(own(env)) + times * _whole(added(env))  # noqa: E731
        elif text(sign) != "=":
            raise NotInterpreted
        if left.type == "identifier":
            name = text(left)

            def assign(env: Env) -> Signal:
                if name not in env:
                    raise NotInterpreted  # a variable that outlives the statements
                env[name] = value(env)
                return None

            return assign
        array, index = self.element(left)

        def store(env: Env) -> Signal:
            _checked(env, array, at := _whole(index(env)))[at] = value(env)
            return None

        return store

    def element(self, node: Node) -> tuple[str, Value]:
        array, indices = node.child_by_field_name("argument"), node.child_by_field_name("indices")
        if node.type != "subscript_expression" or array is None or array.type != "identifier" or indices is None:
            raise NotInterpreted
        (index,) = children(indices)
        return text(array), self.value(index)

    def value(self, node: Node | None) -> Value:
        if node is None:
            raise NotInterpreted
        node = strip(node)
        match node.type:
            case "number_literal":
                return _constant(_number(text(node)))
            case "true" | "false":
                return _constant(int(node.type == "true"))
            case "identifier":
                return self.name(node)
            case "subscript_expression":
                array, index = self.element(node)
                return lambda env: _checked(env, array, at := _whole(index(env)))[at]
            case "conditional_expression":
                parts = [self.value(node.child_by_field_name(f)) for f in ("condition", "consequence", "alternative")]
                condition, one, other = parts
                return lambda env: one(env) if _truth(condition(env)) else other(env)
            case "unary_expression":
                return self.unary(node)
            case "binary_expression":
                return self.binary(node)
        raise NotInterpreted

    def name(self, node: Node) -> Value:
        name, known = text(node), self.site.constant(node)
        if known is not None:
            return lambda env: env.get(name, known)
        return lambda env: env[name] if name in env else Fresh(name)

    def unary(self, node: Node) -> Value:
        sign, argument = compact(node)[0], self.value(node.child_by_field_name("argument"))
        if sign == "!":
            return lambda env: int(not _truth(argument(env)))
        if sign != "-":
            raise NotInterpreted

        def negative(env: Env) -> Any:
            value = argument(env)
            return Fresh(f"-{value.text}") if isinstance(value, Fresh) else -_number_of(value)

        return negative

    def binary(self, node: Node) -> Value:
        operator = text(node.child_by_field_name("operator") or node)
        left, right = (self.value(node.child_by_field_name(f)) for f in ("left", "right"))
        if operator == "&&":
            return lambda env: int(_truth(left(env)) and _truth(right(env)))
        if operator == "||":
            return lambda env: int(_truth(left(env)) or _truth(right(env)))
        if operator in _COMPARED:
            compared = _COMPARED[operator]
            return lambda env: int(compared(*_comparable(left(env), right(env))))
        if operator in _COMPUTED:
            computed = _COMPUTED[operator]

            def compute(env: Env) -> Any:
                a, b = left(env), right(env)
                if isinstance(a, Fresh) or isinstance(b, Fresh):
                    return Fresh(f"({shown(a)} {operator} {shown(b)})")
                return computed(_whole(a), _whole(b))

            return compute
        raise NotInterpreted


def array_lengths(site: Site, declaration: Node) -> dict[str, int]:
    """The lengths of the one-dimensional arrays of a declaration whose lengths are constants."""
    found = {}
    for part in declaration.children_by_field_name("declarator"):
        target = part.child_by_field_name("declarator") if part.type == "init_declarator" else part
        size = target.child_by_field_name("size") if target is not None and target.type == "array_declarator" else None
        name = target.child_by_field_name("declarator") if target is not None and size is not None else None
        length = site.constant(size) if size is not None else None
        if name is not None and name.type == "identifier" and length is not None:
            found[text(name)] = length
    return found


_COMPARED: Mapping[str, Callable[[Any, Any], bool]] = {
    "<": lambda a, b: a < b, "<=": lambda a, b: a <= b, ">": lambda a, b: a > b, ">=": lambda a, b: a >= b,
    "==": lambda a, b: a == b, "!=": lambda a, b: a != b,
}  # fmt: skip
_COMPUTED: Mapping[str, Callable[[int, int], int]] = {
    "+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b,
}  # fmt: skip


def _comparable(a: Any, b: Any) -> tuple[float, float]:
    """Two values of which the order is known."""
    if isinstance(a, Key) and isinstance(b, Key):
        return a.rank, b.rank
    return _whole(a), _whole(b)


def _checked(env: Env, array: str, at: int) -> list[Any]:
    """The array of that name, if it has an element there."""
    found = env.get(array)
    if not isinstance(found, list) or not 0 <= at < len(found):
        raise NotInterpreted
    return found


def _truth(value: Any) -> bool:
    return bool(_whole(value))


def _whole(value: Any) -> int:
    if not isinstance(value, int):
        raise NotInterpreted
    return value


def _number_of(value: Any) -> float:
    if not isinstance(value, int | float):
        raise NotInterpreted
    return value


def _number(literal: str) -> int | float:
    plain = literal.rstrip("uUlLfF") if not literal.lower().startswith("0x") else literal
    try:
        return int(plain, 0)
    except ValueError:
        try:
            return float(plain)
        except ValueError:
            raise NotInterpreted from None


def _constant(value: float) -> Value:
    return lambda env: value


def shown(value: Any) -> str:
    if isinstance(value, Fresh):
        return value.text
    return str(_number_of(value))
