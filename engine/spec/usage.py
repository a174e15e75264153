"""How a kernel uses its parameters, read from its text: what is read and written, what bounds what, how far it reaches."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from engine.arith import ArithmeticError_, Number, UnknownName, evaluate
from engine.cuda.declarations import Declared, variables
from engine.cuda.kernel import Access, Kernel, Unit
from engine.cuda.parse import names_in, text, walk
from engine.spec.referred import referred

if TYPE_CHECKING:
    from tree_sitter import Node

_CAST = re.compile(r"\(\s*(?:const\s+)?(?:(?:unsigned|signed|long|short|int|size_t|u?int(?:8|16|32|64)_t)\s*)+\)")
_STATIC_CAST = re.compile(r"static_cast\s*<[\w\s:]{1,40}>")
_HINT = re.compile(r"__(ld|st)(?:g|ca|cg|cs|cv|lu|wb|wt)\b")
_SIGN = re.compile(r"\s*([-+*/%])\s*")
_QUOTIENT = re.compile(r"(?<![\w.)\]*/%])([A-Za-z_]\w*)/([A-Za-z_]\w*)(?![\w\[(.])")
_MAX_CALLS = 4  # functions in functions
_MAX_STEPS = 40  # definitions followed for one value
_MAX_TEXT = 400  # characters of an expression, or of a definition that it is made from
_LINE = re.compile(
    r"\(?(?:blockIdx\.x\*blockDim\.x|blockDim\.x\*blockIdx\.x)\)?\+threadIdx\.x"
    r"|threadIdx\.x\+\(?(?:blockIdx\.x\*blockDim\.x|blockDim\.x\*blockIdx\.x)\)?"
)
_ATOMIC = re.compile(r"(?:\w+::)?(?:gpu|fast|safe)?[aA]tomic")  # PyTorch's have names of their own
_BYTES = re.compile(r"\b(?:char|uchar|uint8_t|byte|Ncv8u)\s*(?:const\s*)?\*\s*[)>]")
_CLAMP = re.compile(r"\b(?:min|max|clamp)\s*\(")
_WORDS = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*")  # names, and fields of theirs
_UNSEEN = {  # what hands a pointer on where this analysis does not follow it
    "cast_expression",
    "template_argument_list",
    "update_expression",
    "initializer_list",
    "return_statement",
    "field_expression",
    "parenthesized_expression",
}
_OTHER_AXES = re.compile(r"\b(?:threadIdx|blockIdx)\s*\.\s*[yz]\b")


@dataclass
class Use:
    """What a kernel does with one buffer. `indices` are (offset of an alias, index text)."""

    read: bool = False
    written: bool = False
    stored: bool = False  # the text shows a store: `written` counts every `&x[i]` as well
    atomic: bool = False
    escapes: bool = False  # handed to a function or cast, so this analysis does not see all
    indices: list[tuple[str, str]] = field(default_factory=list)
    first_write: bool = False  # the first access in the text only writes, and none is in another branch
    branch: tuple[int, int] | None = None  # where the branch of the first access stands

    @property
    def starts_written(self) -> bool:
        """Whether the text writes an element before any other access, and uses one index throughout."""
        return self.first_write and len(set(self.indices)) == 1


def _changed(body: Node) -> Iterator[str]:
    """Names that an assignment, `++` or `--` gives another value."""
    for node in walk(body):
        kind = {"assignment_expression": "left", "update_expression": "argument"}.get(node.type)
        target = node.child_by_field_name(kind) if kind else None
        if target is not None and target.type == "identifier":
            yield text(target)


def _branch(node: Node | None) -> tuple[int, int] | None:
    """Where the innermost branch around a node stands: a side of an `if`, a case of a `switch`, a side of `?:`."""
    while node is not None and node.parent is not None:
        above = node.parent
        if above.type == "else_clause" or above.type == "case_statement":
            return above.start_byte, above.end_byte
        if above.type in ("if_statement", "conditional_expression"):
            sides = (above.child_by_field_name("consequence"), above.child_by_field_name("alternative"))
            if node in sides:
                return node.start_byte, node.end_byte
        node = above
    return None


def _reads_itself(access: Access) -> bool:
    """Whether the value stored by a write is made from the same array."""
    node = access.node
    while node is not None and node.type != "assignment_expression":
        node = node.parent
    value = node.child_by_field_name("right") if node is not None else None
    return value is not None and access.array in names_in(value)


def _words(text: str) -> set[str]:
    """Names in an expression, and fields with what they are of: `p.rows` is `p`, `rows` and `p.rows`."""
    found = set(_WORDS.findall(text))
    return found | {part for name in found for part in name.split(".")}


def _plain(text: str) -> str:
    """An expression without casts to whole numbers."""
    return _STATIC_CAST.sub("", _CAST.sub("", text))


def _counting(body: Node) -> set[str]:
    """The names in a function that bound something or stand in an index, and those that these are made of."""
    found: set[str] = set()
    made: dict[str, str] = {}
    for node in walk(body):
        if node.type == "binary_expression" and node.children[1].type in ("<", "<=", ">", ">=", "==", "!="):
            found |= _words(text(node))
        elif node.type == "subscript_expression" and (index := node.child_by_field_name("indices")) is not None:
            found |= _words(text(index))
        for variable in variables(node) if node.type == "declaration" else ():
            if variable.value is not None:
                made.setdefault(variable.name, text(variable.value))
    for _ in range(_MAX_CALLS):
        found |= {word for name in found & made.keys() for word in _words(made[name])}
    return found


class Usage:
    """The analysis of one kernel's body."""

    def __init__(self, unit: Unit, kernel: Kernel) -> None:
        self.unit, self.kernel = unit, kernel
        body = kernel.node.child_by_field_name("body")
        self.body = body if body is not None else kernel.node
        self.pointers = {p.name for p in kernel.parameters if p.pointer}
        self.definitions: dict[str, str] = {}
        self.aliases: dict[str, tuple[str, str]] = {}  # local pointer -> (parameter, offset)
        self._moved: set[str] = set()  # names in what is added to a pointer that is handed on
        self._followed: set[int] = set()  # where names stand that an alias is made of
        self._bound_to: set[int] = set()  # where names stand in what a reference that is not const refers to
        for node in walk(self.body):
            for variable in variables(node) if node.type == "declaration" else ():
                if variable.value is not None:
                    self._define(variable, variable.value)
        self.changed = set(_changed(self.body))  # names whose first value is not their only one
        self.bounds: dict[str, list[str]] = {}
        self.guards: set[str] = set()  # names, and fields of parameters, on the far side of a comparison
        self.counted: set[str] = set()  # names that bound or index something in functions that it calls
        for node in walk(self.body):
            if node.type == "binary_expression":
                self._bound(node)
        self._called(self.body, {}, 0)
        self.uses = {name: Use() for name in self.pointers}
        for access in kernel.accesses:
            self._access(access)
        self._bare()
        for array in referred(unit, self.body):
            if (use := self.uses.get(self.aliases.get(array, (array, ""))[0])) is not None:
                use.read = use.written = use.stored = True

    def _define(self, variable: Declared, value: Node) -> None:
        reached = self._reached(value)
        if reached is not None:
            self.aliases.setdefault(variable.name, reached)
            self._followed |= {n.start_byte for n in walk(value) if n.type == "identifier"}
            return
        self.definitions.setdefault(variable.name, text(value))
        if variable.shape == "reference" and not re.search(r"\bconst\b", variable.type):
            self._bound_to |= {n.start_byte for n in walk(value) if n.type == "identifier"}

    def _reached(self, value: Node) -> tuple[str, str] | None:
        """(parameter, offset) of an expression that points into a buffer: `x`, `x + i`, `&x[i]`, a cast of these."""
        base, offset = value, "0"
        while base.type in ("parenthesized_expression", "cast_expression"):
            base = base.child_by_field_name("value") or base.named_children[-1]
        if base.type == "binary_expression" and base.children[1].type == "+":
            left, right = base.children[0], base.children[2]
            # `x + i*n + j` is ((x + i*n) + j): go down to the pointer on the left.
            offsets = [text(right)]
            while left.type == "binary_expression" and left.children[1].type == "+":
                offsets.append(text(left.children[2]))
                left = left.children[0]
            base, offset = left, " + ".join(reversed(offsets))
        elif base.type == "pointer_expression" and text(base).startswith("&"):
            inner = base.named_children[-1]
            if inner.type == "subscript_expression":
                index = inner.child_by_field_name("indices")
                base = inner.child_by_field_name("argument") or base
                offset = text(index)[1:-1] if index is not None else "0"
        if base.type == "identifier" and text(base) in self.pointers:
            return text(base), offset
        if base.type == "identifier" and text(base) in self.aliases:
            parameter, before = self.aliases[text(base)]
            return parameter, f"{before} + {offset}"
        return None

    def _bound(self, node: Node) -> None:
        left, operator, right = node.children[0], node.children[1].type, node.children[2]
        if operator not in ("<", "<=", ">", ">=", "==", "!="):
            return
        self.guards |= names_in(left) | names_in(right) | _words(f"{text(left)} {text(right)}")
        named = ("identifier", "field_expression")  # the latter: threadIdx.x
        if operator in ("<", ">=") and left.type in named:
            self.bounds.setdefault(text(left), []).append(text(right))
        elif operator in ("<=", ">") and left.type in named:
            self.bounds.setdefault(text(left), []).append(f"({text(right)}) + 1")
        elif operator == ">" and right.type in named:
            self.bounds.setdefault(text(right), []).append(text(left))

    def _called(self, body: Node, passed: Mapping[str, str], depth: int) -> None:
        """Takes in parameters that a function of the file, which they are handed to, bounds or indexes something with.

        `passed` are the names that parameters of the function with this body have in the kernel.
        """
        functions = {f.name: f for f in self.unit.functions if not isinstance(f, Kernel)}
        for call in walk(body) if depth < _MAX_CALLS else ():
            name, given = call.child_by_field_name("function"), call.child_by_field_name("arguments")
            if call.type != "call_expression" or name is None or given is None:
                continue
            callee = functions.get(re.split(r"<", text(name), maxsplit=1)[0].rpartition("::")[2])
            inner = callee.node.child_by_field_name("body") if callee is not None and callee.node is not None else None
            if callee is None or inner is None:
                continue
            values = [text(n) for n in given.named_children if n.type != "comment"]
            handed = {
                p.name: passed.get(v, v if depth == 0 else "")
                for p, v in zip(callee.parameters, values, strict=False)
                if not p.pointer
            }
            counting = _counting(inner)
            self.counted |= counting
            self.guards |= {handed[word] for word in counting if handed.get(word)}
            self._called(inner, handed, depth + 1)

    def _access(self, access: Access) -> None:
        parameter, offset = self.aliases.get(access.array, (access.array, "0"))
        use = self.uses.get(parameter)
        if use is None:
            return
        above = access.node and access.node.parent and access.node.parent.parent
        call = above.parent if above else None
        called = text(call) if access.kind == "update" and call is not None and call.type == "call_expression" else ""
        hint = _HINT.match(called)
        if not use.indices:
            use.first_write = access.kind == "write" and not _reads_itself(access)
            use.branch = _branch(access.node)
        elif use.branch is not None and access.node is not None:
            # On another way through the kernel nothing may have been written.
            use.first_write &= use.branch[0] <= access.node.start_byte and access.node.end_byte <= use.branch[1]
        use.indices.append((offset, access.indices[0]))
        use.read |= access.kind != "write" and (hint is None or hint[1] == "ld")
        use.written |= access.kind != "read" and (hint is None or hint[1] == "st")
        at = access.node.parent if access.node is not None else None
        use.stored |= access.kind != "read" and at is not None and at.type != "pointer_expression"
        use.atomic |= _ATOMIC.match(called) is not None

    def _bare(self) -> None:
        """Uses without brackets: `*y = …`, `atomicAdd(y, …)`, `__stcs(y + i, …)`, `f(x, …)`."""
        hinted: set[int] = set()  # where the buffers of cache hints stand
        for node in walk(self.body):
            if node.type == "call_expression":
                hinted |= self._hint(node)
            if node.type != "identifier" or node.start_byte in hinted:
                continue
            parameter, offset = self.aliases.get(text(node), (text(node), "0"))
            use, parent = self.uses.get(parameter), node.parent
            if use is None or parent is None:
                continue
            if parent.type == "pointer_expression" and text(parent).startswith("*"):
                outer = parent.parent
                stored = outer is not None and outer.type == "assignment_expression"
                target = stored and outer is not None and outer.child_by_field_name("left") == parent
                plain = outer is not None and outer.child_by_field_name("operator")
                use.written |= bool(target)
                use.stored |= bool(target)
                use.read |= not target or (plain is not None and plain is not False and text(plain) != "=")
                use.indices.append((offset, "0"))
            elif parent.type == "argument_list" and parent.parent is not None:
                if _ATOMIC.match(text(parent.parent)):
                    use.read = use.written = use.atomic = True
                    use.indices.append((offset, "0"))
                else:
                    use.escapes = True
            elif node.start_byte in self._bound_to or (
                node.start_byte not in self._followed and parent.type in _UNSEEN
            ):
                use.escapes = True
            elif parent.type == "binary_expression" and parent.children[1].type in "+-":
                use.escapes |= node.start_byte not in self._followed
                self._moved |= _words(text(parent))
            elif parent.type in ("assignment_expression", "init_declarator", "conditional_expression"):
                # A condition and what is assigned to do not hand the pointer on.
                own = {"assignment_expression": "left", "init_declarator": "declarator"}.get(parent.type, "condition")
                use.escapes |= node.start_byte not in self._followed and parent.child_by_field_name(own) != node

    def _hint(self, call: Node) -> set[int]:
        """Takes in a load or store with a cache hint; where the names in its pointer stand."""
        function, arguments = call.child_by_field_name("function"), call.child_by_field_name("arguments")
        kind = _HINT.fullmatch(text(function)) if function is not None else None
        given = [n for n in arguments.named_children if n.type != "comment"] if arguments is not None else []
        reached = self._reached(given[0]) if kind is not None and given else None
        if kind is None or reached is None or any(n.type == "subscript_expression" for n in walk(given[0])):
            return set()
        use = self.uses[reached[0]]
        use.read |= kind[1] == "ld"
        use.written |= kind[1] == "st"
        use.stored |= kind[1] == "st"
        use.indices.append((reached[1], "0"))
        return {n.start_byte for n in walk(given[0]) if n.type == "identifier"}

    def is_size(self, name: str) -> bool:
        """Whether an integer parameter bounds an index or stands in one: it then is a size, else a plain value."""
        reached = set(self.guards)
        for use in self.uses.values():
            for offset, index in use.indices:
                reached |= _words(f"{offset} {index}")
        for access in self.kernel.accesses:  # by pointers that come from a struct, too
            reached |= _words(" ".join(access.indices))
        reached |= self._indexing_views() | self._moved
        clamped = self._clamped()
        for _ in range(4):
            for local in [n for n in reached if n in self.definitions or n in clamped]:
                reached |= _words(f"{self.definitions.get(local, '')} {clamped.get(local, '')}")
        return name in reached

    def _indexing_views(self) -> set[str]:
        """The words in what a parameter of a class is called with, and in indices of that: `image(y, x)`, `image.row(y)[x]`."""
        views, found = {p.name for p in self.kernel.parameters if not p.pointer}, set[str]()
        for node in walk(self.body):
            indexed = node.type == "subscript_expression"
            called = node.child_by_field_name("argument" if indexed else "function")
            given = node.child_by_field_name("indices" if indexed else "arguments")
            if node.type in ("call_expression", "subscript_expression") and called is not None and given is not None:
                found |= _words(text(given)) if re.split(r"[.(]", text(called))[0] in views else set()
        return found

    def _clamped(self) -> dict[str, str]:
        """Variables that a minimum or maximum is assigned to after their definition, with it: `i = min(i, n - 1)`."""
        found: dict[str, str] = {}
        for node in walk(self.body):
            left, right = node.child_by_field_name("left"), node.child_by_field_name("right")
            if node.type != "assignment_expression" or left is None or right is None:
                continue
            if left.type == "identifier" and _CLAMP.search(text(right)):
                found[text(left)] = f"{found.get(text(left), '')} {text(right)}"
        return found

    def follow(self, field: str) -> None:
        """Takes in a pointer that stands in a struct: nothing is known of its uses but whether an atomic gets it."""
        atomic = re.search(rf"{_ATOMIC.pattern}\w*\s*\(\s*&?\s*{self._written(field)}\b", text(self.body)) is not None
        self.uses[field] = Use(escapes=True, atomic=atomic)

    def takes(self, field: str) -> bool:
        """Whether the kernel names a field of a parameter, or one that it is a part of."""
        parts = field.split(".")
        return any(
            re.search(rf"(?<![\w.]){self._written('.'.join(parts[:end]))}(?![\w.(])", text(self.body))
            for end in range(2, len(parts) + 1)
        )

    def hands_on(self, name: str) -> bool:
        """Whether the kernel uses a parameter of a class as a whole."""
        return re.search(rf"(?<![\w.]){re.escape(name)}\b(?!\s*(?:\.|->))", text(self.body)) is not None

    @staticmethod
    def _written(field: str) -> str:
        return r"\s*(?:\.|->)\s*".join(map(re.escape, field.split(".")))

    def is_shift(self, name: str) -> bool:
        """Whether a whole number only moves positions: it is subtracted from some and bounds or scales nothing."""
        body = text(self.body)
        used = re.findall(rf"(.?)\s*(?<![\w.]){re.escape(name)}(?![\w(])\s*(.?)", _plain(body))
        return bool(used) and all(before == "-" and after in ",);]" for before, after in used)

    def scales(self, name: str) -> bool:
        """Whether something is multiplied by a whole number."""
        word = rf"(?<![\w.]){re.escape(name)}(?![\w(])"
        return re.search(rf"\*\s*{word}|{word}\s*\*", _plain(text(self.body))) is not None

    def counts_bytes(self) -> bool:
        """Whether a pointer is cast to one to bytes, which distances are then counted in."""
        return _BYTES.search(text(self.body)) is not None

    def threads(self, sizes: Collection[str]) -> str:
        """How many threads the kernel needs, over its sizes: `n` where a line of threads is numbered and asked for `i < n`.

        "" where the text does not say so, or shared memory depends on the launch.
        """
        body = text(self.body)
        if _OTHER_AXES.search(body) or re.search(r"\bextern\b", body):
            return ""
        short = {n: _plain(written) for n, written in self.definitions.items() if len(written) <= _MAX_TEXT}
        numbers = [n for n, written in short.items() if _LINE.fullmatch(re.sub(r"\s+", "", written))]
        for bound in [b for n in numbers for b in self.bounds.get(n, ())]:
            written = _plain(bound)
            for _ in range(4):
                if len(written) > _MAX_TEXT:  # definitions of definitions: each time longer by so much
                    break
                written = re.sub(
                    r"(?<![\w.])[A-Za-z_]\w*",
                    lambda m: m[0] if m[0] in sizes else f"({short.get(m[0], m[0])})",
                    written,
                )
            written = re.sub(r"\s*\*\s*", "*", re.sub(r"(?<!\w)\((\w+)\)", r"\1", written)).strip()
            written = written[1:-1] if re.fullmatch(r"\([^()]*\)", written) else written
            try:
                if evaluate(written, dict.fromkeys(sizes, 64)) > 0:
                    return written
            except ArithmeticError_:
                continue
        return ""

    def lets_through(self) -> Iterator[tuple[str, str, int]]:
        """Guards that let the thread behind the last one through, `if (i > n) return;`: the thread's number, `n`, and the line."""
        for node in walk(self.body):
            then = node.child_by_field_name("consequence") if node.type == "if_statement" else None
            if then is None or text(then).strip("{} \n\t") != "return;":
                continue
            for each in walk(node.child_by_field_name("condition") or node):
                if each.type != "binary_expression" or each.children[1].type != ">":
                    continue
                number, size = text(each.children[0]), text(each.children[2])
                made = self.definitions.get(number, "")
                tighter = [b for b in self.bounds.get(number, ()) if b == size]
                if re.search(r"\b(?:thread|block)Idx\b", made) and not tighter and re.fullmatch(r"[\w.]+", size):
                    yield number, size, self.unit.line_of(each.start_byte)

    def divided(self, sizes: Collection[str]) -> dict[str, str]:
        """Sizes that the kernel divides by another one, with that: heads of a model, groups of channels."""
        found: dict[str, str] = {}
        for whole, part in _QUOTIENT.findall(_SIGN.sub(r"\1", _plain(text(self.body)))):
            if whole in sizes and part in sizes and part != whole and part not in found and whole not in found.values():
                found.setdefault(whole, part)
        return found

    def indexed_by(self, name: str) -> list[str]:
        """The buffers whose indices come from the contents of the buffer `name`."""
        locals_ = {n for n, written in self.definitions.items() if re.search(rf"\b{re.escape(name)}\s*\[", written)}
        found = []
        for other, use in self.uses.items():
            written = " ".join(f"{a} {b}" for a, b in use.indices)
            words = set(re.findall(r"[A-Za-z_]\w*", written))
            if other != name and (re.search(rf"\b{re.escape(name)}\s*\[", written) or words & locals_):
                found.append(other)
        return found

    def offsets(self) -> list[str]:
        """The buffers that the kernel reads at `e` and at `e + 1` and compares with: where segments begin and end."""
        found = []
        for name, use in self.uses.items():
            indices = {
                re.sub(r"\s+", "", f"{index}" if offset == "0" else f"{offset}+{index}")
                for offset, index in use.indices
            }
            locals_ = {n for n, written in self.definitions.items() if re.search(rf"\b{re.escape(name)}\s*\[", written)}
            compared = ({name} | locals_) & (
                self.guards | {word for bound in self.bounds.values() for b in bound for word in _words(b)}
            )
            if not use.written and compared and any(f"{index}+1" in indices for index in indices):
                found.append(name)
        return found

    def extent(self, name: str, sizes: Mapping[str, Number]) -> int | None:
        """Elements of a buffer that are reached if every bounded variable takes its largest value; None if unknown."""
        reached = []
        for offset, index in self.uses[name].indices:
            try:
                last = self._value(f"({offset}) + ({index})", sizes, [_MAX_STEPS])
            except ArithmeticError_:
                return None
            if last != int(last) or last < 0:
                return None
            reached.append(int(last) + 1)
        return max(reached, default=None)

    def _value(self, text: str, sizes: Mapping[str, Number], steps: list[int]) -> Number:
        """The largest value of an expression, by names' bounds and definitions. Raises ArithmeticError_."""
        plain = _plain(text)
        known = dict(sizes)
        while True:
            try:
                return evaluate(plain, known)
            except UnknownName as error:
                steps[0] -= 1
                if steps[0] < 0 or error.name in known:
                    raise
                known[error.name] = self._largest(error.name, sizes, steps)

    def _largest(self, name: str, sizes: Mapping[str, Number], steps: list[int]) -> Number:
        found = []
        for written in self.bounds.get(name, ()):
            try:
                found.append(self._value(written, sizes, steps) - 1)
            except ArithmeticError_:
                continue
        if found:
            return max(found)
        for source in (self.definitions, self.unit.macros, self.unit.constants):
            if name in source and name not in self.changed:
                return self._value(source[name], sizes, steps)
        raise UnknownName(f"'{name}' has no bound", name=name)
