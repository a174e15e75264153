"""Inline PTX of a kernel as C++ for the CPU: the instructions that people write by hand, one by one.

An instruction that is not among them becomes a call that no compiler takes, so that only code which is needed is refused for it,
by the instruction's name.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from engine.cpu.jobs import Unsupported
from engine.cuda.brackets import closing

REFUSED = "optiml_ptx_refused_"  # begins the name of what an instruction without a meaning here is turned into
_START = re.compile(r"\b(?:asm|__asm__|__asm)\b(?:\s*\b(?:volatile|__volatile__|goto|inline)\b)*\s*\(")
_STRING = re.compile(r'"((?:\\.|[^"\\\n])*)"')
_OPERAND = re.compile(r'\s*(?:\[\s*\w+\s*\]\s*)?"([^"]*)"\s*\(')
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)
_REGISTER = re.compile(r"\.reg\s*\.(\w+)\s+([\w\s,%$]+)")
_TYPES = {"r": "uint32_t", "l": "uint64_t", "h": "uint16_t", "f": "float", "d": "double", "n": "int64_t"}
_BITS = {"b8": "uint8_t", "u8": "uint8_t", "s8": "int8_t", "b16": "uint16_t", "u16": "uint16_t", "s16": "int16_t", "b32": "uint32_t",
         "u32": "uint32_t", "s32": "int32_t", "b64": "uint64_t", "u64": "uint64_t", "s64": "int64_t", "f32": "float",
         "f64": "double", "pred": "bool", "f16": "uint16_t", "bf16": "uint16_t", "f16x2": "uint32_t",
         "bf16x2": "uint32_t"}  # fmt: skip
_BINARY = {"add": "+", "sub": "-", "and": "&", "or": "|", "xor": "^", "div": "/", "rem": "%", "mul": "*"}
_COMPARE = {
    "eq": "==",
    "ne": "!=",
    "lt": "<",
    "le": "<=",
    "gt": ">",
    "ge": ">=",
    "lo": "<",
    "ls": "<=",
    "hi": ">",
    "hs": ">=",
}
_APPROX = {"ex2": "exp2f", "lg2": "log2f", "rcp": "1.0f/", "sqrt": "sqrtf", "rsqrt": "1.0f/sqrtf", "sin": "sinf", "cos": "cosf",
           "tanh": "tanhf"}  # fmt: skip
_ATOMIC = {"add": "atomicAdd", "min": "atomicMin", "max": "atomicMax", "and": "atomicAnd", "or": "atomicOr", "xor": "atomicXor",
           "exch": "atomicExch", "cas": "atomicCAS", "inc": "atomicInc", "dec": "atomicDec"}  # fmt: skip
_PRODUCTS = {  # of 16 x 8 elements: what the factors are, in runtime/abi.h
    f"mma.sync.aligned.{shape}.row.col.f32.{kind}.{kind}.f32": f"OPTIML_{kind.upper()}"
    for shape, kind in (("m16n8k8", "tf32"), ("m16n8k16", "f16"), ("m16n8k16", "bf16"))
}
# Instructions that order or hint.
_NOTHING = re.compile(
    r"(?:membar|fence|griddepcontrol|nanosleep|prefetch\w*|createpolicy|"
    r"discard|applypriority)\b.*"
)
_COPIES = {  # of asynchronous copies, which arrive as late as they may
    "cp.async.commit_group": "optiml_copy_close();",
    "cp.async.wait_group": "optiml::wait_for_copies({0});",
    "cp.async.wait_all": "optiml::wait_for_all_copies();",
}
_SPECIAL = {"%laneid": "optiml::lane()", "%lanemask_lt": "((1u << optiml::lane()) - 1u)", "%warpsize": "32u",
            "%lanemask_le": "(~0u >> (31u - optiml::lane()))", "%lanemask_eq": "(1u << optiml::lane())",
            "%tid.x": "threadIdx.x", "%tid.y": "threadIdx.y", "%tid.z": "threadIdx.z", "%ctaid.x": "blockIdx.x",
            "%ctaid.y": "blockIdx.y", "%ctaid.z": "blockIdx.z", "%ntid.x": "blockDim.x", "%ntid.y": "blockDim.y",
            "%nctaid.x": "gridDim.x", "%nctaid.y": "gridDim.y", "%clock": "uint32_t(clock64())",
            "%clock64": "uint64_t(clock64())", "%globaltimer": "uint64_t(clock64())"}  # fmt: skip


@dataclass(frozen=True)
class _PtxInstruction:
    """`parts` are those of the name between points, `operands` C++ expressions."""

    parts: tuple[str, ...]
    operands: tuple[str, ...]

    @property
    def kind(self) -> str:
        """The type at the name's end."""
        return self.parts[-1]

    def has(self, *parts: str) -> bool:
        """Whether the name has one of these parts."""
        return any(part in self.parts for part in parts)


