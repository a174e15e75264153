"""The jobs that share one search: for each kind of device, its kernels in so many groups. The gate decides them by inputs alone."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from action.request import Request
from engine.errors import UsageError

_MOST_JOBS, _MOST_LABELS = 64, 20
_DEVICE = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,28}[a-z0-9])?")
_SHARE = re.compile(r"(?:^|-)\d+of\d+$")  # ends the name of a job
_PART = re.compile(r"(?P<device>[a-z0-9-]{0,30}?)-?(?:(?P<number>\d{1,2})of(?P<count>\d{1,2}))?")


@dataclass(frozen=True)
class SearchJob:
    """One job of the matrix. `part` is its name, "" where it is the only one; `device` its kind's, "" where there is one kind."""

    part: str
    device: str
    runner: tuple[str, ...]


@dataclass(frozen=True)
class Share:
    """Which kernels a job takes: each `count`-th, beginning with the `number`-th of them (from 1)."""

    device: str = ""
    number: int = 1
    count: int = 1


def search_jobs(request: Request, runners: str, jobs: str) -> tuple[SearchJob, ...]:
    """The jobs of a request. `runners`: labels of the runner as a JSON list, or an object with a list for each kind of device.

    `jobs` is how many share the kernels on each kind: one where a single kernel is asked for, or a push is measured, whose baseline
    one job keeps. Raises UsageError.
    """
    kinds = _kinds(runners)
    count = _count(jobs)
    if request.kernel or request.command == "baseline":
        count = 1
    if len(kinds) * count > _MOST_JOBS:
        raise UsageError(
            f"makes {len(kinds) * count} jobs", "input 'jobs'", f"at most {_MOST_JOBS} jobs can share a search"
        )
    return tuple(
        SearchJob(_part(device, number, count), device, labels)
        for device, labels in kinds.items()
        for number in range(1, count + 1)
    )


def matrix(jobs: tuple[SearchJob, ...]) -> str:
    """What a workflow's `strategy.matrix.include` takes, as JSON."""
    return json.dumps([{"part": job.part, "device": job.device, "runner": list(job.runner)} for job in jobs])


def share_of(part: str, request: Request) -> Share:
    """The share that a job of this name has. Raises UsageError where the request has no such job."""
    if not part and not request.parts:
        return Share()
    found = _PART.fullmatch(part)
    if part not in request.parts.split(",") or not found:
        raise UsageError(f"'{part[:40]}' is not a job of this request", "input 'part'", "pass the matrix of the gate")
    return Share(found["device"], int(found["number"] or 1), int(found["count"] or 1))


def _part(device: str, number: int, count: int) -> str:
    return "-".join(word for word in (device, f"{number}of{count}" if count > 1 else "") if word)


def _kinds(text: str) -> dict[str, tuple[str, ...]]:
    try:
        data: Any = json.loads(text) if text else []
    except (ValueError, RecursionError):
        raise _no_runners() from None
    kinds = data if isinstance(data, dict) else {"": data}
    if not kinds or not all(_is_kind(device, labels, len(kinds)) for device, labels in kinds.items()):
        raise _no_runners()
    # A device's name is that of a job: one alone needs none, whose bundle is the review's.
    return {device if len(kinds) > 1 else "": tuple(labels) for device, labels in kinds.items()}


def _is_kind(device: str, labels: Any, kinds: int) -> bool:
    named = (kinds == 1 and not device) or bool(_DEVICE.fullmatch(device) and not _SHARE.search(device))
    listed = isinstance(labels, list) and len(labels) <= _MOST_LABELS
    return named and listed and all(isinstance(label, str) and label.isprintable() for label in labels)


def _no_runners() -> UsageError:
    return UsageError(
        "is neither a list of labels nor an object with one list per kind of device", "input 'runners'",
        """write '["self-hosted", "gpu"]', or '{"h200": ["self-hosted", "h200"], "l4": ["self-hosted", "l4"]}'""",
    )  # fmt: skip


def _count(text: str) -> int:
    if not re.fullmatch(r"[1-9]\d?", text or "1", re.ASCII):
        raise UsageError(f"is '{text[:40]}'", "input 'jobs'", "write how many jobs share the kernels, from 1")
    return int(text or "1")
