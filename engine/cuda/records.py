"""What the classes of a file declare that launches are made of: constants, other names for types, bases, specialisations."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from tree_sitter import Node

from engine.cuda.parse import parse, text, walk

_CLASSES = ("struct_specifier", "class_specifier")
_NAME = re.compile(r"(?<![\w.:])[A-Za-z_]\w*")
_MAX_STEPS = 16  # constants of constants; also ends a cycle
_MAX_TEXT = 1_000  # characters of a value: constants that each use the one before twice double it


@dataclass(frozen=True)
class Record:
    """A class, all as text.

    `parameters` of its template are (name, default), `types` those that are types. `kinds` are its own names for types, `bases`
    the classes that it is derived from, `pattern` the arguments of a specialisation, () for the template itself.
    """

    parameters: tuple[tuple[str, str], ...]
    types: frozenset[str]
    constants: Mapping[str, str]
    kinds: Mapping[str, str]
    bases: tuple[str, ...]
    pattern: tuple[str, ...]

    def closed(self, written: str) -> str:
        """A text without the class's own constants and names for types: what they stand for is in their place."""
        meant = {**self.kinds, **{name: f"({value})" for name, value in self.constants.items()}}
        done: set[str] = set()  # `using Sync = Sync<N>`: what is inside is another one
        for _ in range(_MAX_STEPS):
            here = {n for n in _NAME.findall(written) if n in meant} - done
            if not here or len(written) > _MAX_TEXT:
                break
            written = _NAME.sub(lambda m, here=here: meant[m[0]] if m[0] in here else m[0], written)  # type: ignore[misc]
            done |= here & self.kinds.keys()
        return written


def matching(record: Record, given: Sequence[str], normal: Mapping[str, str] | None = None) -> dict[str, str] | None:
    """What a record's own parameters stand for where its class has these arguments; None where it is not for them.

    `normal` gives elements of its pattern as they stand among `given`. Raises LookupError for a pattern that is not read.
    """
    if not record.pattern:
        bound: dict[str, str] = {}
        for at, (parameter, default) in enumerate(record.parameters):
            value = given[at] if at < len(given) else default
            bound[parameter] = value if at < len(given) else substituted(value, bound)
        return bound
    own = {parameter for parameter, _ in record.parameters}
    found: dict[str, str] = {}
    for element, argument in zip(record.pattern, given, strict=False):
        if element in own:
            if found.setdefault(element, argument) != argument:
                return None
        elif own & {*re.findall(r"\w+", element)}:
            raise LookupError(element)
        elif (normal or {}).get(element, element) != argument:
            return None
    return found if len(given) == len(record.pattern) else None


def substituted(written: str, bound: Mapping[str, str]) -> str:
    """A text with names replaced by what they stand for."""
    return _NAME.sub(lambda m: bound.get(m[0], m[0]), written)


@lru_cache(maxsize=64)
def records(data: bytes, path: str) -> Mapping[str, tuple[Record, ...]]:
    """The classes that a file defines, by name; a specialisation is one more of the name."""
    found: dict[str, tuple[Record, ...]] = {}
    for node in walk(parse(data, path).root):
        name, body = node.child_by_field_name("name"), node.child_by_field_name("body")
        if node.type in _CLASSES and name is not None and body is not None:
            plain, _, rest = text(name).partition("<")
            pattern = tuple(split_arguments(rest.strip().removesuffix(">"))) if rest else ()
            found[plain.strip()] = (*found.get(plain.strip(), ()), _record(node, body, pattern))
    return found


def _record(node: Node, body: Node, pattern: tuple[str, ...]) -> Record:
    parameters: list[tuple[str, str]] = []
    types: set[str] = set()
    above = node.parent
    if above is not None and above.type == "template_declaration":
        for each in (above.child_by_field_name("parameters") or above).named_children:
            head, _, default = text(each).partition("=")
            words = head.replace("...", " ").split()
            if each.type != "comment" and words:
                parameters.append((words[-1], default.strip()))
                types |= {words[-1]} if "type_parameter" in each.type else set()
    constants: dict[str, str] = {}
    kinds: dict[str, str] = {}
    for member in body.named_children:
        held = any(text(c) in ("const", "constexpr") for c in member.children)
        static = any(text(c) in ("static", "constexpr") for c in member.children)
        if member.type == "field_declaration" and held and static:
            constants.update(_declared(member))
        for enumerator in walk(member) if member.type == "field_declaration" else ():
            if enumerator.type == "enumerator":
                name, value = enumerator.child_by_field_name("name"), enumerator.child_by_field_name("value")
                if name is not None and value is not None:
                    constants[text(name)] = text(value)
        if member.type in ("alias_declaration", "type_definition"):
            kind = member.child_by_field_name("type")
            name = member.child_by_field_name("declarator") or member.child_by_field_name("name")
            if kind is not None and name is not None and name.type == "type_identifier":
                kinds[text(name)] = text(kind)
    clause = next((c for c in node.children if c.type == "base_class_clause"), None)
    bases = [text(c) for c in (clause.named_children if clause is not None else ()) if c.type != "access_specifier"]
    return Record(tuple(parameters), frozenset(types), constants, kinds, tuple(bases), pattern)


def _declared(member: Node) -> Iterable[tuple[str, str]]:
    """(name, value) of what a field's declaration declares: each value follows its name."""
    name = ""
    for index, child in enumerate(member.children):
        kind = member.field_name_for_child(index)
        if kind == "declarator":
            name = text(child) if child.type == "field_identifier" else ""
        elif kind == "default_value" and name:
            yield name, text(child).removeprefix("{").removesuffix("}")


def parameter_name(written: str) -> str:
    """The name of a template's parameter: `class T`, `int N = 4`, `class... Ts`, `float (*op)(float)`; "" for one without."""
    head = written.partition("=")[0]
    pointed = re.search(r"\(\s*[*&]\s*([A-Za-z_]\w*)\s*\)", head)
    words = head.replace("...", " ").split()
    return pointed[1] if pointed else words[-1] if words else ""


def split_arguments(text: str) -> list[str]:
    """Template arguments, or those of a call, at the commas that stand in no brackets."""
    parts, depth, current = [], 0, ""
    round_ = 0  # within parentheses `<` compares
    for char in text:
        round_ += (char == "(") - (char == ")")
        depth += char in "([{" or (char == "<" and not round_)
        depth -= char in ")]}" or (char == ">" and not round_)
        if char == "," and depth == 0:
            parts.append(current.strip())
            current = ""
        else:
            current += char
    return [*parts, current.strip()] if current.strip() else parts
