import pytest

from engine.cuda.edit import edit_program
from engine.cuda.kernel import Edit, Span
from engine.model import Evaluation, Measurement, Outcome
from engine.rewrite.proposal import Proposal
from engine.search.shorten import steps_that_count
from engine.search.tree import Node

from .fakes import program

TEXT = "const int block = 32;\nconst int limit = 0;\nconst int unroll = 1;\n"


def propose(of):
    """A rule that sets the block, one that sets limit, one that sets unroll."""
    text = of.data.decode()
    found = []
    for name, values in (("block", (32, 64, 128)), ("limit", (0, 1)), ("unroll", (1, 2, 4))):
        start = text.index(name) + len(f"{name} = ")
        end = text.index(";", start)
        found += [
            Proposal("rules", name, f"{name} {v}", {"k.cu": (Edit(Span(start, end), str(v)),)}, {"value": v}, 0.5)
            for v in values
        ]
    return found


def path(*steps):
    """Nodes along edits such as ("block", 64, 1.2): rule, value, speedup so far."""
    root = Node(0, program(TEXT), None, None, Evaluation(Outcome.ACCEPTED, Measurement((), 1.0, 1.0, 1.0)))
    nodes = [root]
    for number, (rule, value, ratio) in enumerate(steps, 1):
        before = nodes[-1]
        proposal = next(p for p in propose(before.program) if p.rule == rule and p.parameters["value"] == value)
        evaluation = Evaluation(Outcome.ACCEPTED, Measurement((), ratio, ratio, ratio))
        nodes.append(Node(number, edit_program(before.program, proposal.edits), before, proposal, evaluation))
    return nodes


@pytest.mark.parametrize(
    ("steps", "kept"),
    [
        ([("block", 64, 1.2), ("limit", 1, 1.5)], [0, 1, 2]),
        ([("block", 64, 1.001), ("block", 128, 1.5)], [0, 2]),  # the second one undid the first
        ([("block", 64, 1.2), ("block", 128, 1.5)], [0, 1, 2]),  # which had gained something
        ([("limit", 1, 1.0), ("block", 128, 1.5)], [0, 1, 2]),  # in the patch: a person must see it
        ([("block", 64, 1.0), ("block", 32, 1.0), ("block", 128, 1.5)], [0, 3]),
        ([("unroll", 2, 1.3), ("block", 64, 1.29), ("block", 128, 1.6), ("limit", 1, 1.7)], [0, 1, 3, 4]),
        ([("limit", 1, 1.0)], [0, 1]),
    ],
)
def test_steps_that_gained_nothing_and_were_undone_are_left_out(steps, kept):
    whole = path(*steps)
    left = steps_that_count(whole, propose)
    assert [node.id for node in left] == kept
    assert left[-1].program.digest == whole[-1].program.digest


def test_what_nobody_would_propose_again_stays():
    whole = path(("block", 64, 1.0), ("block", 128, 1.5))
    assert steps_that_count(whole, lambda of: []) == whole
