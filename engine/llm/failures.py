"""What a model is told of a candidate that failed: enough to correct it, and nothing that a check could be recognised by."""

import re
from dataclasses import dataclass

from engine.model import Evaluation, LaunchConfig, Outcome, Program
from engine.spec.data import buffer_elements
from engine.spec.kernel_spec import Case, KernelSpec

_AROUND = 3  # lines before and after
_FIGURE = re.compile(r"(?<![\w.])\d[\w.]*")
_MOST_SIZES = 4
_CONTENTS = re.compile(r"\(with ([^()]+)\)\Z")  # what kind of inputs a result differs with


@dataclass(frozen=True)
class Failed:
    """An edit that failed. `ending` and `detail` say how, `diff` is what it changed of the program that it was made for.

    `earlier` are corrections of the same edit that failed as well, `learnt` corrections of others in this run that passed.
    """

    idea: str
    ending: str
    detail: str = ""
    diff: str = ""
    earlier: tuple[str, ...] = ()
    learnt: tuple[str, ...] = ()


def detail(candidate: Program, evaluation: Evaluation, spec: KernelSpec, launch: LaunchConfig | None) -> str:
    """The compiler's or the checker's words, where the first difference stands, the failing case by its form, and the lines.

    `launch` is one of the candidate's launches. No sizes of a case, no values and no tolerance are told.
    """
    failure = evaluation.failure
    if failure is None:
        return ""
    parts = []
    if evaluation.outcome in (Outcome.COMPILE_ERROR, Outcome.RACE):
        parts.append(failure.reason)
    elif evaluation.outcome is not Outcome.WRONG_RESULT:
        parts.append(without_figures(failure.reason))
    case = next((case for case in (*spec.check, *spec.time) if case.name == failure.case), None)
    if evaluation.outcome is Outcome.WRONG_RESULT and failure.argument and failure.index is not None:
        at = ""
        if case is not None:
            at = _place(failure.index, buffer_elements(spec, case).get(failure.argument, 0))
        contents = _CONTENTS.search(failure.reason)
        words = f"; the inputs: {without_figures(contents[1])}" if contents else ""
        parts.append(f"first difference: {failure.argument}[{failure.index}]{at}{words}")
    if case is not None and (words := in_words(case, launch)):
        parts.append(f"in a case where {words}")
    if failure.line is not None:
        parts.append(lines_around(candidate.data, failure.line))
    return "\n".join(parts)


def _place(index: int, elements: float) -> str:
    if not 0 <= index < elements:
        return ""
    share = index / elements
    return ", at its begin" if share < 0.05 else ", near its end" if share > 0.95 else ", amid it"


def in_words(case: Case, launch: LaunchConfig | None) -> str:
    """A case's sizes by their form: an edit that fails at an edge can be corrected, and none can be made for the check."""
    return " and ".join(
        f"{name} is {_form(value, launch)}"
        for name, value in list(case.sizes.items())[:_MOST_SIZES]
        if isinstance(value, int)
    )


def _form(value: int, launch: LaunchConfig | None) -> str:
    threads = launch.threads if launch is not None else 0
    below = "below the block's threads" if 0 < value < threads else ""
    if value % 32:
        even = "odd" if value % 2 else "even, but no multiple of 4" if value % 4 else "no multiple of 32"
    else:
        even = "a multiple of 32" if not threads or value % threads else "a multiple of the block's threads"
    return f"{below} and {even}" if below else even


def lines_around(data: bytes, line: int) -> str:
    """Some lines of a file, the middle one marked; spec lines left out. `line` is 1-based."""
    shown = []
    for number, text in enumerate(data.decode("utf-8", "replace").split("\n"), 1):
        if abs(number - line) <= _AROUND and not re.match(r"\s*//\s*optiml:", text):
            shown.append(f"{'>' if number == line else ' '} {number:4} {text.rstrip()}")
    return "\n".join(shown)


def without_figures(reason: str) -> str:
    """Why a program was refused, for a model: a launch is refused in the first case that it has no value in, and no size of a case
    is told."""
    return _FIGURE.sub("…", reason)
