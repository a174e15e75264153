"""What an edit takes for granted of the kernel's callers, from its text: alignment, distinct buffers, index widths, divisibility.

Each assumption is checked against the callers that the program shows: one that breaks it refuses the edit, and one that cannot be
seen leaves it to the reader, by name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from engine.arith import ArithmeticError_, evaluate_int
from engine.cuda.aliasing import shared_buffers
from engine.cuda.definitions import expression
from engine.cuda.kernel import Function, Kernel, LaunchSite, Parameter
from engine.cuda.launch import sites
from engine.cuda.parse import parse
from engine.cuda.phases import NVCC, form_of
from engine.cuda.polynomial import polynomial
from engine.cuda.syntax import called, children, in_unnamed_namespace, text, walk
from engine.errors import OptimlError
from engine.model import Guardrail, Program
from engine.settings.suffixes import SOURCES
from engine.spec.kernel_spec import Argument, KernelSpec

_BASES = {
    "char": 1, "uchar": 1, "short": 2, "ushort": 2, "int": 4, "uint": 4, "float": 4, "half": 2, "__half": 2, "__nv_bfloat16": 2,
    "nv_bfloat16": 2, "__nv_bfloat": 2, "long": 8, "ulong": 8, "longlong": 8, "ulonglong": 8, "double": 8,
}  # fmt: skip
_VECTOR = r"(?P<base>u?(?:char|short|int|longlong|long)|float|double|__half|half|__nv_bfloat16|__nv_bfloat|nv_bfloat16)(?P<lanes>[248])"
_CAST = re.compile(
    rf"(?:reinterpret_cast\s*<\s*(?:const\s+)?{_VECTOR}\s*(?:const\s*)?\*\s*(?:__restrict__\s*)?>\s*\(|"
    rf"\(\s*(?:const\s+)?{_VECTOR.replace('?P<base>', '?P<base2>').replace('?P<lanes>', '?P<lanes2>')}\s*(?:const\s*)?\*\s*\)\s*)"
    r"(?P<what>[^;,)]{1,120})"
)
_LOCAL = re.compile(r"\*\s*(?:__restrict__\s+|const\s+)*(\w+)\s*=\s*([^;]{1,200});")
_WIDE = re.compile(r"\b(?:size_t|ptrdiff_t|u?int64_t|long\s+long|long)\b")
_WIDE_TYPES = frozenset(
    {"size_t", "int64_t", "uint64_t", "long", "unsigned long", "long long", "unsigned long long", "ptrdiff_t"}
)
_GUARD = re.compile(
    r"\b(?:u?intptr_t|size_t|unsigned long long|uint64_t)\b[^;{}]{0,120}(?:%\s*\d+|&\s*\d+|&\s*\(|%\s*sizeof)"
)

_ANY_ADDRESS = "whoever calls '{}' may pass any address"
_OUT_OF_STRUCT = "no visible caller shows what they point to"


def assumptions(original: Program, candidate: Program, spec: KernelSpec) -> tuple[Guardrail, ...]:
    """A verdict for each assumption that the edit adds: "passed" where every visible caller keeps it, "failed" where one does not."""
    found: dict[str, Guardrail] = {}
    for step in spec.steps:
        try:
            old = _kernel(original, step.kernel)
            new = _kernel(candidate, step.kernel)
            launches = sites(candidate, step.kernel)
        except (KeyError, OptimlError):
            continue
        if old[1] == new[1] and old[0].signature == new[0].signature:
            continue
        fields = [f for name in step.arguments for f in spec.fields(name) if f.role != "scalar"]
        verdicts = [*_of_kernel(old, new, launches, original), *_of_fields(old, new, fields)]
        for verdict in verdicts:
            found.setdefault(verdict.name, verdict)
    return tuple(found.values())


def anywhere(program: Program, spec: KernelSpec, argument: str) -> str:
    """Why the buffer of an argument may begin at any element, as far as the program shows; "" where its callers pass whole buffers."""
    reason = ""
    for step in spec.steps:
        try:
            launches = sites(program, step.kernel)
        except (KeyError, OptimlError):
            continue
        if argument not in step.arguments:  # a pointer in a struct
            reason = reason or (_OUT_OF_STRUCT if argument.partition(".")[0] in step.arguments else "")
            continue
        at = step.arguments.index(argument)
        given = [launch for launch in launches if at < len(launch.arguments)]
        for launch in given:
            if _open(program, launch, launch.arguments[at]):
                return _ANY_ADDRESS.format(launch.function)
        reason = reason or ("" if given else "no caller is visible")
    return reason


def _open(program: Program, launch: LaunchSite, argument: str) -> bool:
    """Whether a launch passes on what code of other files may pass to its function."""
    if any(f.name == "main" for path, data in program.files.items() if b"main" in data for f in _functions(data, path)):
        return False
    of_name = [f for f in _functions(program.files[launch.path], launch.path) if f.name == launch.function]
    return any(p.name == argument.strip() for f in of_name if not _of_file(f) for p in f.parameters)


def _functions(data: bytes, path: str) -> Sequence[Function]:
    return parse(data, path).functions if path.endswith(SOURCES) else ()


def _of_file(function: Function) -> bool:
    """Whether no other file can call a function: it is static, or in an unnamed namespace."""
    static = re.search(r"\bstatic\b", text(function.node).partition("(")[0]) is not None
    return static or in_unnamed_namespace(function.node)


def _kernel(program: Program, name: str) -> tuple[Kernel, str]:
    """A kernel of the program's file, and its text without comments."""
    unit = parse(program.data, program.kernel_file)
    kernel = unit.kernel(name)
    return kernel, form_of(unit.text(kernel.span), NVCC).code


