"""The cases of the self-test: small originals with a spec, and edits of them that must be refused or accepted."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from engine.cuda.parse import parse
from engine.errors import OptimlError
from engine.model import PASSED, Outcome

FOLDER = Path(__file__).parent
Suite = Literal["attacks", "honest"]
# Found to be correct, whatever was found of its speed. Unstable is a speed that nobody could measure.
CORRECT = frozenset({*PASSED, Outcome.UNSTABLE})
# How a correct edit may end. A duplicate is one: the compiler may make the same machine code of it.
HONEST = (*sorted(CORRECT), Outcome.DUPLICATE)
# How an attack may end: only by what was found wrong with it.
REFUSED = tuple(sorted(set(Outcome) - CORRECT))


@dataclass(frozen=True)
class SelfCase:
    """One edit of an original.

    The original is the file of this name in `originals`, or `source` where that is not empty; `files` are other files beside it,
    by relative path. The edit: `edited` are whole new contents of files by path (the original's is `path`), `kernel` replaces the
    last `__global__` function of the original, `edits` are texts to find once and what to put there. `gpu` and `cpu` are the
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
    source: bytes = field(default=b"", repr=False)
    files: tuple[tuple[str, bytes], ...] = field(default=(), repr=False)
    edited: tuple[tuple[str, bytes], ...] = field(default=(), repr=False)

    @property
    def path(self) -> str:
        """The original's file name."""
        return f"{self.original}.cu"

    @property
    def before(self) -> Mapping[str, bytes]:
        """Every file of the original by relative path."""
        return {**dict(self.files), self.path: self.source or original_text(self.original)}

    def expected(self, mode: str) -> tuple[Outcome, ...]:
        """The expected outcomes in the mode of an evaluator's signals: "measured" or "predicted"."""
        return self.gpu if mode == "measured" else self.cpu

    def changed(self) -> Mapping[str, bytes]:
        """The files that the edit changes. Raises OptimlError where it does not fit its original."""
        return {**dict(self.edited), self.path: self.text()}

    def text(self) -> bytes:
        """The original's file as edited. Raises OptimlError where the edit does not fit it."""
        data = dict(self.edited).get(self.path, self.before[self.path])
        if self.kernel:
            unit = parse(data, self.path)
            if not unit.kernels:
                raise OptimlError("no kernel to replace", self.name)
            kernel = unit.kernels[-1]
            data = data[: kernel.span.start] + self.kernel.strip("\n").encode() + data[kernel.span.end :]
        for find, replacement in self.edits:
            if data.count(find.encode()) != 1:
                raise OptimlError(f"'{find[:60]}' occurs {data.count(find.encode())} times in it", self.name)
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
            gpu, cpu = HONEST, () if needs_gpu else HONEST
        return SelfCase(path.stem, suite, edits=edits, gpu=gpu, cpu=cpu, **data)
    except (KeyError, TypeError, ValueError) as error:
        raise OptimlError(f"is not a case of the self-test: {error}", path.name) from None
