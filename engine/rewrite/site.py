"""What a rule sees: one kernel of one program, with its launches and its spec."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from tree_sitter import Node

from engine.arith import ArithmeticError_, Number, evaluate, evaluate_int
from engine.cuda.aliasing import shared_buffers
from engine.cuda.definitions import expression
from engine.cuda.edit import edit_program
from engine.cuda.effects import local_only, written
from engine.cuda.kernel import Edit, Kernel, LaunchSite, Span, Unit
from engine.cuda.kernel_scope import Scope
from engine.cuda.launch import relaunch
from engine.cuda.launch_reading import readable_sites
from engine.cuda.macros import function_macros
from engine.cuda.syntax import children, is_unroll, names, text, walk
from engine.errors import OptimlError
from engine.model import LaunchConfig, Program, Target
from engine.rewrite.proposal import Edits, merge
from engine.spec.kernel_spec import Case, KernelSpec, LaunchExpr
from engine.spec.launch_config import evaluate as evaluate_launch
from engine.spec.rewrite import relaunch_spec
from engine.verify.screen import screen
from engine.verify.secret_sizes import MOST_BLOCKS_Y, million_sizes, sides_grow, smallest, widest_sizes

_SAFE_WORD = re.compile(r"[A-Za-z_]\w*")
# What the analyses cost grows with the square of a kernel's size; a kernel of a thousand lines has some 20,000 nodes.
_MAX_NODES = 20_000
_MAX_LOOPS = 64
_MAX_STEPS = 8  # of names for each other


# Gives each name that is asked for a free one, always the same, made from it.
Namer = Callable[[str], str]


def once(say: Callable[Concatenate[Site, P], T]) -> Callable[Concatenate[Site, P], T]:
    """`say`, which two dozen rules ask of a site, worked out for the first of them. For what nobody changes."""

    @wraps(say)
    def known(site: Site, /, *asked: P.args, **by_name: P.kwargs) -> T:
        key = (say, asked, *by_name.items())
        if key not in site.memo:
            site.memo[key] = say(site, *asked, **by_name)
        found: T = site.memo[key]
        return found

    return known


@dataclass(frozen=True)
class Site:
    """What a rule sees: one kernel of one program, with its launches and spec, parsed once for all rules."""

    program: Program
    spec: KernelSpec
    step: int  # index into spec.steps
    unit: Unit  # of the kernel's file
    kernel: Kernel
    launches: tuple[LaunchSite, ...]  # every launch of the kernel in the program; () where none can be seen
    # The evaluated launch of each timing case, in the spec's order; () if not evaluable
    configs: tuple[LaunchConfig, ...]
    target: Target = field(default_factory=Target)
    headers: tuple[Unit, ...] = ()  # that the kernel's file includes, and the file that it is compiled through
    memo: dict[Hashable, Any] = field(default_factory=dict, init=False, compare=False, repr=False)  # for `once`

    @property
    def cases(self) -> tuple[Case, ...]:
        """Timing cases first, in the spec's order, then check cases."""
        return self.spec.time + self.spec.check

    @property
    def launch_visible(self) -> bool:
        """Whether edits may change the launch: every launch is seen and known for every timing case, and the kernel's head fixes none."""
        return not self.kernel.fixes_launch and bool(self.launches) and len(self.configs) == len(self.spec.time) > 0

    @cached_property
    def body(self) -> Node:
        """The compound statement that is the kernel's body."""
        return self.kernel.block

    @cached_property
    def sound(self) -> bool:
        """Whether the kernel can be edited: nothing in or beside it unknown to the grammar, no `#if` in its body."""
        whole = Span(max(0, self.kernel.span.start - 1), self.kernel.span.end + 1)
        if (
            any(error.overlaps(whole) or whole.contains(error) for error in self.unit.errors)
            or self.kernel.node.has_error
        ):
            return False
        return not any(n.type.startswith("preproc") and not is_unroll(n) for n in walk(self.kernel.node))

    @cached_property
    def manageable(self) -> bool:
        """Whether the kernel is small enough to be analysed in a second: strangers' files may be made to take hours."""
        loops = 0
        for nodes, node in enumerate(walk(self.body)):
            loops += node.type in ("for_statement", "while_statement", "do_statement")
            if nodes > _MAX_NODES or loops > _MAX_LOOPS:
                return False
        return True

    @cached_property
    def scope(self) -> Scope:
        """The names of the self's kernel, all that never change replaced by their definition; one for all rules."""
        return Scope(self.unit, self.kernel)

    @cached_property
    def changed(self) -> frozenset[str]:
        """Names of variables and arrays that the kernel's body may change."""
        return frozenset(written(self.body))

    @cached_property
    def type_names(self) -> frozenset[str]:
        """The kernel's template parameters that are types."""
        found = set()
        for parameter in self.kernel.template_parameters:
            words = parameter.replace("=", " ").split()
            if len(words) >= 2 and words[0] in ("typename", "class"):
                found.add(words[1])
        return frozenset(found)

    @cached_property
    def pointers_distinct(self) -> bool:
        """Whether no two pointers share a buffer: the author promises it of all, or a launch can be read and no caller does it.

        The spec may pass no argument twice. Pointers in structs may point anywhere.
        """
        given = list(zip(self.kernel.parameters, self.spec.steps[self.step].arguments, strict=False))
        arguments = [name for parameter, name in given if parameter.pointer]
        unknown = len(set(arguments)) < len(arguments) or any(self.spec.fields(name) for _, name in given)
        promised = all(p.restrict for p in self.kernel.parameters if p.pointer)
        if unknown or promised:
            return not unknown
        launches = self.launches or readable_sites(self.program, self.kernel.name)
        return shared_buffers(self.program, self.kernel, launches) == ()

    @property
    def waves(self) -> float:
        """How often the smallest launch of a timing case fills the target with threads; 0 where no launch is known."""
        resident = self.target.multiprocessors * self.target.max_threads_per_sm
        return min((c.blocks * c.threads / resident for c in self.configs), default=0.0)

    @property
    def function_macros(self) -> dict[str, str]:
        """The function-like macros of the kernel's file: name to replacement text."""
        return {name: bodies[-1][1] for name, bodies in function_macros(self.unit.data, self.unit.path).items()}

    @once
    def local_only(self, node: Node, allowed: frozenset[str] = frozenset()) -> bool:
        """Whether the code below the node does only what one thread can do alone."""
        types = frozenset(p.base for p in self.kernel.parameters) | self.type_names
        types |= {p.name for p in self.kernel.parameters if not p.pointer}  # function objects, and structs with methods
        return local_only(self.unit, node, allowed | types, lambda: self.headers)

    def scalar_values(self, case: Case) -> dict[str, Number]:
        """The values of the kernel's scalar parameters in one case, and of the fields of structs, as far as they are numbers."""
        values: dict[str, Number] = {}
        for parameter, name in zip(self.kernel.parameters, self.spec.steps[self.step].arguments, strict=False):
            if parameter.pointer:
                continue
            fields = {f"{parameter.name}{a.name.removeprefix(name)}": a.name for a in self.spec.fields(name)}
            for place, argument_name in (fields or {parameter.name: name}).items():
                try:
                    argument = self.spec.argument(argument_name)
                    values[place] = evaluate(argument.value or argument.name, case.sizes)
                except (KeyError, ArithmeticError_):
                    continue
        return values

    def value_in(self, expression: str, case: Case) -> int | None:
        """The whole number that an expression over the kernel's parameters has in one case; None where it has none."""
        try:
            return evaluate_int(expression, self.scalar_values(case))
        except ArithmeticError_:
            return None

    def value_of(self, written: str) -> int | None:
        """The value of an expression given as text, as `constant`."""
        node = expression(re.sub(r"\bwarpSize\b", str(self.target.warp), written))
        return self.constant(node) if node is not None else None

    def constant(self, node: Node, depth: int = 0) -> int | None:
        """The value of an expression over literals, constants, macros and the spec's template arguments; None for others."""
        values: dict[str, int | float] = {}
        given = [a.strip() for a in self.spec.steps[self.step].template_args.split(",")]
        parameters = [p.split("=")[0].split() for p in self.kernel.template_parameters]
        arguments = {p[-1]: a for p, a in zip(parameters, given, strict=False) if p}
        for name in names(node):
            written = arguments.get(name, self.unit.macros.get(name, self.unit.constants.get(name)))
            inner = expression(written) if written and depth < _MAX_STEPS else None
            value = self.constant(inner, depth + 1) if inner is not None else None
            if value is None:
                return None
            values[name] = value
        try:
            return evaluate_int(text(node), values)
        except ArithmeticError_:
            return None

    def indent_at(self, offset: int) -> str:
        """The white space that begins the line of a byte offset."""
        line = self.unit.data[self.unit.data.rfind(b"\n", 0, offset) + 1 : offset + 200]
        match = re.match(rb"[ \t]*", line)
        return match[0].decode() if match else ""

    @cached_property
    def indent_unit(self) -> str:
        """One level of the kernel's indentation, as its author writes it; four spaces where that cannot be told."""
        outer = self.indent_at(self.body.start_byte)
        for statement in children(self.body):
            inner = self.indent_at(statement.start_byte)
            if len(inner) > len(outer) and inner.startswith(outer):
                return inner[len(outer) :]
        return "    "

    @cached_property
    def declaration_start(self) -> int:
        """Where something new may be defined for the kernel: below the file's device functions, else above the kernel's comments.

        It moves up only past functions, so that no type, macro or constant that it may use comes to stand below it.
        """
        node, begin = self.kernel.node, self.kernel.span.start
        while node.parent is not None and node.parent.start_byte >= begin and node.parent.type != "translation_unit":
            node = node.parent
        below, above = node, node.prev_sibling
        while above is not None and above.type in ("comment", "function_definition", "template_declaration"):
            if above.type != "comment":
                function = _function(above)
                if function is None or above.has_error:
                    break
                if function == "__device__":
                    return self._above_comments(below)
                below = above
            above = above.prev_sibling
        return self._above_comments(node)

    def definition_start(self, node: Node) -> int:
        """Where the comments begin that stand over the function that holds a node."""
        function = node
        while node.parent is not None:
            node = node.parent
            function = node if node.type in ("function_definition", "template_declaration") else function
        return self._above_comments(function)

    def _above_comments(self, node: Node) -> int:
        """Where the comments begin that stand directly over a definition; a spec's lines belong to it behind a blank line too."""
        data, start, above = self.unit.data, node.start_byte, node.prev_sibling
        while above is not None and above.type == "comment":
            between = data[above.end_byte : start]
            begin = data.rfind(b"\n", 0, above.start_byte) + 1
            near = between.count(b"\n") == 1 or b"optiml:" in (above.text or b"")
            if between.strip() or not near or data[begin : above.start_byte].strip():
                break
            start, above = above.start_byte, above.prev_sibling
        return start

    def line_span(self, node: Node) -> Span:
        """The statement with its whole line where nothing else stands on it, so that deleting leaves no empty line."""
        return self.whole_lines(Span(node.start_byte, node.end_byte))

    def whole_lines(self, span: Span) -> Span:
        """The span with its whole lines where nothing else stands on them."""
        data = self.unit.data
        start, end = span.start, span.end
        begin = data.rfind(b"\n", 0, start) + 1
        stop = data.find(b"\n", end)
        if stop >= 0 and not data[begin:start].strip() and not data[end:stop].strip():
            return Span(begin, stop + 1)
        return span

    def render(self, start: int, end: int, changes: Sequence[tuple[int, int, str]] = ()) -> str:
        """The file's text from `start` to `end` with `(start, end, replacement)` applied, newlines as `\\n`."""
        out, at = [], start
        for low, high, replacement in sorted(changes):
            if low < at or high > end:
                raise ValueError("changes overlap or leave the range")
            out += [self.unit.data[at:low].decode("utf-8"), replacement]
            at = high
        out.append(self.unit.data[at:end].decode("utf-8"))
        return "".join(out).replace("\r\n", "\n")

    def fresh(self, base: str, taken: Sequence[str] = ()) -> str:
        """A name made from `base` that occurs nowhere in the program's kernel file nor in `taken`."""
        used = _words(self.unit.data)
        names = (f"{base}{count}" if count > 1 else base for count in range(1, len(used) + len(taken) + 3))
        return next(name for name in names if name not in used and name not in taken)

    def fresh_names(self) -> Namer:
        """A function that gives each name that is asked for a free one, always the same, made from it."""
        chosen: dict[str, str] = {}

        def name(base: str) -> str:
            if base not in chosen:
                chosen[base] = self.fresh(base, list(chosen.values()))
            return chosen[base]

        return name

    def in_file(self, *edits: Edit) -> dict[str, tuple[Edit, ...]]:
        """Edits of the kernel's own file, by path."""
        return {self.program.kernel_file: tuple(sorted(edits, key=lambda e: e.span))}

    def include(self, header: str | None) -> list[Edit]:
        """The edit that includes a header in the kernel's file, before its other includes; none where it is included, or none is given."""
        if header is None or any(name == header for name, _, _ in self.unit.includes):
            return []
        start = min((span.start for _, _, span in self.unit.includes), default=3 if self.unit.bom else 0)
        return [Edit.insert(start, f"#include <{header}>\n")]

    def define(self, text: str, header: str | None = None) -> list[Edit]:
        """The edits that define something for the kernel, and include a header for it."""
        start, included = self.declaration_start, self.include(header)
        if any(edit.span.start == start for edit in included):
            return [Edit(edit.span, f"{edit.text}\n{text}") for edit in included]
        return [*included, Edit.insert(start, text)]

    def configs_after(self, edits: Mapping[str, Sequence[Edit]]) -> tuple[LaunchConfig, ...] | None:
        """The launches of all cases (as in `all_cases`) after the edits.

        None where one cannot be evaluated, and where a wide extent would make a grid too large that is not so before the edits.
        """
        if not edits:
            return self._configs
        try:
            edited = edit_program(self.program, edits)
            return self._launched(edited, self.cases) if self._fits_wide(edited) else None
        except OptimlError:
            return None

    def _fits_wide(self, edited: Program) -> bool:
        wide = [case for case, launch in self._wide if max(launch.grid[1:]) <= MOST_BLOCKS_Y]
        return all(max(launch.grid[1:]) <= MOST_BLOCKS_Y for launch in self._launched(edited, wide))

    @cached_property
    def _wide(self) -> tuple[tuple[Case, LaunchConfig], ...]:
        """Cases with a wide extent, each with its launch before any edit."""
        try:
            wide, million = (
                [Case("", sizes) for sizes in made] for made in (widest_sizes(self.spec), million_sizes(self.spec))
            )
            (few,) = self._launched(self.program, [Case("", smallest(self.spec) or {})])
            found = list(zip(wide, self._launched(self.program, wide), strict=True))
            found += [
                (case, launch)
                for case, launch in zip(million, self._launched(self.program, million), strict=True)
                if not sides_grow(few, launch)
            ]
            return tuple(found)
        except OptimlError:
            return ()

    @cached_property
    def _configs(self) -> tuple[LaunchConfig, ...] | None:
        try:
            return self._launched(self.program, self.cases)
        except OptimlError:
            return None

    def _launched(self, program: Program, cases: Sequence[Case]) -> tuple[LaunchConfig, ...]:
        # The host's text alone: a launch that the spec declares is still the one before the edits here.
        spec = replace(self.spec, steps=tuple(replace(step, launch=None) for step in self.spec.steps))
        return tuple(evaluate_launch(program, spec, self.step, case.sizes) for case in cases)

    def launch_edits(
        self, *, grid: Sequence[str] | None = None, block: Sequence[str] | None = None
    ) -> dict[str, tuple[Edit, ...]] | None:
        """Edits that make every launch, and the spec's, use the given expressions over kernel parameters.

        None where the launch cannot be seen or rewritten. `grid` and `block` hold one to three expressions. A new grid is one for the
        block of the spec's cases: where the block could be another for other callers, it becomes that one.
        """
        if not self.launch_visible:
            return None
        if grid is not None and block is None and self.block_varies:
            x, y, z = self.configs[0].block
            block = [str(n) for n in ((x, y, z) if z > 1 else (x, y) if y > 1 else (x,))]
        try:
            host = relaunch(self.program, self.launches, self.kernel, grid=grid, block=block)
            launch = LaunchExpr(tuple(grid or ()), tuple(block or ()), "")
            spec = relaunch_spec(self.program, self.spec, self.step, launch)
        except OptimlError:
            return None
        return merge(host, spec)

    @cached_property
    def block_varies(self) -> bool:
        """Whether the block hangs on one of the spec's sizes, such as a number of threads that the host function is passed."""
        if len({c.block for c in self.configs}) != 1:
            return False
        for name, size in self.cases[0].sizes.items():
            for other in {self.target.warp, 2 * int(size)} - {size}:
                with suppress(OptimlError):
                    (launch,) = self._launched(self.program, [Case("", {**self.cases[0].sizes, name: other})])
                    if launch.block != self.configs[0].block:
                        return True
        return False

    @cached_property
    def launch_open(self) -> bool:
        """Whether some other launch would be let through: it can be rewritten, and what host code computes for it serves nothing else."""
        edits = self.launch_edits(grid=["1"], block=["32"])
        return edits is not None and self.changes_only_kernels(edits)

    def changes_only_kernels(self, edits: Edits) -> bool:
        """Whether what is edited serves nothing but this spec's kernels and their launch: else no such edit would be let through."""
        try:
            return screen(self.program, edit_program(self.program, edits), self.spec) is None
        except OptimlError:
            return False


def _function(node: Node) -> str | None:
    """What a definition at file scope is: "__device__", "" for another function, None for what is no function."""
    while node.type == "template_declaration":
        node = node.named_children[-1]
    if node.type != "function_definition" or node.child_by_field_name("body") is None:
        return None
    words = text(node).partition("{")[0].split("(")[0].split()
    return "__device__" if "__device__" in words and "__global__" not in words else ""


P = ParamSpec("P")
T = TypeVar("T")


@lru_cache(maxsize=64)  # a rule asks for several names in one text, and for the same ones at each point of a template
def _words(data: bytes) -> frozenset[str]:
    return frozenset(_SAFE_WORD.findall(data.decode("utf-8", "replace")))
