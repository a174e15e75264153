"""The two-stage tuner: a template of a kernel, and a constrained search over its points. Documented in docs/tune.md."""

from engine.tune.result import TuneResult
from engine.tune.run import TuneOptions, output_folder, tune

__all__ = ["TuneOptions", "TuneResult", "output_folder", "tune"]
