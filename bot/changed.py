"""What changed and what was skipped, as data: the jobs that post need no parser."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ChangedKernel:
    """A kernel whose machine code or launch may differ. `path` is at the head; `base_path` is "" where it is new."""

    path: str
    kernel: str  # with namespaces
    line: int  # of its definition at the head, 1-based
    reasons: tuple[str, ...]  # "body", "callee or header", "launch", "new"; "asked for"
    base_path: str
    size: int = 0  # tokens that differ, of the kernel's text or of the whole it is compiled with

    @property
    def new(self) -> bool:
        return not self.base_path


@dataclass(frozen=True)
class Skipped:
    """What was not looked at, and why."""

    path: str
    reason: str
    kernel: str = ""
