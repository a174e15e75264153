"""A judge behind a server, from its first score to what its record makes of it: one that is right, one that guesses, one that inverts."""

import json
import random
import re

import pytest

pytest.importorskip("openai")
pytest.importorskip("jinja2")

from engine.llm.budget import Price
from engine.llm.session import LlmSettings
from engine.report.terminal import record_of
from engine.search.progress import Budget

from .server import completion
from .test_edits import LOOP, answer
from .test_session import asked_for, online, run  # noqa: F401 - a fixture

CANDIDATES = 60


class Scripted:
    """Codes three edits of known gains in each answer; judges by `says`, which is given the true gain."""

    def __init__(self, says, usage=(100, 20)):
        self.says, self.usage, self.given, self.judged_at = says, usage, 0, []
        self.random = random.Random(0)

    def __call__(self, handler):
        request = handler.server.requests[-1]
        text = self.judge(request) if asked_for(request) == "judge" else self.code()
        handler.send(200, completion(text, usage=self.usage))

    def code(self):
        items = []
        for _ in range(3):
            self.given += 1
            gain = self.random.uniform(0.85, 1.18)
            made = answer((LOOP, f"{LOOP}\n    speed({gain:.4f});"), idea=f"Step number {self.given}")
            items += json.loads(made)["proposals"]
        return json.dumps({"proposals": items})

    def judge(self, request):
        self.judged_at.append(self.given)
        parts = re.split(r"^### (\w{8})$", request["messages"][1]["content"], flags=re.M)
        scores = []
        for key, body in zip(parts[1::2], parts[2::2], strict=True):
            added = [float(f) for f in re.findall(r"^\+.*\bspeed[ (]([\d.]+)", body, re.M)]
            scores.append({"edit": key, "gain": self.says(added[-1], self.random), "risk": 0.05, "bound": "memory"})
        return json.dumps({"scores": scores})


JUDGES = {
    "right": lambda gain, rng: gain,
    "guessing": lambda gain, rng: rng.uniform(0.85, 1.18),
    "inverting": lambda gain, rng: 1 / gain,
}


@pytest.fixture
def judged(tmp_path, online):  # noqa: F811
    def play(name):
        script = Scripted(JUDGES[name])
        online(script)
        settings = LlmSettings(model="coder", judge_model="cheap", concurrency=1)
        search, session = run(
            tmp_path, settings, name, factors=(), budget=Budget(seconds=120, candidates=CANDIDATES), in_flight=1
        )
        return script, search, session

    return play


def test_a_judge_that_is_right_is_asked_to_the_end_and_weighs_much(judged):
    script, search, session = judged("right")
    told = session.summary["judge"]
    assert told["measured"] > 30
    assert told["rank_correlation"] > 0.9
    assert told["weight"] > 0.85
    assert told["error_doublings"] < 0.02  # predicted against measured
    assert not told["off"]
    assert script.given - script.judged_at[-1] <= 3  # the last answer was judged too
    assert f"weight {told['weight']:.2f}" in record_of(told)
    judged_edits = [n for n in search.tree.walk() if n.proposal and "judge_percent" in n.proposal.parameters]
    scores = [n.proposal.parameters["judge_percent"] for n in judged_edits]
    priors = [n.proposal.prior for n in judged_edits]
    late = sorted(zip(scores[20:], priors[20:], strict=True))
    assert late[-1][1] > late[0][1] + 0.02  # by its weight the score decides more than the place in an answer


@pytest.mark.parametrize("name", ["guessing", "inverting"])
def test_a_judge_that_does_not_help_is_switched_off_by_its_own_record(judged, name):
    script, search, session = judged(name)
    told = session.summary["judge"]
    assert told["weight"] < 0.15
    assert told["off"]
    assert told["measured"] >= 12  # not before so many of its scores were measured
    assert len(script.judged_at) < script.given / 3  # answers after that were not judged
    unjudged = [n for n in search.tree.walk() if n.proposal and "judge_percent" not in n.proposal.parameters]
    assert unjudged
    assert search.tree.opinion(max(search.tree.walk(), key=lambda n: n.gained)) == pytest.approx(0.0, abs=0.05 * 0.15)
    assert record_of(told).endswith("disabled, as its scores did not predict the results")
    assert (told["rank_correlation"] < -0.9) is (name == "inverting")


def test_what_a_judge_says_costs_a_search_little_until_it_is_switched_off(judged):
    """With scores that invert the gains the best is found all the same, and with those that are right not later."""
    best = {}
    for name in ("right", "inverting"):
        _, search, _ = judged(name)
        best[name] = [search.incumbent.evaluation.measurement.ratio, search.progress.evaluated]
    assert best["right"][1] == best["inverting"][1] == CANDIDATES
    assert best["right"][0] >= best["inverting"][0] > 1.2


def test_a_model_that_costs_more_for_the_same_gains_is_asked_less(tmp_path, online):  # noqa: F811
    """Gains per second and per dollar: the server counts the same tokens in both runs, and the price is another."""
    shares, questions = {}, {}
    for name, price in (("free", None), ("dear", Price(300.0, 300.0))):  # 0.36 dollars a question
        online(Scripted(JUDGES["right"], usage=(1000, 200)))
        settings = LlmSettings(model="coder", concurrency=1, price=price)
        search, session = run(
            tmp_path, settings, name, factors=tuple(f"1.{i:03}" for i in range(1, 90)), in_flight=1,
            budget=Budget(seconds=120, candidates=CANDIDATES), patient=True,
        )  # fmt: skip
        shares[name], questions[name] = search.tree.mixture.shares, session.summary["questions"]
        assert sum(share.candidates for share in shares[name].values()) == CANDIDATES
    assert shares["free"]["llm"].usd == 0
    assert shares["dear"]["llm"].usd == pytest.approx(0.36 * questions["dear"], rel=0.05)
    assert questions["dear"] >= 1
    assert questions["dear"] <= questions["free"] / 2
    assert shares["dear"]["llm"].candidates < shares["free"]["llm"].candidates
