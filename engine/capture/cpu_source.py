"""A preprocessed CUDA file with its host code as C++: launches are calls of the CPU machine's runtime."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

from engine.cpu.host_source import mark_exits, place_shared, without_comments
from engine.cpu.inline_ptx import refusals, without_ptx
from engine.cuda.brackets import closing
from engine.cuda.items import ATTRIBUTES
from engine.cuda.parse import syntax_tree
from engine.cuda.readable_text import readable
from engine.cuda.typenames import split_arguments
from engine.errors import SourceError

_MARKER = re.compile(r'^# (\d+) "((?:[^"\\]|\\.)*)"((?: \d)*)$', re.M)
_SYSTEM = " 3"
_GLOBAL = re.compile(r"\b__global__\b")
_DEVICE = re.compile(r"\b__device__\b")
_ON_DEVICE = re.compile(rb"\b(?:__global__|__device__|constexpr|consteval)\b")
_MARKER_BYTES = re.compile(rb'^# (\d+) "((?:[^"\\]|\\.)*)"(?: \d)*$', re.M)
_UNCHECKED = b"__attribute__((no_sanitize_thread))"
_PTX = re.compile(r"\b[a-z]\w*\.[a-z]")  # an instruction with a type or a qualifier: `asm` of the host has none
_BODY = re.compile(r"[^;{]*\{")
_OPENED = re.compile(r"<\s*<\s*<")
_CLOSED = re.compile(r">\s*>\s*>")
_NAME_BEFORE = re.compile(r"((?:::\s*)?[A-Za-z_]\w*(?:\s*::\s*[A-Za-z_]\w*)*)\s*$")
# A parameter's name: behind a type, which is more than a qualifier; those without a name and packs are not read.
_PARAMETER = re.compile(
    r"(?:[*&>]|(?!(?:const|volatile|struct|typename)\b)\b\w+\s)\s*(?:(?:__restrict__|__restrict|const)\s+)*"
    r"(?!(?:char|short|int|long|unsigned|float|double|bool|const|__restrict__)\b)([A-Za-z_]\w*)\s*(?:\[[^\[\]]*\]\s*)*(?:=.*)?$",
    re.S,
)
_VOID = re.compile(r"((?:__global__[^;{}()]*)?)\bvoid\s+(?:__\w+(?:\([^()]*\))?\s+)*([A-Za-z_]\w*)\s*\(")
_TEMPLATE = re.compile(r"\btemplate\s*<")
_PRELUDE = """
#define OPTIML_SHARED(NAME) ::optiml::SharedPlace { [] { static unsigned slot = 0; return &slot; }(), #NAME, __LINE__ }
#define OPTIML_DYNAMIC(NAME) ::optiml::DynamicPlace { #NAME, __LINE__ }
"""


@dataclass(frozen=True)
class _Piece:
    """Text between two changes of who wrote it: the system (headers of ours and the compiler's) or the user."""

    text: str
    user: bool


def to_host_source(text: str, path: str) -> str:
    """The text with launches, shared arrays and kernels' exits as the runtime wants them; line markers stay.

    Raises SourceError for a launch that is not understood, Unsupported for a shared array that cannot be placed.
    """
    pieces = list(_pieces(text))
    plain = [without_comments(p.text) if p.user else "" for p in pieces]
    kernels = _template_counts("\n".join(plain))
    out = []
    for piece in pieces:
        if not piece.user:
            out.append(piece.text)
            continue
        changed = piece.text
        if "asm" in changed:
            changed = without_ptx(changed, without_comments(changed), _PTX)
        if "__shared__" in changed:
            changed = place_shared(changed)
        if "__global__" in changed:
            changed = _guarded(mark_exits(changed))
        changed = _launches(_unchecked(changed), kernels, path)
        out.append(_GLOBAL.sub("", changed))
    whole = _DEVICE.sub("", "".join(out))
    return f"{_PRELUDE}{refusals(whole)}\n{whole}"


def _pieces(text: str) -> Iterator[_Piece]:
    """The text by who wrote it. Where a system header's macro is expanded the preprocessor breaks the line: it is whole again."""
    user_files: dict[str, bool] = {}
    lines: list[str] = []
    user, name, number = True, "", 0  # of the line that was read last
    broken = False
    for line in text.splitlines(keepends=True):
        match = _MARKER.match(line)
        if match is None:
            if broken:
                lines[-1] = lines[-1].rstrip("\n") + line
                broken = False
            else:
                lines.append(line)
                number += 1
            continue
        own = user_files.setdefault(match[2], _SYSTEM not in match[3] and not match[2].startswith("<"))
        if own and user and match[2] == name and int(match[1]) == number and lines and not _MARKER.match(lines[-1]):
            broken = True
            continue
        if own != user and lines:
            yield _Piece("".join(lines), user)
            lines = []
        user, name, number, broken = own, match[2], int(match[1]) - 1, False
        lines.append(line)
    yield _Piece("".join(lines), user)


def _unchecked(text: str) -> str:
    """The host's functions without checks of their accesses: loops over whole inputs took ten times as long.

    What runs in a kernel, or might (a `constexpr` function), keeps them.
    """
    data = text.encode("utf-8", "surrogateescape")
    stack = [syntax_tree(readable(data))]
    places = []
    while stack:
        node = stack.pop()
        body = node.child_by_field_name("body") if node.type == "function_definition" else None
        if node.type == "function_definition":
            declarator = node.child_by_field_name("declarator")
            if body is None or declarator is None or body.type != "compound_statement":
                continue
            if not _ON_DEVICE.search(data, node.start_byte, body.start_byte) and not any(
                c.is_error for c in node.children
            ):
                places.append(node.start_byte)
            continue
        stack.extend(node.children)
    markers, out, done = list(_MARKER_BYTES.finditer(data)), [], 0
    ends = [marker.end() for marker in markers]
    for at in sorted(places):
        if not (before := bisect_right(ends, at)):
            continue
        marker = markers[before - 1]
        # On a line before, so that the compiler's messages have the author's lines and columns.
        line = int(marker[1]) + data.count(b"\n", marker.end() + 1, at)
        column = at - data.rfind(b"\n", 0, at) - 1
        out += [data[done:at], b'%s\n# %d "%s"\n%s' % (_UNCHECKED, line, marker[2], b" " * column)]
        done = at
    return b"".join([*out, data[done:]]).decode("utf-8", "surrogateescape")


def _guarded(text: str) -> str:
    """Kernels that do nothing when the host calls them like functions: nvcc's fail then for want of a launch."""
    plain = without_comments(text)
    for match in reversed(list(_GLOBAL.finditer(plain))):
        begin = _parameters(plain, match.end())
        end = closing(plain, begin) + 1 if begin >= 0 else 0
        body = _BODY.match(plain, end) if end else None
        if body:
            text = text[: body.end()] + _prologue(plain[begin + 1 : end - 1]) + text[body.end() :]
    return text


def _prologue(parameters: str) -> str:
    """What a kernel begins with: it gives its arguments, converted to its own types, and its name."""
    names = [match[1] if (match := _PARAMETER.search(p)) else "" for p in split_arguments(parameters)]
    given = f" if (::optiml::asking) ::optiml::arguments({', '.join(names)});" if names and all(names) else ""
    return f"{given} if (!::optiml::launched(__PRETTY_FUNCTION__)) return;"


def _parameters(plain: str, at: int) -> int:
    """Where the parameters of the kernel declared at this place begin; -1 for none."""
    at = plain.find("(", at)
    while at >= 0 and (before := _NAME_BEFORE.search(plain[max(0, at - 40) : at])) and before[1] in ATTRIBUTES:
        end = closing(plain, at)
        at = plain.find("(", end) if end > 0 else -1
    return at


def _template_counts(plain: str) -> dict[str, int | None]:
    """Every kernel's number of template parameters: 0 for a function, None where several kernels share the name."""
    found: dict[str, int | None] = {}
    places: dict[str, set[int]] = {}
    for match in _GLOBAL.finditer(plain):
        at = _parameters(plain, match.end())
        name = _NAME_BEFORE.search(plain[match.end() : at]) if at >= 0 else None
        if name is None:
            continue
        head = plain[max(0, match.start() - 400) : match.start()]
        head = head[max(head.rfind(c) for c in ";}") + 1 :]
        template = list(_TEMPLATE.finditer(head))
        count = 0
        if template:
            end = closing(head, template[-1].end() - 1, "<>")
            count = len(split_arguments(head[template[-1].end() : end])) if end > 0 else 0
        plain_name = name[1].rpartition("::")[2].strip()
        # A declaration and its definition are one kernel; overloads differ in their parameters.
        end = closing(plain, at)
        types = hash(re.sub(r"\s+|\b\w+(?=\s*[,)])", "", plain[at : end + 1]))
        places.setdefault(plain_name, set()).add(types)
        found[plain_name] = count if len(places[plain_name]) == 1 else None
    # A host function of the same name: the compiler has to choose by the arguments.
    for match in _VOID.finditer(plain):
        if match[2] in found and "__global__" not in match[1]:
            found[match[2]] = None
    return found


def _launches(text: str, kernels: dict[str, int | None], path: str) -> str:
    """Every `kernel<<<…>>>(…)` as a call; from the last to the first, so that places stay."""
    plain = without_comments(text)
    for match in reversed(list(_OPENED.finditer(plain))):
        found = _CLOSED.search(plain, match.end())
        while found and _depth(plain, match.end(), found.start()):
            found = _CLOSED.search(plain, found.end())
        begin = _callee(plain, match.start())
        if found is None or begin < 0:
            line = text.count("\n", 0, match.start()) + 1
            raise SourceError(
                f"unsupported launch: {plain[match.start() : match.start() + 60]!r}", f"{path}, block {line}"
            )
        callee, config = text[begin : match.start()].strip(), text[match.end() : found.start()]
        text = text[:begin] + _call(callee, config, kernels) + text[found.end() :]
    return text


def _call(callee: str, config: str, kernels: dict[str, int | None]) -> str:
    base, angle, rest = callee.partition("<")
    plain = base.strip().rpartition("::")[2].strip()
    name = '"' + re.sub(r'[\s"\\]+', " ", callee) + '"'
    count = kernels.get(plain, 0)
    given = len(split_arguments(rest.rstrip().removesuffix(">"))) if angle else 0
    where = f"::optiml::Config({config}), {name}"
    if plain in kernels and (count is None or given != count):
        return f"::optiml::deduced({where}, [=](auto... optiml_given) {{ {callee}(optiml_given...); }})"
    return f"::optiml::launcher({where}, {callee})"


def _callee(plain: str, end: int) -> int:
    """Where the expression before `<<<` begins; -1 where it is none that is known."""
    at = end
    while at and plain[at - 1].isspace():
        at -= 1
    if at and plain[at - 1] == ">":
        depth, k = 0, at - 1
        while k >= 0:
            depth += (plain[k] == ">") - (plain[k] == "<")
            if depth == 0:
                break
            k -= 1
        at = k
    elif at and plain[at - 1] == ")":
        depth, k = 0, at - 1
        while k >= 0:
            depth += (plain[k] == ")") - (plain[k] == "(")
            if depth == 0:
                return k
            k -= 1
        return -1
    match = _NAME_BEFORE.search(plain[max(0, at - 300) : at])
    return max(0, at - 300) + match.start(1) if match and at > 0 else -1


def _depth(plain: str, begin: int, end: int) -> int:
    return sum((c in "([{") - (c in ")]}") for c in plain[begin:end])
