"""Edits of text: spans of the original bytes are replaced, everything else stays as it is."""

from collections.abc import Iterable, Mapping

from engine.cuda.kernel import Edit, Span
from engine.cuda.parse import not_understood, parse
from engine.errors import SourceError
from engine.model import Program
from engine.settings.suffixes import KERNELS


def apply(data: bytes, edits: Iterable[Edit]) -> bytes:
    """The bytes with the edits made. Newlines of replacements become the file's own.

    Raises SourceError where edits overlap or lie outside the data. Insertions at one place keep their order.
    """
    windows = data.count(b"\r\n") * 2 > data.count(b"\n")
    parts: list[bytes] = []
    at = 0
    for edit in sorted(edits, key=lambda e: (e.span.start, e.span.end)):
        if not at <= edit.span.start <= edit.span.end <= len(data):
            raise SourceError(f"edits overlap at byte {edit.span.start}, or are outside the file")
        replacement = edit.text.encode("utf-8")
        if windows:
            replacement = replacement.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n")
        parts += [data[at : edit.span.start], replacement]
        at = edit.span.end
    parts.append(data[at:])
    return b"".join(parts)


def edit_program(program: Program, edits: Mapping[str, Iterable[Edit]]) -> Program:
    """The program with its files edited.

    Raises SourceError for a file that the program does not hold, and for edits that touch what the grammar did not
    understand: there nobody knows what they would change.
    """
    changed: dict[str, bytes] = {}
    for path, wanted in edits.items():
        if path not in program.files:
            raise SourceError("an edit is for a file that is not part of the program", path)
        data = program.files[path]
        listed = list(wanted)
        if path.endswith(KERNELS):
            errors = not_understood(data, path)
            for edit in listed:
                for error in errors:
                    if touches(edit.span, error):
                        raise SourceError(
                            "no edit is made next to syntax that cannot be parsed",
                            f"{path}:{parse(data, path).line_of(error.start)}",
                        )
        changed[path] = apply(data, listed)
    return program.replace(changed)


def touches(span: Span, other: Span) -> bool:
    """Whether two spans overlap or neighbour each other."""
    return span.start <= other.end and other.start <= span.end
