"""The task: what every strategy's kernel takes and gives. Read from a model's answer, checked, and written as a file by us.

Nothing of an answer reaches the file but names, types, and arithmetic that were each checked; which shapes a kernel is checked
on, and how closely, is decided here.
"""

import json
import keyword
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn, cast

from engine.arith import ArithmeticError_, evaluate, evaluate_int
from engine.generate.check_cases import TaskError, check_cases
from engine.llm.answers import json_objects
from engine.llm.plain_words import plain
from engine.spec.dtypes import parse_dtype
from engine.spec.kernel_spec import Case, Role
from engine.spec.spec_checks import case_name

_NAME = re.compile(r"[A-Za-z][a-zA-Z0-9_]{0,40}\Z")
_SHAPE = re.compile(r"[\w\s+\-*/()]{1,100}\Z", re.ASCII)
_CONDITION = re.compile(r"[\w\s+\-*/%()<>=!&|]{1,100}\Z", re.ASCII)
# C++'s words, CUDA's variables, and what a launch names: none of them can be a parameter.
_WORDS = (
    "alignas auto bool case catch char const constexpr default delete do double enum explicit extern false float friend goto "
    "half inline int long mutable namespace new operator private protected public register short signed sizeof static struct "
    "switch template this throw true typedef typename uint union unsigned using virtual void volatile stream main warpSize "
    "threadIdx blockIdx blockDim gridDim dim3 size_t NULL NAN INFINITY EOF"
)
_TAKEN = frozenset([*_WORDS.split(), *keyword.kwlist])
# Types that an argument may have, as a kernel writes them.
TYPES: Mapping[str, str] = {
    "float": "float", "double": "double", "half": "__half", "bfloat16": "__nv_bfloat16", "int8": "signed char",
    "uint8": "unsigned char", "int16": "short", "uint16": "unsigned short", "int32": "int", "uint32": "unsigned int",
    "int64": "long long", "uint64": "unsigned long long", "bool": "bool",
}  # fmt: skip
_SCALARS = frozenset({"float", "double", "int32", "uint32", "int64", "uint64"})
_FLOATS = frozenset({"float", "double", "half", "bfloat16"})
_HEADERS = {"half": "cuda_fp16.h", "bfloat16": "cuda_bf16.h"}
_FILLS = ("normal", "uniform", "integers", "sorted", "permutation", "symmetric")
_MOST_ARGUMENTS, _MOST_SIZES, _MOST_DIMENSIONS, _MOST_CASES = 16, 8, 6, 4
_MOST_CONDITIONS = 8
MOST_LAUNCHES = 4
_MOST_SIZE = 1 << 40
_MOST_BYTES = 4 << 30  # of one case's buffers: an oracle in float64 beside them still fits a workstation. Ours.

ROLES = ("in", "out", "zeroed", "inout", "scratch", "scalar")

SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "required": ["kernel", "launches", "sizes", "conditions", "arguments"],
    "properties": {
        "kernel": {"type": "string"},
        "launches": {
            "type": "array",
            "items": {
                "type": "object",
                "additionalProperties": False,
                "required": ["kernel", "arguments"],
                "properties": {
                    "kernel": {"type": "string"},
                    "arguments": {"type": "array", "items": {"type": "string"}},
                },
            },
        },
        "conditions": {"type": "array", "items": {"type": "string"}},
        "sizes": {
            "type": "array",
            "items": {
                "type": "object",
                "additionalProperties": False,
                "required": ["name", "values"],
                "properties": {"name": {"type": "string"}, "values": {"type": "array", "items": {"type": "number"}}},
            },
        },
        "arguments": {
            "type": "array",
            "items": {
                "type": "object",
                "additionalProperties": False,
                "required": ["name", "type", "role", "shape", "fill", "low", "high"],
                "properties": {
                    "name": {"type": "string"},
                    "type": {"type": "string", "enum": list(TYPES)},
                    "role": {"type": "string", "enum": list(ROLES)},
                    "shape": {"type": "array", "items": {"type": "string"}},
                    "fill": {"type": "string", "enum": [*_FILLS, ""]},
                    "low": {"type": "string"},
                    "high": {"type": "string"},
                },
            },
        },
    },
}


