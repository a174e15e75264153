"""What a launch covers: blocks that fit, bounds that all its threads reach, work that one thread may do for others."""

import re
from dataclasses import dataclass

from engine.cuda.questions import ArithmeticError_, assigned, evaluate_int, is_integer_type, strip, text, walk, written
from engine.rewrite import Case, LaunchConfig, Node, OptimlError, Site
from engine.rules.idioms.known_values import in_parameters
from engine.rules.idioms.thread_index import AXES, Axis, ThreadMap, thread_uses_outside
from engine.spec.launch_config import evaluate

_LESS = re.compile(r"([\w.]+|\(.+\)) - \d+")


def fits_bounds(site: Site, threads: int) -> bool:
    """Whether the kernel's `__launch_bounds__` (if it has any) admit a block of so many threads."""
    if not site.kernel.launch_bounds:
        return True
    try:
        return evaluate_int(site.kernel.launch_bounds.split(",")[0], {}) >= threads
    except ArithmeticError_:
        return False


def covers(site: Site, bound: str, configs: tuple[tuple[int, int], ...], factor: int) -> bool:
    """Whether the launch covers the bound in every case; `configs` holds (grid, block) of one axis."""
    for case, (grid, block) in zip(site.cases, configs, strict=True):
        value = site.value_in(bound, case)
        if value is None or value > grid * block * factor:
            return False
    return True


def covered(
    site: Site, mapping: ThreadMap, before: tuple[LaunchConfig, ...], free: frozenset[Axis] = frozenset()
) -> dict[Axis, str] | None:
    """A bound of each axis over kernel parameters that the guard lets nothing beyond, where the launch covers the guard's in every case.

    It is the guard's, or one that the launch covers as well where the guard's may be zero: no grid is empty. Axes without an index have one
    block, but for those that are `free`.
    """
    found: dict[Axis, str] = {}
    for index in mapping.indices:
        bound = mapping.bounds.get(index.axis)
        expression = in_parameters(site, bound) if bound is not None else None
        k = AXES.index(index.axis)
        launched = tuple((c.grid[k], c.block[k]) for c in before)
        if expression is None or not covers(site, expression, launched, index.factor):
            return None
        less = _LESS.fullmatch(expression)
        found[index.axis] = less[1] if less and covers(site, less[1], launched, index.factor) else expression
    unindexed = [k for k, axis in enumerate(AXES) if axis not in found]
    alone = all(c.block[k] == 1 and (c.grid[k] == 1 or AXES[k] in free) for c in before for k in unindexed)
    return found if alone else None


def only_bound(mapping: ThreadMap) -> bool:
    """Whether the guard says `i < n` and nothing more."""
    if len(mapping.guards) != 1:
        return False
    condition = mapping.guards[0].child_by_field_name("condition")
    comparisons = (
        [n for n in walk(condition) if n.type in ("binary_expression", "unary_expression")] if condition else []
    )
    bound = mapping.bounds.get("x")
    inside = {n.id for n in walk(bound)} if bound is not None else set()
    return len([n for n in comparisons if n.id not in inside]) == 1


def independent(site: Site, mapping: ThreadMap) -> bool:
    """Whether the work may be repeated for other elements by the same thread."""
    if mapping.style == "none" or site.kernel.shared or thread_uses_outside(site, mapping.indices):
        return False
    if any(i.factor != 1 or not i.alone for i in mapping.indices) or not mapping.work:
        return False
    repeated = (*mapping.work, *mapping.derived)
    if any(_changes_parameter(site, node) for node in repeated):
        return False
    atomics = frozenset(c for c in site.kernel.calls if c.startswith("atomic"))
    return all(site.local_only(node, atomics) for node in repeated)


def _changes_parameter(site: Site, node: Node) -> bool:
    """Whether a parameter itself becomes another (`x += row * n`): done once more it would be yet another."""
    parameters = {p.name for p in site.kernel.parameters}
    targets = (strip(t) for n in walk(node) if (t := assigned(n)) is not None)
    return any(t.type == "identifier" and text(t) in parameters for t in targets)


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

    def blocks(self, axis: Axis) -> str | None:
        """The number of blocks over the kernel's parameters: what `times` finds, or a size shared out to threads that have several."""
        threads = self.block[AXES.index(axis)]
        each = [threads * several for several in (1, *_EACH)]
        shared = (f"({size} + {n - 1}) / {n}" for size in whole_numbers(self.site) for n in each if n > 1)
        return self.times(axis) or next((s for s in shared if self.spans(axis, s)), None)

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
