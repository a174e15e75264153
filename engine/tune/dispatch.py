"""Dispatch code: the kernel as a template on the tuned constants, and a launch that selects an instance by shape."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import TYPE_CHECKING, NoReturn

from engine.arith import ArithmeticError_, evaluate_int
from engine.compile.built import Built
from engine.compile.cubin import Cubin
from engine.cuda.definitions import declarators
from engine.cuda.edit import apply
from engine.cuda.kernel import Edit, Kernel, LaunchSite, Span, Unit
from engine.cuda.launch import hidden_launch, launch_statement, selected, sites
from engine.cuda.parse import parse, walk
from engine.cuda.parse import text as text_of
from engine.errors import RefusedError, SourceError
from engine.model import Program
from engine.settings.suffixes import SOURCES
from engine.spec.kernel_spec import KernelSpec
from engine.spec.tables import split_kernel, tables_of
from engine.tune.template import ConstantTemplate, Template
from engine.tune.tuning_result import Branch, Range, ShapeBest

if TYPE_CHECKING:
    from tree_sitter import Node

_TOLD = 3  # sizes of which an error says how the shapes overlap
_NAMED = 6  # shapes that it names for one of them
_FLOATING = re.compile(r"float|double|half|bfloat")
_CONDITIONS = ("preproc_if", "preproc_ifdef", "preproc_def", "preproc_function_def", "preproc_include")
_TUNING = re.compile(rb"^[ \t]*//[ \t]*optiml:[ \t]*(?:tune|where)\b[^\n]*\n?", re.M)


@dataclass(frozen=True)
class Selection:
    """How a shape selects: the branches in the order of the host's code, the last one for all shapes that no other takes."""

    branches: tuple[Branch, ...]

    @property
    def key(self) -> str:
        """The host's expressions that are looked at."""
        return ", ".join(dict.fromkeys(r.key for branch in self.branches for r in branch.ranges))


@dataclass(frozen=True)
class _Leaf:
    """Shapes of the same values, and the bounds that tell them apart: from the first on, below the second (None: none)."""

    bounds: Mapping[str, tuple[int | None, int | None]]
    shapes: tuple[ShapeBest, ...]


def select(
    spec: KernelSpec, kernel: Kernel, site: LaunchSite, shapes: Sequence[ShapeBest], general: Mapping[str, int]
) -> Selection:
    """The shapes with values of their own by the ranges of a size or of a product of two, else by a tree over several.

    Between two measured sizes the border is their geometric mean. A shape with a size that is less than the least measured, or more
    than the largest, takes the `general` values. Raises RefusedError where one configuration is best for every shape, and where no
    sizes tell the shapes with different values apart.
    """
    if len({tuple(s.values.items()) for s in shapes}) < 2:
        raise NothingToSelect("one configuration is the best for every shape, so no dispatch is needed")
    values = _keys(spec, kernel, site)
    found: list[tuple[int, int, list[_Leaf]]] = []
    overlaps: list[str] = []
    for place, (text, by_case) in enumerate(values.items()):
        try:
            leaves = _ranges(text, [(by_case[s.case], s) for s in shapes])
            found.append((len(leaves), place, leaves))
        except _Overlap as overlap:
            overlaps.append(f"by {text}, {overlap.what}")
    if found:
        return _guarded(min(found, key=lambda f: f[:2])[2], values, general)
    try:
        return _guarded(_few(_tree(values, shapes, {}), shapes), values, general)
    except _Overlap as overlap:
        if len(values) > 1:
            overlaps = [*overlaps[: _TOLD - 1], f"by all sizes, {overlap.what}"]
    raise RefusedError(
        f"the shapes of the dispatch table overlap: {'; '.join(overlaps[:_TOLD]) or 'no size differs between them'}",
        spec.origin or spec.file, "use timing cases that differ in one size, or use the general configuration",
    )  # fmt: skip


