"""The text of a CUDA file as the grammar can parse it: every byte stays where it is, but what the grammar does not know is rewritten."""

import re

from engine.cuda.items import past_call, tokens_of

# A launch as some write it and the grammar does not know it: `k<< <g, b>> >(x)`, `k<<<g, {x, y}>>>(x)`.
_LAUNCH = re.compile(rb"<<(\s*)<([^;]{0,600}?)>>(\s*)>(?=\s*\()")
# A macro alone on its line before a launch (`TIMER_BEGIN`): the grammar takes it for the type of what follows.
_BARE_MACRO = re.compile(rb"(?m)^([ \t]*)([A-Z_][A-Z0-9_]{2,})(?=[ \t]*\r?\n\s*[\w:]+\s*(?:<[^;{}<>]*>\s*)?<<<)")
# A macro for the symbol's visibility before a declaration, `LIB_API struct S* f();`: the grammar takes it for the type.
_EXPORTED = re.compile(rb"(?m)^([ \t]*(?:extern[ \t]+)?)([A-Z][A-Z0-9_]*_(?:API|EXPORTS?))(?=[ \t]+[A-Za-z_])")
_MACRO_CALL = re.compile(rb"\b[A-Z][A-Z0-9_]{3,}[ \t]*\(")
_MOST_DISPATCHED = 20_000  # bytes of a call of a macro that statements are passed to
# Attributes of a kernel that the grammar reads as a variable of that name.
HEAD_ATTRIBUTES = re.compile(rb"\b(?:__cluster_dims__|__block_size__|__maxnreg__)")
# A kernel's head up to a word that is called: its name, an attribute, or a macro that stands for some.
_HEAD = re.compile(rb"\b__global__\b")
_HEAD_CALL = re.compile(rb"([^;{}()#]*?\b)([A-Za-z_]\w*)(\s*)\(")
_KNOWN_CALLS = re.compile(rb"__(?:launch_bounds|attribute|align|cluster_dims|block_size|maxnreg)__|alignas|decltype")
_MOST_HEAD = 2_000  # bytes of it
# A condition around attributes alone, in a kernel's head: the grammar ends the template before it.
_HEAD_CONDITION = re.compile(
    rb"(?m)^[ \t]*#[ \t]*if[^\n]*\n"
    rb"(?:[ \t]*(?:#[ \t]*el[^\n]*|__(?:launch_bounds|cluster_dims|block_size|maxnreg)__[ \t]*\([^\n;{}]*\)[ \t]*)?\r?\n)+"
    rb"[ \t]*#[ \t]*endif[^\n]*"
)
# CUDA's alignment of a class or a field, which the grammar knows by C++'s name alone: `struct __align__(16) Pack {`.
_ALIGNED = re.compile(rb"(\b(?:struct|class|union)\s+|[;{]\s*)(__(?:builtin_)?align__)(?=\s*\()")


def has_launch(data: bytes) -> bool:
    """Whether the text may launch a kernel with `<<<`."""
    return re.search(rb"<<\s*<", data) is not None


def _may_launch(data: bytes) -> bool:
    """Whether the text may launch a kernel with `<<<` or by a function of the runtime."""
    return has_launch(data) or b"cudaLaunch" in data


def readable(data: bytes) -> bytes:
    """The text with launches, attributes of kernels and alignments as the grammar knows them, every other byte where it was."""
    if b"_API" in data or b"_EXPORT" in data:
        data = _EXPORTED.sub(lambda m: m[1] + b" " * len(m[2]), data)
    if b"align__" in data:
        data = _ALIGNED.sub(lambda m: m[1] + b"alignas".ljust(len(m[2])), data)
    if b"__global__" in data:
        data = _HEAD_CONDITION.sub(lambda m: re.sub(rb"[^\r\n]", b" ", m[0]), data)
    if HEAD_ATTRIBUTES.search(data):
        data = _plain_attributes(data)
    if b"__global__" in data:
        data = _plain_heads(data)
    if not _may_launch(data):
        return data
    data = _BARE_MACRO.sub(lambda m: m[1] + b" " * (len(m[2]) - 1) + b";", data)
    return _plain_dispatches(_LAUNCH.sub(_plain_launch, data))


