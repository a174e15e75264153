"""Slash commands in comments: the first line, words from an allow list, nothing that a shell would ever see."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from engine.settings.suffixes import NAMED

_MAX_BODY = 65_536
_MAX_LINE = 500
_WORD = re.compile(r"[\w./:=,<>+@-]{1,300}", re.ASCII)
_TARGET = re.compile(
    rf"(?P<path>[\w+@][\w./+@-]{{0,250}}\.(?:{NAMED}))?(?::(?P<kernel>[A-Za-z_][\w:]{{0,120}}(?:<[\w:,-]{{0,80}}>)?))?",
    re.ASCII,
)
_BUDGET = re.compile(r"(\d{1,5})(s|m|h)?", re.ASCII)
_ARCH = re.compile(r"sm_\d{2,3}a?", re.ASCII)
_NUMBER = re.compile(r"[1-9]\d{0,2}", re.ASCII)
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, None: 1.0}
_MOST_BUDGET_S = 6 * 3600.0
PROPOSERS = ("rules", "tuner", "llm")
MOST_PULLS = 100

HELP = """\
Commands, on the first line of a comment:

- `/optiml optimize [path][:kernel] [--budget 10m] [--arch sm_90] [--proposers rules,tuner,llm]`: search for faster kernels
- `/optiml tune [path][:kernel] [--budget 10m] [--arch sm_90]`: search templates only, as `optimize --proposers tuner`
- `/optiml check`: compare the changed kernels with the base, without a search
- `/optiml apply [n|all]`: commit a suggestion to the head branch
- `/optiml pr [n|all]`: open a pull request with a suggestion, against the head branch
- `/optiml explain [n]`: show the evidence for a suggestion, and its patch
- `/optiml status`: show what is running
- `/optiml cancel`: end the run
- `/optiml help`: show this text

In an issue:

- `/optiml all [--budget 2h] [--max-prs 5]`: search every kernel of the default branch, and open a pull request for each faster version
"""


@dataclass(frozen=True)
class Optimize:
    """Search. "" and None where everything, or the settings' value, is meant."""

    path: str = ""
    kernel: str = ""
    budget_s: float | None = None
    arch: str = ""
    proposers: tuple[str, ...] = ()


@dataclass(frozen=True)
class Check:
    """Compare the changed kernels with the base, without a search."""


@dataclass(frozen=True)
class Apply:
    """Commit suggestion `number`; None: all of them."""

    number: int | None = 1


@dataclass(frozen=True)
class Pr:
    """Open a pull request with suggestion `number` against the head branch; None: one for each."""

    number: int | None = 1


@dataclass(frozen=True)
class Explain:
    """Say more of suggestion `number`; None: of all."""

    number: int | None = None


@dataclass(frozen=True)
class Status:
    """Say what is running."""


@dataclass(frozen=True)
class Cancel:
    """End what is running."""


@dataclass(frozen=True)
class All:
    """Search every kernel of the default branch. None and 0: as the settings have it."""

    budget_s: float | None = None
    max_prs: int = 0


@dataclass(frozen=True)
class Help:
    """Show the help. `reason` is in words of ours: what was written is not repeated."""

    reason: str = ""


Command = Optimize | Check | Apply | Pr | Explain | Status | Cancel | All | Help


def parse(body: str) -> Command | None:
    """The command of a comment; None where the comment is none. Raises nothing.

    Only the first line counts, and only if it begins with the word `/optiml` and has no characters that no command has. What
    is written wrong gives Help.
    """
    if len(body) > _MAX_BODY:
        return None
    line = re.split(r"[\r\n]", body, maxsplit=1)[0]
    if len(line) > _MAX_LINE or not re.match(r"/optiml(?:[ \t]|$)", line):
        return None
    words = [word for word in re.split(r"[ \t]+", line)[1:] if word]
    if not words:
        return Help()
    if not all(_WORD.fullmatch(word) for word in words):
        return None
    verb = _VERBS.get(words[0])
    if verb is None:
        return Help("unknown command")
    try:
        return verb(words[1:])
    except _WrongError as error:
        return Help(str(error))


