"""A warp filters its threads' rows before each thread inserts what is left into its sorted list.

Of a row's elements few belong to its largest k. The threads of a warp read a row together and compare: an element below the k-th largest of
their 32 maxima has k larger ones, and need not be inserted. Source of the idea: Johnson, Douze, Jégou, "Billion-scale similarity search
with GPUs" (2017), section 4: a threshold keeps most elements from a list in registers.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any

from engine.cuda.questions import children, names, pure_value, text, variables, walk, written
from engine.rewrite import Change, Edit, Edits, MatchedRule, Namer, Node, Site, Space, Span, Values, reindent, template
from engine.rules.idioms import WARP, StrideLoop, interpreter, one_dimensional, size_of, stride_loop, with_pragma
from engine.rules.idioms.interpreter import Companion, Env, Fresh, Interpreter, Key, NotInterpreted, Step, shown
from engine.rules.idioms.thread_index import Index, ThreadMap, holds, thread_map, thread_uses_outside


@dataclass(frozen=True)
class SortedList:
    """An array of which statements keep the elements sorted: `largest` first, or the smallest.

    `start` is the value that all elements have at first, as C text.
    """

    array: str
    length: int
    largest: bool
    start: str


@dataclass(frozen=True)
class Inserted:
    """The variable that holds a new value, and whether it may be a NaN."""

    name: str
    floating: bool


def sorted_list(
    site: Site, before: Sequence[Node], insertion: Sequence[Node], arrays: Mapping[str, int], value: Inserted
) -> SortedList | None:
    """The array that `insertion` puts the value into where it is better than the last element, and does not change otherwise.

    `before` are the statements that run first: all elements start with one value. What stands above a place in the list never
    depends on what stands below it.
    """
    try:
        prepare, insert = Interpreter(site).block(before), Interpreter(site).block(insertion)
        start: Env = {}
        prepare(start)
    except (NotInterpreted, RecursionError):
        return None
    for array, length in arrays.items():
        elements = start.get(array)
        if not isinstance(elements, list) or len(set(map(repr, elements))) != 1:
            continue
        if not isinstance(elements[0], Fresh | int | float):
            continue
        for largest in (True, False):
            found = SortedList(array, length, largest, shown(elements[0]))
            if _Trial(insert, found, tuple(a for a in arrays if a != array), value).passes():
                return found
    return None


@dataclass(frozen=True)
class _Trial:
    insert: Step
    form: SortedList
    others: tuple[str, ...]
    value: Inserted

    def passes(self) -> bool:
        try:
            return all(self._keeps(ranks, rank) for ranks in self._lists() for rank in self._places(ranks))
        except (NotInterpreted, KeyError, IndexError, TypeError, RecursionError):
            return False

    def _lists(self) -> Iterator[list[float]]:
        """Lists without equals, of equals alone, and with two or three equals anywhere; the best first."""
        length, sign = self.form.length, -1.0 if self.form.largest else 1.0
        yield [sign * 2 * k for k in range(length)]
        yield [0.0] * length
        for run in (2, 3):
            for at in range(length - run + 1):
                yield [sign * 2 * (at if at <= k < at + run else k) for k in range(length)]

    def _places(self, ranks: list[float]) -> list[float]:
        """Every place a value can have in the list: equal to an element, between two, outside; and none, as a NaN has."""
        own = sorted(set(ranks))
        return [own[0] - 1, *(r + d for r in own for d in (0.0, 1.0)), *([float("nan")] if self.value.floating else [])]

    def _better(self, one: float, other: float) -> bool:
        return one > other if self.form.largest else one < other

    def _run(self, keys: list[Key], labels: list[dict[str, Any]], new: Key) -> tuple[list[Key], list[dict[str, Any]]]:
        env: Env = {self.value.name: new, self.form.array: list(keys)}
        env |= {other: [label[other] for label in labels] for other in self.others}
        if self.insert(env) == "break":
            raise NotInterpreted
        length = range(self.form.length)
        return env[self.form.array], [{other: env[other][k] for other in self.others} for k in length]

    def _keeps(self, ranks: list[float], rank: float) -> bool:
        keys, new = [Key(r) for r in ranks], Key(rank)
        labels: list[dict[str, Any]] = [{other: Companion() for other in self.others} for _ in ranks]
        got, beside = self._run(keys, labels, new)
        if not self._better(rank, ranks[-1]):
            return got == keys and beside == labels
        known = dict(zip(keys, labels, strict=True))
        for key, label in zip(got, beside, strict=True):
            if key is new and any(isinstance(v, Companion) for v in label.values()):
                return False
            if key is not new and known.get(key) != label:
                return False
        ordered = sorted([*ranks, rank], reverse=self.form.largest)[:-1]
        if len(set(got)) != len(got) or [k.rank for k in got] != ordered:
            return False
        place = sum(not self._better(rank, r) for r in ranks)
        if got == [*keys[:place], new, *keys[place:-1]]:
            return True  # in front of what is worse, which stays in its order
        return all(self._upper(keys, labels, new, got, at) for at in range(1, len(keys)))

    def _upper(self, keys: list[Key], labels: list[dict[str, Any]], new: Key, got: list[Key], at: int) -> bool:
        """Whether what is above a gap in the list does not depend on what is below it."""
        if not self._better(keys[at - 1].rank, keys[at].rank):
            return True
        sign = -1.0 if self.form.largest else 1.0
        worst = keys[-1].rank
        lower = [Key(worst + sign * (k + 5)) for k in range(len(keys) - at)]
        other, _ = self._run([*keys[:at], *lower], labels, new)
        upper = min(len(keys), at + self._better(new.rank, keys[at].rank))
        return got[:upper] == other[:upper]


# Our choice: elements of a row that a thread reads at once, rows that a warp works on at once, whether the next ones are loaded before,
# and whether what may enter the list stays in shared memory: else it is read again, which few warps find in a cache.
_CHOICES = ((8, 4, 0, 1), (8, 2, 1, 1), (8, 2, 0, 1), (8, 1, 1, 1), (8, 2, 1, 0), (16, 1, 1, 0))
_OPEN = {"each": (1, 2, 4, 8, 16), "rows": (1, 2, 4, 8), "ahead": (0, 1), "keep": (0, 1)}
_MOST_VALUES = 64  # registers of one thread
# The better of two values and the worse, where the largest are kept.
_FUNCTIONS = {
    "float": ("fmaxf", "fminf"), "double": ("fmax", "fmin"), "int": ("max", "min"), "unsigned int": ("max", "min"),
    "unsigned": ("max", "min"),
}  # fmt: skip


@dataclass(frozen=True)
class InsertionList:
    """A thread that inserts each element of its row into a sorted list.

    `source` are the declarations that give the element `value` of type `type` from the row and the column.
    """

    site: Site
    map: ThreadMap
    loop: StrideLoop
    list: SortedList
    value: str
    type: str
    source: tuple[Node, ...]
    threads: int

    @property
    def row(self) -> Index:
        return self.map.indices[0]


@dataclass(frozen=True)
class _FilterForm:
    """One choice of `_OPEN`."""

    each: int
    rows: int
    ahead: int
    keep: int


class TopkFilter(MatchedRule[InsertionList]):
    """A warp marks the elements of a row that may enter the sorted list of one thread, which inserts them alone."""

    name = "topk_filter"
    summary = "Filter rows by warps before insertion into sorted lists"

    def match(self, site: Site) -> InsertionList | None:
        """The kernel as one sorted list for each thread's row; None where it has another form."""
        form = thread_map(site) if site.sound and site.manageable and site.launch_visible else None
        blocks = one_dimensional(site) if form is not None else set()
        if form is None or len(form.indices) != 1 or form.style == "none" or len(blocks) != 1:
            return None
        index, (threads,) = form.indices[0], blocks
        if index.axis != "x" or index.factor != 1 or "x" not in form.bounds or threads % WARP:
            return None
        if thread_uses_outside(site, form.indices) or not site.local_only(site.body) or not site.pointers_distinct:
            return None
        if any(n.type == "subscript_expression" for guard in form.guards for n in walk(_condition(guard))):
            return None
        if any(n.type == "type_qualifier" and text(n) == "volatile" for n in walk(site.kernel.node)):
            return None
        loops = [(k, s) for k, s in enumerate(map(stride_loop, form.work)) if s is not None]
        return next((found for k, s in loops if (found := _listed(site, form, k, s, threads)) is not None), None)

    def space(self, match: InsertionList) -> Space:
        """The elements of a row that a thread reads at once, the rows of a warp at once, and whether the next ones are on their way."""
        choices = [(dict(zip(_OPEN, values, strict=True)), 0.6 - 0.04 * order) for order, values in enumerate(_CHOICES)]
        choices = [(values, prior) for values, prior in choices if _fits(match, values["each"], values["keep"])]
        conditions = (f"each * rows * (1 + ahead) <= {_MOST_VALUES}",)
        return Space(choices, _OPEN, conditions, 0.6)

    def rewrite(self, match: InsertionList, values: Values) -> Change | None:
        """The filter in place of the loop, and the test for threads without a row behind it."""
        figures = _FilterForm(**{name: int(values[name]) for name in _OPEN})
        each, rows, ahead, keep = astuple(figures)
        k = match.list.length
        if not _fits(match, each, keep):
            return None
        which = "largest" if match.list.largest else "smallest"
        summary = f"Filter rows by warps, {each} elements a thread and {rows} rows at once, before insertion among the {k} {which}"
        summary += ", next rows loaded ahead" if ahead else ""
        summary += ", their elements kept in shared memory" if keep else ""
        return Change(summary, _edits(match, figures))


