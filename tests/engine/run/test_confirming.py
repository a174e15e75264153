"""Which candidates are confirmed, in which order, after one of them was refused."""

from __future__ import annotations

import dataclasses
import json
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

from engine.compile.built import Built
from engine.model import Evaluation, Failure, Measurement, Outcome, Program
from engine.process.decode import decode, load
from engine.rewrite.proposal import Proposal
from engine.run.confirmation import Confirmation, Expected
from engine.run.optimization import _contenders
from engine.search.progress import Progress
from engine.search.tree import Node, Tree


def _passed(ratio: float, outcome: Outcome = Outcome.ACCEPTED) -> Evaluation:
    return Evaluation(outcome, measurement=Measurement((), ratio, ratio, ratio))


class _Search:
    """A tree: a faulty edit with four edits upon it, all faster than a correct one beside it."""

    def __init__(self) -> None:
        self.tree = Tree(Program({"k.cu": b"0"}, "k.cu"), lambda program: [], 0)
        self.tree.root.evaluation = Evaluation(Outcome.NO_DIFFERENCE)
        self.incumbent: Node | None = None
        self.built = dict[int, Any]()
        self.progress = Progress()
        faulty = self.add(self.tree.root, "faulty", 5.0)
        for i in range(4):
            self.add(faulty, f"upon it {i}", 6.0 + i)
        self.add(self.tree.root, "correct", 2.0)

    def add(self, parent: Node, name: str, ratio: float) -> Node:
        program = Program({"k.cu": name.encode()}, "k.cu")
        return self.tree.add(len(self.tree.nodes), parent, Proposal("llm", name, name, {}, {}), program, _passed(ratio))


def _run(outcome: Outcome) -> tuple[str | None, list[str]]:
    search = _Search()

    def confirm(built: Any) -> Evaluation:
        text = built.program.files["k.cu"]
        if text == b"correct":
            return _passed(2.0)
        return Evaluation(outcome, failure=Failure("'y' differs", got=float("nan")))

    evaluator = SimpleNamespace(
        signals=SimpleNamespace(mode="measured"),
        build=lambda program, by_rules: Built(
            program, "", (), cast(Any, SimpleNamespace(code_hash=program.digest)), ()
        ),
        confirm=confirm,
    )
    gate = SimpleNamespace(
        begin=lambda original, built: None,
        known=lambda original, built: None,
        judge=lambda evaluation, original, built: evaluation,
    )
    confirmation = Confirmation(cast(Any, evaluator), cast(Any, gate), search.tree.root.program, search.progress)
    best, refused = confirmation.best(_contenders(cast(Any, search), cast(Any, evaluator), confirmation.least))
    return best.candidate.proposal.summary if best and best.candidate.proposal else None, [
        one.summary for one in refused
    ]


def test_a_fault_that_only_a_confirmation_shows_does_not_hide_a_correct_candidate() -> None:
    """A model's edits that fail for NaN inputs left no try for what the rules had found."""
    assert _run(Outcome.WRONG_RESULT) == ("correct", ["upon it 3", "upon it 2"])
    best, refused = _run(Outcome.UNSTABLE)  # a disturbance says nothing of a branch
    assert (best, len(refused)) == (None, 5)


def test_a_result_with_numbers_that_json_lacks_can_be_read_again() -> None:
    """A result whose refused candidate had given NaN, and each with the state of a device, were refused by `optiml show`."""
    failure = Failure("'y' differs: nan instead of 1", got=float("nan"), error=float("inf"), expected=1.0)
    device = {"driver": "580.159.04", "sm_mhz": 1980}
    given = Evaluation(Outcome.WRONG_RESULT, failure=failure, device=device)
    text = json.dumps(dataclasses.asdict(given))
    assert decode(Evaluation, load(text)) == given
    assert given.failure is not None
    assert (given.failure.got, given.failure.error, given.failure.expected) == (None, None, 1.0)


def _built(text: str) -> Built:
    program = Program({"k.cu": text.encode()}, "k.cu")
    return Built(program, "", (), cast(Any, SimpleNamespace(code_hash=text)), ())


def test_checks_begin_anew_only_for_what_is_better_beyond_noise() -> None:
    """On an H100 a last best that was 0.3 % faster had softmax wait 6.3 s for checks that another had passed."""
    begun: list[Any] = []
    expected = Expected(cast(Any, SimpleNamespace(begin_confirming=begun.append)))
    for text, ratio in (("a", 2.0), ("b", 2.006), ("c", 2.014)):
        expected.better(text, ratio, partial(_built, text))
    assert expected.digest == "a"
    assert len(begun) == 1
    assert [begun[0]().program.data for _ in range(3)] == [b"a", b"c", b"c"]  # first, and where that is refuted
    expected.better("d", 2.03, partial(_built, "d"))
    assert expected.digest == "d"
    assert len(begun) == 2
    assert [begun[1]().program.data for _ in range(2)] == [b"d", b"d"]


def test_what_was_checked_is_suggested_before_what_is_as_fast_but_for_noise() -> None:
    search = _Search()
    checked = search.add(search.add(search.tree.root, "first", 1.5), "checked", 10.0)
    search.incumbent = search.add(checked, "upon it", 10.06)
    search.add(search.tree.root, "shorter", 10.05)

    def first(digest: object) -> str:
        evaluator = cast(Any, SimpleNamespace(build=lambda program, by_rules: _built(program.data.decode())))
        return next(_contenders(cast(Any, search), evaluator, 1.0, digest)).summary

    assert first(None) == "shorter"
    assert first(checked.program.digest) == "checked"
    search.incumbent = search.add(checked, "far upon it", 10.2)
    assert first(checked.program.digest) == "far upon it"