@dataclass(frozen=True)
class TaskArgument:
    """One argument of the kernel. A buffer has a `shape` (expressions over the sizes), a scalar is the size of its name.

    A `zeroed` output is filled with zeros by the host function before each launch. `scratch` is an output that is no result:
    memory that launches hand on to each other.
    """

    name: str
    type: str
    role: Role
    shape: tuple[str, ...] = ()
    fill: str = ""
    low: str = ""
    high: str = ""
    zeroed: bool = False
    scratch: bool = field(
        default=False, repr=False
    )  # a task's digest, by which answers were recorded, has the others' text

    @property
    def told_role(self) -> str:
        """The role as a model reads and writes it."""
        return "zeroed" if self.zeroed else "scratch" if self.scratch else self.role

    @property
    def declared(self) -> str:
        """As a parameter of the kernel."""
        spelled = TYPES[self.type]
        if self.role == "scalar":
            return f"{spelled} {self.name}"
        return f"{'const ' if self.role == 'in' else ''}{spelled}* {self.name}"

    @property
    def size(self) -> str:
        """The number of elements as an expression."""
        return " * ".join(f"({extent})" for extent in self.shape) or "1"


@dataclass(frozen=True)
class TaskLaunch:
    """One of several launches, by names: the kernel, and which of the task's arguments it takes."""

    kernel: str
    arguments: tuple[str, ...]


@dataclass(frozen=True)
class Task:
    """What every kernel for one sentence takes and gives. `time` are real shapes, `check` the ones that we hold it to.

    All of them meet the `conditions`, comparisons of sizes. `launches` are in their order, each of another kernel.
    """

    kernel: str
    arguments: tuple[TaskArgument, ...]
    time: tuple[Case, ...]
    check: tuple[Case, ...]
    conditions: tuple[str, ...] = ()
    further: tuple[TaskLaunch, ...] = ()  # all launches where there are several; none: `kernel` takes every argument

    @property
    def launches(self) -> tuple[TaskLaunch, ...]:
        """The launches in their order."""
        return self.further or (TaskLaunch(self.kernel, tuple(a.name for a in self.arguments)),)

    @property
    def kernels(self) -> tuple[str, ...]:
        """The names of the kernels in the order of their launches."""
        return tuple(launch.kernel for launch in self.launches)

    @property
    def outputs(self) -> tuple[TaskArgument, ...]:
        return tuple(a for a in self.arguments if a.role in ("out", "inout") and not a.scratch)

    @property
    def inputs(self) -> tuple[TaskArgument, ...]:
        return tuple(a for a in self.arguments if a.role in ("in", "inout"))

    @property
    def _zeroed(self) -> tuple[TaskArgument, ...]:
        return tuple(a for a in self.arguments if a.zeroed)

    @property
    def wrapper(self) -> str:
        """The name of the host function that launches the kernels."""
        return self.kernel.removesuffix("_kernel")

    @property
    def signatures(self) -> tuple[str, ...]:
        """The head of each kernel, in the order of the launches."""
        declared = {a.name: a.declared for a in self.arguments}
        return tuple(
            f"__global__ void {k.kernel}({', '.join(declared[n] for n in k.arguments)})" for k in self.launches
        )

    def shape(self, argument: TaskArgument, case: Case) -> tuple[int, ...]:
        """The extents of a buffer in one case."""
        return tuple(evaluate_int(extent, case.sizes) for extent in argument.shape)

    def file(self, header: tuple[str, ...]) -> str:
        """The file that strategies fill in: comment, spec, empty kernels, and the host function that launches them."""
        includes = dict.fromkeys(["cuda_runtime.h", *(_HEADERS[a.type] for a in self.arguments if a.type in _HEADERS)])
        lines = [f"// {line}" for line in header]
        lines += [f"#include <{name}>" for name in includes]
        lines += ["", "#include <cfloat>", ""]
        lines += [f"// optiml: {line}" for line in self._spec()]
        for signature in self.signatures:
            lines += [f"{signature} {{}}", ""]
        parameters = ", ".join([*(a.declared for a in self.arguments), "cudaStream_t stream"])
        lines += [f"// Launches {', '.join(self.kernels)} on a stream. All pointers are to device memory."]
        lines += [f"// {a.name} is scratch of {a.size} elements." for a in self.arguments if a.scratch]
        zeros = [
            f"    cudaMemsetAsync({a.name}, 0, sizeof({TYPES[a.type]}) * ({_long(a.size)}), stream);"
            for a in self._zeroed
        ]
        launches = [f"    {k.kernel}<<<1, 1, 0, stream>>>({', '.join(k.arguments)});" for k in self.launches]
        lines += [f"void {self.wrapper}({parameters}) {{", *zeros, *launches, "}", ""]
        return "\n".join(lines)

    def _spec(self) -> list[str]:
        lines = []
        if self.further:
            steps = [f'{{ kernel = "{k.kernel}", args = {json.dumps(k.arguments)} }}' for k in self.further]
            lines.append(f"chain = [{', '.join(steps)}]")
        for a in self.arguments:
            if a.role == "scalar":
                continue
            role = "inout" if a.zeroed else a.told_role
            parts = [f'role = "{role}"', f'type = "{a.type}"', f'size = "{a.size}"']
            if a.zeroed:
                parts.append('fill = { kind = "constant", low = 0 }')
            elif a.role != "out":
                bounds = "".join(f', {k} = "{v}"' for k, v in (("low", a.low), ("high", a.high)) if v)
                parts.append(f'fill = {{ kind = "{a.fill}"{bounds} }}')
            lines.append(f"args.{a.name} = {{ {', '.join(parts)} }}")
        lines += [
            f"check = [{', '.join(_toml(c) for c in self.check)}]",
            f"time = [{', '.join(_toml(c) for c in self.time)}]",
        ]
        if any(a.type in _FLOATS for a in self._zeroed):  # atomics add up in another order each time
            lines.append("deterministic = false")
        return lines


