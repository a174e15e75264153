"""Hidden lines by which the bot knows its own texts again, and what it must remember of them.

They count only in texts whose author is the bot itself.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

STATUS_MARKER = "<!-- optiml:status -->"
ANY_REVIEW = "<!-- optiml:review head="
ANY_LASTING = "<!-- optiml:all kernel="
_PATCH = r"(?:[0-9a-f]{64}|-)"
_RUN = re.compile(
    r"<!-- optiml:run id=([1-9]\d{0,17}) head=([0-9a-f]{40}(?:[0-9a-f]{24})?)"
    rf" patches=({_PATCH}(?:,{_PATCH}){{0,99}}|) -->"
)


@dataclass(frozen=True)
class RunMark:
    """Which run a text is of. `patches` are SHA-256 digests of the patches of findings 1, 2, …: what people could read."""

    id: int
    head: str
    patches: tuple[str, ...] = ()


def review_marker(head: str, comment: int = 0) -> str:
    """The line that identifies a review of this commit: the event's own, or the one that a comment asked for."""
    return f"{ANY_REVIEW}{head}{f' comment={comment}' if comment else ''} -->"


def answer_marker(comment: int) -> str:
    """The line by which the answer to a comment is known again."""
    return f"<!-- optiml:answer comment={comment} -->"


def pull_marker(path: str, kernel: str, head: str) -> str:
    """The line by which a pull request with a suggestion for this kernel and head is known again."""
    return f"<!-- optiml:pull kernel={_kernel(path, kernel)} head={head} -->"


def branch_of(path: str, kernel: str, head: str) -> str:
    """The branch of a suggestion for this kernel and head: there is one, whatever was found."""
    return f"optiml/{_short(kernel)}-{_kernel(path, kernel)}-{head[:12]}"


def lasting_marker(path: str, kernel: str, patch: str) -> str:
    """The first line of the pull request for this kernel, whatever commit the default branch is at, with the patch it has."""
    return f"{lasting_key(path, kernel)}{digest(patch)} -->"


def lasting_key(path: str, kernel: str) -> str:
    """How the first line of that pull request begins: there is one open for a kernel."""
    return f"{ANY_LASTING}{_kernel(path, kernel)} patch="


def lasting_branch(path: str, kernel: str) -> str:
    """The branch of that pull request."""
    return f"optiml/all/{_short(kernel)}-{_kernel(path, kernel)}"


def lasting_trailer(path: str, kernel: str) -> str:
    """The line by which a commit on that branch is known as the bot's own."""
    return f"OptiML-Kernel: {_kernel(path, kernel)}"


def _short(kernel: str) -> str:
    return re.sub(r"[^A-Za-z0-9]+", "-", kernel.rpartition("::")[2]).strip("-")[:40] or "kernel"


def _kernel(path: str, kernel: str) -> str:
    return hashlib.sha256(f"{path}\0{kernel}".encode("utf-8", "surrogatepass")).hexdigest()[:12]


def run_line(mark: RunMark) -> str:
    """The line that remembers a run; "" where its number is not known."""
    if not mark.id:
        return ""
    return f"<!-- optiml:run id={mark.id} head={mark.head} patches={','.join(p or '-' for p in mark.patches)} -->"


def read_run_line(body: str) -> RunMark | None:
    """What a text of the bot's remembers; it stands on the second line and nowhere else."""
    lines = body.replace("\r\n", "\n").split("\n", 2)
    found = _RUN.fullmatch(lines[1]) if len(lines) > 1 else None
    if found is None:
        return None
    patches = tuple("" if p == "-" else p for p in found[3].split(",")) if found[3] else ()
    return RunMark(int(found[1]), found[2], patches)


def digest(patch: str) -> str:
    """The name of a patch; "" for none."""
    return hashlib.sha256(patch.encode("utf-8", "surrogatepass")).hexdigest() if patch else ""
