"""Every attack of the self-test as a model's answer: refused as text, or the very program that the stages refuse."""

import json
from functools import cache

import pytest

pytest.importorskip("jinja2")

from engine.cuda.edit import edit_program
from engine.cuda.load import load_program
from engine.llm.chat import ChatAnswer, Fault, TokenUsage
from engine.llm.node_context import make_context
from engine.llm.proposer import LlmProposer
from engine.model import Evaluation, Measurement, Outcome, Target
from engine.search.tree import Tree
from engine.selftest.cases import load_cases, original_text
from engine.spec.find import find_spec

ATTACKS = load_cases("attacks")
REFUSED_AS_TEXT = {Fault.FORBIDDEN, Fault.UNREADABLE, Fault.UNCHANGED}


@pytest.fixture(scope="module")
def contexts(tmp_path_factory):
    @cache
    def of(original):
        root = tmp_path_factory.mktemp(original)
        (root / ".git").mkdir()
        path = root / f"{original}.cu"
        path.write_bytes(original_text(original))
        spec, spec_path = find_spec(root, path)
        program = load_program(path, spec_file=spec_path, kernels=[step.kernel for step in spec.steps])
        tree = Tree(program, lambda program: [], 0)
        tree.root.evaluation = Evaluation(Outcome.NO_DIFFERENCE, Measurement((), 1.0, 1.0, 1.0))
        return make_context(tree.root, spec, Target(), counters=())

    return of


class Says:
    def __init__(self, text):
        self.text = text

    def complete(self, request):
        return ChatAnswer(self.text, "hostile", TokenUsage(1, 1))


def attack(case):
    edits = [{"file": "", "search": find, "replace": replace} for find, replace in case.edits]
    launch = {"grid": [], "block": [], "shared": ""}
    one = {
        "idea": case.idea,
        "counter": "",
        "direction": "down",
        "edits": edits,
        "kernel": case.kernel,
        "launch": launch,
    }
    return json.dumps({"proposals": [one]})


@pytest.mark.parametrize("original", sorted({case.original for case in ATTACKS}))
def test_attacks_come_no_further_by_way_of_a_model(contexts, original):
    context = contexts(original)
    ours = [case for case in ATTACKS if case.original == original]
    refused = 0
    for case in ours:
        proposed = LlmProposer(Says(attack(case))).propose(context)
        if not proposed.proposals:
            assert set(proposed.faults) <= REFUSED_AS_TEXT, case.name
            refused += 1
            continue
        # What the text does not give away is refused by the stages, which see the same program as in the self-test.
        (proposal,) = proposed.proposals
        made = edit_program(context.program, proposal.edits).data
        # A helper may come to stand elsewhere.
        assert sorted(made.split()) == sorted(case.text().split()), case.name
    if original == "scale":
        assert refused >= 40  # these cost no compiler
