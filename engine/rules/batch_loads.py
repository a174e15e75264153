"""Load what several iterations of a loop need before the first of them stores."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from engine.cuda.questions import Polynomial, number, pure, unconditional, variables
from engine.cuda.syntax import called, children, inside, is_unroll, names, strip, text, walk
from engine.rewrite import Edit, ElementAccess, Node, Proposals, Scope, Site, Span, grouped, proposal, reindent
from engine.rewrite.wording import grouped_text, term_text
from engine.rules.idioms import StrideLoop, changed_names, definition, stride_loop, with_pragma
from engine.rules.idioms.thread_index import is_wide

_FACTORS = (4, 8, 2)
_MOST_LOOPS = 4
_MOST_VALUES = 8  # kept of each iteration: with eight iterations 64 registers
_LEAVES = frozenset({"break_statement", "continue_statement", "return_statement", "goto_statement", "switch_statement"})
_HINTS = ("__ldg", "__ldcs", "__ldca", "__ldcg")


@dataclass(frozen=True)
class _LoopPlace:
    """Where an access goes: `index` counts elements of the type that `view` says, "" for the array's own."""

    array: str
    view: str
    index: Polynomial


@dataclass(frozen=True)
class _EarlyLoad:
    """A load to be made before the stores of earlier iterations, with the declarations that it needs."""

    name: str
    type: str
    nodes: tuple[Node, ...]  # what stands for the value
    declarations: tuple[Node, ...]


class BatchLoads:
    """A thread that changes elements in place has the loads of several iterations in flight."""

    name = "batch_loads"
    summary = "Load the elements of several iterations before the first is stored"

    def propose(self, site: Site) -> Proposals:
        if not site.sound or any("volatile" in p.type for p in site.kernel.parameters):
            return
        loops = [loop for n in walk(site.body) if (loop := stride_loop(n, memory=True)) is not None]
        for order, loop in enumerate(loops[:_MOST_LOOPS]):
            ahead = _LoopLoads(site, loop).ahead() if _plain(site, loop) else []
            for rank, factor in enumerate(_FACTORS if ahead else ()):
                # No compiler moves a load before a store to the same array whose distance it does not know.
                yield from proposal(
                    self.name,
                    f"Load the elements of {factor} iterations at once in the loop at line {site.unit.line_of(loop.node.start_byte)}",
                    site.in_file(_batched(site, loop, ahead, factor)),
                    0.36 - 0.04 * rank - 0.03 * order,
                    factor=factor,
                    line=site.unit.line_of(loop.node.start_byte),
                )


def _plain(site: Site, loop: StrideLoop) -> bool:
    """Whether the iterations follow each other in one thread, their number is open, and nothing but an `unroll` stands above the loop."""
    before = loop.node.prev_sibling
    pragma = before is not None and before.type.startswith("preproc") and with_pragma(loop.node) < loop.node.start_byte
    return (
        site.local_only(loop.body)
        and site.constant(loop.bound) is None
        and not any(n.type in _LEAVES for n in walk(loop.body))
        and not set(re.findall(r"[A-Za-z_]\w*", loop.step)) & changed_names(loop.body)
        and not (pragma and before is not None and not is_unroll(before))
    )