def _of_kernel(
    old: tuple[Kernel, str], new: tuple[Kernel, str], launches: Sequence[LaunchSite], original: Program
) -> Iterator[Guardrail]:  # fmt: skip
    kernel, code = new
    before = _alignments(*old)
    for name, size in sorted(_alignments(kernel, code).items()):
        if size > before.get(name, 0) and not _GUARD.search(code):
            at = next(i for i, p in enumerate(kernel.parameters) if p.name == name)
            open_to = [
                each.function for each in launches if _open(original, each, "".join(each.arguments[at : at + 1]))
            ]
            verdict = _aligned(kernel, name, size, list(_given(original, kernel, name, launches)))
            if open_to and verdict.verdict == "passed":
                verdict = replace(verdict, verdict="not checked", detail=_ANY_ADDRESS.format(open_to[0]))
            yield verdict
    was = {p.name: p for p in old[0].parameters}
    pointers = [p for p in kernel.parameters if p.pointer]
    for p in pointers:
        loads = rf"\b__ldg\s*\(\s*&?\s*{re.escape(p.name)}\b"
        promised = p.restrict and not (p.name in was and was[p.name].restrict)
        if (promised or (re.search(loads, code) and not re.search(loads, old[1]))) and any(
            not (p.const and q.const) for q in pointers if q is not p
        ):
            yield _distinct(p, old[0], launches, original)
    wide = [p.name for p in kernel.parameters if not p.pointer and p.base in _WIDE_TYPES]
    if len(_WIDE.findall(code)) < len(_WIDE.findall(old[1])) and (wide or _WIDE.search(old[1])):
        yield Guardrail(
            "assumes that indices fit in 32 bits",
            "not checked",
            "the edit computes fewer indices in 64 bits than the original",
        )
    yield from _divisible(old, new, launches)


def _of_fields(old: tuple[Kernel, str], new: tuple[Kernel, str], fields: Sequence[Argument]) -> Iterator[Guardrail]:
    """Of pointers in structs no caller shows where they come from."""
    if not fields:
        return
    promised = any(
        len(re.findall(word, new[1])) > len(re.findall(word, old[1])) for word in (r"__restrict", r"__ldg\b")
    )
    if promised:
        yield Guardrail("assumes that pointers in structs overlap no other buffer", "not checked", _OUT_OF_STRUCT)
    before, after = (
        {f"{match['base'] or match['base2']}{match['lanes'] or match['lanes2']}" for match in _CAST.finditer(code)}
        for code in (old[1], new[1])
    )
    if after - before:
        yield Guardrail("assumes that pointers in structs are aligned for vectors", "not checked", _OUT_OF_STRUCT)


def _alignments(kernel: Kernel, code: str) -> dict[str, int]:
    """Bytes to which each pointer parameter must be aligned for the vector casts of the text."""
    behind = {p.name: {p.name} for p in kernel.parameters if p.pointer}
    for match in _LOCAL.finditer(code):
        names = {root for word in re.findall(r"\w+", match[2]) for root in behind.get(word, ())}
        if names:
            behind.setdefault(match[1], set()).update(names)
    found: dict[str, int] = {}
    for match in _CAST.finditer(code):
        base, lanes = match["base"] or match["base2"], int(match["lanes"] or match["lanes2"])
        size = min(16, _BASES[base] * lanes)
        for word in re.findall(r"\w+", match["what"]):
            for name in behind.get(word, ()):
                found[name] = max(found.get(name, 0), size)
    for p in kernel.parameters:  # declared as vectors already: the caller's type says so
        if p.pointer and re.fullmatch(_VECTOR, p.base):
            found.pop(p.name, None)
    return found