class _WrongError(Exception):
    """Wrong arguments; the text is ours."""


def _options(words: list[str], known: tuple[str, ...], file: bool) -> dict[str, str]:
    """The value of each option that is given; that of "" is the file, where there may be one."""
    given: dict[str, str] = {}
    waiting = list(words)
    while waiting:
        word = waiting.pop(0)
        name, equals, value = word.partition("=") if word.startswith("--") else ("", "=", word)
        if name in given:
            raise _WrongError("an option or the file is repeated")
        if name not in known and not (file and not name):
            raise _WrongError("unknown option" if name else "this command takes no file")
        if not equals:
            if not waiting:
                raise _WrongError(f"{name} needs a value")
            value = waiting.pop(0)
        given[name] = value
    return given


def _tune(words: list[str]) -> Optimize:
    return replace(_search(words, ("--budget", "--arch")), proposers=("tuner",))


def _optimize(words: list[str]) -> Optimize:
    return _search(words, ("--budget", "--arch", "--proposers"))


def _search(words: list[str], options: tuple[str, ...]) -> Optimize:
    given = _options(words, options, True)
    path, kernel = _target(given[""]) if "" in given else ("", "")
    arch = given.get("--arch", "")
    if "--arch" in given and not _ARCH.fullmatch(arch):
        raise _WrongError("invalid --arch: expected a target such as sm_90")
    proposers = tuple(dict.fromkeys(given["--proposers"].split(","))) if "--proposers" in given else ()
    if not set(proposers) <= set(PROPOSERS):
        raise _WrongError(f"invalid --proposers: expected some of {', '.join(PROPOSERS)}")
    return Optimize(path, kernel, _budget(given["--budget"]) if "--budget" in given else None, arch, proposers)


def _all(words: list[str]) -> All:
    given = _options(words, ("--budget", "--max-prs"), False)
    most = given.get("--max-prs", "0")
    if "--max-prs" in given and not (_NUMBER.fullmatch(most) and int(most) <= MOST_PULLS):
        raise _WrongError(f"invalid --max-prs: expected a number from 1 to {MOST_PULLS}")
    return All(_budget(given["--budget"]) if "--budget" in given else None, int(most))


def _target(word: str) -> tuple[str, str]:
    found = _TARGET.fullmatch(word)
    path = (found["path"] or "") if found else ""
    if found is None or any(part in ("", ".", "..") for part in (path.split("/") if path else ["x"])):
        raise _WrongError("invalid target: expected path.cu, path.cu:kernel or :kernel, inside the repository")
    return path, found["kernel"] or ""


def _budget(value: str) -> float:
    found = _BUDGET.fullmatch(value)
    seconds = int(found[1]) * _UNITS[found[2]] if found else 0.0
    if not 1.0 <= seconds <= _MOST_BUDGET_S:
        raise _WrongError("invalid --budget: expected 1s to 6h, e.g. 90s or 10m")
    return seconds


def _numbered(words: list[str], otherwise: int | None) -> int | None:
    if not words:
        return otherwise
    if words == ["all"]:
        return None
    if len(words) > 1 or not _NUMBER.fullmatch(words[0]):
        raise _WrongError("expected the number of a suggestion, or 'all'")
    return int(words[0])


def _alone(kind: type[Check] | type[Status] | type[Cancel] | type[Help]) -> Callable[[list[str]], Command]:
    def make(words: list[str]) -> Command:
        if words:
            raise _WrongError("this command takes no arguments")
        return kind()

    return make


_VERBS: dict[str, Callable[[list[str]], Command]] = {
    "optimize": _optimize,
    "tune": _tune,
    "check": _alone(Check),
    "apply": lambda words: Apply(_numbered(words, 1)),
    "pr": lambda words: Pr(_numbered(words, 1)),
    "explain": lambda words: Explain(_numbered(words, None)),
    "status": _alone(Status),
    "cancel": _alone(Cancel),
    "all": _all,
    "help": _alone(Help),
}
