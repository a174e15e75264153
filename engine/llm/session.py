"""The model's part of one run, put together: client, budget, recording, memory and feed behind one object."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

from engine.compile.built import Built
from engine.errors import OptimlError, UsageError
from engine.llm.batch import BatchClient
from engine.llm.budget import BudgetedClient, Limit, LlmBudget, Price, parse_price
from engine.llm.cassette import Recorder, Replayer
from engine.llm.chat import ChatClient
from engine.llm.feed import Answering, Background, LlmFeed
from engine.llm.judge import Judge
from engine.llm.node_context import Diagnosed
from engine.llm.openai_client import ClientOptions, OpenAIClient
from engine.llm.plain_words import plain
from engine.llm.prompts import PARTS, Telling
from engine.llm.prompts import Profile as PromptProfile
from engine.llm.proposer import MOST_ANSWER_TOKENS, LlmOptions, LlmProposer
from engine.llm.review import Review, bounds_right, review
from engine.model import Program, Target
from engine.profile.counters import (
    ACTIVE_LANES,
    BANK_CONFLICTS,
    DRAM_BYTES,
    FMA_PCT,
    INSTRUCTIONS,
    ISSUE_PCT,
    LOAD_REQUESTS,
    LOAD_SECTORS,
    OCCUPANCY_PCT,
    REGISTERS,
    STORE_SECTORS,
    Profile,
    stall_metric,
)
from engine.profile.diagnosis import Diagnosis
from engine.search.mixture import Mixture
from engine.search.question import Answer, Asked, Question
from engine.search.tree import Node
from engine.settings.config import Model
from engine.spec.kernel_spec import KernelSpec

EXCHANGES = "exchanges.jsonl"
# Questions for a batch wait for their diagnoses together: as many as the profiler takes at once.
_BATCH_WORKERS = 16
SAME = "same"  # for a plan or a judge: the model that writes the code
# What an expectation may name, of the counters that are collected: those that edits are made to move. Ours.
COUNTERS: tuple[str, ...] = (
    DRAM_BYTES, INSTRUCTIONS, LOAD_SECTORS, STORE_SECTORS, LOAD_REQUESTS, BANK_CONFLICTS, OCCUPANCY_PCT, ISSUE_PCT, REGISTERS,
    ACTIVE_LANES, FMA_PCT, stall_metric("long_scoreboard"), stall_metric("barrier"),
)  # fmt: skip


@dataclass(frozen=True)
class LlmSettings:
    """How a run uses a model. Address and key come from OPENAI_BASE_URL and OPENAI_API_KEY, never from a repository.

    `plan_model` makes plans for `model` to write as code, `judge_model` scores proposals; "" for none, `SAME` for `model` itself.
    `batch` is a folder for the batch door, `replay` a recording to answer from; `prompts` False keeps prompts out of the
    recording. `parts`: tokens by part of a prompt.
    `templates`: the tuner searches the figures that an edit leaves open, and the model is told how.
    """

    model: str = ""
    plan_model: str = ""
    judge_model: str = ""
    limit: Limit | None = None
    price: Price | None = None
    profile: PromptProfile = "diagnosis"
    repairs: int = 2
    concurrency: int = 2
    timeout_s: float = 180.0
    answer_tokens: int = MOST_ANSWER_TOKENS
    schema: bool = True
    batch: Path | None = None
    replay: Path | None = None
    prompts: bool = True
    templates: bool = False
    parts: Mapping[str, int] = field(default_factory=lambda: PARTS)


def from_config(model: Model) -> LlmSettings:
    """The settings that a repository's file asks for."""
    price = parse_price(model.price) if model.price else None
    return LlmSettings(model.name, model.plan, model.judge, limit=Limit(tokens=model.tokens), price=price)


def parse_door(text: str) -> tuple[Path | None, Path | None]:
    """(batch, replay) of `--llm`: "batch:DIR", "replay:FILE", or "" for a server. Raises UsageError."""
    kind, _, path = text.partition(":")
    if not text:
        return None, None
    if kind not in ("batch", "replay") or not path:
        raise UsageError(f"invalid --llm '{text[:60]}'", "--llm", "expected batch:DIR or replay:FILE")
    return (Path(path), None) if kind == "batch" else (None, Path(path))


_NO_BACKGROUND = Background()


def check_settings(settings: LlmSettings) -> None:
    """Raise UsageError or MachineError where no run could ask with these settings, before one has spent its time on anything else."""
    LlmBudget(settings.limit, settings.price)
    opened = door_of(settings)
    if isinstance(opened, OpenAIClient):
        opened.close()


def door_of(settings: LlmSettings) -> OpenAIClient | BatchClient | Replayer:
    """Where answers come from: a server, a batch or a recording. Raises UsageError and MachineError."""
    if settings.replay is not None:
        return Replayer(settings.replay)
    if settings.batch is not None:
        return BatchClient(settings.batch, settings.model)
    options = ClientOptions(model=settings.model, timeout_s=settings.timeout_s, concurrency=settings.concurrency)
    return OpenAIClient(options)


