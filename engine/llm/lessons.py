"""The memory's part of one run: what its candidates taught is kept, what others taught is told and changes the rules' priors."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from engine.errors import OptimlError
from engine.llm.lesson_store import KernelTraits, Lesson, Memory, features_of, lesson_from, lesson_of
from engine.llm.node_context import Diagnosed
from engine.model import Outcome, Target
from engine.rewrite.proposal import Proposal
from engine.rewrite.site import Site
from engine.rules import make_site
from engine.search.tree import Node
from engine.settings.memory_settings import MemorySettings
from engine.spec.kernel_spec import KernelSpec

# A rule that doubled the speed of kernels like this one has its odds doubled, one that failed has them halved, and no more: what
# was learnt elsewhere decides the order, not what is tried. Ours.
_MOST_DOUBLINGS = 1.0


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
            self._learn(lesson)

    def gained(self, node: Node, edit: Proposal, outcome: Outcome, ratio: float | None, *, predicted: bool) -> None:
        """Keep what an edit of a node's program brought that is no node of the tree; without a ratio it failed."""
        site = self._site(node)
        if site is not None:
            self._learn(lesson_from(self._traits(node, site), edit, outcome, ratio, predicted=predicted))

    def _learn(self, lesson: Lesson) -> None:
        self._with(lambda memory: memory.add(lesson))
        self.learnt += 1

    def recall(self, node: Node) -> Sequence[str]:
        """Sentences on what was learnt of kernels like a node's, for a prompt."""
        site = self._site(node)
        return self._recalled(self._traits(node, site)) if site is not None else ()

    def recall_any(self) -> Sequence[str]:
        """Sentences on what gained most on this target, for a kernel that is not written yet."""
        return self._recalled(KernelTraits(self._settings.repository, self._target.arch, (), {}))

    def _recalled(self, kernel: KernelTraits) -> Sequence[str]:
        s = self._settings
        found: list[str] = []
        self._with(
            lambda memory: found.extend(
                lesson.sentence for lesson, _ in memory.recall(kernel, seed=s.seed, across=s.across)
            )
        )
        self.told += len(found)
        return found

    def prior(self, node: Node, rule: str, prior: float) -> float:
        """The prior of one rule's edits of a node, by what the rule did to kernels like it."""
        site = self._site(node)
        if site is None:
            return prior
        priors: dict[str, float] = {}
        s = self._settings
        self._with(lambda memory: priors.update(memory.priors(self._traits(node, site), across=s.across)))
        self.reweighed += rule in priors
        return _shifted(prior, priors.get(rule, 0.0))

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
