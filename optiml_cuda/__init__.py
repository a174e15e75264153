"""OptiML from Python: search and tune CUDA kernels.

>>> from pathlib import Path
>>> from optiml_cuda import Budget, Options, TuneOptions, arithmetic
>>> Options(Path("softmax.cu"), budget=Budget(seconds=30.0)).search
'greedy'
>>> TuneOptions(Path("gemm.cu"), parameters={"TILE": "16, 32"}).dispatch
False
>>> arithmetic("(n + 255) / 256", {"n": 1000})
4

`optimize` and `tune` take options and return what the commands of the same names write:

    result, folder = optimize(Options(Path("softmax.cu"), budget=Budget(seconds=30.0)))
    if result.best is not None:
        print(result.verdict, folder / result.best.patch)

Names are loaded when they are first used, so that importing this package costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from engine.errors import OptimlError
    from engine.run.result import OptimizationResult
    from engine.search.progress import Budget
    from engine.tune.tune_options import TuneOptions
    from engine.tune.tuning_result import TuneResult
    from optiml_cuda.functions import Options, arithmetic, optimize, tune

__all__ = [
    "Budget",
    "OptimizationResult",
    "OptimlError",
    "Options",
    "TuneOptions",
    "TuneResult",
    "arithmetic",
    "optimize",
    "tune",
]

_PLACES = {
    "Budget": "engine.search.progress",
    "OptimizationResult": "engine.run.result",
    "OptimlError": "engine.errors",
    "Options": "optiml_cuda.functions",
    "TuneOptions": "engine.tune.tune_options",
    "TuneResult": "engine.tune.tuning_result",
    "arithmetic": "optiml_cuda.functions",
    "optimize": "optiml_cuda.functions",
    "tune": "optiml_cuda.functions",
}


def __getattr__(name: str) -> Any:
    from optiml_cuda.claim import claim

    if name not in _PLACES:
        raise AttributeError(f"module 'optiml_cuda' has no attribute '{name}'")
    claim()
    return getattr(importlib.import_module(_PLACES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
