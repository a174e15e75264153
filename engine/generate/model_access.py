"""The way to a model for one generation: client, budget and recording, put together from the parts of `engine.llm`."""

from dataclasses import replace
from pathlib import Path

from engine.llm.batch import BatchClient
from engine.llm.budget import BudgetedClient, Limit, LlmBudget
from engine.llm.cassette import Recorder, Replayer
from engine.llm.chat import ChatAnswer, ChatClient, ChatRequest, Message
from engine.llm.openai_client import ClientOptions, OpenAIClient
from engine.llm.session import EXCHANGES, LlmSettings

MOST_PLAN_TOKENS = 2_000
# Planning at a high temperature and coding at a low one: STARK, arXiv 2510.16996. The figures are ours.
PLANNING, CODING = 0.9, 0.1


class Door:
    """Asks the model that `settings` names, within its budget, and writes every exchange down in `out`.

    Raises UsageError and MachineError where no model can be asked.
    """

    def __init__(self, settings: LlmSettings, out: Path) -> None:
        self.settings = settings
        self.budget = LlmBudget(settings.limit, settings.price)
        self.batch: BatchClient | None = None
        self._server: OpenAIClient | None = None
        client: ChatClient
        if settings.replay is not None:
            client = Replayer(settings.replay)
        elif settings.batch is not None:
            client = self.batch = BatchClient(settings.batch, settings.model)
        else:
            options = ClientOptions(
                model=settings.model, timeout_s=settings.timeout_s, concurrency=settings.concurrency
            )
            client = self._server = OpenAIClient(options)
        client = BudgetedClient(client, self.budget)
        self._recorder: Recorder | None = None
        if settings.replay is None:
            self._recorder = Recorder(
                client, out / EXCHANGES, prompts=settings.prompts, resume=False, price=settings.price
            )
        self._client: ChatClient = self._recorder or client

    def ask(
        self, messages: tuple[Message, ...], label: str, about: str, *, temperature: float, schema: object = None,
        plan: bool = False,
    ) -> ChatAnswer:  # fmt: skip
        """One answer. Raises ChatError."""
        s = self.settings
        model = s.plan_model if plan and s.plan_model not in ("", "same") else s.model
        most = min(MOST_PLAN_TOKENS, s.answer_tokens) if plan else s.answer_tokens
        held = schema if s.schema and isinstance(schema, dict) else None
        return self._client.complete(ChatRequest(messages, label, model, temperature, most, held, about))

    @property
    def waiting(self) -> int:
        """How many questions wait in the batch folder."""
        return self.batch.deferred if self.batch is not None else 0

    def rest(self) -> LlmSettings:
        """The settings for what follows: the same door, with what is left of the budget."""
        limit, spent = self.settings.limit, self.budget.spent
        if limit is not None:
            limit = Limit(
                None if limit.usd is None else max(0.0, limit.usd - (spent.usd or 0.0)),
                None if limit.tokens is None else max(0, limit.tokens - spent.prompt_tokens - spent.completion_tokens),
            )
        batch = self.settings.batch / "optimize" if self.settings.batch is not None else None
        return replace(self.settings, limit=limit, batch=batch)

    def close(self) -> None:
        """End waiting retries, close the recording. Twice is once."""
        if self._server is not None:
            self._server.close()
        if self._recorder is not None:
            self._recorder.close()