class _Unknown(Exception):
    """An instruction that has no meaning here."""


def without_ptx(text: str, plain: str, only: re.Pattern[str] | None = None) -> str:
    """The text with each `asm` statement as C++ on the same lines; `plain` is it without comments and contents of strings.

    With `only`, statements without a match of it stay.

    Raises Unsupported for a statement that is not understood.
    """
    out, at = [], 0
    for match in _START.finditer(plain):
        if match.start() < at:
            continue
        end = closing(plain, match.end() - 1)
        if end < 0:
            raise Unsupported("an 'asm' statement without an end", features=("inline PTX of this form",))
        written = text[match.end() : end]
        if only is not None and not only.search(written):
            continue
        lines = "\\\n" * written.count("\\\n") or "\n" * (written.count("\n"))
        out += [text[at : match.start()], _statement(written), lines]
        at = end + 1
    return "".join([*out, text[at:]])


def refusals(text: str) -> str:
    """Declarations, on one line, for the calls that `without_ptx` left in a text for instructions without a meaning."""
    names = dict.fromkeys(re.findall(rf"\b{REFUSED}(\w+)\(\)", text))
    return " ".join(
        f'[[noreturn]] void {REFUSED}{name}() __attribute__((error("inline PTX {shown}")));'
        for name in names
        for shown in [name.replace("__", ".")]
    )


def _refused(instruction: str) -> str:
    return REFUSED + re.sub(r"\W", "", instruction.replace(".", "__")).strip("_")


def _statement(written: str) -> str:
    """One `asm(…)` as a block."""
    written = _COMMENT.sub(" ", written).replace("\\\n", " ")
    sections = list(_sections(written))
    code = "".join(_STRING.findall(sections[0])).encode().decode("unicode_escape", "replace")
    if re.sub(r"\s", "", _STRING.sub("", sections[0])):
        raise Unsupported("inline PTX that a macro completes", features=("inline PTX of this form",))
    before: list[str] = []
    after: list[str] = []
    names: list[str] = []
    for output, section in [(True, s) for s in sections[1:2]] + [(False, s) for s in sections[2:3]]:
        for constraint, expression in _operands(section):
            number, letter = len(names), constraint[-1:]
            kind = _TYPES.get(letter)
            if kind is None:  # of another architecture, as under an #if
                return f"do {{ {_refused(f'constraint_{letter}')}(); }} while (0)"
            names.append(f"optiml_p{number}")
            start = f" = optiml::in<{kind}>({expression})" if not output or "+" in constraint else "{}"
            before.append(f"{kind} optiml_p{number}{start};")
            if output:
                after.append(f"optiml::out({expression}, optiml_p{number});")
    try:
        body = " ".join(_body(code, names))
    except _Unknown as error:
        body = f"{_refused(str(error))}();"
    return f"do {{ {' '.join(before)} {body} {' '.join(after)} }} while (0)"


def _sections(written: str) -> Iterator[str]:
    """The parts between the colons that separate code, outputs, inputs and clobbers."""
    depth, start, quoted = 0, 0, False
    at = 0
    while at < len(written):
        letter = written[at]
        if letter == "\\" and quoted:
            at += 2
            continue
        quoted ^= letter == '"'
        depth += 0 if quoted else (letter in "([{") - (letter in ")]}")
        if letter == ":" and not quoted and depth == 0:
            yield written[start:at]
            start = at + 1
        at += 1
    yield written[start:]


def _operands(section: str) -> Iterator[tuple[str, str]]:
    at = 0
    while match := _OPERAND.match(section, at):
        depth, end = 1, match.end()
        while end < len(section) and depth:
            depth += (section[end] == "(") - (section[end] == ")")
            end += 1
        yield match[1], section[match.end() : end - 1].strip()
        at = end
        while at < len(section) and section[at] in ", \t\n":
            at += 1


