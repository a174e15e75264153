"""Reads a model's answer: which edits it suggests, and what each is expected to do. Nothing is checked against a program."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from engine.errors import OptimlError
from engine.llm.chat import Fault
from engine.spec.kernel_spec import LaunchExpr

# The most that is read of one answer: beyond, it is no edit of one kernel. Ours.
MOST_SUGGESTIONS = 8
MOST_REPLACEMENTS = 32
MOST_LAUNCHES = 16
_MOST_TEXT = 200_000  # characters
_MOST_HEADING = 300
_MOST_FENCES = 64

_THINKING = re.compile(r"<think(?:ing)?>.*?(?:</think(?:ing)?>|\Z)", re.S | re.I)
_HEADING = re.compile(
    r"^[#*]{0,4}[ \t]{0,4}\**(idea|expect|file|launch|grid|block|shared)\**:\**([^\n]*)$", re.M | re.I
)
_EXPECTATION = re.compile(r"([\w.]+)\W+(down|up|lower|higher|less|more)", re.I)

SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "required": ["proposals"],
    "properties": {
        "proposals": {
            "type": "array",
            "items": {
                "type": "object",
                "additionalProperties": False,
                "required": ["idea", "counter", "direction", "edits", "kernel", "launch"],
                "properties": {
                    "idea": {"type": "string"},
                    "counter": {"type": "string"},
                    "direction": {"type": "string", "enum": ["down", "up"]},
                    "edits": {
                        "type": "array",
                        "items": {
                            "type": "object",
                            "additionalProperties": False,
                            "required": ["file", "span", "search", "replace"],
                            "properties": {
                                "file": {"type": "string"},
                                "span": {"type": "string"},
                                "search": {"type": "string"},
                                "replace": {"type": "string"},
                            },
                        },
                    },
                    "kernel": {"type": "string"},
                    "launch": {
                        "type": "array",
                        "items": {
                            "type": "object",
                            "additionalProperties": False,
                            "required": ["kernel", "grid", "block", "shared"],
                            "properties": {
                                "kernel": {"type": "string"},
                                "grid": {"type": "array", "items": {"type": "string"}},
                                "block": {"type": "array", "items": {"type": "string"}},
                                "shared": {"type": "string"},
                            },
                        },
                    },
                },
            },
        }
    },
}


@dataclass
class EditError(OptimlError):
    """A suggestion that becomes no proposal. `fault` says which of the endings it is."""

    fault: Fault = Fault.UNREADABLE


@dataclass(frozen=True)
class Replacement:
    """Replace the one place where `search` stands. `file` "" is the kernel's file, or the only one that has it.

    `span` names a marked span of the kernel's file that it stands in; without a `search` that is replaced whole.
    """

    search: str
    replace: str
    file: str = ""
    span: str = ""


@dataclass(frozen=True)
class Launch:
    """How a kernel is to be launched. `kernel` "" is the one that the suggestion gives or names in its blocks.

    `extents` are expressions over the kernel's parameters, empty where they stay.
    """

    extents: LaunchExpr
    kernel: str = ""


@dataclass(frozen=True)
class Suggestion:
    """One idea as a model wrote it: nothing in it is checked against the program yet.

    `counter` and `direction` are the effect it expects; `kernel` is one or more whole definitions, "" without; `launches`
    are those that change.
    """

    idea: str
    counter: str = ""
    direction: str = ""
    replacements: tuple[Replacement, ...] = ()
    kernel: str = ""
    launches: tuple[Launch, ...] = ()


def read_answer(text: str) -> tuple[Suggestion, ...]:
    """The suggestions in an answer: JSON by `SCHEMA` (in a fence or not), else blocks and fenced kernels under headings.

    Raises EditError where there is none: EMPTY where the answer says so itself, else UNREADABLE.
    """
    text = _encodable(_THINKING.sub("", text[:_MOST_TEXT]).replace("\r\n", "\n"))
    found = _from_json(text)
    if not found:
        found = _from_text(text)
    if not found and any(isinstance(v, dict) and v.get("proposals") == [] for v in json_objects(text)):
        raise EditError("the model has nothing to propose", fault=Fault.EMPTY)
    if not found:
        raise EditError("the answer holds no edit: neither JSON by the schema, nor blocks, nor a kernel")
    return tuple(found[:MOST_SUGGESTIONS])


def json_objects(text: str) -> Iterator[Any]:
    """Every JSON value that an answer holds: as a whole, in a fence, or from its first brace to its last."""
    text = _THINKING.sub("", text[:_MOST_TEXT])
    bodies = [f.body for f in _fences(text) if f.language in ("json", "")]
    begin, end = text.find("{"), text.rfind("}")
    if 0 <= begin < end:
        bodies.append(text[begin : end + 1])
    for body in [text, *bodies]:
        try:
            value = json.loads(body, strict=False)
            # An escape may name half a character, which is no text that a file could hold.
            yield json.loads(_encodable(json.dumps(value, ensure_ascii=False)))
        except (ValueError, RecursionError):
            continue


def _encodable(text: str) -> str:
    return text.encode("utf-8", "replace").decode("utf-8")


def _from_json(text: str) -> list[Suggestion]:
    for value in json_objects(text):
        listed = value.get("proposals", [value]) if isinstance(value, dict) else value
        found = [s for s in map(_suggestion, listed if isinstance(listed, list) else []) if s is not None]
        if found:
            return found
    return []


def _suggestion(value: Any) -> Suggestion | None:
    """One item of the JSON; None where it holds nothing to do."""
    if not isinstance(value, dict):
        return None
    replacements = []
    edits = value.get("edits")
    for edit in edits if isinstance(edits, list) else ():
        if isinstance(edit, dict) and _is_edit(edit):
            replacements.append(_replacement(edit))
        else:
            return None  # half an edit is another edit than the one that was meant
    launch = value.get("launch")
    given = launch if isinstance(launch, list) else [launch] if isinstance(launch, dict) else []
    if not all(isinstance(item, dict) for item in given):
        return None
    launches = [
        _launch(_string(g.get("kernel")), _strings(g.get("grid")), _strings(g.get("block")), _string(g.get("shared")))
        for g in given
    ]
    suggestion = Suggestion(
        idea=_string(value.get("idea")),
        counter=_string(value.get("counter")),
        direction=_string(value.get("direction")),
        replacements=tuple(replacements[: MOST_REPLACEMENTS + 1]),
        kernel=_unfenced(_string(value.get("kernel"))),
        launches=tuple(found for found in launches if found is not None)[: MOST_LAUNCHES + 1],
    )
    return suggestion if suggestion.replacements or suggestion.kernel or suggestion.launches else None


def _is_edit(edit: Mapping[str, Any]) -> bool:
    return isinstance(edit.get("replace"), str) and any(isinstance(edit.get(key), str) for key in ("search", "span"))


def _replacement(edit: Mapping[str, Any]) -> Replacement:
    span = _string(edit.get("span")).strip("[]/ ")
    return Replacement(_string(edit.get("search")), edit["replace"], _string(edit.get("file")), span)


def _launch(kernel: str, grid: tuple[str, ...], block: tuple[str, ...], shared: str) -> Launch | None:
    """None where nothing changes."""
    return Launch(LaunchExpr(grid, block, shared), kernel.strip("` ")) if grid or block or shared else None


def _string(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _strings(value: Any) -> tuple[str, ...]:
    values = value if isinstance(value, list) else [value] if isinstance(value, str) else []
    return tuple(str(v) for v in values if isinstance(v, (str, int)) and str(v).strip())


def _unfenced(text: str) -> str:
    found = _fences(text)
    return found[0].body if found else text


@dataclass(frozen=True)
class _AnswerPart:
    """A fenced text (`language`, `body`) or a block (`search`, `body`), and the characters it takes."""

    begin: int
    end: int
    body: str
    language: str = ""
    search: str = ""


def _fences(text: str) -> list[_AnswerPart]:
    """The fenced texts, in one pass: answers are hostile, and patterns that look ahead for an end take quadratic time."""
    found: list[_AnswerPart] = []
    mark, language, begin, body, at = "", "", 0, 0, 0
    for line in text.splitlines(keepends=True):
        plain_line = line.strip()
        head = plain_line[: len(plain_line) - len(plain_line.lstrip("`~"))]
        if not mark and len(head) >= 3 and len(set(head)) == 1:
            mark, language, begin, body = head, plain_line[len(head) :].strip().lower(), at, at + len(line)
        elif mark and plain_line == head and head.startswith(mark):
            found.append(_AnswerPart(begin, at + len(line), text[body:at], language))
            mark = ""
        at += len(line)
    return found


def _blocks(text: str) -> list[_AnswerPart]:
    """The search/replace blocks, in one pass."""
    found: list[_AnswerPart] = []
    begin, search, middle, at = -1, 0, -1, 0
    for line in text.splitlines(keepends=True):
        mark = line.strip()
        if re.fullmatch(r"<{5,9} ?SEARCH", mark, re.I):
            begin, search, middle = at, at + len(line), -1
        elif begin >= 0 and middle < 0 and re.fullmatch(r"={5,9}", mark):
            middle, replace = at, at + len(line)
        elif begin >= 0 and middle >= 0 and re.fullmatch(r">{5,9} ?REPLACE", mark, re.I):
            old, new = text[search:middle].removesuffix("\n"), text[replace:at].removesuffix("\n")
            found.append(_AnswerPart(begin, at + len(line), new, search=old))
            begin = middle = -1
        at += len(line)
    return found


def _from_text(text: str) -> list[Suggestion]:
    """Blocks and kernels under headings `Idea:`, `Expect:`, `File:`, `Launch:`, `Grid:`, `Block:`, `Shared:`.

    Each `Idea:` begins a suggestion, each `Launch:` the launch of the kernel that it names.
    """
    blocks, fences = _blocks(text), _fences(text)
    headings = [
        m
        for m in _HEADING.finditer(text)
        if not any(p.begin <= m.start() < p.end for p in (*blocks, *fences[:_MOST_FENCES]))
    ][: 8 * MOST_SUGGESTIONS]
    starts = [m.start() for m in headings if m[1].lower() == "idea"]
    begins = [0, *starts[1:]] if starts else [0]
    found = []
    for begin, end in zip(begins, [*begins[1:], len(text)], strict=True):
        said = {m[1].lower(): m[2].strip()[:_MOST_HEADING] for m in headings if begin <= m.start() < end}
        replacements = tuple(
            Replacement(b.search, b.body, said.get("file", "")) for b in blocks if begin <= b.begin < end
        )
        kernel = ""
        if not replacements:
            bodies = [f.body for f in fences if begin <= f.begin < end and "__global__" in f.body]
            kernel = bodies[-1] if bodies else ""  # what comes last is what the model settled on
        launches = _launches_under([m for m in headings if begin <= m.start() < end])
        if not (replacements or kernel or launches):
            continue
        expected = _EXPECTATION.search(said.get("expect", ""))
        found.append(
            Suggestion(
                said.get("idea", ""), expected[1] if expected else "", expected[2].lower() if expected else "",
                replacements, kernel, launches,
            )
        )  # fmt: skip
    return found


def _launches_under(headings: list[re.Match[str]]) -> tuple[Launch, ...]:
    """The launches that headings give: those before the first `Launch:` are of a kernel without a name."""
    given: list[dict[str, str]] = [{}]
    for heading in headings:
        name, said = heading[1].lower(), heading[2].strip()[:_MOST_HEADING]
        if name == "launch":
            given.append({})
        given[-1][name] = said
    found = []
    for said_of in given[: MOST_LAUNCHES + 2]:
        grid, block = (tuple(p.strip() for p in said_of.get(k, "").split(",") if p.strip()) for k in ("grid", "block"))
        found.append(_launch(said_of.get("launch", ""), grid, block, said_of.get("shared", "")))
    return tuple(launch for launch in found if launch is not None)