class LlmSession:
    """Follows `engine.search.participants.Feed`. `mixture`, once it is set, is told what was spent.

    Raises UsageError and MachineError where the model cannot be asked at all.
    """

    def __init__(
        self, settings: LlmSettings, spec: KernelSpec, target: Target, out: Path, background: Background = _NO_BACKGROUND,
        *, resume: bool = False,
    ) -> None:  # fmt: skip
        self._settings, self._background = settings, background
        self.mixture: Mixture | None = None
        self._charged_usd, self._running = 0.0, False
        self.budget = LlmBudget(settings.limit, settings.price)
        opened = door_of(settings)
        self._server = opened if isinstance(opened, OpenAIClient) else None
        self.batch = opened if isinstance(opened, BatchClient) else None
        client: ChatClient = BudgetedClient(opened, self.budget)
        self._recorder = (
            Recorder(client, out / EXCHANGES, prompts=settings.prompts, resume=resume, price=settings.price)
            if settings.replay is None
            else None
        )
        asked = self._recorder or client
        plan_model = settings.model if settings.plan_model == SAME else settings.plan_model
        telling = Telling(settings.profile, templates=settings.templates, parts=settings.parts)
        options = LlmOptions(
            settings.model, plan_model, settings.repairs, settings.answer_tokens, settings.schema, telling
        )
        judge_model = settings.model if settings.judge_model == SAME else settings.judge_model
        judge = Judge(asked, judge_model, telling)
        self.judge = judge if settings.judge_model else None
        self._proposer = LlmProposer(asked, options)
        self._feed = LlmFeed(
            self._proposer,
            spec,
            target,
            self._background,
            Answering(
                holds=self.batch.holds if self.batch is not None else lambda label: settings.replay is not None,
                workers=settings.concurrency if self.batch is None else _BATCH_WORKERS,
                deferring=self.batch is not None,
            ),
            self.judge,
        )
        self._edits: list[Node] = []
        self._judged: list[Node] = []
        self._reviews: list[Review] = []
        self._expectations: list[dict[str, Any]] = []

    # ---- the feed

    def booked(self, node: Node) -> None:
        """Keep the judge's account and the outcomes of the model's edits."""
        if self.judge is not None:
            self.judge.booked(node)
            self._judged.append(node)
        self._feed.booked(node)
        if node.proposal is not None and node.proposal.proposer == "llm":
            self._edits.append(node)
            if self._recorder is not None and self._running and node.parent is not None:
                label = self._proposer.label(node.parent.program, node.program)
                self._recorder.ended({**edit_of(node), "label": label})

    def questions(self, node: Node) -> Sequence[tuple[Node, Question]]:
        """The questions that a node gives rise to."""
        return self._feed.questions(node)

    def ask(self, node: Node, question: Question) -> None:
        """Ask in the background."""
        self._feed.ask(node, question)

    def go_on(self, asked: Asked, node: Node) -> tuple[bool, Sequence[tuple[Node, Question]]]:
        """What becomes of a question of an earlier part of the run."""
        return self._feed.go_on(asked, node)

    def arrivals(self, known: Callable[[str], bool]) -> Sequence[Answer]:
        """Answers that came since the last call."""
        self._running = True  # what came before was read from the journal
        self._charge()
        return self._feed.arrivals(known)

    @property
    def room(self) -> int:
        """How many more questions may be asked now."""
        return self._feed.room

    @property
    def awaited(self) -> int:
        """Questions without an answer."""
        return self._feed.awaited

    @property
    def coming(self) -> Future[None]:
        """Done once there are arrivals."""
        return self._feed.coming

    @property
    def stopped(self) -> str:
        """Why nothing more is asked, or ""."""
        return self._feed.stopped

    def _charge(self) -> None:
        usd = self.budget.spent.usd or 0.0
        if self.mixture is not None and usd > self._charged_usd:
            self.mixture.charge("llm", usd - self._charged_usd)
            self._charged_usd = usd

    def settle(self, timeout_s: float) -> None:
        """Let the questions for a batch be written down: with their diagnoses if they come in time, else without them."""
        if self.batch is not None:
            self._feed.settle(timeout_s)

    def observe(self) -> None:
        """Hold what the model expected of its edits against the counters, while the profiler still answers."""
        self._charge()
        self._expectations = [self._expected(node) for node in self._edits]
        found = [review(node, self._background.diagnose(node, 0.0).codes) for node in self._judged]
        self._reviews = [one for one in found if one is not None]

    def _expected(self, node: Node) -> dict[str, Any]:
        expects = str(node.proposal.parameters.get("expects", "")) if node.proposal is not None else ""
        counter, _, direction = expects.partition(" ")
        before, after = (
            _value(self._background.diagnose(at, 0.0).counters.get(counter)) if at is not None and counter else None
            for at in (node.parent, node)
        )
        held = None
        if before is not None and after is not None:
            held = after < before if direction == "down" else after > before
        return {**edit_of(node), "expects": expects, "before": before, "after": after, "held": held}

    # ---- the end

    @property
    def deferred(self) -> int:
        """Prompts that wait in the batch folder for their answers."""
        return self.batch.deferred if self.batch is not None else 0

    @property
    def summary(self) -> dict[str, Any]:
        """What the model's part came to: requests, proposals, faults by name, tokens, money, every edit. Serialisable."""
        report, s = self._feed.report, self._settings
        return {
            "requests": report.requests,
            "questions": report.questions,
            "proposals": report.proposals,
            "known": report.known,
            "deferred": self.deferred,
            "faults": {fault.value: n for fault, n in sorted(report.faults.items())},
            "reasons": {fault.value: text for fault, text in sorted(report.reasons.items())},
            "stopped": report.stopped,
            "spent": asdict(self.budget.spent),
            "models": {"code": s.model, "plan": s.plan_model, "judge": s.judge_model},
            "edits": self._expectations,
            "judge": None if self.judge is None else self._record_of(self.judge),
        }

    def _record_of(self, judge: Judge) -> dict[str, Any]:
        """The judge's calibration, and what it expected of each step beside what came of it."""
        right, compared = bounds_right(self._reviews)
        found = {**asdict(judge.calibration), "faults": len(judge.faults), "bounds": compared, "bounds_right": right}
        return {**found, "reviews": [{**asdict(one), "bound_right": one.bound_right} for one in self._reviews]}

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences for the result, where something did not go as asked."""
        said = [self._feed.report.stopped]
        if self.deferred:
            said.append(f"{self.deferred} prompts are waiting in the batch for answers; resume with --resume")
        unasked = self.batch.unasked if self.batch is not None else ()
        if unasked:
            more = f" and {len(unasked) - 3} more" if len(unasked) > 3 else ""
            said.append(
                f"answers to requests that this run did not make: {', '.join(plain(n) for n in unasked[:3])}{more}"
            )
        return tuple(text for text in said if text)

    def close(self) -> None:
        """Ask nothing more, end waiting retries, close the files."""
        self._feed.close()
        if self._server is not None:
            self._server.close()
        if self._recorder is not None:
            self._recorder.close()


def edit_of(node: Node) -> dict[str, Any]:
    """A model's edit and how it ended. Serialisable."""
    assert node.proposal is not None
    assert node.evaluation is not None
    measurement = node.evaluation.measurement
    return {
        "id": node.id,
        "parent": node.parent.id if node.parent is not None else None,
        "idea": node.proposal.summary,
        "outcome": node.evaluation.outcome.value,
        "ratio": measurement.ratio if measurement is not None else None,
    }


