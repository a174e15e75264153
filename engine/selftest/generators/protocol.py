"""What a generator is, and what generators build their cases with."""

import importlib
import pkgutil
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Protocol

import engine.selftest.generators
from engine.selftest.cases import HONEST, REFUSED, SelfCase


class Generator(Protocol):
    """One idea, in new texts.

    `name` is unique and in kebab-case. `defends` says which property the cases show. `cases` draws everything it varies (names,
    constants, sizes, positions, forms) from `rng`, the only source of randomness: one seed gives one list of cases.
    """

    @property
    def name(self) -> str: ...

    @property
    def defends(self) -> str: ...

    def cases(self, rng: random.Random) -> Iterator[SelfCase]: ...


@dataclass(frozen=True)
class FromFunction:
    """A generator whose cases a function yields."""

    name: str
    defends: str
    function: Callable[[random.Random], Iterator[SelfCase]]

    def cases(self, rng: random.Random) -> Iterator[SelfCase]:
        return self.function(rng)


def attack_on(
    name: str, idea: str, original: str, *, kernel: str = "", edits: Sequence[tuple[str, str]] = ()
) -> SelfCase:
    """An edit that must be refused on both paths, for whatever reason; `dataclasses.replace` says otherwise."""
    return SelfCase(name, "attacks", idea, original, kernel, tuple(edits), REFUSED, REFUSED)


def honest_edit_of(
    name: str, idea: str, original: str, *, kernel: str = "", edits: Sequence[tuple[str, str]] = ()
) -> SelfCase:
    """An edit that must not be refused."""
    return SelfCase(name, "honest", idea, original, kernel, tuple(edits), HONEST, HONEST)


def generators(package: ModuleType = engine.selftest.generators) -> tuple[Generator, ...]:
    """All generators of a package, by name: `GENERATORS` of each of its modules, or its function `generate`."""
    found: list[Generator] = []
    for module in pkgutil.iter_modules(package.__path__):
        loaded = importlib.import_module(f"{package.__name__}.{module.name}")
        if hasattr(loaded, "generate"):
            about = (loaded.__doc__ or "").partition("\n")[0]
            found.append(FromFunction(module.name.replace("_", "-"), about, loaded.generate))
        found += getattr(loaded, "GENERATORS", ())
    return tuple(sorted(found, key=lambda generator: generator.name))


def generated(
    seed: int, names: Sequence[str] = (), rounds: int = 1, package: ModuleType = engine.selftest.generators
) -> tuple[SelfCase, ...]:
    """The cases of all generators of a package (or of these) for a seed, in so many rounds of new texts.

    A generator's cases do not depend on which others run.
    """
    return tuple(
        case
        for one in generators(package)
        if not names or one.name in names
        for turn in range(rounds)
        for case in one.cases(random.Random(f"{one.name} {seed} {turn}"))
    )