class _LoopLoads:
    """What one loop loads and stores."""

    def __init__(self, site: Site, loop: StrideLoop) -> None:
        self._site, self._loop, self._scope = site, loop, Scope(site.unit, site.kernel)
        self._statements = children(loop.body) if loop.body.type == "compound_statement" else [loop.body]
        self._changed = changed_names(loop.body, declarations=False)
        self._inner = {v.name for n in walk(loop.body) if n.type == "declaration" for v in variables(n)}

    def ahead(self) -> list[_EarlyLoad]:
        """The loads to be made first; [] where none is of an array that the loop stores to, or iterations may meet."""
        uses = self._scope.uses(self._loop.body)
        if self._left_over() or uses is None or any(u.array not in self._scope.parameters for u in uses):
            return []
        stored = {u.array for u in uses if u.writes}
        places = {u.node.id: place for u in uses if (place := self._place(u.node)) is not None}
        for array in stored:
            own = {places.get(u.node.id) for u in uses if u.array == array}
            (one,) = own if len(own) == 1 else (None,)
            if one is None or not self._own_element(one.index):
                return []
        first_store = {
            array: min(_assignment(u.node).end_byte for u in uses if u.array == array and u.writes) for array in stored
        }
        groups: dict[str, list[ElementAccess]] = {}
        for use in uses:
            late = use.array in stored and use.node.start_byte >= first_store[use.array]
            if use.reads and not late and (use.array in stored or self._site.pointers_distinct):
                groups.setdefault(text(use.node), []).append(use)
        taken: list[str] = []
        found = [load for group in groups.values() if (load := self._load(group, places, taken)) is not None]
        in_place = any(
            inside(n, u.node) or inside(u.node, n) for a in found for n in a.nodes for u in uses if u.array in stored
        )
        return found if in_place and len(found) <= _MOST_VALUES else []

    def _own_element(self, index: Polynomial) -> bool:
        """Whether no two iterations have the same index."""
        parts = index.split(self._loop.variable)
        if parts is None or "[" in index.render() or index.names() & (self._changed | self._inner):
            return False
        factor = parts[0]
        return len(factor.terms) == 1 and not factor.names() & {"threadIdx", "blockIdx"}

    def _left_over(self) -> bool:
        """Whether the loop has what another one leaves, that of vectors or that of this rule: few iterations, if any."""
        begun = names(self._loop.start)
        chosen = [d for name in begun if (d := definition(self._site, name)) is not None]
        changed = changed_names(self._site.body, declarations=False)
        return bool(begun & changed) or any(strip(d).type == "conditional_expression" for d in chosen)

    def _place(self, access: Node) -> _LoopPlace | None:
        pointer = access.child_by_field_name("argument")
        found = self._pointed(pointer) if pointer is not None else None
        if found is None or access.type == "pointer_expression":
            return found
        listed = access.child_by_field_name("indices")
        at = self._scope.index(children(listed)[0]) if listed is not None and len(children(listed)) == 1 else None
        return self._further(found, at)

    def _further(self, place: _LoopPlace, by: Polynomial | None) -> _LoopPlace | None:
        if by is None:
            return None
        if not place.view:
            return _LoopPlace(place.array, "", place.index.plus(by))
        # The offset before the cast counts other elements: it has to be one for all iterations.
        fixed = self._loop.variable not in place.index.names()
        return _LoopPlace(place.array, f"{place.view} from {place.index.render()}", by) if fixed else None

    def _pointed(self, pointer: Node) -> _LoopPlace | None:
        pointer = strip(pointer)
        origin = self._scope.base(pointer)
        if origin is None:
            return None
        if origin[1] is not None:
            return _LoopPlace(origin[0], "", origin[1])
        inner, kind = _cast(pointer)
        if inner is not None:
            before = self._pointed(inner)
            if before is None or not before.view:
                return before and _LoopPlace(before.array, kind, before.index)
            return self._further(_LoopPlace(before.array, f"{kind} of {before.view}", before.index), number(0))
        if pointer.type == "identifier":
            declared = self._scope.lookup(text(pointer), pointer)
            return self._pointed(declared.value) if declared is not None and declared.value is not None else None
        if pointer.type == "binary_expression" and text(pointer.child_by_field_name("operator") or pointer) == "+":
            left, right = pointer.child_by_field_name("left"), pointer.child_by_field_name("right")
            found = self._pointed(left) if left is not None else None
            return self._further(found, self._scope.index(right)) if found is not None and right is not None else None
        return None

    def _load(self, uses: list[ElementAccess], places: Mapping[int, _LoopPlace], taken: list[str]) -> _EarlyLoad | None:
        """The loads of one text as one, where every iteration makes it and nothing before it has a part in it."""
        nodes = [_value(use.node) for use in uses]
        first = uses[0]
        statement = next(s for s in self._statements if inside(first.node, s))
        if None in nodes or first.node.id not in places or not unconditional(first.node, statement):
            return None
        kind = self._type(first)
        declarations = self._declarations(names(first.node), statement)
        if kind is None or declarations is None:
            return None
        base = next((text(n) for n in walk(first.node) if n.type == "identifier"), first.array)
        if base not in self._scope.parameters and self._scope.lookup(base, first.node) is None:
            base = first.array
        taken.append(self._site.fresh(f"{base}_value", taken))
        return _EarlyLoad(taken[-1], kind, tuple(n for n in nodes if n is not None), declarations)

    def _type(self, use: ElementAccess) -> str | None:
        """The type of the element that is loaded, without const."""
        pointer = strip(use.node.child_by_field_name("argument") or use.node)
        while pointer.type == "binary_expression":
            pointer = strip(pointer.child_by_field_name("left") or pointer.children[0])
        _, written = _cast(pointer)
        if not written and pointer.type == "identifier":
            declared = self._scope.lookup(text(pointer), pointer)
            parameter = self._scope.parameters.get(text(pointer))
            written = (
                f"{declared.type}*" if declared is not None else f"{parameter.base}*" if parameter is not None else ""
            )
        if not written.endswith("*") or written.count("*") != 1:
            return None
        plain = " ".join(w for w in written[:-1].split() if w != "const")
        return None if not plain or "auto" in plain.split() else plain

    def _declarations(self, wanted: frozenset[str] | set[str], before: Node) -> tuple[Node, ...] | None:
        """The loop's declarations that a load needs, in order; None where something else gives it a value."""
        needed, found = set(wanted), list[Node]()
        if needed & self._changed:
            return None
        for statement in reversed([s for s in self._statements if s.end_byte <= before.start_byte]):
            if statement.type != "declaration" or not {v.name for v in variables(statement)} & needed:
                continue
            loads = any(_loads(n) for n in _values(statement))
            if not pure(statement) or loads or names(statement) & self._changed:
                return None
            found.append(statement)
            needed |= names(statement)
        own = {v.name for s in found for v in variables(s)}
        return tuple(reversed(found)) if not needed & (self._inner - own) else None


