"""What a search has to suggest."""

from __future__ import annotations

from collections.abc import Hashable

from engine.evaluate.evaluator import ALIKE
from engine.model import Outcome
from engine.search.tree import Node, Tree


def best_nodes(
    tree: Tree, incumbent: Node | None, count: int, least: float = 1.0, *, checked: Hashable = None
) -> list[Node]:
    """The candidates most worth suggesting, of those above a speedup of `least`; the incumbent comes before what measured faster alone.

    Among those that are as fast as the best but for noise, the first is the one of the digest `checked`, or else the one with the
    fewest edits: what gains nothing has no place in a patch, and is not worth checks anew. The others follow by ratio.
    """
    good = [n for n in tree.walk() if n.id and _ratio(n) > least]
    good.sort(key=lambda n: -_ratio(n))
    if incumbent in good:
        good.remove(incumbent)
        good.insert(0, incumbent)
    if good:
        alike = [n for n in good if _ratio(n) >= _ratio(good[0]) / ALIKE]
        first = min(alike, key=lambda n: (n.program.digest != checked, n.depth))
        if first.depth < good[0].depth or first.program.digest == checked:
            good.remove(first)
            good.insert(0, first)
    return good[:count]


def _ratio(node: Node) -> float:
    """The speedup of a candidate that passed, 0 of any other."""
    evaluation = node.evaluation
    if evaluation is None or evaluation.measurement is None:
        return 0.0
    if evaluation.outcome not in (Outcome.ACCEPTED, Outcome.SCREENED):
        return 0.0
    return evaluation.measurement.ratio
