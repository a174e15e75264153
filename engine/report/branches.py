"""The search tree in the order in which a page writes it: what opens, what closes, and which candidates are left out."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from engine.model import PASSED
from engine.report.run_folder import StoredNode, StoredRun

# More candidates make a page that nobody unfolds; deeper ones are shown at this depth with their parent named. Ours.
_MOST, _DEEPEST = 1500, 40


@dataclass(frozen=True)
class BranchLine:
    """One candidate: `opens` when others hang below it; `closes` so many levels end after it.."""

    node: StoredNode
    opens: bool
    closes: int
    depth: int
    chosen: bool  # on the way from the original to the best
    best: bool
    below: int  # candidates anywhere below it
    misplaced: bool  # its parent is not the one it is shown below


def branches(run: StoredRun) -> tuple[list[BranchLine], int]:
    """The tree in writing order, and how many candidates are left out of it.

    Those on the way to the best come first, then those that passed by their speed, then the others by number; each with all
    that it was made from.
    """
    known = {node.id: node for node in run.nodes}
    first = run.nodes[0].id
    # A parent was booked before its children: what says otherwise hangs from the original.
    parents = {
        n.id: n.parent if n.parent in known and n.parent is not None and n.parent < n.id else first for n in run.nodes
    }
    last = run.result.best.id if run.result.best is not None else first
    path = set(_ancestry(last, parents, first)) if last in known else {first}
    kept = _kept(run.nodes, parents, path, first)
    children: dict[int, list[int]] = defaultdict(list)
    depths = {first: 0}
    shown_below: dict[int, int] = {}
    for id in sorted(kept - {first}):
        above = parents[id]
        while depths[above] >= _DEEPEST:
            above = shown_below[above]
        depths[id] = depths[above] + 1
        shown_below[id] = above
        children[above].append(id)
    below = dict.fromkeys(kept, 0)
    for id in sorted(kept - {first}, reverse=True):
        below[shown_below[id]] += below[id] + 1
    found: list[BranchLine] = []
    waiting = [(first, 0)]
    while waiting:
        id, closes = waiting.pop()
        own = children.get(id, [])
        found.append(
            BranchLine(
                known[id], bool(own), 0 if own else closes, depths[id], id in path, id == last and run.result.best is not None,
                below[id], id != first and shown_below[id] != known[id].parent,
            )
        )  # fmt: skip
        # The last one below closes this level too, and whatever this one had to close.
        levels = [0] * (len(own) - 1) + [closes + 1] if own else []
        waiting += reversed(list(zip(own, levels, strict=True)))
    return found, len(run.nodes) - len(kept)


def _ancestry(id: int, parents: dict[int, int], first: int) -> list[int]:
    found = [id]
    while found[-1] != first:
        found.append(parents[found[-1]])
    return found


def _kept(nodes: Sequence[StoredNode], parents: dict[int, int], path: set[int], first: int) -> set[int]:
    def rank(node: StoredNode) -> tuple[bool, bool, float, int]:
        return (
            node.id not in path,
            node.outcome not in PASSED,
            -(node.ratio or 0.0) if node.outcome in PASSED else 0.0,
            node.id,
        )

    kept = {first}
    for node in sorted(nodes, key=rank):
        if len(kept) >= _MOST:
            break
        for id in _ancestry(node.id, parents, first):
            if id in kept:
                break
            kept.add(id)
    return kept
