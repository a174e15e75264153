"""What can be said of a program of one spec from its text alone: what to compile and launch, and what rules would edit next."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from engine.compile.built import SizesKey, sizes_key
from engine.cuda.slice import device_slice
from engine.errors import OptimlError
from engine.model import LaunchConfig, Program, Target
from engine.rewrite.proposal import Proposal
from engine.rules import RuleFailure, make_site, proposals
from engine.spec.kernel_spec import KernelSpec
from engine.spec.launch_config import evaluate
from engine.spec.reader import relaunched
from engine.verify.defences import ALL, Defences
from engine.verify.screen import screen

MAX_GRID = (2**31 - 1, 65535, 65535)


@dataclass(frozen=True)
class PreparedCandidate:
    """A program's device slice, and its launches: a tuple (a launch per step) for each check case, then each timing case."""

    text: str
    launches: tuple[tuple[LaunchConfig, ...], ...]


class Analysis:
    """Reads programs of one spec. Thread-safe. `original` is what candidates are held against once it is known."""

    def __init__(
        self, spec: KernelSpec, root: Path, target: Target, spec_path: str | None = None, *, defences: Defences = ALL
    ) -> None:
        self.spec, self.root, self.target, self.spec_path, self.defences = spec, root, target, spec_path, defences
        self.original_program: Program | None = None
        self.further: dict[object, Sequence[Mapping[str, int | float]]] = {}  # by who will ask for the launches there

    def prepare(self, program: Program) -> PreparedCandidate:
        """What to compile and launch for a candidate. Raises OptimlError with the reason why there is nothing."""
        reason = None
        if self.original_program is not None and self.defences.screening:
            reason = screen(self.original_program, program, self.spec, self.defences)
        if reason:
            raise OptimlError(reason)
        launches = self.launches(program)
        self.check_limits(launches)
        return PreparedCandidate(self.slice(program), launches)

    def propose(self, program: Program) -> tuple[list[Proposal], list[RuleFailure]]:
        """What the rules propose for every step, and the rules that failed. Raises KeyError, SourceError (the kernel is gone)."""
        found: list[Proposal] = []
        failures: list[RuleFailure] = []
        for step in range(len(self.spec.steps)):
            found += proposals(make_site(program, self.spec, step, self.target), failures=failures)
        return found, failures

    def slice(self, program: Program) -> str:
        """The program's device slice. Raises SourceError."""
        # With the template arguments: they may name types and constants of the file.
        names = list(dict.fromkeys(self.spec.expressions))
        return device_slice(
            program, names, root=self.root, include=self.spec.compile.include, unit=self.spec.compile.unit
        ).text

    def launches(self, program: Program) -> tuple[tuple[LaunchConfig, ...], ...]:
        """The launches that the program's own text evaluates to, per case. Raises SourceError."""
        return tuple(self.launches_for(program, case.sizes) for case in (*self.spec.check, *self.spec.time))

    def further_sizes(self) -> list[Mapping[str, int | float]]:
        """The sizes beyond the spec's cases at which launches of every candidate are wanted, each once."""
        return list({sizes_key(sizes): sizes for wanted in list(self.further.values()) for sizes in wanted}.values())

    def further_launches(self, program: Program) -> dict[SizesKey, tuple[LaunchConfig, ...]]:
        """Launches at `further_sizes`, of those that can be made: whoever needs another hears why when it asks for it."""
        found = {}
        for sizes in self.further_sizes():
            with suppress(OptimlError):
                found[sizes_key(sizes)] = self.launches_for(program, sizes)
        return found

    def launches_for(self, program: Program, sizes: Mapping[str, int | float]) -> tuple[LaunchConfig, ...]:
        """The launches, one per step, at any sizes. Raises SourceError."""
        spec = relaunched(program, self.spec)
        return tuple(evaluate(program, spec, step, sizes) for step in range(len(spec.steps)))

    def check_limits(self, launches: Sequence[Sequence[LaunchConfig]]) -> None:
        """Raises OptimlError where a launch is beyond the target's limits."""
        for launch in (launch for case in launches for launch in case):
            if not 1 <= launch.threads <= self.target.max_threads_per_block or min(launch.block) < 1:
                raise OptimlError(
                    f"a block of {launch.threads} threads exceeds the limit of {self.target.max_threads_per_block}"
                )
            if any(not 1 <= g <= most for g, most in zip(launch.grid, MAX_GRID, strict=True)) or launch.block[2] > 64:
                raise OptimlError(f"a grid of {launch.grid} with blocks of {launch.block} cannot be launched")
            if not 0 <= launch.shared_bytes <= self.target.shared_most:
                raise OptimlError(f"{launch.shared_bytes} bytes of dynamic shared memory exceed the limit")