def _long(expression: str) -> str:
    """An expression over int parameters, worked out in 64 bits."""
    return re.sub(r"\b[A-Za-z_]\w*", r"(long long)\g<0>", expression)


def _toml(case: Case) -> str:
    return f"{{ {', '.join(f'{k} = {v!r}' for k, v in case.sizes.items())} }}"


def read_task(
    text: str, *, required: tuple[str, ...] = (), known: tuple[str, ...] = (), cpu: bool = False
) -> Task:  # fmt: skip
    """The task in an answer. `required` are the reference's parameters, each of which must be an argument or a size, `known`
    those that may be. With `cpu` check shapes are such that kernels run on a CPU in no time.

    Raises TaskError with the first thing that is wrong.
    """
    told = next((v for v in json_objects(text) if isinstance(v, dict) and "arguments" in v), None)
    if told is None:
        raise TaskError("the answer holds no JSON object with the task")
    task = _read(told, cpu=cpu)
    sizes = task.time[0].sizes
    there = {*sizes, *(a.name for a in task.arguments)}
    missing = [name for name in required if name not in there]
    if missing:
        raise TaskError(f"the reference takes '{plain(missing[0], 60)}', which is no argument or size of the task")
    given = {*required, *known}
    unused = [a.name for a in task.inputs if given and a.name not in given]
    if unused:
        raise TaskError(f"the input '{unused[0]}' is none that the reference takes")
    outputs = {a.name for a in task.arguments if a.role == "out"}  # and scratch
    if outputs & set(required):
        raise TaskError(f"'{sorted(outputs & set(required))[0]}' is an output, but the reference takes it as an input")
    return task


def _bad(what: str) -> NoReturn:
    raise TaskError(what)


def _read(told: Mapping[str, Any], *, cpu: bool) -> Task:
    kernel = _name(told.get("kernel"), "kernel")
    kernel = kernel if kernel.endswith("_kernel") else kernel + "_kernel"
    sizes = _sizes(told.get("sizes"))
    listed = told.get("arguments")
    if not isinstance(listed, list) or not 1 <= len(listed) <= _MOST_ARGUMENTS:
        _bad(f"there are one to {_MOST_ARGUMENTS} arguments")
    arguments = tuple(_argument(value, sizes) for value in listed)
    names = [a.name for a in arguments]
    launches = _launches(told.get("launches"), arguments)
    functions = {kernel, kernel.removesuffix("_kernel")}
    kernels = {launch.kernel for launch in launches}
    if (
        len(set(names)) != len(names)
        or (functions | kernels) & {*names, *sizes}
        or kernel.removesuffix("_kernel") in kernels
    ):
        _bad("two things have the same name")
    buffers = [a.name for a in arguments if a.role != "scalar"]
    if set(buffers) & set(sizes):
        _bad(f"'{sorted(set(buffers) & set(sizes))[0]}' is both a buffer and a size")
    _check_zeroed(arguments, sizes)
    results = [a for a in arguments if a.role in ("out", "inout") and not a.scratch]
    if not results or not any(a.role in ("in", "inout") for a in arguments):
        _bad("a task has at least one input and one output buffer")
    if any(a.scratch for a in arguments) and not launches:
        _bad("scratch is what several launches hand on to each other, and there is one launch")
    time = tuple(
        Case(case_name(one), one) for one in ({k: v[i] for k, v in sizes.items()} for i in range(_count(sizes)))
    )
    for case in time:
        if _bytes(arguments, case) > _MOST_BYTES:
            _bad(f"the buffers of the case {case.name} take over {_MOST_BYTES >> 30} GiB")
    conditions = _conditions(told.get("conditions"), time)
    check = check_cases(time, conditions, lambda case: _bytes(arguments, case), cpu=cpu)
    return Task(kernel, arguments, time, check, conditions, launches)


