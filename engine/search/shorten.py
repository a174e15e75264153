"""A path without the steps that brought nothing: a person reads it, and a patch has no place for them."""

from collections.abc import Callable, Sequence

from engine.cuda.edit import edit_program
from engine.model import Program
from engine.rewrite.proposal import Proposal
from engine.search.tree import Node

_GAIN = 1.003  # as much as an incumbent must be beaten by (engine/search/loop.py): less is noise


def steps_that_count(path: Sequence[Node], propose: Callable[[Program], Sequence[Proposal]]) -> list[Node]:
    """The path from the original to a program, without each step that gained nothing and that the next one made undone.

    A step goes where the same edit as the next one, proposed for the program before it, gives the next one's text byte for byte: then
    all that follows, and the patch, stay as they are. `propose` gives the edits of a program.
    """
    kept = list(path[:1])
    for place, node in enumerate(path[1:], 1):
        after = path[place + 1] if place + 1 < len(path) else None
        if after is None or _ratio(node) > _GAIN * _ratio(kept[-1]) or not _leads_to(kept[-1].program, after, propose):
            kept.append(node)
    return kept


def _leads_to(program: Program, node: Node, propose: Callable[[Program], Sequence[Proposal]]) -> bool:
    wanted = node.proposal
    if wanted is None:
        return False
    for proposal in propose(program):
        alike = (proposal.proposer, proposal.rule) == (wanted.proposer, wanted.rule)
        if alike and dict(proposal.parameters) == dict(wanted.parameters):
            try:
                if edit_program(program, proposal.edits).digest == node.program.digest:
                    return True
            except Exception:  # an edit that cannot be applied leads nowhere
                continue
    return False


def _ratio(node: Node) -> float:
    measurement = node.evaluation.measurement if node.evaluation is not None else None
    return 1.0 if node.parent is None or measurement is None else measurement.ratio