def _plain_heads(data: bytes) -> bytes:
    """The text without calls of macros in kernels' heads: `__global__ BOUNDS(N) void k(…)`, which the grammar takes for a name."""
    out: bytearray | None = None
    for head in _HEAD.finditer(data):
        at = head.end()
        while call := _HEAD_CALL.match(data, at, at + _MOST_HEAD):
            end = _closed(data, call.end())
            if end == 0:
                break
            at = end
            if _KNOWN_CALLS.fullmatch(call[2]):
                continue
            if not re.match(rb"\s*[A-Za-z_]", data[end : end + _MOST_HEAD]):
                break
            out = out or bytearray(data)
            out[call.start(2) : end] = re.sub(rb"[^\r\n]", b" ", data[call.start(2) : end])
    return data if out is None else bytes(out)


def _closed(data: bytes, start: int) -> int:
    """The position behind the bracket that closes the one before `start`; 0 for none."""
    depth = 1
    for at in range(start, min(len(data), start + _MOST_HEAD)):
        depth += {ord("("): 1, ord(")"): -1}.get(data[at], 0)
        if depth == 0:
            return at + 1
    return 0


def _plain_dispatches(data: bytes) -> bytes:
    """The text with `DISPATCH(type, "name", statements…)` around a launch as a block of these statements."""
    out, start = bytearray(data), 0
    while match := _MACRO_CALL.search(out, start):
        start = match.end()
        line = out[out.rfind(b"\n", 0, match.start()) + 1 : match.start()]
        if b"#" in line or b"//" in line:
            continue
        code, end = _statements(out, match.end())
        if code and _may_launch(bytes(out[code:end])):
            for at in range(match.start(), code):
                if out[at] not in b"\r\n":
                    out[at] = ord(" ")
            out[match.start()], out[end] = ord("{"), ord("}")
    return bytes(out)


def _statements(data: bytearray, start: int) -> tuple[int, int]:
    """Where statements begin among the arguments of a macro that begin at `start`, and where its `)` stands; 0, 0: for none."""
    depth, angle, code, found = 1, 0, 0, False
    for at in range(start, min(len(data), start + _MOST_DISPATCHED)):
        char = data[at]
        depth += (char in b"({[") - (char in b")}]")
        if depth == 0:
            return (code, at) if found and char == ord(")") else (0, 0)
        if found or depth > 2:
            continue
        if depth == 1:
            angle += char == ord("<") and data[at - 1 : at].isalnum()
            angle -= char == ord(">") and angle > 0
            if char == ord(",") and not angle:
                code = at + 1
            found = char == ord(";")
        elif char == ord("{") and code and not data[code:at].strip():
            found = True
    return 0, 0


def _plain_attributes(data: bytes) -> bytes:
    """The text with `__maxnreg__(64)` and its like in code as one more `__global__`, which may stand wherever they do."""
    written = data.decode("utf-8", "replace")
    tokens = tokens_of(written)
    out: list[str] = []
    at = 0
    for index, token in enumerate(tokens):
        if token.kind != "name" or not HEAD_ATTRIBUTES.fullmatch(token.text.encode()):
            continue
        name, end = len("__global__"), tokens[past_call(tokens, index)].end
        behind = written[token.start + name : end]
        out += [written[at : token.start], "__global__"]
        out += [c if c in "\r\n" else " " * len(c.encode()) for c in behind]
        at = end
    return "".join([*out, written[at:]]).encode()


def _plain_launch(match: re.Match[bytes]) -> bytes:
    before, inner, after = match.groups()
    if b"\n" in before + after or not (before or after or b"{" in inner):
        return match[0]
    inner = re.sub(rb"(?<=,)(\s*)\{([^{}]*)\}|^(\s*)\{([^{}]*)\}", _bracketed, inner)
    return b"<<<" + before + inner + after + b">>>"


def _bracketed(match: re.Match[bytes]) -> bytes:
    return match[0].replace(b"{", b"(").replace(b"}", b")")