def _launches(told: Any, arguments: Sequence[TaskArgument]) -> tuple[TaskLaunch, ...]:
    """The launches where there are several; none for one of them, which takes every argument."""
    listed = told if told is not None else []
    if not isinstance(listed, list) or len(listed) > MOST_LAUNCHES:
        _bad(f"there are at most {MOST_LAUNCHES} launches")
    known = [a.name for a in arguments]
    launches = []
    for one in listed:
        kernel = _name(one.get("kernel") if isinstance(one, dict) else None, "kernel")
        names = one.get("arguments")
        if not isinstance(names, list) or not names or len({*map(str, names)}) != len(names):
            _bad(f"the launch of '{kernel}' does not list its arguments, each once")
        strange = next((str(name) for name in names if name not in known), "")
        if strange:
            _bad(f"the launch of '{kernel}' takes '{plain(strange, 60)}', which is no argument of the task")
        launches.append(TaskLaunch(kernel, tuple(names)))
    if len({launch.kernel for launch in launches}) < len(launches):
        _bad("each launch is of another kernel")
    if len(launches) < 2:
        return ()
    taken = {name for launch in launches for name in launch.arguments}
    unused = next((name for name in known if name not in taken), "")
    if unused:
        _bad(f"no launch takes '{unused}'")
    return tuple(launches)


def _conditions(told: Any, time: tuple[Case, ...]) -> tuple[str, ...]:
    listed = told if told is not None else []
    if not isinstance(listed, list) or len(listed) > _MOST_CONDITIONS:
        _bad(f"there are at most {_MOST_CONDITIONS} conditions")
    conditions = []
    for one in listed:
        text = one.strip() if isinstance(one, str) else ""
        if not _CONDITION.match(text) or "//" in text or "/*" in text:
            _bad("a condition is no comparison of sizes")
        for case in time:
            try:
                met = evaluate(text, case.sizes)
            except ArithmeticError_ as error:
                _bad(f"the condition '{text}' has no value: {plain(error.what, 100)}")
            if not met:
                _bad(f"the condition '{text}' is not met by the case {case.name}")
        conditions.append(text)
    return tuple(conditions)


def _check_zeroed(arguments: tuple[TaskArgument, ...], sizes: Iterable[str]) -> None:
    """The host function works out how much to zero from the kernel's own parameters."""
    scalars = {a.name for a in arguments if a.role == "scalar"}
    for argument in (a for a in arguments if a.zeroed):
        lacking = sorted(set(re.findall(r"[A-Za-z_]\w*", argument.size)) & set(sizes) - scalars)
        if lacking:
            _bad(f"'{argument.name}' is zeroed, and its size '{lacking[0]}' is no scalar argument")


def _name(value: Any, what: str) -> str:
    if not isinstance(value, str) or not _NAME.match(value) or value in _TAKEN or "optiml" in value.lower():
        _bad(f"'{plain(str(value), 60)}' is no name for a {what}")
    return value


def _count(sizes: Mapping[str, list[int | float]]) -> int:
    return len(next(iter(sizes.values())))


