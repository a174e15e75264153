"""What a rule is: from a program, what it could become."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, wraps
from typing import Any, Protocol, TypeVar, runtime_checkable

from engine.model import LaunchConfig, Program
from engine.source.model import Edit, Kernel, LaunchSite, Unit
from engine.spec.model import KernelSpec


@dataclass(frozen=True)
class Target:
    """The figures of the target that rules may look at."""

    arch: str = "sm_90"
    warp: int = 32
    max_threads_per_block: int = 1024
    max_threads_per_sm: int = 2048
    max_blocks_per_sm: int = 32
    registers_per_sm: int = 65536
    shared_per_block: int = 49152  # static limit, bytes
    shared_per_sm: int = 233472
    multiprocessors: int = 132
    shared_reserved: int = 1024  # bytes per block that the system keeps, from compute capability 8.0 on

    @property
    def shared_most(self) -> int:
        """Bytes of static and dynamic shared memory that one block can have at most."""
        return self.shared_per_sm - self.shared_reserved

    def blocks_at_once(self, threads: int) -> int:
        """Blocks of so many threads that one multiprocessor holds at most."""
        return min(self.max_threads_per_sm // threads, self.max_blocks_per_sm)


@dataclass(frozen=True)
class Site:
    """What a rule sees: one kernel of one program, with its launches and spec, parsed once for all rules."""

    program: Program
    spec: KernelSpec
    step: int  # index into spec.steps
    unit: Unit  # of the kernel's file
    kernel: Kernel
    launches: tuple[LaunchSite, ...]  # every launch of the kernel in the program; () where none can be seen
    configs: tuple[
        LaunchConfig, ...
    ]  # the evaluated launch of each timing case, in the spec's order; () if not evaluable
    target: Target = Target()
    memo: dict[Hashable, Any] = field(default_factory=dict, init=False, compare=False, repr=False)  # for `once`


T = TypeVar("T")


def once(say: Callable[[Site], T]) -> Callable[[Site], T]:
    """`say`, which two dozen rules ask of a site, worked out for the first of them. For what nobody changes."""

    @wraps(say)
    def known(site: Site) -> T:
        if say not in site.memo:
            site.memo[say] = say(site)
        found: T = site.memo[say]
        return found

    return known


@dataclass(frozen=True)
class Proposal:
    """One edit of a program that a proposer suggests.

    `edits` are by repository-relative path, against the files of the program they were made for. `summary` is one sentence
    in the imperative ("Let one warp work on each row"). `prior` in (0, 1]: how promising before anything is measured. `tries`: how
    many candidates it takes to see what it brings. `makes` is the digest of the program that it gives, where whoever made it knows.
    """

    proposer: str  # "rules", "tuner", "llm"
    rule: str
    summary: str
    edits: Mapping[str, tuple[Edit, ...]]
    parameters: Mapping[str, int | str] = field(default_factory=dict)
    prior: float = 0.5
    tries: int = 1
    makes: str | None = field(default=None, compare=False)

    @cached_property
    def family(self) -> tuple[str, str]:
        """The rule with its proposer."""
        return self.proposer, self.rule

    @cached_property
    def identity(self) -> tuple[str, str, str, str]:
        """What the edit is known by wherever it is proposed again, in this process or another."""
        return self.proposer, self.rule, self.summary, repr(sorted(self.parameters.items()))

    @cached_property
    def alike(self) -> tuple[tuple[object, ...], ...]:
        """What it shares with edits that differ in one whole number alone: one key for each of its own."""
        figures = sorted(self.parameters.items())
        return tuple(
            (self.family, name, *figures[:k], *figures[k + 1 :])
            for k, (name, value) in enumerate(figures)
            if isinstance(value, int)
        )


@dataclass(frozen=True)
class Family:
    """A rule's edit of one site with its figures left open: what a tuner searches.

    `parameters` are the values that each figure may take, `conditions` expressions over them (for `engine.arith`) that must not
    be 0, those of the target's limits included as far as the rule knows them. `make` gives the proposal for one choice, or
    None where the edit cannot be written so. `impossible` says, as a condition, what a choice breaks that expressions cannot tell.
    """

    rule: str
    summary: str
    parameters: Mapping[str, tuple[int, ...]]
    conditions: tuple[str, ...]
    make: Callable[[Mapping[str, int]], Proposal | None]
    prior: float = 0.5  # as of a proposal: that the best choice helps
    impossible: Callable[[Mapping[str, int]], str] = lambda values: ""


@runtime_checkable
class Parametric(Protocol):
    """A rule that can make its proposals at any choice of their figures."""

    name: str

    def families(self, site: Site) -> Iterator[Family]: ...


class Rule(Protocol):
    """A rewrite rule: one module, one idea. `propose` yields nothing where the precondition does not hold."""

    name: str
    summary: str

    def propose(self, site: Site) -> Iterator[Proposal]: ...
