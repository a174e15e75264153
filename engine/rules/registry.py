"""Find the rewrite rules: those of this package, and those that installed packages register as `optiml.rules`."""

import importlib
import inspect
import pkgutil
import sysconfig
from collections.abc import Iterator
from functools import cache
from importlib.metadata import Distribution, EntryPoint, entry_points
from pathlib import Path
from typing import TypeGuard

import engine.rules
from engine.errors import UsageError
from engine.rewrite import Rule

GROUP = "optiml.rules"
# Proposals of equal prior come in this order; other rules follow in the order of their names.
_ORDER = (
    "matmul_tile", "conv_tile", "row_parallel", "topk_filter", "one_pass", "row_keep", "register_accumulate", "transpose_tile",
    "atomic_aggregate", "atomic_vectorize", "stencil_tile", "stencil_pack", "interior", "vectorize",
    "row_vectorize", "segment_vectorize",
    "block_size", "tile_size", "unroll_jam", "coarsen", "batch_loads", "block_rows", "restrict", "unroll", "fast_math", "launch_bounds",
    "cascade", "warp_reduce", "scan_items", "scan_rounds", "warp_scan", "exchange_items", "warp_exchange", "shared_padding", "swap_axes",
    "invariant_division", "read_only", "reverse_blocks",
)  # fmt: skip


@cache
def rules() -> tuple[Rule, ...]:
    """Every rule, once. Raises UsageError for a registered rule that cannot be loaded or has the name of another."""
    found = {rule.name: rule for rule in _own()}
    for point in entry_points(group=GROUP):
        if _installed(point.dist):
            rule = _registered(point)
            if rule.name in found:
                raise UsageError(f"two rules are named '{rule.name}'", point.value, "rename or uninstall one")
            found[rule.name] = rule
    places = {name: place for place, name in enumerate(_ORDER)}
    return tuple(sorted(found.values(), key=lambda rule: (places.get(rule.name, len(places)), rule.name)))


def _own() -> Iterator[Rule]:
    """The rules of this package."""
    for module in pkgutil.walk_packages(engine.rules.__path__, f"{engine.rules.__name__}."):
        for kind in vars(importlib.import_module(module.name)).values():
            if _is_rule(kind) and kind.__module__ == module.name:
                yield kind()


def _is_rule(value: object) -> TypeGuard[type[Rule]]:
    return inspect.isclass(value) and all(hasattr(value, part) for part in ("name", "summary", "propose"))


def _registered(point: EntryPoint) -> Rule:
    try:
        rule = point.load()()
        if not (rule.name and rule.summary and callable(rule.propose)):
            raise TypeError("a rule has a name, a summary and a method propose")
    except Exception as error:  # whatever a package raises when it is loaded
        what = f"the rule '{point.name}' cannot be loaded: {type(error).__name__}: {error}"
        raise UsageError(what, point.value, "fix or uninstall the package that registers it") from error
    loaded: Rule = rule
    return loaded


def _installed(distribution: Distribution | None) -> bool:
    """Whether a package is installed in this environment; one in an untrusted checkout on the path does not count."""
    if distribution is None:
        return False
    home = Path(str(distribution.locate_file(""))).resolve()
    return any(home == Path(sysconfig.get_path(kind)).resolve() for kind in ("purelib", "platlib"))
