"""The cases of the self-test: small originals with a spec, and edits of them that must be refused or accepted."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from engine.errors import OptimlError
from engine.model import PASSED, Outcome

FOLDER = Path(__file__).parent
Suite = Literal["attacks", "honest"]


@dataclass(frozen=True)
class SelfCase:
    """One edit of an original.

    `kernel` replaces the whole kernel, `edits` are texts to find once and what to put there. `gpu` and `cpu` are the
    outcomes that count as expected on each path; empty: the path cannot see this one. `reason` must be in the refusal.
    """

    name: str
    suite: Suite
    idea: str
    original: str
    kernel: str = ""
    edits: tuple[tuple[str, str], ...] = ()
    gpu: tuple[Outcome, ...] = ()
    cpu: tuple[Outcome, ...] = ()
    reason: str = ""

    def expected(self, mode: str) -> tuple[Outcome, ...]:
        """The expected outcomes in the mode of an evaluator's signals: "measured" or "predicted"."""
        return self.gpu if mode == "measured" else self.cpu

    def text(self) -> bytes:
        """The edited file. Raises OptimlError where an edit does not fit its original."""
        from engine.source.parse import parse

        data = original_text(self.original)
        if self.kernel:
            unit = parse(data, f"{self.original}.cu")
            kernel = unit.kernels[-1]
            data = data[: kernel.span.start] + self.kernel.strip("\n").encode() + data[kernel.span.end :]
        for find, replacement in self.edits:
            if data.count(find.encode()) != 1:
                raise OptimlError(f"'{find[:60]}' stands {data.count(find.encode())} times in it", self.name)
            data = data.replace(find.encode(), replacement.encode())
        return data


def original_text(name: str) -> bytes:
    """The text of an original."""
    return (FOLDER / "originals" / f"{name}.cu").read_bytes()


def originals() -> tuple[str, ...]:
    """Names of all originals."""
    return tuple(sorted(path.stem for path in (FOLDER / "originals").glob("*.cu")))


def load_cases(suite: Suite) -> tuple[SelfCase, ...]:
    """All cases of a suite, by name. Raises OptimlError for a file that is none."""
    return tuple(_read(path, suite) for path in sorted((FOLDER / suite).glob("*.toml")))


def _read(path: Path, suite: Suite) -> SelfCase:
    data: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    try:
        edits = tuple((e["find"], e["replace"]) for e in data.pop("edit", ()))
        needs_gpu = data.pop("needs_gpu", False)
        gpu, cpu = (tuple(Outcome(o) for o in data.pop(key, ())) for key in ("gpu", "cpu"))
        if suite == "honest":
            right = (*sorted(PASSED), Outcome.DUPLICATE)  # the compiler may make the same of it
            gpu, cpu = right, () if needs_gpu else right
        return SelfCase(path.stem, suite, edits=edits, gpu=gpu, cpu=cpu, **data)
    except (KeyError, TypeError, ValueError) as error:
        raise OptimlError(f"is no case of the self-test: {error}", path.name) from None
