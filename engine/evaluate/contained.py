"""An unexpected exception over one candidate is that candidate's outcome, and not the end of a run."""

import functools
import os
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from engine.compile.built import NotBuilt
from engine.errors import OptimlError
from engine.evaluate.build import not_built
from engine.model import Evaluation, Failure, Outcome

T = TypeVar("T")
_PACKAGE = Path(__file__).parents[1]


def unexpected(error: BaseException) -> str:
    """One sentence for a person: what was raised and where in this package. With OPTIML_DEBUG set the traceback goes to stderr."""
    if os.environ.get("OPTIML_DEBUG"):
        traceback.print_exception(error)
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename.startswith(str(_PACKAGE))]
    where = f" at engine/{Path(frames[-1].filename).relative_to(_PACKAGE)}:{frames[-1].lineno}" if frames else ""
    said = " ".join(str(error).split())[:200]
    return f"internal error: {type(error).__name__}{where}" + (f" ({said})" if said else "") + "; please report it"


def contained_build(build: Callable[..., T]) -> Callable[..., T]:
    """For a method that builds a candidate: what it raises unexpectedly becomes NotBuilt. OptimlError passes: the machine fails for all."""

    @functools.wraps(build)
    def contained(*given: Any, **named: Any) -> T:
        try:
            return build(*given, **named)
        except (NotBuilt, OptimlError):
            raise
        except Exception as error:
            raise not_built(Outcome.SCREENED_OUT, unexpected(error), {}) from None

    return contained


Answer = tuple[Evaluation, float | None]


def contained_evaluation(evaluate: Callable[..., Answer]) -> Callable[..., Answer]:
    """For a method that evaluates a candidate: what it raises unexpectedly becomes the outcome CRASHED. OptimlError passes."""

    @functools.wraps(evaluate)
    def contained(*given: Any, **named: Any) -> Answer:
        try:
            return evaluate(*given, **named)
        except OptimlError:
            raise
        except Exception as error:
            return Evaluation(Outcome.CRASHED, failure=Failure(unexpected(error))), None

    return contained