def _body(code: str, names: list[str]) -> Iterator[str]:
    code = _COMMENT.sub(" ", code)
    code = re.sub(r"[\n\t]", " ", code)
    if "%=" in code or re.search(r"\w+\s*:(?!:)", code) or re.search(r"\bbra\b", code):
        raise _Unknown("bra")
    depth = 0
    for part in code.split(";"):
        line = part.strip()
        while line.startswith(("{", "}")):
            yield line[0]
            depth += 1 if line[0] == "{" else -1
            line = line[1:].strip()
        if not line:
            continue
        if register := _REGISTER.fullmatch(line):
            kind = _BITS.get(register[1])
            if kind is None:
                raise _Unknown(f".reg .{register[1]}")
            for name in register[2].split(","):
                yield f"{kind} {_name(name.strip())}{{}};"
            continue
        guard = re.match(r"@(!?)([%\w]+)\s+", line)
        line = line[guard.end() :] if guard else line
        head, _, rest = line.partition(" ")
        operands = tuple(_operand(each, names) for each in _split(rest))
        if head in _COPIES:
            made = _COPIES[head].format(*operands, *("0",) * (not operands))
        elif _NOTHING.fullmatch(head):
            made = "" if not head.startswith("createpolicy") else f"{operands[0]} = 0;"
        else:
            made = _written(_PtxInstruction(tuple(re.split(r"\.|::", head)), operands))
        yield f"if ({guard[1]}{_operand(guard[2], names)}) {{ {made} }}" if guard else made
    if depth:
        raise _Unknown("{")


def _split(rest: str) -> list[str]:
    parts, depth, start = [], 0, 0
    for at, letter in enumerate(rest):
        depth += (letter in "[{") - (letter in "]}")
        if letter == "," and depth == 0:
            parts.append(rest[start:at])
            start = at + 1
    return [p.strip() for p in [*parts, rest[start:]] if p.strip()]


def _name(name: str) -> str:
    return "optiml_r_" + re.sub(r"\W", "_", name)


def _operand(written: str, names: list[str]) -> str:
    """An operand in C++: a register, a number, `[address+offset]` or `{a, b}`."""
    if written in _SPECIAL:
        return _SPECIAL[written]
    if match := re.fullmatch(r"%(\d+)", written):
        if int(match[1]) >= len(names):
            raise _Unknown(written)
        return names[int(match[1])]
    if written.startswith("%%"):
        return _operand(written[1:], names)
    if written.startswith("["):
        inner, _, offset = written[1:-1].partition("+")
        return f"{_operand(inner.strip(), names)}{f' + {_operand(offset.strip(), names)}' if offset else ''}"
    if written.startswith("{"):
        return "{" + ",".join(_operand(each, names) for each in _split(written[1:-1])) + "}"
    if match := re.fullmatch(r"0[fF]([0-9a-fA-F]{8})", written):
        return f"optiml::bits<float>(0x{match[1]}u)"
    if re.fullmatch(r"-?(?:0x[0-9a-fA-F]+|\d+)[uU]?", written):
        return written
    if re.fullmatch(r"-?\d+\.\d*", written):
        return f"{written}f"
    if re.fullmatch(r"[%$]?[A-Za-z_]\w*", written):
        return _name(written)
    raise _Unknown(written)


def _written(i: _PtxInstruction) -> str:
    """One instruction as C++ statements."""
    name, operands = i.parts[0], i.operands
    kind = _BITS.get(i.kind, "")
    to = operands[0] if operands else ""
    if name in ("ld", "ldu") and kind:
        return _moved(i, kind, load=True)
    if name == "st" and kind:
        return _moved(i, kind, load=False)
    if name in ("red", "atom") and kind:
        return _atomic(i, kind)
    if i.parts[:2] == ("cp", "async") and not i.has("bulk", "mbarrier") and len(operands) >= 3:
        size = f", {operands[3]}" if len(operands) > 3 else f", {operands[2]}"
        return (
            f"optiml_copy_put(optiml::shared_at({operands[0]}), optiml::at<char>({operands[1]}), {operands[2]}{size});"
        )
    if name in ("bar", "barrier") and i.has("sync") and operands == ("0",):
        return "__syncthreads();"
    product = _PRODUCTS.get(".".join(i.parts))
    if product is not None and len(operands) == 4:
        return f"{{ float d[4]; optiml::matrix_product({product}, d, {', '.join(operands[1:])}); {_put(to, 'd')} }}"
    if name == "shfl" and i.has("sync") and len(operands) == 5 and i.kind == "b32":
        how = {"idx": "", "up": "_up", "down": "_down", "bfly": "_xor"}.get(i.parts[2])
        if how is not None and to.startswith("optiml_"):
            shuffled = f"__shfl{how}_sync({operands[4]}, optiml::as<uint32_t>({operands[1]}), {operands[2]})"
            return f"{to} = optiml::as<decltype({to})>({shuffled});"
    if name == "mov" and kind and not to.startswith("{"):
        if operands[1].startswith("{"):
            parts = operands[1][1:-1].split(",")[:2]
            half = {"uint32_t": 16, "uint64_t": 32}.get(kind, 0)
            if half:
                low, high = (f"{kind}(optiml::as<uint{half}_t>({part}))" for part in parts)
                return f"{to} = optiml::as<decltype({to})>({kind}({low} | {high} << {half}));"
        else:
            return f"{to} = optiml::as<decltype({to})>({operands[1]});"
    if name == "mov" and kind in ("uint32_t", "uint64_t") and to.startswith("{"):
        low, high = to[1:-1].split(",")[:2]
        half = 16 if kind == "uint32_t" else 32
        halves = [
            f"optiml::as<decltype({part})>(uint{half}_t(v{by}))" for part, by in ((low, ""), (high, f" >> {half}"))
        ]
        return f"{{ {kind} v = optiml::as<{kind}>({operands[1]}); {low} = {halves[0]}; {high} = {halves[1]}; }}"
    if name == "cvta":
        return f"{to} = {operands[1]};"
    if name == "cvt":
        return _converted(i)
    if name == "trap":
        return "__trap();"
    return _computed(i, name, kind)