def _sizes(told: Any) -> dict[str, list[int | float]]:
    if not isinstance(told, list) or not 1 <= len(told) <= _MOST_SIZES:
        _bad(f"there are one to {_MOST_SIZES} sizes")
    sizes: dict[str, list[int | float]] = {}
    for one in told:
        name = _name(one.get("name") if isinstance(one, dict) else None, "size")
        values = one.get("values")
        values = values if isinstance(values, list) else [values]
        if name in sizes or not 1 <= len(values) <= _MOST_CASES:
            _bad(f"the size '{name}' has one to {_MOST_CASES} values, and is given once")
        for value in values:
            if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < _MOST_SIZE:
                _bad(f"the size '{name}' is no number")
            if isinstance(value, int) and value < 1:
                _bad(f"the size '{name}' is {value}; a length is at least 1, and a factor is written with a point")
        sizes[name] = list(values)
    most = max(len(v) for v in sizes.values())
    for name, values in sizes.items():
        if len(values) not in (1, most):
            _bad(f"the size '{name}' has {len(values)} values, others have {most}")
        values = values * (most // len(values))
        sizes[name] = [float(v) for v in values] if any(isinstance(v, float) for v in values) else values
    return sizes


def _argument(told: Any, sizes: Mapping[str, list[int | float]]) -> TaskArgument:
    if not isinstance(told, dict):
        _bad("an argument is no object")
    name = _name(told.get("name"), "argument")
    type_, role = str(told.get("type")), told.get("role")
    if type_ not in TYPES:
        _bad(f"'{name}' has a type that is none of {', '.join(TYPES)}")
    if role == "scalar":
        if name not in sizes:
            _bad(f"the scalar '{name}' is no size; every scalar is one, with its value in each case")
        if type_ not in _SCALARS:
            _bad(f"the scalar '{name}' is a {type_}; write one of {', '.join(sorted(_SCALARS))}")
        if type_ not in _FLOATS and any(isinstance(v, float) for v in sizes[name]):
            _bad(f"the scalar '{name}' is a {type_}, but its size is a fraction")
        return TaskArgument(name, type_, "scalar")
    if role not in ROLES:
        _bad(f"the role of '{name}' is none of {', '.join(ROLES)}")
    zeroed, scratch = role == "zeroed", role == "scratch"
    role = "out" if zeroed or scratch else role
    shape = told.get("shape")
    if not isinstance(shape, list) or not 1 <= len(shape) <= _MOST_DIMENSIONS:
        _bad(f"the shape of '{name}' has one to {_MOST_DIMENSIONS} extents")
    extents = []
    for extent in shape:
        text = (
            str(extent).strip().replace("//", "/") if isinstance(extent, str | int) else ""
        )  # Python's whole-number division
        if not _SHAPE.match(text) or "/*" in text:
            _bad(f"an extent of '{name}' is no arithmetic over the sizes")
        extents.append(text)
    fill, low, high = ("", "", "") if role == "out" else _fill(name, type_, told)
    return TaskArgument(name, type_, cast(Role, role), tuple(extents), fill, low, high, zeroed, scratch)


def _fill(name: str, type_: str, told: Mapping[str, Any]) -> tuple[str, str, str]:
    """How an input is drawn. A range so narrow that nearly all elements are the same would prove nothing."""
    kind = told.get("fill") or ("normal" if type_ in _FLOATS else "integers")
    if kind not in _FILLS:
        _bad(f"the fill of '{name}' is none of {', '.join(_FILLS)}")
    if kind == "normal" and type_ not in _FLOATS:
        _bad(f"'{name}' holds {type_}, which no normal fill makes; use integers")
    low, high = (str(told.get(k) or "").strip() for k in ("low", "high"))
    for text in (low, high):
        if text and not _SHAPE.match(text.replace(".", "0")):
            _bad(f"a bound of '{name}' is no arithmetic")
    if kind == "normal":
        return kind, "", ""  # standard normal: mean and deviation would only make a check easier
    if kind == "permutation":
        return kind, "", ""
    if not high:
        low, high = ("0", "100") if type_ not in _FLOATS else ("-1", "1")
        low, high = ("0", "2") if type_ == "bool" else (low, high)
    return kind, low or "0", high


def _elements(argument: TaskArgument, case: Case) -> int:
    total = 1
    try:
        for extent in argument.shape:
            value = evaluate_int(extent, case.sizes)
            if value < 1:
                _bad(f"'{argument.name}' has an extent of {value} in the case {case.name}")
            total *= value
    except ArithmeticError_ as error:
        _bad(f"the shape of '{argument.name}' has no value: {plain(error.what, 100)}")
    return total


def _bytes(arguments: tuple[TaskArgument, ...], case: Case) -> int:
    return sum(_elements(a, case) * parse_dtype(a.type).itemsize for a in arguments if a.role != "scalar")


def described(task: Task) -> str:
    """The task as JSON, for whoever writes a reference, which knows nothing of scratch."""
    arguments = [
        {"name": a.name, "type": TYPES[a.type], "role": a.told_role, "shape": list(a.shape)}
        for a in task.arguments
        if not a.scratch
    ]
    told = {"kernel": task.kernel, "arguments": arguments}
    return json.dumps({**told, "conditions": list(task.conditions)} if task.conditions else told, indent=1)