def _values(declaration: Node) -> Iterator[Node]:
    """The nodes of what a declaration gives its variables."""
    for variable in variables(declaration):
        if variable.value is not None:
            yield from walk(variable.value)


def _loads(node: Node) -> bool:
    """Whether it loads an element, which `&x[i]` does not."""
    above = node.parent
    if node.type == "pointer_expression":
        return text(node)[0] == "*"
    address = above is not None and above.type == "pointer_expression" and text(above)[0] == "&"
    return node.type == "subscript_expression" and not address


def _cast(pointer: Node) -> tuple[Node | None, str]:
    """What is cast, and the type without const and spaces; (None, "") for anything else."""
    if pointer.type == "cast_expression":
        value, kind = pointer.child_by_field_name("value"), pointer.child_by_field_name("type")
        return value, _unqualified(text(kind)) if kind is not None else ""
    if pointer.type == "call_expression" and "reinterpret_cast" in text(pointer)[:20]:
        arguments = pointer.child_by_field_name("arguments")
        kind_text = text(pointer)[: (arguments or pointer).start_byte - pointer.start_byte]
        inner = children(arguments) if arguments is not None else []
        return (inner[0] if inner else None), _unqualified(kind_text.partition("<")[2].rpartition(">")[0])
    return None, ""


def _unqualified(kind: str) -> str:
    return " ".join(re.sub(r"\bconst\b|\b__restrict__\b", " ", kind).replace("*", " * ").split()).replace(" *", "*")


def _assignment(node: Node) -> Node:
    """The assignment that a target belongs to, or the node itself."""
    at: Node | None = node
    while at is not None and at.type != "expression_statement":
        if at.type in ("assignment_expression", "update_expression"):
            return at
        at = at.parent
    return node


def _value(access: Node) -> Node | None:
    """What stands for the loaded value: the access, the call of a load hint around it, or the target of `+=`; None for other uses."""
    above = access.parent
    if above is None or above.type == "update_expression":
        return None
    if above.type == "pointer_expression" and text(above).startswith("&"):
        call = above.parent.parent if above.parent is not None else None
        return call if call is not None and call.type == "call_expression" and called(call) in _HINTS else None
    if above.type == "assignment_expression" and above.child_by_field_name("left") == access:
        statement = above.parent
        return above if statement is not None and statement.type == "expression_statement" else None
    return access