def _put(registers: str, array: str) -> str:
    """The elements of an array into `{a, b, …}`."""
    return " ".join(f"{r} = {array}[{n}];" for n, r in enumerate(registers[1:-1].split(",")))


def _computed(i: _PtxInstruction, name: str, kind: str) -> str:
    operands = i.operands
    if not operands or not kind or "x2" in i.kind or i.kind in ("f16", "bf16"):
        raise _Unknown(".".join(i.parts))
    to, given = operands[0], [f"optiml::as<{kind}>({each})" for each in operands[1:]]
    whole = "float" not in kind and "double" not in kind
    wide = "int64_t" if kind == "int32_t" else "uint64_t"
    if name == "setp" and i.parts[1] in _COMPARE and len(given) == 2:
        return f"{to} = {given[0]} {_COMPARE[i.parts[1]]} {given[1]};"
    value = ""
    if name in _APPROX and kind == "float" and len(given) == 1:
        value = f"{_APPROX[name]}({given[0]})"
    elif name == "mul" and i.has("wide"):
        value = f"{wide}({given[0]}) * {wide}({given[1]})"
    elif name == "mul" and i.has("hi") and "32" in kind:
        value = f"{kind}({wide}({given[0]}) * {wide}({given[1]}) >> 32)"
    elif name == "mad" and i.has("hi") and "32" in kind:
        value = f"{kind}({wide}({given[0]}) * {wide}({given[1]}) >> 32) + {given[2]}"
    elif name == "mad" and i.has("wide"):
        value = f"{wide}({given[0]}) * {wide}({given[1]}) + {operands[3]}"
    elif name in _BINARY and len(given) == 2:
        value = f"{kind}({given[0]} {_BINARY[name]} {given[1]})"
    elif name in ("mad", "fma") and len(given) == 3:
        value = f"{given[0]} * {given[1]} + {given[2]}" if whole else f"fma({', '.join(given)})"
    elif name in ("min", "max") and len(given) == 2:
        value = f"({given[0]} {'<' if name == 'min' else '>'} {given[1]} ? {given[0]} : {given[1]})"
        value = value if whole else f"f{name}({', '.join(given)})"
    elif name in ("not", "neg", "abs") and len(given) == 1:
        value = f"{'~' if name == 'not' else '-'}{given[0]}"
        value = value if name != "abs" else f"({given[0]} < 0 ? -{given[0]} : {given[0]})"
    elif name in ("shl", "shr") and len(given) == 2 and whole:
        value = (
            f"({operands[2]} >= 8 * sizeof({kind}) ? 0 : {given[0]} {'<<' if name == 'shl' else '>>'} {operands[2]})"
        )
    elif name == "lop3" and len(given) == 4:
        value = f"optiml::lop3({', '.join(given)})"
    elif name == "prmt" and len(given) == 3 and len(i.parts) == 2:
        value = f"__byte_perm({', '.join(given)})"
    elif name == "selp" and len(given) == 3:
        value = f"({operands[3]} ? {given[0]} : {given[1]})"
    elif name in ("popc", "clz", "brev") and len(given) == 1 and "32" in kind:
        value = f"{ {'popc': '__popc', 'clz': '__clz', 'brev': '__brev'}[name] }({given[0]})"
    elif name == "bfe" and kind == "uint32_t" and len(given) == 3:
        value = f"(({given[0]} >> ({operands[2]})) & (({operands[3]}) >= 32 ? ~0u : (1u << ({operands[3]})) - 1u))"
    if not value:
        raise _Unknown(".".join(i.parts))
    return f"{to} = optiml::as<decltype({to})>({value});"


