"""Where built candidates are evaluated: one device in this process, or several behind the same calls."""

from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar

from engine.compile.built import Built
from engine.evaluate.evaluator import Evaluator
from engine.model import Evaluation

Answer = tuple[Evaluation, float | None]


@dataclass(frozen=True)
class Job:
    """A built candidate to evaluate against an incumbent (None: the original); see `Evaluator.evaluate` and `Evaluator.retime`."""

    built: Built
    incumbent: Built | None = None
    brief: bool = False
    again: bool = False  # time once more what passed


class Devices(Protocol):
    """`count` devices; each evaluates one candidate at a time. Used from one thread."""

    @property
    def count(self) -> int: ...

    def submit(self, job: Job) -> Future[Answer]:
        """Have a candidate evaluated on the device with the least to do. The answer raises as `Evaluator.evaluate`; NotBuilt too."""
        ...

    def stop(self) -> None:
        """Drop what has not begun, without waiting for what has."""
        ...


class OneDevice:
    """The evaluator of this process, on a thread of its own."""

    count = 1

    def __init__(self, evaluator: Evaluator) -> None:
        self._evaluator = evaluator
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="evaluate")

    def submit(self, job: Job) -> Future[Answer]:
        return self._thread.submit(partial(evaluate, self._evaluator, job))

    def stop(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)


def evaluate(evaluator: Evaluator, job: Job) -> Answer:
    """What an evaluator says of a job."""
    if job.again:
        return evaluator.retime(job.built, job.incumbent)
    if job.brief:
        return evaluator.evaluate(job.built, job.incumbent, brief=True)
    return evaluator.evaluate(job.built, job.incumbent)


class _OnDevice(Protocol):
    @property
    def answer(self) -> Future[Any]: ...


R = TypeVar("R", bound=_OnDevice)


def first_done(running: list[R]) -> R:
    """Take the oldest of those that have been evaluated out of the list; waits for one."""
    wait([each.answer for each in running], return_when=FIRST_COMPLETED)
    return running.pop(next(place for place, each in enumerate(running) if each.answer.done()))