def _batched(site: Site, loop: StrideLoop, ahead: list[_EarlyLoad], factor: int) -> Edit:
    first = site.fresh("first")
    count = site.fresh("k", [first])
    outer, unit = site.indent_at(loop.node.start_byte), site.indent_unit
    inner, deep, deepest = outer + unit, outer + unit * 2, outer + unit * 3
    bound, step = term_text(loop.bound), grouped_text(loop.step)
    wide = is_wide(loop.type) or step.isdigit()  # else the last of the indices may lie beyond 2^31
    last = str((factor - 1) * int(step)) if step.isdigit() else f"{factor - 1}{'' if wide else 'LL'} * {step}"
    whole = str(factor * int(step)) if step.isdigit() else f"{factor} * {step}"
    each = count if step == "1" else f"{count} * {step}"
    start = text(loop.start)
    kinds: dict[str, list[str]] = {}
    for one in ahead:
        kinds.setdefault(one.type, []).append(f"{one.name}[{factor}]")
    needed = sorted({d.start_byte: d for one in ahead for d in one.declarations}.values(), key=lambda d: d.start_byte)
    copies = [f"{deep}#pragma unroll", f"{deep}for (int {count} = 0; {count} < {factor}; ++{count}) {{"]
    copies.append(f"{deepest}const {loop.type} {loop.variable} = {first} + {each};")
    lines = [
        "{",
        f"{inner}{loop.type} {first} = {start};",
        f"{inner}for (; {first} + {last} < {bound}; {first} += {whole}) {{",
        *(f"{deep}{kind} {', '.join(listed)};" for kind, listed in kinds.items()),
        *copies,
        *(deepest + reindent(text(d), site.indent_at(d.start_byte), deepest).lstrip() for d in needed),
        *(f"{deepest}{one.name}[{count}] = {_loaded(one)};" for one in ahead),
        f"{deep}}}",
        *copies,
        _body(site, loop, [c for one in ahead for c in _changes(one, f"{one.name}[{count}]")], deepest),
        f"{deep}}}",
        f"{inner}}}",
        f"{inner}for ({loop.type} {loop.variable} = {first}; {loop.variable} < {bound}; "
        + (f"++{loop.variable}) {{" if step == "1" else f"{loop.variable} += {loop.step}) {{"),
        _body(site, loop, [], deep),
        f"{inner}}}",
        f"{outer}}}",
    ]
    return Edit(Span(with_pragma(loop.node), loop.node.end_byte), "\n".join(lines))


def _loaded(one: _EarlyLoad) -> str:
    node = one.nodes[0]
    target = node.child_by_field_name("left") if node.type == "assignment_expression" else node
    return text(target or node)


def _changes(one: _EarlyLoad, value: str) -> Iterator[tuple[int, int, str]]:
    """The value in place of its loads; `x[i] += v` becomes `x[i] = value + v`."""
    for node in one.nodes:
        left, sign, right = (node.child_by_field_name(f) for f in ("left", "operator", "right"))
        if node.type != "assignment_expression" or left is None or sign is None or right is None:
            yield node.start_byte, node.end_byte, value
            continue
        closed = grouped(right) == text(right)
        yield left.start_byte, right.start_byte, f"{text(left)} = {value} {text(sign)[:-1]} {'' if closed else '('}"
        if not closed:
            yield right.end_byte, right.end_byte, ")"


def _body(site: Site, loop: StrideLoop, changes: list[tuple[int, int, str]], indent: str) -> str:
    """The loop's statements and comments, with the changes."""
    if loop.body.type != "compound_statement":
        written = site.render(loop.body.start_byte, loop.body.end_byte, changes)
        return indent + reindent(written, site.indent_at(loop.body.start_byte), indent).lstrip()
    written = site.render(loop.body.start_byte + 1, loop.body.end_byte - 1, changes).strip("\n").rstrip()
    statements = children(loop.body)
    return reindent(written, site.indent_at(statements[0].start_byte) if statements else "", indent)
