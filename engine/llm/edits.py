"""From a model's suggestion to a proposal: located exactly in the program, and screened."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from engine.cuda.edit import edit_program
from engine.cuda.kernel import Edit, Span, Unit
from engine.cuda.parse import parse
from engine.errors import OptimlError
from engine.llm.answers import MOST_REPLACEMENTS, EditError, Replacement, Suggestion
from engine.llm.chat import Fault
from engine.llm.comments import known_comments, without_comments
from engine.llm.failures import without_figures
from engine.llm.launches import launch_edits
from engine.llm.plain_words import plain
from engine.llm.spans import spans_of, without_marks
from engine.model import Program
from engine.rewrite.proposal import Proposal, merge
from engine.rewrite.site import Site
from engine.spec.kernel_spec import KernelSpec
from engine.spec.tables import tuning_lines
from engine.tune.offers import check_declared
from engine.verify.screen import screen

# The most that is read of one answer: beyond, it is no edit of one kernel. Ours.
_MOST_SEARCH = 20_000  # characters
_MOST_ITEMS = 64  # at file scope beside a whole kernel

_OPEN = re.compile(r"//[ \t]*optiml:[ \t]*(?:tune|where)[ \t]+[^\s=.]")
_TOKEN = re.compile(r"\w+|[^\w\s]")


@dataclass(frozen=True)
class Workplace:
    """What suggestions are made for: one site per step of the program they edit, and the original that bounds them.

    `counters` are the names that an expectation may use.
    """

    sites: tuple[Site, ...]
    original: Program
    counters: Sequence[str] = field(default=())

    @property
    def program(self) -> Program:
        return self.sites[0].program

    @property
    def spec(self) -> KernelSpec:
        return self.sites[0].spec


# What says already how a function is linked, or is no plain function.
_LINKED = frozenset({"static", "inline", "__inline__", "__forceinline__", "constexpr", "extern", "template", "__host__", "__global__",
                     "struct", "class", "union", "namespace", "operator"})  # fmt: skip


def make_proposal(suggestion: Suggestion, place: Workplace, *, prior: float = 0.5, **parameters: int | str) -> Proposal:
    """The suggestion as a proposal for the place's program.

    Its idea, and the counter that it expects to change with the direction, are among the parameters. Raises EditError:
    NOT_FOUND, AMBIGUOUS, FORBIDDEN (outside device functions and launch arguments), UNCHANGED or UNREADABLE (figures left open in a
    way that no tuner can use, too).
    """
    if len(suggestion.replacements) > MOST_REPLACEMENTS:
        raise EditError(f"has over {MOST_REPLACEMENTS} replacements")
    located = _located(suggestion.replacements, place)
    whole = _whole(suggestion.kernel, place) if suggestion.kernel else {}
    changed = merge(located, whole)
    edits = merge(changed, launch_edits(suggestion, place, changed)) if changed is not None else None
    if edits is None:
        raise EditError("its edits overlap", do="give each place once", fault=Fault.AMBIGUOUS)
    known = known_comments([*place.original.files.values(), *place.program.files.values()])
    edits = {
        path: tuple(replace(edit, text=without_comments(edit.text, known)) for edit in found)
        for path, found in edits.items()
    }
    try:
        program = edit_program(place.program, edits)
        if program.digest == place.program.digest:
            raise EditError("nothing would change", fault=Fault.UNCHANGED)
        reason = screen(place.original, program, place.spec)
    except EditError:
        raise
    except OptimlError as error:
        raise EditError(error.what, error.where, error.do, fault=Fault.FORBIDDEN) from None
    if reason:
        raise EditError(reason, do="change only the kernel, what it alone calls, and its launch", fault=Fault.FORBIDDEN)
    _check_open(place, program)
    idea = plain(suggestion.idea) or "Rewrite the kernel"
    counter = suggestion.counter if suggestion.counter in place.counters else ""
    direction = "up" if suggestion.direction in ("up", "higher", "more") else "down"
    expected: dict[str, int | str] = {"expects": f"{counter} {direction}"} if counter else {}
    return Proposal("llm", _slug(idea), idea, edits, {**expected, **parameters}, prior)


def _slug(idea: str) -> str:
    return "_".join(re.findall(r"[a-z0-9]+", idea.lower())[:6])[:48] or "edit"


def _check_open(place: Workplace, program: Program) -> None:
    """Raises EditError where the suggestion declares open constants that no search could use."""

    def lines(of: Program) -> set[tuple[str, str]]:
        return {(kind, text) for kind, text, _ in tuning_lines(parse(of.data, of.kernel_file))}

    try:
        if lines(program) - lines(place.program):
            path = place.spec.origin.rpartition(":")[0]
            check_declared(program, place.spec, path or None, place.sites[0].target)
    except OptimlError as error:
        what = f"its tune lines cannot be used: {without_figures(error.what)}"
        raise EditError(what, do="correct these lines, or leave them out", fault=Fault.UNREADABLE) from None


def _located(replacements: Sequence[Replacement], place: Workplace) -> dict[str, tuple[Edit, ...]]:
    edits: dict[str, list[Edit]] = {}
    program = place.program
    for given in replacements:
        replacement = replace(given, search=without_marks(given.search), replace=without_marks(given.replace))
        path, edit = _locate(replacement, place)
        if edit.text.encode() != program.files[path][edit.span.start : edit.span.end].replace(b"\r\n", b"\n"):
            edits.setdefault(path, []).append(edit)
    return {path: tuple(found) for path, found in edits.items()}


def _locate(replacement: Replacement, place: Workplace) -> tuple[str, Edit]:
    program, search = place.program, replacement.search
    shown = " ".join(search.split())[:80]
    span = spans_of(place).get(replacement.span) if replacement.span else None
    if replacement.span and span is None:
        what = f"no span '{plain(replacement.span, 20)}' is marked"
        raise EditError(what, do="name one that is, or none", fault=Fault.NOT_FOUND)
    if span is not None and not search.strip():
        return program.kernel_file, Edit(span, replacement.replace.replace("\r\n", "\n").strip())
    if not search.strip():
        raise EditError("a search text is empty", do="copy the lines to replace", fault=Fault.NOT_FOUND)
    if len(search) > _MOST_SEARCH:
        raise EditError(f"a search text is over {_MOST_SEARCH} characters", fault=Fault.NOT_FOUND)
    if replacement.file and replacement.file not in program.files:
        raise EditError(
            "an edit names a file that is not part of the program", plain(replacement.file), fault=Fault.FORBIDDEN
        )
    paths = [replacement.file] if replacement.file else [program.kernel_file, *sorted(program.files)]
    windows = {path: Span(0, len(program.files[path])) for path in paths}
    if span is not None:
        windows = {program.kernel_file: span}
    for tolerant in (False, True):
        for path, window in windows.items():
            spans = _matches(program.files[path][window.start : window.end], search, tolerant=tolerant)
            if len(spans) > 1:
                raise EditError(
                    f"the search text '{shown}' stands there more than once",
                    path,
                    "add lines around it",
                    fault=Fault.AMBIGUOUS,
                )
            if spans:
                text = replacement.replace.replace("\r\n", "\n")
                at = Span(window.start + spans[0].start, window.start + spans[0].end)
                return path, Edit(at, text.strip() if tolerant else text)
    raise EditError(f"the search text '{shown}' is not in the source", do="copy it exactly", fault=Fault.NOT_FOUND)


def _matches(data: bytes, search: str, *, tolerant: bool) -> list[Span]:
    """Up to two places of the text; `tolerant` lets white space differ."""
    if tolerant:
        tokens = _TOKEN.findall(search)
        pattern = re.escape(tokens[0])
        for before, token in pairwise(tokens):
            words = (before[-1].isalnum() or before[-1] == "_") and (token[0].isalnum() or token[0] == "_")
            pattern += (r"\s+" if words else r"\s*") + re.escape(token)
        head = r"(?<!\w)" if tokens[0][0].isalnum() or tokens[0][0] == "_" else ""
        tail = r"(?!\w)" if tokens[-1][-1].isalnum() or tokens[-1][-1] == "_" else ""
        found: list[Span] = []
        for match in re.compile((head + pattern + tail).encode()).finditer(data):
            found.append(Span(*match.span()))
            if len(found) == 2:
                break
        return found
    wanted = search.replace("\r\n", "\n").encode()
    spans: list[Span] = []
    for form in {wanted, wanted.replace(b"\n", b"\r\n")}:
        at = data.find(form)
        while at >= 0 and len(spans) < 2:
            spans.append(Span(at, at + len(form)))
            at = data.find(form, at + 1)
    return spans


def _whole(text: str, place: Workplace) -> dict[str, tuple[Edit, ...]]:
    """Edits that bring in a kernel given as a whole, with the helpers that come along.

    A definition that the file has already is replaced where it stands; what is new goes before the kernel.
    """
    text = text.strip("\n") + "\n"
    unit = place.sites[0].unit
    try:
        given = parse(text.encode(), unit.path)
    except OptimlError as error:
        raise EditError(error.what, fault=Fault.UNREADABLE) from None
    names = {k.name for k in given.kernels}
    site = next((s for s in place.sites if s.kernel.name in names), None)
    if site is None:
        wanted = place.sites[0].kernel.name
        raise EditError(f"the kernel given as a whole is not '{wanted}'", do="keep its name", fault=Fault.FORBIDDEN)
    there = {f.name: f for f in (*unit.functions, *unit.kernels)}
    edits: list[Edit] = []
    replaced: list[Span] = []
    for function in (*given.functions, *given.kernels):
        old = there.get(function.name)
        if old is None or any(function.span == span for span in replaced):
            continue
        replaced.append(function.span)
        written = given.text(function.span)
        if _squeezed(written) != _squeezed(unit.text(old.span)):
            edits.append(Edit(old.span, written))
    known = _squeezed(unit.data.decode("utf-8", "replace"))
    beside = [span for span in _beside(given) if not any(span.overlaps(r) for r in replaced)]
    if len(beside) > _MOST_ITEMS:
        raise EditError(f"brings over {_MOST_ITEMS} definitions beside the kernel", fault=Fault.FORBIDDEN)
    added = "".join(
        _internal(given.text(span).strip("\n")) + ("\n" if _OPEN.match(given.text(span)) else "\n\n")
        for span in beside
        if _squeezed(given.text(span)) not in known
    )
    if added:
        at = site.declaration_start
        edits.append(Edit.insert(at, added))
    return {unit.path: tuple(sorted(edits, key=lambda e: e.span))} if edits else {}


def _internal(text: str) -> str:
    """A new device function with internal linkage.

    nvcc gives others a symbol in the host object: two files with the same helper would not link, and host code would change.
    """
    head = text[: max(0, text.find("("))]
    words = set(re.findall(r"\w+", head))
    if "__device__" in words and text.endswith("}") and not words & _LINKED and not {"=", "{", "["} & set(head):
        return f"static {text}"
    return text


def _beside(given: Unit) -> list[Span]:
    """The spans of everything at file scope, in order; of comments only those that leave figures to the tuner."""
    found: list[Span] = []
    for node in given.root.children:
        span = Span(node.start_byte, node.end_byte)
        if given.text(span) == ";":
            # The end of a type's definition stands apart from it; with attributes (`struct __align__(16) V`) as a statement.
            if found:
                found[-1] = Span(found[-1].start, span.end)
        elif node.type != "comment" or _OPEN.match(given.text(span)):
            found.append(span)
    return found


def _squeezed(text: str) -> str:
    return " ".join(_TOKEN.findall(text))