def _value(text: str | None) -> float | None:
    return float(text.split()[0]) if text else None


class KnownProfiles(Protocol):
    """What is asked of a profiler: see `engine.search.profiling.Insight`."""

    def known(self, digest: str) -> tuple[Diagnosis, Profile] | None: ...

    def require(self, node: Node, build: Callable[[Program], Built]) -> Future[tuple[Diagnosis, Profile] | None]: ...


# What a diagnosis from counters would say where the largest part of a predicted time is this one.
_CODES: Mapping[str, str] = {
    "memory": "memory_bound", "cache": "excess_traffic", "load/store units": "memory_queue_stalls", "shared memory": "shared_queue_stalls",
    "compute": "compute_bound", "latency": "latency_bound", "launch": "launch_bound",
}  # fmt: skip


def _codes(codes: Sequence[str], parts_us: Mapping[str, float]) -> tuple[str, ...]:
    """The codes of a diagnosis; the largest part of a prediction stands for a bound that only counters could name."""
    largest = max(parts_us, key=lambda part: parts_us[part], default="")
    if "unknown_bound" not in codes or largest not in _CODES:
        return tuple(codes)
    return tuple(dict.fromkeys(_CODES[largest] if code == "unknown_bound" else code for code in codes))


def diagnoser(insight: KnownProfiles | None, build: Callable[[Program], Built]) -> Callable[[Node, float], Diagnosed]:
    """A `diagnose` for a session; says nothing without a profiler. `build` is for nodes of an earlier part of the run.

    Where it may wait it has the node profiled ahead of all candidates, and says so while the profile is still to come.
    """
    asked: dict[str, Future[tuple[Diagnosis, Profile] | None]] = {}

    def diagnose(node: Node, wait_s: float) -> Diagnosed:
        digest = node.program.digest
        found = insight.known(digest) if insight is not None else None
        if found is None and insight is not None and node.evaluation is not None and wait_s > 0:
            try:
                if digest not in asked:
                    asked[digest] = insight.require(node, build)
                found = asked[digest].result(timeout=wait_s)
            except TimeoutError:
                return Diagnosed(pending=True)
            except OptimlError:
                pass  # it cannot be built any more: the question goes without
        if found is None:
            return Diagnosed()
        diagnosis, profile = found
        counters = {
            name: f"{counter.value:.6g} {counter.unit}".strip()
            for step in profile.steps[:1]
            for name, counter in step.counters.items()
        }
        parts = profile.predicted.parts_us if profile.predicted is not None else {}
        sentences, codes = tuple(diagnosis.sentences()), _codes(diagnosis.codes, parts)
        return Diagnosed(sentences, counters, codes, pipes_us=profile.pipes_us, parts_us=parts)

    return diagnose
