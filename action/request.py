"""What one run is about, pinned once by the gate and passed from job to job as one line of JSON."""

from __future__ import annotations

import dataclasses
import json
import re
from dataclasses import dataclass
from typing import Any

from bot.commands import MOST_PULLS, PROPOSERS
from engine.errors import UsageError

SEARCHES = ("optimize", "check", "baseline", "all")
COMMANDS = (*SEARCHES, "apply", "pr", "explain", "status", "cancel", "help", "queue")
# Which of the workflow's posting jobs carries a command out: each has a token for its own work only.
_JOBS = {
    "optimize": "review",
    "check": "review",
    "queue": "review",
    "apply": "commit",
    "pr": "commit",
    "cancel": "cancel",
    "baseline": "",
    "all": "pulls",
}
_SHA = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_ARCH = re.compile(r"sm_\d{2,3}a?")
_PARTS = re.compile(r"(?:[a-z0-9][a-z0-9-]{0,40}(?:,(?!$)|$)){0,64}")
_LOGIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")
_PROPOSER = f"(?:{'|'.join(PROPOSERS)})"
_PROPOSERS = re.compile(f"{_PROPOSER}(?:,{_PROPOSER}){{0,2}}")
_MAX = 16 << 10


@dataclass(frozen=True)
class Request:
    """A pull request at two commits, and what was asked for: "" and 0 where everything or the settings' value is meant.

    `base` is the tip of the branch that the pull request goes to, `head` its own. Without a pull request: for `baseline` the
    default branch before and after a push, for `queue` the commits of a merge group, for `all` twice the tip of the default branch;
    `pull` is then the issue that asked. `fork`: the head is another repository's.
    """

    pull: int
    base: str
    head: str
    fork: bool
    path: str = ""
    kernel: str = ""
    budget_s: float = 0.0
    arch: str = ""
    proposers: str = ""  # of PROPOSERS, with commas between
    comment: int = 0  # of the comment that asked, 0: none did
    command: str = "optimize"  # of COMMANDS
    number: int = 0  # of the suggestion that a command is about, 0: all
    by: str = ""  # who asked, by login and number
    by_id: int = 0
    reason: str = ""  # help: what was wrong; else why nothing is done
    status: int = 0  # of the status comment, where the gate wrote one
    parts: str = ""  # names of the jobs that share the search, with commas between; "": one does
    settings: str = ""  # what the base's settings say of posting, as JSON; "": to be read again
    branch: str = ""  # all: the default branch
    most: int = 0  # all: how many pull requests may be open at once
    earlier: int = 0  # the run that announced itself before, whose bundle may answer; 0: none

    @property
    def searches(self) -> bool:
        """Whether the job with the GPU has something to do."""
        return self.command in SEARCHES and not self.reason

    @property
    def job(self) -> str:
        """The posting job of the workflow: review, commit, cancel, answer or pulls; "" where nothing is posted."""
        return "answer" if self.reason else _JOBS.get(self.command, "answer")

    def to_json(self) -> str:
        """One line."""
        return json.dumps(dataclasses.asdict(self), sort_keys=True)


def read_request(text: str) -> Request:
    """The request in a line of JSON. Raises UsageError for anything that is none."""
    if len(text) > _MAX:
        raise UsageError(f"has {len(text)} characters", "request", "pass the gate's output 'request' unchanged")
    try:
        data: Any = json.loads(text)
    except (ValueError, RecursionError):
        raise UsageError("is not JSON", "request", "pass the gate's output 'request'") from None
    fields = {field.name: field for field in dataclasses.fields(Request)}
    if not isinstance(data, dict) or not set(data) <= set(fields):
        raise UsageError(
            "does not have the fields of a request", "request", "use the same version of the action in all jobs"
        )
    kinds: dict[str, type | tuple[type, ...]] = {"int": int, "str": str, "bool": bool, "float": (int, float)}
    for name, value in data.items():
        kind = str(fields[name].type)
        if not isinstance(value, kinds[kind]) or (isinstance(value, bool) and kind != "bool"):
            raise UsageError(f"has an invalid '{name}'", "request")
    try:
        request = Request(**data)
    except TypeError:
        raise UsageError("lacks a field", "request") from None
    if not _right(request):
        raise UsageError("is out of range", "request", "pass the gate's output 'request' unchanged")
    return request


def _right(request: Request) -> bool:
    numbers = (
        (0 if request.command in ("baseline", "queue", "all") else 1) <= request.pull < 2**31
        and 0 <= request.comment < 2**53
        and 0 <= request.by_id < 2**53
        and 0 <= request.status < 2**53
        and 0 <= request.number < 1000
        and 0 <= request.earlier < 2**53
        and 0 <= request.most <= MOST_PULLS
        and 0 <= request.budget_s <= 86_400
    )
    words = (
        request.command in COMMANDS
        and (not request.arch or _ARCH.fullmatch(request.arch))
        and (not request.by or _LOGIN.fullmatch(request.by))
        and (not request.proposers or _PROPOSERS.fullmatch(request.proposers))
        and _PARTS.fullmatch(request.parts)
        and len(request.branch) <= 255
        and request.branch.isprintable()
        and len(request.reason) <= 500
        and request.reason.isprintable()
    )
    return bool(numbers and words and _SHA.fullmatch(request.base) and _SHA.fullmatch(request.head))
