"""What a search of one kernel is asked for."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from engine.evaluate.guardrails import LIMITS
from engine.rewrite.proposal import Proposal
from engine.search.policies import Strategy
from engine.search.progress import Budget
from engine.settings.config import Guardrails
from engine.settings.memory_settings import MemorySettings
from engine.spec.kernel_spec import KernelSpec

if TYPE_CHECKING:
    from engine.llm.session import LlmSettings

# Nsight Compute counts nothing; the best candidates in a small share of the time; or every candidate that passed, and the search waits.
Coverage = Literal["none", "best", "all"]


@dataclass(frozen=True)
class Options:
    """What a run is asked for. `out` is where journal, result and patch go; None: `.optiml/<file>-<kernel>/` at the root.

    `spec` (a spec with the path of its optiml.toml, or None) counts instead of the one in the repository: what comes from a
    stranger must not say itself how it is judged.
    """

    path: Path
    kernel: str | None = None
    budget: Budget = field(default_factory=lambda: Budget(seconds=60.0))
    seed: int = 0
    out: Path | None = None
    resume: bool = False
    search: Strategy = "greedy"
    profile: Coverage = "best"  # what Nsight Compute counts, where it is there
    proxies: bool = True  # let counters take part in the reward
    guardrails: Guardrails = LIMITS
    targets: tuple[str, ...] = ()  # architectures that a suggestion must compile for as well
    command: tuple[str, ...] = ()
    spec: tuple[KernelSpec, str | None] | None = None
    proposers: tuple[str, ...] = ("rules",)  # of "rules", "tuner", "llm"
    llm: LlmSettings | None = None
    memory: MemorySettings | None = None  # lessons of earlier runs, for the model and for the rules' priors
    seeds: tuple[Proposal, ...] = ()  # edits of the original that are tried before all others
    notes: tuple[str, ...] = ()  # what the result has to say of where the kernel comes from
    request: str = ""  # a name for what is asked for, by which the same is known again (engine/run/going_on.py)
