"""What optiml-check has to say, apart from what finds it: printing kept findings must load nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.settings.config import Kinds


@dataclass(frozen=True)
class Finding:
    """One thing to say about a kernel, at a line of its file."""

    path: str
    line: int
    kernel: str
    kind: Kinds
    text: str


@dataclass
class Report:
    """`notes` are sentences about what was not looked at. `complete`: looking again would say the same."""

    findings: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    complete: bool = True

    def note(self, text: str) -> None:
        """Add a note, once."""
        if text not in self.notes:
            self.notes.append(text)
