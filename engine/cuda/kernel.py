"""What is known of a CUDA file's text: kernels, parameters, loops, accesses, launches. Offsets are bytes of the file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from tree_sitter import Node


@dataclass(frozen=True, order=True)
class Span:
    """A half-open range of byte offsets in one file."""

    start: int
    end: int

    def contains(self, other: Span) -> bool:
        return self.start <= other.start and other.end <= self.end

    def overlaps(self, other: Span) -> bool:
        return self.start < other.end and other.start < self.end


@dataclass(frozen=True)
class Edit:
    """Replace the bytes of `span` by `text`. An empty span inserts. Newlines in `text` are `\\n`; applying adapts them."""

    span: Span
    text: str

    @classmethod
    def insert(cls, at: int, text: str) -> Edit:
        """Put the text at an offset."""
        return cls(Span(at, at), text)

    @classmethod
    def replace(cls, node: Node, text: str) -> Edit:
        """Put the text in place of a node."""
        return cls(Span(node.start_byte, node.end_byte), text)


@dataclass(frozen=True)
class Parameter:
    """One parameter of a function."""

    name: str
    span: Span
    name_span: Span  # empty, at the end of `span`, where it has no name
    type: str  # as written, without the name: "const float* __restrict__"
    base: str  # without const, pointers and qualifiers: "float", "unsigned int"
    pointer: bool
    const: bool  # what is pointed to (or the value) is const
    restrict: bool


@dataclass(frozen=True)
class Loop:
    """A `for`, `while` or `do` loop. For a counted `for` the four texts are set, else they are ""."""

    kind: Literal["for", "while", "do"]
    span: Span
    body: Span  # with its braces where it has them
    variable: str = ""
    start: str = ""
    condition: str = ""
    step: str = ""
    depth: int = 0  # 0: not inside another loop
    node: Node | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True)
class Access:
    """One array access `array[index]…` by a name declared as a pointer or array."""

    array: str
    indices: tuple[str, ...]
    kind: Literal["read", "write", "update"]
    span: Span  # the whole subscript expression
    line: int
    node: Node | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True)
class SharedArray:
    """A `__shared__` declaration. `extents` is empty for a scalar, ("",) for `extern`."""

    name: str
    type: str
    extents: tuple[str, ...]
    span: Span
    dynamic: bool


@dataclass(frozen=True)
class Function:
    """A function definition. `qualifier` says where it runs."""

    name: str  # as declared, without namespaces
    qualified: str  # with namespaces: "a::b::name"
    qualifier: Literal["global", "device", "host", "host device"]
    span: Span  # of the whole definition, template header included
    signature: Span  # up to the body
    name_span: Span  # of the name in the signature, its namespaces included: what is inserted there stands behind the return type
    body: Span  # with its braces
    parameters: tuple[Parameter, ...]
    template_parameters: tuple[str, ...]  # as written: "typename T", "int BLOCK"
    line: int  # 1-based
    node: Node = field(compare=False, repr=False)
    # Of its head, where the tree does not have them: "__cluster_dims__", "__block_size__", "__maxnreg__".
    attributes: frozenset[str] = frozenset()

    @property
    def block(self) -> Node:
        """The compound statement that is its body. Raises LookupError where the grammar saw none."""
        found = self.node.child_by_field_name("body")
        if found is None or found.type != "compound_statement":
            raise LookupError(f"no body in {self.name}")
        return found


@dataclass(frozen=True)
class Held:
    """What a kernel's body holds."""

    launch_bounds: str  # text inside __launch_bounds__(…)
    loops: tuple[Loop, ...]  # outer before inner, in order of text
    accesses: tuple[Access, ...]
    shared: tuple[SharedArray, ...]
    calls: tuple[str, ...]  # names of functions and macros called
    names: frozenset[str]  # every identifier used


@dataclass(frozen=True)
class Kernel(Function):
    """A `__global__` function. Its body is read when something of it is first asked for: a file may hold dozens."""

    @cached_property
    def held(self) -> Held:
        # `body` builds on this module, and is only wanted for kernels that are looked into.
        from engine.cuda.body import held

        return held(self)

    @property
    def launch_bounds(self) -> str:
        return self.held.launch_bounds

    @property
    def fixes_launch(self) -> bool:
        """Whether its head fixes the shape of the launch: another block or number of blocks may not run."""
        return not self.attributes.isdisjoint({"__cluster_dims__", "__block_size__"})

    @property
    def limits_registers(self) -> bool:
        """Whether its head gives the compiler a number of registers: a second way of saying it is refused."""
        return bool(self.launch_bounds) or "__maxnreg__" in self.attributes

    @property
    def loops(self) -> tuple[Loop, ...]:
        return self.held.loops

    @property
    def accesses(self) -> tuple[Access, ...]:
        return self.held.accesses

    @property
    def shared(self) -> tuple[SharedArray, ...]:
        return self.held.shared

    @property
    def calls(self) -> tuple[str, ...]:
        return self.held.calls

    @property
    def names(self) -> frozenset[str]:
        return self.held.names


@dataclass(frozen=True)
class LaunchPart:
    """One argument of `<<<…>>>`: its text and where it stands."""

    text: str
    span: Span


@dataclass(frozen=True)
class LaunchSite:
    """One `kernel<<<grid, block, shared, stream>>>(arguments)` in host code."""

    path: str  # repository-relative
    kernel: str
    template_args: str  # text inside <…>, "" without
    parts: tuple[LaunchPart, ...]
    arguments: tuple[str, ...]
    span: Span
    line: int
    function: str  # the enclosing host function's name, "" at file scope
    read_in: bytes = field(default=b"", repr=False)  # the text where the parts stand, if that is not the file's own


@dataclass(frozen=True)
class Unit:
    """One parsed file. `errors` are spans that the grammar does not know: no edit may touch or neighbour them."""

    path: str
    data: bytes = field(repr=False)
    functions: tuple[Function, ...]
    kernels: tuple[Kernel, ...]
    launches: tuple[LaunchSite, ...]
    macros: Mapping[str, str]  # object-like #define: name -> text
    constants: Mapping[str, str]  # file-scope constexpr/const/enum integers: name -> initialiser
    includes: tuple[tuple[str, bool, Span], ...]  # (name, in quotes, span of the line)
    errors: tuple[Span, ...]
    newline: str  # "\n" or "\r\n", the file's majority
    bom: bool
    root: Node = field(compare=False, repr=False)

    def text(self, span: Span) -> str:
        """The text of a span, with newlines as in the file."""
        return self.data[span.start : span.end].decode("utf-8")

    def line_of(self, offset: int) -> int:
        """The 1-based line of a byte offset."""
        return self.data.count(b"\n", 0, offset) + 1

    def kernel(self, name: str) -> Kernel:
        """The kernel of that name, plain or qualified. Raises KeyError."""
        for kernel in self.kernels:
            if name in (kernel.name, kernel.qualified):
                return kernel
        raise KeyError(name)
