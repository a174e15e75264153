"""The kernel spec: how a kernel is called, checked and timed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Role = Literal["in", "out", "inout", "scalar"]
FillKind = Literal[
    "normal", "uniform", "integers", "permutation", "constant", "sorted", "symmetric", "offsets", "csr_offsets", "csr_columns"
]  # fmt: skip


@dataclass(frozen=True)
class Fill:
    """How a buffer's first contents are drawn.

    `normal`: mean `low` (0), standard deviation `high` (1). `uniform` and `integers`: from `low` to `high` (exclusive).
    `constant`: `low`. `permutation`: of 0 … n-1. `sorted`: ascending uniform. `symmetric`: a square
    matrix of whole or uniform numbers that is its own transpose. `offsets`: 0, then
    each larger than the one before by `low` to `high` (exclusive). `csr_offsets`/`csr_columns`: row offsets and
    column indices of one sparse matrix; `high` of `csr_columns` is the number of columns, and both refer to each other
    through `of` (the partner argument's name). `low` and `high` are arithmetic expressions over the case's sizes.
    """

    kind: FillKind = "normal"
    low: str = ""
    high: str = ""
    of: str = ""


@dataclass(frozen=True)
class Argument:
    """One argument of the kernel, by the name of the parameter.

    A buffer (`in`, `out`, `inout`) has `size`, an expression that gives its number of elements; a `scalar` has `value`,
    an expression (default: the size of the same name). `type` is the element's or the scalar's type, as in
    `engine.spec.dtypes`. `tolerance` overrides the spec's for this buffer.

    A field of a struct parameter has the parameter's name before its own, `params.x`, and lies `offset` bytes into it; the
    parameter itself is a scalar whose bytes hold what no field gives. Everything else lies at offset 0 of its own parameter.

    `symbol` is the `__constant__` variable, with its namespaces, that it is or lies in instead of a parameter: an array is a
    buffer of role `in` whose contents are copied there before each launch.

    A `scratch` buffer is one of role `out` that is no result: what the kernels leave there is compared with nothing.
    """

    name: str
    type: str
    role: Role
    size: str = ""
    fill: Fill = Fill()
    value: str = ""
    tolerance: float | None = None
    offset: int = 0
    symbol: str = ""
    scratch: bool = False

    @property
    def declared_role(self) -> str:
        """The role as a spec's text has it."""
        return "scratch" if self.scratch else self.role

    @property
    def parameter(self) -> str:
        """The name of the parameter that it is, or lies in."""
        return self.name.partition(".")[0]

    @property
    def size_name(self) -> str:
        """The free size that is a scalar's value; "" where its value is anything else."""
        written = self.value or self.name
        return written if self.role == "scalar" and written.isidentifier() else ""


@dataclass(frozen=True)
class LaunchExpr:
    """A declared launch: up to three expressions each for grid and block, one for dynamic shared memory in bytes.

    They are over the case's sizes and the kernel file's own integer constants, whose values are `constants`.
    """

    grid: tuple[str, ...]
    block: tuple[str, ...]
    shared: str = "0"
    constants: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True)
class Step:
    """One kernel launch of the spec. A plain spec has one step; a chain has several, launched in order.

    `arguments` are names of the spec's arguments in the order of the kernel's parameters.
    `launch` is None where it is to be read from the host code.
    """

    kernel: str
    template_args: str
    arguments: tuple[str, ...]
    launch: LaunchExpr | None = None

    @property
    def expression(self) -> str:
        """The name expression of its kernel: "k" or "k<float, 256>"."""
        return f"{self.kernel}<{self.template_args}>" if self.template_args else self.kernel


@dataclass(frozen=True)
class Case:
    """One set of sizes, e.g. `{"rows": 7, "cols": 129}`. `weight` counts for timing cases only.

    Of cases that nobody wrote, `changed` are scalar arguments with another value than the spec's, and `shared` names for outputs the
    input whose buffer they are as well.
    """

    name: str
    sizes: Mapping[str, int | float]
    weight: float = 1.0
    changed: Mapping[str, float] = field(default_factory=dict)
    shared: Mapping[str, str] = field(default_factory=dict)
    null: tuple[str, ...] = ()  # inputs that are not there: their address is null


@dataclass(frozen=True)
class CompileOptions:
    """What the compiler is given beside the source. `include` holds repository-relative folders.

    `unit` is the file that a header's kernels are compiled through; "": the kernel's file itself.
    """

    defines: tuple[str, ...] = ()  # "NAME" or "NAME=VALUE"
    include: tuple[str, ...] = ()
    std: str = "c++17"
    unit: str = ""


@dataclass(frozen=True)
class KernelSpec:
    """How one kernel (or chain of kernels) is called. Made by `engine.spec.reader` or `engine.spec.draft`."""

    file: str  # repository-relative path of the .cu file
    steps: tuple[Step, ...]
    arguments: tuple[Argument, ...]
    check: tuple[Case, ...]
    time: tuple[Case, ...]
    tolerance: float | None = None  # None: automatic, from the original's own error
    compile: CompileOptions = field(default_factory=CompileOptions)
    origin: str = ""  # where it was read: "path:line"; "" for a draft
    deterministic: bool = True  # False: the declared original may differ from run to run (float atomics)

    @property
    def kernel(self) -> str:
        """The name the spec goes by: the first step's kernel."""
        return self.steps[0].kernel

    def argument(self, name: str) -> Argument:
        """The argument of that name. Raises KeyError."""
        for argument in self.arguments:
            if argument.name == name:
                return argument
        raise KeyError(name)

    @property
    def expressions(self) -> tuple[str, ...]:
        """What is compiled: the kernel of each step, then the address of each `__constant__` variable that the spec fills."""
        return (*(step.expression for step in self.steps), *(f"&{a.symbol}" for a in self.symbols))

    @property
    def outputs(self) -> tuple[Argument, ...]:
        """The results: what the kernels write, whether they read it as well or not, but for scratch."""
        return tuple(a for a in self.arguments if a.role in ("out", "inout") and not a.scratch)

    @property
    def has_fields(self) -> bool:
        """Whether a parameter is a struct whose fields are arguments."""
        return any("." in a.name for a in self.arguments)

    @property
    def symbols(self) -> tuple[Argument, ...]:
        """The `__constant__` variables that are set before each launch, without the fields of structs."""
        return tuple(a for a in self.arguments if a.symbol and "." not in a.name)

    def fields(self, parameter: str) -> tuple[Argument, ...]:
        """The arguments that lie in a struct parameter, without itself."""
        return tuple(a for a in self.arguments if a.parameter == parameter != a.name)