def _place(i: _PtxInstruction, address: str, kind: str) -> str:
    return f"optiml::at<{kind}>(" + (f"uint64_t(optiml::shared_at({address})))" if i.has("shared") else f"{address})")


def _moved(i: _PtxInstruction, kind: str, *, load: bool) -> str:
    """A load or store, of a vector too: one access as wide as the instruction's."""
    if i.has("param", "local", "const") or len(i.operands) < 2:
        raise _Unknown(".".join(i.parts))
    registers, address = i.operands[:2] if load else (i.operands[1], i.operands[0])
    lanes = next((int(p[1:]) for p in i.parts if p in ("v2", "v4", "v8")), 1)
    each = registers[1:-1].split(",") if registers.startswith("{") else [registers]
    if len(each) != lanes:
        raise _Unknown(".".join(i.parts))
    place = _place(i, address, f"optiml::lanes<{kind}, {lanes}>")
    if load:
        taken = " ".join(f"{r} = optiml::as<decltype({r})>(v.of[{n}]);" for n, r in enumerate(each))
        noted = f"optiml_read_only({place}, sizeof(*{place})); " if i.has("nc") else ""
        return f"{{ {noted}auto v = *{place}; {taken} }}"
    put = " ".join(f"v.of[{n}] = optiml::as<{kind}>({r});" for n, r in enumerate(each))
    return f"{{ optiml::lanes<{kind}, {lanes}> v; {put} *{place} = v; }}"


def _atomic(i: _PtxInstruction, kind: str) -> str:
    operation = next((p for p in i.parts if p in _ATOMIC), "")
    value = "unsigned long long" if kind == "uint64_t" else kind
    if not operation or "x2" in i.kind or kind in ("uint16_t", "bool") or i.has("v2", "v4"):
        raise _Unknown(".".join(i.parts))
    result, rest = ("", i.operands) if i.parts[0] == "red" else (i.operands[0], i.operands[1:])
    value = "int" if kind == "int32_t" else "unsigned" if kind == "uint32_t" else value
    given = ", ".join(f"optiml::as<{value}>({each})" for each in rest[1:])
    call = f"{_ATOMIC[operation]}({_place(i, rest[0], value)}, {given})"
    return f"{result} = optiml::as<decltype({result})>({call});" if result and result != "optiml_r__" else f"{call};"


def _converted(i: _PtxInstruction) -> str:
    to, source = i.parts[-2], i.parts[-1]
    operands = i.operands
    if to in ("f16x2", "bf16x2") and source == "f32" and len(operands) == 3:
        half = "__float2half_rn" if to == "f16x2" else "__float2bfloat16_rn"
        return f"{operands[0]} = optiml::pair({half}({operands[2]}), {half}({operands[1]}));"
    if to in ("f16", "bf16") and source == "f32":
        half = "__float2half_rn" if to == "f16" else "__float2bfloat16_rn"
        return f"{operands[0]} = optiml::bits<uint16_t>({half}({operands[1]}));"
    if to == "f32" and source in ("f16", "bf16"):
        half = "__half" if source == "f16" else "__nv_bfloat16"
        return f"{operands[0]} = float(optiml::bits<{half}>(uint16_t({operands[1]})));"
    if to == "tf32" and source == "f32":
        return f"{operands[0]} = (optiml::bits<uint32_t>(optiml::as<float>({operands[1]})) + 0x1000u) & 0xffffe000u;"
    a, b = _BITS.get(to, ""), _BITS.get(source, "")
    if not a or not b or i.has("sat", "satfinite") or "x2" in to + source or {to, source} & {"f16", "bf16"}:
        raise _Unknown(".".join(i.parts))
    value = f"optiml::as<{b}>({operands[1]})"
    if "int" in a and "int" not in b:
        value = (
            f"rint({value})"
            if i.has("rni")
            else f"floor({value})"
            if i.has("rmi")
            else f"ceil({value})"
            if i.has("rpi")
            else f"trunc({value})"
        )
    return f"{operands[0]} = {a}({value});"
