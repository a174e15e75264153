"""Cases on kernels of the repository's examples and suite."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from engine.selftest.cases import SelfCase
from engine.selftest.generators.protocol import attack_on, honest_edit_of

_ROOT = Path(__file__).resolve().parents[2]
_FOLDERS = ("examples", "benchmarks/suite")

Edits = Sequence[tuple[str, str]]


def attack(name: str, idea: str, original: str, *, kernel: str = "", edits: Edits = ()) -> SelfCase:
    """An edit that is not the same program and must be refused."""
    return replace(attack_on(name, idea, original, kernel=kernel, edits=edits), source=_text(original).encode())


def honest(name: str, idea: str, original: str, *, kernel: str = "", edits: Edits = ()) -> SelfCase:
    """An edit that computes the same, up to rounding, and must be accepted."""
    return replace(honest_edit_of(name, idea, original, kernel=kernel, edits=edits), source=_text(original).encode())


def _text(original: str) -> str:
    """The file of this name. Raises StopIteration where there is none."""
    paths = (_ROOT / folder / f"{original}.cu" for folder in _FOLDERS)
    return next(path for path in paths if path.exists()).read_text(encoding="utf-8")
