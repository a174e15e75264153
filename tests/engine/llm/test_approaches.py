"""What a model is asked for when it is asked again at a program."""

import json

import pytest

pytest.importorskip("jinja2")

from engine.llm.approaches import APPROACHES, COMBINE
from engine.llm.chat import ChatAnswer, TokenUsage
from engine.llm.node_context import Diagnosed
from engine.profile.priors import INFLUENCES
from engine.search.progress import Budget

from .test_asking import Script, search_with
from .test_edits import LOOP, answer


class Listening(Script):
    """Keeps every first question by its round. Each answer has an edit that cannot be placed, one that can, and one that was tried."""

    def __init__(self):
        super().__init__()
        self.prompts = {}

    def complete(self, request):
        kind, key, round, *_ = request.label.split("/")
        if kind == "propose":
            self.prompts.setdefault((key, int(round)), request.messages[1].content)
        found = json.loads(self.text())["proposals"][:1]
        lost = answer(("not in the file", "x"), idea=f"Lose number {self.given}")
        tried = answer((LOOP, f"{LOOP}\n    speed(1.9);"), idea="Try that again")
        items = [*json.loads(lost)["proposals"], *found, *json.loads(tried)["proposals"]]
        return ChatAnswer(json.dumps({"proposals": items}), "scripted", TokenUsage(1, 1))


@pytest.fixture(scope="module")
def prompts(tmp_path_factory):
    def diagnose(node, wait_s):
        return Diagnosed(("Barriers",), {}, ("latency_bound", "barrier_stalls"))

    client = Listening()
    search_with(
        tmp_path_factory.mktemp("run"), client, Budget(candidates=24), strategy="best-of", diagnose=diagnose, holds=lambda label: True,
        in_flight=1, repairs=0,
    )  # fmt: skip
    (key,) = {key for key, _ in client.prompts}
    return {round: text for (_, round), text in client.prompts.items() if key}


def test_the_first_question_is_open_and_the_next_ones_ask_for_what_fits_the_diagnosis(prompts):
    assert "## What to try now" not in prompts[0]
    asked = [next(a.name for a in APPROACHES if a.text in prompts[round]) for round in range(1, 11)]
    assert asked[:2] == ["more work per thread", "other algorithm"]
    assert sorted(asked[:8]) == sorted(a.name for a in APPROACHES)
    assert asked[8:] == asked[:2]


def test_every_edit_that_was_dropped_has_its_reason_in_the_next_question(prompts):
    """Where another edit of the same answer could be used nothing was said of it."""
    assert "not used" not in prompts[0]
    assert "Lose number 3: not used: the search text 'not in the file' is not in the source" in prompts[1]
    assert "Try that again: not used: it gives a program that was tried" in prompts[2]


def test_branches_are_combined(tmp_path):
    client = Listening()
    search_with(tmp_path, client, Budget(candidates=24), holds=lambda label: True, in_flight=1)
    combined = [text for (_, round), text in client.prompts.items() if COMBINE in text]
    assert combined
    assert all("## Another branch" in text and "+    speed(" in text for text in combined)
    assert all(round == 1 for (_, round), text in client.prompts.items() if COMBINE in text)


def test_approaches_answer_codes_that_a_diagnosis_has():
    known = {influence.code for influence in INFLUENCES}
    assert all(a.codes <= known for a in APPROACHES)
