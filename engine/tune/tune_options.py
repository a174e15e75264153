"""What a tuning run is asked for."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from engine.evaluate.guardrails import LIMITS
from engine.search.progress import Budget
from engine.settings.config import Guardrails
from engine.settings.memory_settings import MemorySettings
from engine.spec.kernel_spec import KernelSpec


@dataclass(frozen=True)
class TuneOptions:
    """What a run is asked for. `parameters` (name to values as text) and `where` come beside what the file declares.

    `rule` names a rewrite rule that writes the template, "NAME" or "NAME/2" for its second form; without one the file's
    declarations count, then the rule's form that promises most. With `constants` the best point of a rule's template is also written
    with named constants for figures. `spec` as for `engine.run.optimization.Options`.
    """

    path: Path
    kernel: str | None = None
    budget: Budget = field(default_factory=lambda: Budget(seconds=60.0))
    strategy: str | None = None
    parameters: Mapping[str, str] = field(default_factory=dict)
    where: tuple[str, ...] = ()
    rule: str | None = None
    dispatch: bool = False
    constants: bool = False
    seed: int = 0
    out: Path | None = None
    resume: bool = False
    guardrails: Guardrails = LIMITS
    targets: tuple[str, ...] = ()  # architectures that a suggestion must compile for as well
    command: tuple[str, ...] = ()
    spec: tuple[KernelSpec, str | None] | None = None
    request: str = ""  # as of `engine.run.optimization.Options`
    model: str = ""  # how a model is asked to write the template, in words: a part of what identifies the run
    memory: MemorySettings | None = None  # lessons of earlier runs, for the choice of a rule's template and for a model
    kept: Path | None = None  # where the earlier run of this folder is now: it comes back where this one is refused