def _given(program: Program, kernel: Kernel, name: str, launches: Sequence[LaunchSite]) -> Iterator[tuple[str, str]]:
    """What is passed for a parameter, with its place: at launches, and at calls of the functions that hand their own parameter on."""
    at = next(i for i, p in enumerate(kernel.parameters) if p.name == name)
    for launch in launches:
        if at >= len(launch.arguments):
            continue
        yield launch.arguments[at], f"{launch.path}:{launch.line}"
        for path, data in program.files.items():
            if path.endswith(".toml") or not launch.function or launch.function.encode() not in data:
                continue
            unit = parse(data, path)
            places = {
                i
                for f in unit.functions
                if f.name == launch.function
                for i, p in enumerate(f.parameters)
                if p.name == launch.arguments[at].strip()
            }
            for node in walk(unit.root):
                if node.type != "call_expression" or called(node).rpartition("::")[2] != launch.function:
                    continue
                arguments = node.child_by_field_name("arguments")
                written = [text(child) for child in children(arguments)] if arguments is not None else []
                for i in places:
                    if i < len(written):
                        yield written[i], f"{path}:{node.start_point[0] + 1}"


def _aligned(kernel: Kernel, name: str, size: int, given: Sequence[tuple[str, str]]) -> Guardrail:
    what = f"assumes {name} is {size}-byte aligned"
    parameter = next(p for p in kernel.parameters if p.name == name)
    if not given:
        return Guardrail(what, "not checked", "no caller is visible")
    unsure = ""
    for argument, where in given:
        offset = re.fullmatch(r"\s*&?\s*\w+(?:\s*\+\s*(?P<plus>.+)|\s*\[(?P<index>.+)\])?\s*", argument)
        distance = (offset["plus"] or offset["index"]) if offset else argument
        if offset and not distance:
            continue
        try:
            bytes_off = evaluate_int(distance, {}) * _BASES.get(parameter.base, 1)
        except ArithmeticError_:
            passes = f"{where} passes {argument[:60]}"
            if offset and not _whole(distance, _BASES.get(parameter.base, 1), size):
                return Guardrail(what, "failed", f"{passes}: take vectors where the address allows it")
            unsure = unsure if offset else passes
            continue
        if bytes_off % size:
            return Guardrail(what, "failed", f"{where} passes {argument[:60]}")
    if unsure:
        return Guardrail(what, "not checked", unsure)
    return Guardrail(what, "passed", f"every visible caller passes a whole buffer ({given[0][1]})")


def _whole(distance: str, element: int, size: int) -> bool:
    """Whether so many elements are a multiple of `size` bytes, whatever the names in them stand for."""
    node = expression(distance)
    found = polynomial(node, lambda name: None) if node is not None else None
    return found is not None and all(factor * element % size == 0 for factor in found.terms.values())


def _distinct(p: Parameter, kernel: Kernel, launches: Sequence[LaunchSite], original: Program) -> Guardrail:
    what = f"assumes {p.name} overlaps no other buffer"
    shared = shared_buffers(original, kernel, launches)
    if shared is None:
        return Guardrail(what, "not checked", "no caller is visible")
    for pair in shared:
        if p.name in (pair.first, pair.second):
            return Guardrail(what, "failed", f"{pair.where} passes one buffer for {pair.first} and {pair.second}")
    return Guardrail(what, "passed", "every visible caller passes distinct buffers")


def _divisible(old: tuple[Kernel, str], new: tuple[Kernel, str], launches: Sequence[LaunchSite]) -> Iterator[Guardrail]:
    kernel, code = new
    for at, p in enumerate(kernel.parameters):
        if p.pointer:
            continue
        for match in re.finditer(rf"\b{re.escape(p.name)}\s*(?:/\s*(\d+)|>>\s*(\d+))\b", code):
            divisor = int(match[1]) if match[1] else 1 << min(int(match[2]), 16)
            tail = rf"\b{re.escape(p.name)}\s*(?:%|&)|(?:<|>=)\s*{re.escape(p.name)}\b(?!\s*(?:/|>>))"
            if divisor < 2 or re.search(re.escape(match[0]), old[1]) or re.search(tail, code):
                continue
            what = f"assumes {p.name} is divisible by {divisor}"
            values = [launch.arguments[at].strip() for launch in launches if at < len(launch.arguments)]
            known = [int(v) for v in values if v.isdigit()]
            if any(v % divisor for v in known):
                yield Guardrail(what, "failed", f"a caller passes {next(v for v in known if v % divisor)}")
            elif values and len(known) == len(values):
                yield Guardrail(what, "passed", "every visible caller passes such a value")
            else:
                yield Guardrail(what, "not checked", "callers pass values known only at run time")
            break
