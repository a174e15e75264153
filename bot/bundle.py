"""The result bundle: one JSON file that the job with the GPU writes, and that the job with the token reads as hostile data.

Nothing in it names a file to read, a pull request or a repository: those come from the event.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from bot.changed import ChangedKernel, Skipped
from bot.errors import BundleError
from bot.untrusted import decode, load_json
from engine.model import Measurement
from engine.run.result import SCHEMA as RESULT_SCHEMA
from engine.run.result import OptimizationResult

SCHEMA = "optiml.bundle/1"
FILE = "bundle.json"
REASON = "reason.txt"  # beside it, where a run ended without one
_MAX_REASON = 1_000
_MAX_BYTES = 32 << 20
_MAX_KERNELS = 500
_PATH = re.compile(r"(?!/)[^\0]{1,1024}")
_SHA = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")

Standing = Literal["faster", "slower", "no difference", "not compared"]


@dataclass(frozen=True)
class Comparison:
    """A changed kernel at the base against the head. `ratio` is base time over head time: above 1, the head is faster."""

    standing: Standing
    measurement: Measurement | None = None
    reason: str = ""  # why it was not compared, in one sentence


@dataclass(frozen=True)
class History:
    """The fastest that the default branch ever measured, in another run on such a device. `slower`: the head's time over it."""

    commit: str
    slower: float
    predicted: bool


@dataclass(frozen=True)
class Elsewhere:
    """What was found of the same kernel on another kind of device. `same`: with the same patch."""

    device: str
    measurement: Measurement | None = None  # of what is best there; None: nothing to suggest
    same: bool = False


@dataclass(frozen=True)
class Looked:
    """One changed kernel, and what was found. `patch` is the suggestion's text, "" without one.

    `history` is there where the head is clearly slower than the default branch once was.
    """

    changed: ChangedKernel
    spec_from: Literal["base", "head", "none"] = "none"
    comparison: Comparison | None = None
    result: OptimizationResult | None = None
    patch: str = ""
    error: str = ""  # why it was not searched, in one sentence
    history: History | None = None
    restore: str = ""  # a patch that gives a kernel that got slower the base's text again
    elsewhere: tuple[Elsewhere, ...] = ()  # where jobs on several kinds of device shared a search
    draft: str = ""  # a patch that puts a drafted spec above a kernel without one; it passed the validation of a search
    key: str = ""  # a digest of all that this depends on: a later run with the same one takes this for its own


@dataclass(frozen=True)
class Bundle:
    """Everything one run found. `head` and `base` are full commit SHAs."""

    head: str
    base: str
    kernels: tuple[Looked, ...]
    skipped: tuple[Skipped, ...] = ()
    complete: bool = True  # False: the run was stopped before all kernels were looked at
    schema: str = SCHEMA

    def to_json(self) -> str:
        """The JSON form that `read_bundle` takes."""
        return json.dumps(dataclasses.asdict(self), sort_keys=True, allow_nan=False) + "\n"


def write_bundle(bundle: Bundle, folder: Path) -> Path:
    """Write the bundle into `folder`; its path. Raises BundleError."""
    target = folder / FILE
    try:
        folder.mkdir(parents=True, exist_ok=True)
        target.write_text(bundle.to_json(), encoding="utf-8")
    except (OSError, ValueError) as error:
        raise BundleError(f"cannot be written: {error}", str(target)) from None
    return target