def _guarded(leaves: Sequence[_Leaf], values: Mapping[str, Mapping[str, int]], general: Mapping[str, int]) -> Selection:
    """Branches that end where nothing was measured; what has the general values needs none of its own."""
    used = list(dict.fromkeys(key for leaf in leaves for key in leaf.bounds))
    branches, rest = [], []
    for leaf in leaves:
        if leaf.shapes[0].values == general:
            rest += [shape.case for shape in leaf.shapes]
            continue
        ranges = []
        for key in used:
            low, high = leaf.bounds.get(key, (None, None))
            measured = values[key].values()
            ranges.append(
                Range(key, min(measured) if low is None else low, max(measured) + 1 if high is None else high)
            )
        branches.append(Branch(tuple(ranges), leaf.shapes[0].values, tuple(s.case for s in leaf.shapes)))
    selection = Selection((*branches, Branch((), general, tuple(rest))))
    check(selection.branches)
    return selection


def _keys(spec: KernelSpec, kernel: Kernel, site: LaunchSite) -> dict[str, dict[str, int]]:
    """Host expressions over the scalars that the launch passes, with their value in each timing case."""
    single: dict[str, dict[str, int]] = {}
    for parameter, name, passed in zip(kernel.parameters, spec.steps[0].arguments, site.arguments, strict=False):
        if parameter.pointer or not re.fullmatch(r"[A-Za-z_]\w*", passed.strip()) or _FLOATING.search(parameter.base):
            continue
        argument = spec.argument(name)
        try:
            single[passed.strip()] = {
                case.name: evaluate_int(argument.value or argument.name, case.sizes) for case in spec.time
            }
        except ArithmeticError_:
            continue
    found = {n: v for n, v in single.items() if len(set(v.values())) > 1}
    for a, b in combinations(single, 2):
        product = {case: single[a][case] * single[b][case] for case in single[a]}
        if len(set(product.values())) > 1:
            found[f"static_cast<long long>({a}) * {b}"] = product
    return found


class _Overlap(RefusedError):
    """Shapes of different values share a range of a key; `what` names them."""


def _ranges(key: str, keyed: Sequence[tuple[int, ShapeBest]]) -> list[_Leaf]:
    """Ranges of the key, each with one set of values. Raises _Overlap where shapes of different values share a range."""
    ordered = sorted(keyed, key=lambda pair: pair[0])
    groups: list[list[tuple[int, ShapeBest]]] = []
    for value, shape in ordered:
        if groups and groups[-1][-1][1].values == shape.values:
            groups[-1].append((value, shape))
        else:
            groups.append([(value, shape)])
    for left, right in pairwise(groups):
        if left[-1][0] == right[0][0]:
            raise _Overlap(f"{left[-1][1].case} and {right[0][1].case} are the same")
    borders = [_border(left[-1][0], right[0][0]) for left, right in pairwise(groups)]
    leaves = [
        _Leaf({key: (low, high)}, tuple(shape for _, shape in group))
        for low, high, group in zip([None, *borders], [*borders, None], groups, strict=True)
    ]
    return _few(leaves, [shape for _, shape in ordered])


def _border(below: int, above: int) -> int:
    """Where a range ends between two measured values: their geometric mean."""
    return max(below + 1, math.isqrt(max(0, below * above)))


def _few(leaves: list[_Leaf], shapes: Sequence[ShapeBest]) -> list[_Leaf]:
    """The leaves, if they explain the values. Raises _Overlap where these alternate."""
    if len(leaves) > len({tuple(s.values.items()) for s in shapes}) + 1:
        some = ", ".join(leaf.shapes[0].case for leaf in leaves[:_NAMED])
        raise _Overlap(f"the best values alternate over {some}{' and others' if len(leaves) > _NAMED else ''}")
    return leaves


def _tree(
    values: Mapping[str, Mapping[str, int]], shapes: Sequence[ShapeBest],
    bounds: Mapping[str, tuple[int | None, int | None]],
) -> list[_Leaf]:  # fmt: skip
    """A decision tree: at each step the border that leaves the fewest shapes among those of other values.

    Raises _Overlap for shapes of different values that have all sizes in common.
    """
    kinds = Counter(tuple(s.values.items()) for s in shapes)
    if len(kinds) == 1:
        return [_Leaf(bounds, tuple(shapes))]
    best: tuple[int, str, int] | None = None
    for key, by_case in values.items():
        for below, above in pairwise(sorted({by_case[s.case] for s in shapes})):
            border = _border(below, above)
            sides = [[s for s in shapes if (by_case[s.case] < border) is side] for side in (True, False)]
            among = sum(len(side) - max(Counter(tuple(s.values.items()) for s in side).values()) for side in sides)
            if best is None or among < best[0]:
                best = among, key, border
    if best is None:
        one = shapes[0]
        other = next(s for s in shapes if s.values != one.values)
        raise _Overlap(f"{one.case} and {other.case} are the same")
    _, key, border = best
    low, high = bounds.get(key, (None, None))
    return [
        *_tree(values, [s for s in shapes if values[key][s.case] < border], {**bounds, key: (low, border)}),
        *_tree(values, [s for s in shapes if values[key][s.case] >= border], {**bounds, key: (border, high)}),
    ]


