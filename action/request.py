"""What one run is about, pinned once by the gate and passed from job to job as one line of JSON."""

from __future__ import annotations

import dataclasses
import json
import re
from dataclasses import dataclass
from typing import Any

from engine.errors import UsageError

_SHA = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_ARCH = re.compile(r"sm_\d{2,3}a?")
_MAX = 16 << 10


@dataclass(frozen=True)
class Request:
    """A pull request at two commits, and what was asked for: "" and 0 where everything or the settings' value is meant.

    `base` is the tip of the branch that the pull request goes to, `head` its own. `fork`: the head is another repository's.
    """

    pull: int
    base: str
    head: str
    fork: bool
    path: str = ""
    kernel: str = ""
    budget_s: float = 0.0
    arch: str = ""
    comment: int = 0  # of the comment that asked, 0: none did
    search: bool = True  # False: compare with the base only

    def to_json(self) -> str:
        """One line."""
        return json.dumps(dataclasses.asdict(self), sort_keys=True)


def read_request(text: str) -> Request:
    """The request in a line of JSON. Raises UsageError for anything that is none."""
    if len(text) > _MAX:
        raise UsageError(f"has {len(text)} characters", "request", "pass on what the gate gave")
    try:
        data: Any = json.loads(text)
    except (ValueError, RecursionError):
        raise UsageError("is no JSON", "request", "pass on the gate's output 'request'") from None
    fields = {field.name: field for field in dataclasses.fields(Request)}
    if not isinstance(data, dict) or not set(data) <= set(fields):
        raise UsageError("has other fields than a request", "request", "use one version of the action in all jobs")
    kinds: dict[str, type | tuple[type, ...]] = {"int": int, "str": str, "bool": bool, "float": (int, float)}
    for name, value in data.items():
        kind = str(fields[name].type)
        if not isinstance(value, kinds[kind]) or (isinstance(value, bool) and kind != "bool"):
            raise UsageError(f"has a wrong '{name}'", "request")
    try:
        request = Request(**data)
    except TypeError:
        raise UsageError("lacks a field", "request") from None
    right = (
        _SHA.fullmatch(request.base)
        and _SHA.fullmatch(request.head)
        and 0 < request.pull < 2**31
        and 0 <= request.comment < 2**53
    )
    if not right or (request.arch and not _ARCH.fullmatch(request.arch)) or not 0 <= request.budget_s <= 86_400:
        raise UsageError("is out of range", "request", "pass on what the gate gave")
    return request