def write_reason(text: str, folder: Path) -> None:
    """Leave word of why there is no bundle. Raises BundleError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / REASON).write_text(text[:_MAX_REASON], encoding="utf-8", errors="replace")
    except OSError as error:
        raise BundleError(f"cannot be written: {error}", str(folder / REASON)) from None


def read_reason(folder: Path) -> str:
    """Why there is no bundle, in words of a stranger; "" where nothing was left. Raises nothing."""
    try:
        data = _bytes(folder / REASON, 4 * _MAX_REASON)
    except BundleError:
        return ""
    return data.decode("utf-8", "replace")[:_MAX_REASON]


def read_bundle(folder: Path, *, head: str) -> Bundle:
    """The bundle in `folder`, if it is one and is of the commit `head`, which the event names. Raises BundleError."""
    return parse_bundle(_bytes(folder / FILE, _MAX_BYTES), head=head)


def read_earlier(folder: Path) -> Bundle | None:
    """The bundle of an earlier run, of whatever commit; None where there is none to read. Raises nothing."""
    try:
        data = _bytes(folder / FILE, _MAX_BYTES)
        head = load_json(data).get("head")
        return parse_bundle(data, head=str(head))
    except (AttributeError, BundleError):
        return None


def _bytes(path: Path, most: int) -> bytes:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise BundleError(
            f"cannot be read: {error.strerror}", str(path), "see the log of the job that searched"
        ) from None
    status = os.fstat(handle)
    if not stat.S_ISREG(status.st_mode) or status.st_size > most:
        os.close(handle)
        raise BundleError(f"is not a regular file of at most {most} bytes", str(path))
    with os.fdopen(handle, "rb") as file:
        return file.read(most + 1)


def parse_bundle(data: bytes, *, head: str) -> Bundle:
    """The bundle in a file's bytes, as `read_bundle`. Raises BundleError."""
    if len(data) > _MAX_BYTES:
        raise BundleError(f"exceeds {_MAX_BYTES} bytes", "bundle")
    bundle = decode(Bundle, load_json(data), "bundle")
    check_bundle(bundle, head)
    return bundle


def check_bundle(bundle: Bundle, head: str) -> None:
    """Raises BundleError for what no run of this commit leaves."""
    if bundle.schema != SCHEMA:
        raise BundleError(
            f"has the schema '{bundle.schema[:80]}', not {SCHEMA}", "bundle", "use the same version in all jobs"
        )
    if bundle.head != head:
        raise BundleError(
            "is for a different commit than the event", "bundle.head", "run the search again for this commit"
        )
    if not _SHA.fullmatch(bundle.base) or not _SHA.fullmatch(bundle.head):
        raise BundleError("has no full commit SHA", "bundle")
    if len(bundle.kernels) > _MAX_KERNELS:
        raise BundleError(f"has more than {_MAX_KERNELS} kernels", "bundle.kernels")
    for index, looked in enumerate(bundle.kernels):
        where = f"bundle.kernels[{index}]"
        for path in (looked.changed.path, looked.changed.base_path or "x"):
            if not _PATH.fullmatch(path) or ".." in path.split("/"):
                raise BundleError("has a path that leads out of the repository", where)
        result = looked.result
        if result is not None and result.schema != RESULT_SCHEMA:
            raise BundleError(f"has a result with a schema other than {RESULT_SCHEMA}", where)
        if looked.draft and result is not None:
            raise BundleError("has both a drafted spec and a result", where)
        if looked.patch and (result is None or result.best is None):
            raise BundleError("has a patch without a result that suggests one", where)
        if result is not None and result.best is not None:
            best = result.best.evaluation
            said = (best.measurement, *(other.measurement for other in best.instances))
            if any(one is None or one.predicted != (result.mode == "predicted") for one in said):
                raise BundleError("marks one suggestion as both measured and predicted", where)
        past = looked.history
        if past is not None and not (_SHA.fullmatch(past.commit) and 1 <= past.slower < 1e6):
            raise BundleError("has an impossible history", where)
        compared = looked.comparison.measurement if looked.comparison else None
        for one in (compared, *_of(result), *(other.measurement for other in looked.elsewhere)):
            if one is not None and not (0 < one.low <= one.ratio <= one.high):
                raise BundleError("has an interval that does not contain its ratio", where)


def _of(result: OptimizationResult | None) -> list[Measurement | None]:
    best = result.best.evaluation if result is not None and result.best is not None else None
    return [] if best is None else [best.measurement, *(other.measurement for other in best.instances)]