def _condition(guard: Node) -> Node:
    return guard.child_by_field_name("condition") or guard


def _listed(site: Site, form: ThreadMap, place: int, loop: StrideLoop, threads: int) -> InsertionList | None:
    before, statements = form.work[:place], children(loop.body)
    if loop.step != "1" or loop.body.type != "compound_statement":
        return None
    own = [s for s in (*form.derived, *before) if s.type == "declaration"]
    arrays: dict[str, int] = {}
    for declaration in own:
        arrays |= interpreter.array_lengths(site, declaration)
    dependent = {form.indices[0].name}
    for declaration in own:
        if names(declaration) & dependent:
            dependent |= {v.name for v in variables(declaration)}
    changed = written(site.body)
    if (names(loop.start) | names(loop.bound)) & (dependent | changed) or not _stays(site, before, set(arrays)):
        return None
    if any(n.type == "return_statement" for s in (*before, loop.node) for n in walk(s)):
        return None
    leading = [s for s in statements if s.type == "declaration" and pure_value(s) and not names(s) & set(arrays)]
    for declaration in reversed(leading):
        declared = list(variables(declaration))
        if len(declared) != 1 or declared[0].shape != "scalar":
            continue
        value, kind = declared[0].name, declared[0].type.removeprefix("const").strip()
        source = _needed(declaration, [*own, *leading], leading, dependent | {loop.variable})
        given = {v.name for s in source for v in variables(s)} - {value}
        insertion = [s for s in statements if s not in source]
        if kind not in _FUNCTIONS or given & changed or not any(map(_reads, source)):
            continue
        found = sorted_list(site, before, insertion, arrays, Inserted(value, kind in ("float", "double")))
        if found is not None and found.length <= WARP // 2 and _element(own, found.array) == kind:
            return InsertionList(site, form, loop, found, value, kind, tuple(source), threads)
    return None


