"""What a search has to suggest."""

from __future__ import annotations

from engine.model import Outcome
from engine.search.tree import Node, Tree

# Speedups this near each other are alike: a look at a candidate is good to about one per cent. Ours.
_ALIKE = 1.01


def best_nodes(tree: Tree, incumbent: Node | None, count: int, least: float = 1.0) -> list[Node]:
    """The candidates most worth suggesting, of those above a speedup of `least`; the incumbent comes before what measured faster alone.

    Among those that are as fast as the best but for noise, the one with the fewest edits comes first: what gains
    nothing has no place in a patch. The others follow by ratio.
    """
    good = [n for n in tree.walk() if n.id and _ratio(n) > least]
    good.sort(key=lambda n: -_ratio(n))
    if incumbent in good:
        good.remove(incumbent)
        good.insert(0, incumbent)
    if good:
        alike = [n for n in good if _ratio(n) >= _ratio(good[0]) / _ALIKE]
        simplest = min(alike, key=lambda n: n.depth)
        if simplest.depth < good[0].depth:
            good.remove(simplest)
            good.insert(0, simplest)
    return good[:count]


def _ratio(node: Node) -> float:
    """The speedup of a candidate that passed, 0 of any other."""
    evaluation = node.evaluation
    if evaluation is None or evaluation.measurement is None:
        return 0.0
    if evaluation.outcome not in (Outcome.ACCEPTED, Outcome.SCREENED):
        return 0.0
    return evaluation.measurement.ratio
