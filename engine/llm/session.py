"""The model's part of one run, put together: client, budget, recording, memory and feed behind one object."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from engine.errors import OptimlError, UsageError
from engine.llm.batch import BatchClient
from engine.llm.budget import BudgetedClient, Limit, LlmBudget, Price
from engine.llm.cassette import Recorder, Replayer
from engine.llm.client import ClientOptions, OpenAIClient
from engine.llm.context import Diagnosed
from engine.llm.edits import plain
from engine.llm.feed import LlmFeed
from engine.llm.memory import Memory, features_of, lesson_of
from engine.llm.model import ChatClient
from engine.llm.prompt import Profile as PromptProfile
from engine.llm.proposer import LlmOptions, LlmProposer
from engine.profile.diagnosis import Diagnosis
from engine.profile.model import CHEAP, FULL, Profile
from engine.rules import make_site
from engine.rules.model import Proposal, Site, Target
from engine.search.tree import Node
from engine.spec.model import KernelSpec

EXCHANGES = "exchanges.jsonl"
_SETTLE_S = 20.0  # two batches of profiles
# What an expectation may name: the counters that are collected.
COUNTERS: tuple[str, ...] = tuple(dict.fromkeys((*CHEAP.metrics, *FULL.metrics)))


@dataclass(frozen=True)
class LlmSettings:
    """How a run uses a model. Address and key come from OPENAI_BASE_URL and OPENAI_API_KEY, never from a repository.

    `batch` is a folder for the batch door, `replay` a recording to answer from; `prompts` False keeps prompts out of the
    recording. `memory` is the file of lessons, None for none; `across` also recalls those of other repositories.
    """

    model: str = ""
    limit: Limit | None = None
    price: Price | None = None
    profile: PromptProfile = "diagnosis"
    repairs: int = 2
    concurrency: int = 2
    timeout_s: float = 180.0
    batch: Path | None = None
    replay: Path | None = None
    prompts: bool = True
    memory: Path | None = None
    repository: str = ""
    across: bool = False
    seed: int = 0


def parse_door(text: str) -> tuple[Path | None, Path | None]:
    """(batch, replay) of `--llm`: "batch:DIR", "replay:FILE", or "" for a server. Raises UsageError."""
    kind, _, path = text.partition(":")
    if not text:
        return None, None
    if kind not in ("batch", "replay") or not path:
        raise UsageError(f"'{text[:60]}' is no way to a model", "--llm", "write batch:DIR or replay:FILE")
    return (Path(path), None) if kind == "batch" else (None, Path(path))


class LlmSession:
    """Follows `engine.search.loop.Feed`. `diagnose` gives what the profiler said of a node, waiting so many seconds at most.

    Raises UsageError and MachineError where the model cannot be asked at all.
    """

    def __init__(
        self, settings: LlmSettings, spec: KernelSpec, target: Target, out: Path, *,
        diagnose: Callable[[Node, float], Diagnosed] = lambda node, wait_s: Diagnosed(),
    ) -> None:  # fmt: skip
        self._settings, self._spec, self._target, self._diagnose = settings, spec, target, diagnose
        self.budget = LlmBudget(settings.limit, settings.price)
        self._server: OpenAIClient | None = None
        self.batch: BatchClient | None = None
        client: ChatClient = BudgetedClient(self._client(), self.budget)
        self._recorder = (
            Recorder(client, out / EXCHANGES, prompts=settings.prompts) if settings.replay is None else None
        )
        self._memory = Memory(settings.memory) if settings.memory is not None else None
        options = LlmOptions(settings.model, settings.profile, settings.repairs)
        self._feed = LlmFeed(
            LlmProposer(self._recorder or client, options), spec, target,
            counters=COUNTERS, diagnose=diagnose, recall=self._recall, workers=settings.concurrency,
            holds=self.batch.holds if self.batch is not None else lambda label: False,
        )  # fmt: skip
        self._sites: dict[int, Site | None] = {}
        self.trouble = ""

    def _client(self) -> ChatClient:
        settings = self._settings
        if settings.replay is not None:
            return Replayer(settings.replay)
        if settings.batch is not None:
            self.batch = BatchClient(settings.batch, settings.model)
            return self.batch
        self._server = OpenAIClient(
            ClientOptions(model=settings.model, timeout_s=settings.timeout_s, concurrency=settings.concurrency)
        )
        return self._server

    # ---- the feed

    def booked(self, node: Node) -> None:
        """Remember what the node taught, then let the feed decide whether to ask."""
        self._learn(node)
        self._feed.booked(node)

    def arrivals(self) -> Sequence[tuple[Node, Sequence[Proposal]]]:
        """Proposals that came since the last call."""
        return self._feed.arrivals()

    def wait(self, timeout_s: float | None) -> bool:
        """Wait for proposals; whether any are there."""
        return self._feed.wait(timeout_s)

    def settle(self) -> None:
        """Let the questions for a batch be written down that still wait for a diagnosis; nothing to wait for otherwise."""
        if self.batch is not None:
            self._feed.settle(_SETTLE_S)

    # ---- memory

    def _site(self, node: Node) -> Site | None:
        if node.id not in self._sites:
            try:
                self._sites[node.id] = make_site(node.program, self._spec, 0, self._target)
            except (OptimlError, LookupError):
                self._sites[node.id] = None
        return self._sites[node.id]

    def _learn(self, node: Node) -> None:
        site = self._site(node.parent) if self._memory is not None and node.parent is not None else None
        if self._memory is None or site is None or node.parent is None:
            return
        signature = self._diagnose(node.parent, 0.0).codes
        target, repository = self._target.arch, self._settings.repository
        lesson = lesson_of(node, site, repository=repository, target=target, signature=signature)
        if lesson is not None:
            self._with_memory(lambda memory: memory.add(lesson))

    def _recall(self, node: Node) -> Sequence[str]:
        site = self._site(node) if self._memory is not None else None
        if site is None:
            return ()
        s, codes = self._settings, self._diagnose(node, 0.0).codes
        found: list[str] = []
        self._with_memory(
            lambda memory: found.extend(
                lesson.sentence
                for lesson, _ in memory.recall(
                    s.repository, self._target.arch, codes, features_of(site), seed=s.seed, across=s.across
                )
            )
        )
        return found

    def _with_memory(self, use: Callable[[Memory], object]) -> None:
        """A memory that fails is done without, and the result says so."""
        try:
            if self._memory is not None:
                use(self._memory)
        except OptimlError as error:
            self.trouble, self._memory = str(error), None

    # ---- the end

    @property
    def deferred(self) -> int:
        """Prompts that wait in the batch folder for their answers."""
        return self.batch.deferred if self.batch is not None else 0

    @property
    def summary(self) -> dict[str, Any]:
        """What the model's part came to: requests, proposals, faults by name, tokens, money. Serialisable."""
        report = self._feed.report
        return {
            "requests": report.requests,
            "proposals": report.proposals,
            "deferred": self.deferred,
            "faults": {fault.value: n for fault, n in sorted(report.faults.items())},
            "stopped": report.stopped,
            "spent": asdict(self.budget.spent),
        }

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences for the result, where something did not go as asked."""
        said = [self._feed.report.stopped, self.trouble]
        if self.deferred:
            said.append(f"{self.deferred} prompts wait in the batch for their answers; go on with --resume")
        unasked = self.batch.unasked if self.batch is not None else ()
        if unasked:
            more = f" and {len(unasked) - 3} more" if len(unasked) > 3 else ""
            said.append(
                f"answers to questions that this run did not ask: {', '.join(plain(n) for n in unasked[:3])}{more}"
            )
        return tuple(text for text in said if text)

    def close(self) -> None:
        """Ask nothing more, end waiting retries, close the files."""
        self._feed.close()
        if self._server is not None:
            self._server.close()
        if self._recorder is not None:
            self._recorder.close()
        if self._memory is not None:
            self._memory.close()


class Known(Protocol):
    """What is asked of a profiler: the diagnosis and the counters of a program, None while there is nothing."""

    def known(self, digest: str) -> tuple[Diagnosis, Profile] | None: ...


def diagnoser(insight: Known | None) -> Callable[[Node, float], Diagnosed]:
    """A `diagnose` for a session, from what a profiler answers beside the search; says nothing without one."""

    def diagnose(node: Node, wait_s: float) -> Diagnosed:
        deadline = time.monotonic() + wait_s
        while insight is not None:
            found = insight.known(node.program.digest)
            if found is not None:
                diagnosis, profile = found
                counters = {
                    name: f"{counter.value:.6g} {counter.unit}".strip()
                    for step in profile.steps[:1]
                    for name, counter in step.counters.items()
                }
                return Diagnosed(tuple(diagnosis.sentences()), counters, tuple(diagnosis.codes))
            if time.monotonic() >= deadline:
                break
            time.sleep(0.05)
        return Diagnosed()

    return diagnose