def _stays(site: Site, statements: Sequence[Node], arrays: set[str]) -> bool:
    """Whether the statements may run in threads without a row: they use no memory but the thread's own arrays."""
    for node in (n for statement in statements for n in walk(statement)):
        if node.type in ("pointer_expression", "field_expression", "call_expression"):
            return False
        if node.type == "subscript_expression" and text(node.child_by_field_name("argument") or node) not in arrays:
            return False
    return not {p.name for p in site.kernel.parameters} & set().union(*map(written, statements))


def _reads(node: Node) -> bool:
    return any(n.type in ("subscript_expression", "pointer_expression") for n in walk(node))


def _needed(value: Node, known: list[Node], leading: list[Node], dependent: set[str]) -> list[Node]:
    """The declarations from which the value follows that are not there for another row and column, in order of text."""
    found, wanted = [value], names(value)
    for declaration in reversed([d for d in known if d.start_byte < value.start_byte]):
        declared = {v.name for v in variables(declaration)}
        if declared & wanted and (declaration in leading or declared & dependent):
            found.append(declaration)
            wanted |= names(declaration)
    return found[::-1]


def _element(declarations: list[Node], array: str) -> str:
    return next((v.type for d in declarations for v in variables(d) if v.name == array), "")


def _kept(match: InsertionList) -> int:
    """The list's length, as the power of two that the filter sorts by."""
    return 1 << (match.list.length - 1).bit_length()


def _fits(match: InsertionList, each: int, keep: int) -> bool:
    """Whether a block's marks fit into shared memory, and where they are kept the values of threads that have one to insert."""
    kept = size_of(match.type) * (_kept(match) * each + _pad(each)) if keep else 0
    return match.threads * (4 * (each + _pad(each)) + kept) <= match.site.target.shared_per_block


def _pad(each: int) -> int:
    """Elements between rows that keep vectors aligned where there are any, and rows off each other's banks."""
    return 4 if each % 4 == 0 else 1


