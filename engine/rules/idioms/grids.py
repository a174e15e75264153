"""How a launch's grid follows from the kernel's parameters."""

from dataclasses import dataclass

from engine.cuda.questions import is_integer_type, written
from engine.rewrite import Case, LaunchConfig, OptimlError, Site
from engine.rules.idioms.thread_index import AXES, Axis
from engine.spec.launch_config import evaluate

_EACH = (2, 4, 8, 16)
_PRIMES = (3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47)


@dataclass(frozen=True)
class Grids:
    """The launches of all cases, of which the last two are made up: their sizes are primes, so that nothing else makes them equal."""

    site: Site
    cases: tuple[Case, ...]
    launches: tuple[LaunchConfig, ...]

    @classmethod
    def of(cls, site: Site) -> "Grids | None":
        """None where a launch cannot be evaluated, or the block differs between cases."""
        known = site.cases
        named = list(known[0].sizes)
        turns = (0, len(_PRIMES) - len(named))
        if turns[1] < len(named):
            return None
        made = [Case("primes", {**known[0].sizes, **dict(zip(named, _PRIMES[at:], strict=False))}) for at in turns]
        cases = (*known, *made)
        try:
            launches = tuple(evaluate(site.program, site.spec, site.step, case.sizes) for case in cases)
        except OptimlError:
            return None
        return cls(site, cases, launches) if len({launch.block for launch in launches}) == 1 else None

    @property
    def block(self) -> tuple[int, int, int]:
        """The threads of a block along each axis."""
        return self.launches[0].block

    def spans(self, axis: Axis, expression: str) -> bool:
        """Whether the grid has so many blocks along the axis, whatever the sizes."""
        k = AXES.index(axis)
        return all(
            self.site.value_in(expression, case) == launch.grid[k]
            for case, launch in zip(self.cases, self.launches, strict=True)
        )

    def times(self, axis: Axis, expression: str = "1") -> str | None:
        """The product of at most two of the kernel's parameters that the axis has times the expression.

        One of them may be shared out to threads that have several, as `(n + 3) / 4`.
        """
        sizes = whole_numbers(self.site)
        shares = [f"(({size} + {each - 1}) / {each})" for size in sizes for each in _EACH]
        products = (
            "1", *sizes, *(f"{a} * {b}" for k, a in enumerate(sizes) for b in sizes[k:]),
            *shares, *(f"{a} * {b}" for a in sizes for b in shares),
        )  # fmt: skip
        return next((p for p in products if self.spans(axis, f"({p}) * ({expression})")), None)


def whole_numbers(site: Site) -> list[str]:
    """The kernel's parameters that are whole numbers and stay what they are."""
    changed = written(site.body)
    return [
        p.name for p in site.kernel.parameters if not p.pointer and is_integer_type(p.base) and p.name not in changed
    ]