def check(branches: Sequence[Branch]) -> None:
    """Raises RefusedError where two branches claim the same shape, or a shape has none."""
    *guarded, last = branches
    if last.ranges or not all(branch.ranges for branch in guarded):
        raise RefusedError("the dispatch table leaves sizes without a branch")
    for a, b in combinations(guarded, 2):
        if not any(x.key == y.key and (x.high <= y.low or y.high <= x.low) for x in a.ranges for y in b.ranges):
            raise RefusedError(
                f"the branches of the dispatch table overlap: {', '.join(a.cases)} and {', '.join(b.cases)}"
            )


def generate(
    template: ConstantTemplate, spec_path: str | None, shapes: Sequence[ShapeBest], general: Mapping[str, int]
) -> tuple[Program, Selection]:
    """The program with dispatch code, and how it selects. Raises RefusedError saying what is in the way."""
    writer = _Writer(template, spec_path)
    selection = select(template.spec, *writer.kernel(), shapes, general)
    return writer.write(selection, general), selection


def attempt(template: ConstantTemplate, spec_path: str | None, values: Mapping[str, int]) -> Program:
    """A program with dispatch code that has one instance, of these values. Raises RefusedError saying what is in the way."""
    writer = _Writer(template, spec_path)
    return writer.write(Selection((Branch((), values, ()),)), values)


def possible(template: Template, spec_path: str | None) -> ConstantTemplate:
    """The template, if dispatch code can be written for it whatever the table will be. Raises RefusedError."""
    if not isinstance(template, ConstantTemplate):
        raise RefusedError(
            f"no dispatch code can be generated: the rule {template.name} writes another kernel for each point",
            do="declare a template on named constants, or leave --dispatch out",
        )
    if len(template.spec.time) < 2:
        raise RefusedError(
            "there is only one timing case, so no dispatch is needed",
            template.spec.origin,
            "add timing cases to the spec",
        )
    writer = _Writer(template, spec_path)
    kernel, site = writer.kernel()
    if not _keys(template.spec, kernel, site):
        writer.refuse(
            "the launch passes no variable whose value differs between the timing cases", f"{site.path}:{site.line}"
        )
    statement, moved = writer.launch(site)
    list(writer.definitions(writer.inside(kernel, statement, moved)))
    return template


def same_code(a: Built, b: Built) -> bool:
    """Whether two programs execute the same instructions with the same launches, whatever their kernels are called."""
    hashes = [Cubin(x.binary.cubin).code_hash(x.binary.entries, module=False) for x in (a, b)]
    return hashes[0] == hashes[1] and a.launches == b.launches and a.binary.resources == b.binary.resources


class NothingToSelect(RefusedError):
    """One configuration is the best for every shape."""


