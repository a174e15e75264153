"""The memory's part of one run: what its candidates taught is kept, what others taught is told to the model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.errors import OptimlError
from engine.llm.lesson_store import KernelTraits, Memory, features_of, lesson_of
from engine.llm.node_context import Diagnosed
from engine.model import Target
from engine.rewrite.site import Site
from engine.rules import make_site
from engine.search.tree import Node
from engine.settings.folders import cache_folder
from engine.spec.kernel_spec import KernelSpec


@dataclass(frozen=True)
class MemorySettings:
    """Which lessons a run reads and writes. `repository` is whose they are; `across` also tells those of other repositories."""

    path: Path
    repository: str
    across: bool = False
    seed: int = 0


def default_path() -> Path:
    """The memory's file where none is named: beside what is compiled, in the user's cache folder."""
    return cache_folder() / "memory.sqlite"


class Lessons:
    """Follows `engine.search.participants.Feed.booked`. A memory that fails is done without, and `trouble` says so.

    Raises MachineError where the file cannot be opened.
    """

    def __init__(
        self, settings: MemorySettings, spec: KernelSpec, target: Target,
        diagnose: Callable[[Node, float], Diagnosed] = lambda node, wait_s: Diagnosed(),
    ) -> None:  # fmt: skip
        self._settings, self._spec, self._target, self._diagnose = settings, spec, target, diagnose
        self._memory: Memory | None = Memory(settings.path)
        self._sites: dict[int, Site | None] = {}
        self.learnt = self.told = 0
        self.trouble = ""

    def booked(self, node: Node) -> None:
        """Keep what an evaluated node teaches, a failure as well as a success."""
        site = self._site(node.parent) if node.parent is not None else None
        if site is None or node.parent is None:
            return
        lesson = lesson_of(
            node, site, repository=self._settings.repository, target=self._target.arch,
            signature=self._diagnose(node.parent, 0.0).codes,
        )  # fmt: skip
        if lesson is not None:
            self._with(lambda memory: memory.add(lesson))
            self.learnt += 1

    def recall(self, node: Node) -> Sequence[str]:
        """Sentences on what was learnt of kernels like a node's, for a prompt."""
        site = self._site(node)
        if site is None:
            return ()
        s = self._settings
        found: list[str] = []
        self._with(
            lambda memory: found.extend(
                lesson.sentence for lesson, _ in memory.recall(self._traits(node, site), seed=s.seed, across=s.across)
            )
        )
        self.told += len(found)
        return found

    def _traits(self, node: Node, site: Site) -> KernelTraits:
        codes = self._diagnose(node, 0.0).codes
        return KernelTraits(self._settings.repository, self._target.arch, codes, features_of(site))

    def _site(self, node: Node) -> Site | None:
        if self._memory is None:
            return None
        if node.id not in self._sites:
            try:
                self._sites[node.id] = make_site(node.program, self._spec, 0, self._target)
            except (OptimlError, LookupError):
                self._sites[node.id] = None
        return self._sites[node.id]

    def _with(self, use: Callable[[Memory], object]) -> None:
        try:
            if self._memory is not None:
                use(self._memory)
        except OptimlError as error:
            self.trouble, self._memory = str(error), None

    @property
    def summary(self) -> dict[str, Any]:
        """How many lessons were learnt and told."""
        return {"learnt": self.learnt, "told": self.told}

    def close(self) -> None:
        """Close the file."""
        if self._memory is not None:
            self._memory.close()
