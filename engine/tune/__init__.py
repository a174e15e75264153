"""The two-stage tuner: a template of a kernel, and a constrained search over its points. Documented in docs/tune.md."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from engine.tune.result import TuneResult
    from engine.tune.run import TuneOptions, output_folder, tune

__all__ = ["TuneOptions", "TuneResult", "output_folder", "tune"]


def __getattr__(name: str) -> Any:
    # The front workers read templates and nothing else: they would wait half a second for what only a whole run needs.
    if name not in __all__:
        raise AttributeError(name)
    return getattr(import_module("engine.tune.result" if name == "TuneResult" else "engine.tune.run"), name)