class _Writer:
    def __init__(self, template: ConstantTemplate, spec_path: str | None) -> None:
        self.template, self.program, self.spec = template, template.original, template.spec
        self.spec_path = spec_path
        self.path = self.program.kernel_file
        self.unit: Unit = parse(self.program.data, self.path)
        self.names = template.space.names

    def refuse(self, what: str, where: str = "") -> NoReturn:
        raise RefusedError(f"no dispatch code can be generated: {what}", where, "use the general configuration")

    def write(self, selection: Selection, general: Mapping[str, int]) -> Program:
        kernel, site = self.kernel()
        statement, moved = self.launch(site)
        edits = [*self.definitions(self.inside(kernel, statement, moved))]
        used = [n for n in self.names if re.search(rf"\b{n}\b", self.unit.text(kernel.span))]
        if not used:
            self.refuse("the kernel itself uses none of the constants")
        head = ", ".join(f"int {n}" for n in used)
        edits.append(Edit.insert(kernel.span.start, f"template <{head}>\n"))
        edits += [Edit(self.line(node), "") for node in moved]
        edits.append(self.branches(selection, kernel, used, statement, moved))
        arguments = ", ".join(str(general[n]) for n in used)
        files = {self.path: edits}
        place, change = self.declared(kernel, f"{self.spec.steps[0].kernel}<{arguments}>")
        files.setdefault(place, []).append(change)
        try:
            return self.program.replace({p: apply(self.program.files[p], e) for p, e in files.items()})
        except SourceError as error:
            self.refuse(error.what, self.path)

    @staticmethod
    def inside(kernel: Kernel, statement: Node, moved: Sequence[Node]) -> list[Span]:
        """Where the constants may be used: in the kernel, and in what becomes of the launch."""
        return [kernel.span, *(Span(n.start_byte, n.end_byte) for n in (statement, *moved))]

    def kernel(self) -> tuple[Kernel, LaunchSite]:
        spec = self.spec
        if len(spec.steps) != 1 or spec.steps[0].template_args:
            self.refuse("the spec is a chain, or names an instance of a template", spec.origin)
        kernel = self.unit.kernel(spec.steps[0].kernel)
        if kernel.template_parameters:
            self.refuse(f"'{kernel.name}' is a template already", f"{self.path}:{kernel.line}")
        if any(n.type in _CONDITIONS for n in walk(kernel.node)):
            self.refuse(f"'{kernel.name}' has preprocessor conditions in it", f"{self.path}:{kernel.line}")
        found = sites(self.program, kernel.name)
        hidden = hidden_launch(self.program, kernel.name)
        if hidden:
            self.refuse(f"'{kernel.name}' may be launched there in a way that cannot be analysed", hidden)
        if not found:
            self.refuse(f"no launch of '{kernel.name}' was found in host code", spec.origin or self.path)
        if len(found) > 1 or found[0].path != self.path:
            other = found[-1]
            self.refuse(f"'{kernel.name}' is launched elsewhere too, or in another file", f"{other.path}:{other.line}")
        return kernel, found[0]

    # ---- the launch

    def launch(self, site: LaunchSite) -> tuple[Node, list[Node]]:
        """The statement of the launch, and the declarations before it that serve it alone and use tuned constants."""
        node = launch_statement(self.unit, site)
        block = node.parent if node is not None else None
        if node is None or block is None:
            self.refuse("the launch is not a separate statement", f"{site.path}:{site.line}")
        moved: list[Node] = []
        names = set(self.names)
        for child in block.named_children:
            if child.end_byte > node.start_byte or child.type != "declaration":
                continue
            if names & _words(child):
                moved.append(child)
                names |= {n for n, _ in declarators(child)}
        for name in names - set(self.names):
            for use in walk(block):
                inside = any(d.start_byte <= use.start_byte < d.end_byte for d in (*moved, node))
                if use.type == "identifier" and text_of(use) == name and not inside:
                    self.refuse(
                        f"'{name}' depends on a constant and is used outside the launch", self.at(use.start_byte)
                    )
        return node, moved

    def branches(
        self, selection: Selection, kernel: Kernel, used: Sequence[str], statement: Node, moved: Sequence[Node]
    ) -> Edit:
        """The launch of the instance for each branch."""
        found: list[tuple[str, list[str]]] = []
        for branch in selection.branches:
            instance = f"{kernel.name}<{', '.join(str(branch.values[n]) for n in used)}>"
            lines: list[str] = []
            for node in (*moved, statement):
                text = _one_line(node)
                if node is statement:
                    text = re.sub(rf"\b{kernel.name}\b(?=\s*<<<)", instance, text)
                for name, value in branch.values.items():
                    text = re.sub(rf"\b{name}\b", str(value) if value >= 0 else f"({value})", text)
                lines.append(text)
            found.append((" && ".join(f"{r.key} >= {r.low} && {r.key} < {r.high}" for r in branch.ranges), lines))
        return selected(self.unit.data, statement, found)

    # ---- the constants

    def definitions(self, inside: Sequence[Span]) -> Iterator[Edit]:
        """Edits that take the constants' definitions and tuning lines away. Refuses a constant that something else uses."""
        gone: list[Span] = []
        for name in self.names:
            place = self.template.place(name)
            if place[0] != self.path:
                self.refuse(f"'{name}' is defined in another file", place[0])
            gone.append(self.definition(place[1], name))
        tuning = [Span(m.start(), m.end()) for m in _TUNING.finditer(self.unit.data)]
        for name in self.names:
            word = re.compile(rb"\b%s\b" % name.encode())
            for path, data in self.program.files.items():
                for match in word.finditer(data) if path.endswith(SOURCES) else ():
                    at = Span(match.start(), match.end())
                    fine = path == self.path and any(s.contains(at) for s in (*gone, *tuning, *inside))
                    if not fine and not self.comment(path, at):
                        line = parse(data, path).line_of(at.start)
                        self.refuse(f"'{name}' is used outside the kernel and its launch", f"{path}:{line}")
        yield from (Edit(s, "") for s in {*gone, *tuning})

    def definition(self, value: Span, name: str) -> Span:
        """The lines of a constant's definition, with the #ifndef around a macro's."""
        node: Node | None = self.unit.root.descendant_for_byte_range(value.start, value.end)
        while node is not None and node.type not in ("preproc_def", "declaration"):
            node = node.parent
        if node is None:
            self.refuse(f"the definition of '{name}' is not supported", self.at(value.start))
        if node.type == "declaration" and len(list(declarators(node))) != 1:
            self.refuse(f"'{name}' is defined together with others", self.at(value.start))
        above = node.parent
        if above is not None and above.type == "preproc_ifdef":
            others = [c for c in above.named_children if c.type not in ("identifier", "comment") and c != node]
            if others or not text_of(above).lstrip().startswith("#ifndef"):
                self.refuse(f"'{name}' is defined under a condition", self.at(value.start))
            node = above
        return self.line(node)

    def comment(self, path: str, at: Span) -> bool:
        node = parse(self.program.files[path], path).root.descendant_for_byte_range(at.start, at.end)
        return node is not None and node.type == "comment"

    # ---- the spec

    def declared(self, kernel: Kernel, instance: str) -> tuple[str, Edit]:
        """The edit that makes the spec name an instance: the kernel is a template from now on."""
        for table in tables_of(self.program, self.spec_path):
            if split_kernel(table.kernel)[0] in (kernel.name, kernel.qualified) and table.origin == self.spec.origin:
                span = table.span("kernel")
                if span is not None:
                    return table.source.path, Edit(span, f'"{instance}"')
                at = table.source.byte(table.first)
                start = self.unit.data.rfind(b"\n", 0, at) + 1
                return self.path, Edit.insert(start, f'// optiml: kernel = "{instance}"\n')
        self.refuse("the spec's position in the file is not known", self.spec.origin)

    # ---- text

    def at(self, offset: int) -> str:
        return f"{self.path}:{self.unit.line_of(offset)}"

    def line(self, node: Node) -> Span:
        """The node with its whole lines where nothing else stands on them."""
        data = self.unit.data
        start = data.rfind(b"\n", 0, node.start_byte) + 1
        if data[start : node.start_byte].strip():
            return Span(node.start_byte, node.end_byte)
        if data[node.end_byte - 1 : node.end_byte] == b"\n":
            return Span(start, node.end_byte)
        stop = data.find(b"\n", node.end_byte)
        stop = len(data) if stop < 0 else stop
        rest = data[node.end_byte : stop].strip()
        return (
            Span(start, min(stop + 1, len(data)))
            if not rest or rest.startswith(b"//")
            else Span(node.start_byte, node.end_byte)
        )


def _one_line(node: Node) -> str:
    """A statement's text on one line. Comments go: one of `//` would swallow what follows it."""
    text = text_of(node)
    if "\n" not in text:
        return text
    data, first = bytearray((node.text or b"").replace(b"\n", b" ")), node.start_byte
    for comment in walk(node):
        if comment.type == "comment":
            length = comment.end_byte - comment.start_byte
            data[comment.start_byte - first : comment.end_byte - first] = b" " * length
    return " ".join(data.decode("utf-8", "replace").split())


def _words(node: Node) -> set[str]:
    return {text_of(n) for n in walk(node) if n.type == "identifier"}