def _edits(match: InsertionList, figures: _FilterForm) -> Edits:
    each, rows = figures.each, figures.rows
    site, loop, form, row = match.site, match.loop, match.map, match.row
    name = site.fresh_names()
    better, lesser = _FUNCTIONS[match.type]
    if not match.list.largest:
        better, lesser = lesser, better
    parts = template("engine.rules", "topk_filter").sections()
    given = {
        "each": str(each), "rows": str(rows), "threads": str(match.threads), "pad": str(_pad(each)),
        "R": row.type, "C": loop.type, "V": match.type, "row": row.name, "column": loop.variable, "value": match.value,
        "begin": text(loop.start), "end": text(loop.bound), "holds": _first(holds(form)), "worst": match.list.start,
        "source": "\n".join(_outdented(site, s) for s in match.source),
        "better": better, "lesser": lesser,
        "list": match.list.array, "last": str(match.list.length - 1), "kept": str(_kept(match)),
    }  # fmt: skip
    later = {
        "load",
        "before",
        "loaded",
        "at",
        "above",
        "among",
        "body",
        "room",
        "most_lines",
        "stores",
        "masked",
        "meet",
        "found",
    }
    given |= {hole: name(hole) for part in parts.values() for hole in part.holes if hole not in {*given, *later}}
    above, value = ">" if match.list.largest else "<", f"{name('values')}[{name('j')}][{name('e')}]"
    floor, least = name("floor"), f"{name('best')}[{name('j')}]"
    given["above"] = f"{value} {above} {floor} && {value} {above}= {least}"
    given |= (
        _keeping(match, name, each, rows)
        if figures.keep
        else dict.fromkeys(("room", "most_lines", "stores", "masked", "meet", "found"), "")
    )
    if figures.keep:
        own = f"{name('most')}[{name('j')}]"
        given["stores"] = parts["keep"].render(**given, among=f"{own} {above} {floor} && {own} {above}= {least}")
    given["body"] = _body(
        match,
        f"{name('stored')}[threadIdx.x][{name('slot')} * {each} + {name('word')}]" if figures.keep else "",
        name("slot"),
    )

    def load(target: str, turn: str) -> str:
        return parts["load"].render(**given, loaded=name(target), at=turn).removesuffix("\n")

    here, before = load("values", f" + {name('turn')}"), ""
    if figures.ahead:
        here = parts["ahead"].render(**given, load=load("next", f" + {name('turn')} + {rows}"))
        before = f"{match.type} {name('next')}[{rows}][{each}];\n{load('next', '')}"
    code = parts["filter"].render(**given, load=here.removesuffix("\n"), before=before)
    indent = site.indent_at(loop.node.start_byte)
    leave, edits = _leave(site, form, indent)
    code = reindent(code.rstrip("\n"), "", indent).lstrip() + leave
    return site.in_file(*edits, Edit(Span(with_pragma(loop.node), loop.node.end_byte), code))


def _keeping(match: InsertionList, name: Namer, each: int, rows: int) -> dict[str, str]:
    """The lines around the filter that keep the values of threads with an element to insert."""
    j, kept = name("j"), _kept(match)
    length = f"{kept * each} + {_pad(each)}"
    bits = f"{name('having')} & ((1u << {name('bit')}) - 1)"
    return {
        "room": f"__shared__ {match.type} {name('stored')}[{match.threads}][{length}];",
        "most_lines": f"{match.type} {name('most')}[{rows}];\n#pragma unroll\nfor (int {j} = 0; {j} < {rows}; ++{j}) {{\n"
        f"    {name('most')}[{j}] = {name('best')}[{j}];\n}}",
        "masked": f"{name('marks')}[threadIdx.x][{each}] = {name('all')};",
        "meet": f"__syncwarp();\nconst unsigned int {name('having')} = {name('marks')}[threadIdx.x][{each}];",
        "found": f"const int {name('slot')} = __popc({bits});",
    }


def _body(match: InsertionList, stored: str, slot: str) -> str:
    """The insertion; its value is the one that was `stored` in a slot, if it is."""
    site, changes = match.site, list[tuple[int, int, str]]()
    if stored:
        found = next(v.value for s in match.source for v in variables(s) if v.name == match.value)
        assert found is not None  # it is loaded
        loaded = site.render(found.start_byte, found.end_byte)
        loaded = f"({loaded})" if "," in loaded else loaded
        changes = [(found.start_byte, found.end_byte, f"{slot} < {_kept(match)} ? {stored} : {loaded}")]
    own = [(s, [c for c in changes if s.start_byte <= c[0] < s.end_byte]) for s in match.loop.body.named_children]
    return "\n".join(_outdented(site, s, inside) for s, inside in own)


def _outdented(site: Site, node: Node, changes: Sequence[tuple[int, int, str]] = ()) -> str:
    return reindent(site.render(node.start_byte, node.end_byte, changes), site.indent_at(node.start_byte), "")


def _first(condition: str) -> str:
    return condition if "||" not in condition and "?" not in condition else f"({condition})"


def _leave(site: Site, form: ThreadMap, indent: str) -> tuple[str, list[Edit]]:
    """What threads without a row do behind the loop, and the edits that let them come there."""
    if form.style == "return":
        edits = [Edit(site.line_span(guard), "") for guard in form.guards]
        return "".join(f"\n{reindent(_outdented(site, guard), '', indent)}" for guard in form.guards), edits
    (guard,) = form.guards
    inner = guard.child_by_field_name("consequence") or guard
    leave = f"\n{indent}if (!({holds(form)})) {{\n{indent}{site.indent_unit}return;\n{indent}}}"
    return leave, [Edit(Span(guard.start_byte, inner.start_byte), "")]
