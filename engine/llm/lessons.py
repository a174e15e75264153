"""The memory's part of one run: what its candidates taught is kept, what others taught is told and changes the rules' priors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from engine.errors import OptimlError
from engine.llm.lesson_store import KernelTraits, Memory, features_of, lesson_of
from engine.llm.node_context import Diagnosed
from engine.model import Target
from engine.rewrite.proposal import Proposal
from engine.rewrite.site import Site
from engine.rules import make_site
from engine.search.tree import Node
from engine.settings.folders import cache_folder
from engine.spec.kernel_spec import KernelSpec

# A rule that doubled the speed of kernels like this one has its odds doubled, one that failed has them halved, and no more: what
# was learnt elsewhere decides the order, not what is tried. Ours.
_MOST_DOUBLINGS = 1.0


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
        self._nodes: dict[str, Node] = {}
        self.learnt = self.told = self.reweighed = 0
        self.trouble = ""

    def booked(self, node: Node) -> None:
        """Keep what an evaluated node teaches, a failure as well as a success."""
        self._nodes.setdefault(node.program.digest, node)
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

    def weigh(self, digest: str, proposals: Sequence[Proposal]) -> list[Proposal] | None:
        """The proposals with priors by what their rules did to kernels like this one, most promising first; None: nothing known."""
        node = self._nodes.get(digest)
        site = self._site(node) if node is not None else None
        if node is None or site is None:
            return None
        s = self._settings
        priors: dict[str, float] = {}
        self._with(lambda memory: priors.update(memory.priors(self._traits(node, site), across=s.across)))
        if not any(p.rule in priors for p in proposals):
            return None
        self.reweighed += 1
        changed = [replace(p, prior=_shifted(p.prior, priors.get(p.rule, 0.0))) for p in proposals]
        return sorted(changed, key=lambda p: -p.prior)

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
        """How many lessons were learnt and told, and how many nodes had their proposals weighed by them."""
        return {"learnt": self.learnt, "told": self.told, "reweighed": self.reweighed}

    def close(self) -> None:
        """Close the file."""
        if self._memory is not None:
            self._memory.close()


def _shifted(prior: float, doublings: float) -> float:
    """A prior with its odds multiplied by so many doublings, within bounds."""
    by: float = 2.0 ** min(_MOST_DOUBLINGS, max(-_MOST_DOUBLINGS, doublings))
    return prior * by / (1 - prior + prior * by)
