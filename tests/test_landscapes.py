"""The simulated landscapes, and that the tree search earns its name on them."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

import pytest

from benchmarks import landscapes
from engine.search import puct
from engine.search.experience import FAILED_GAIN, PRIOR_GAIN, Experience
from tests.engine.search.fakes import edit, program


def test_a_landscape_is_its_seeds_and_has_edits_that_gain() -> None:
    one = landscapes.landscape("chain", 3)
    assert one == landscapes.landscape("chain", 3) != landscapes.landscape("chain", 4)
    first = one.edits(frozenset())
    assert all(rule not in one.needs for rule, _ in first)
    made = frozenset({first[0]})
    assert all(rule != first[0][0] for rule, _ in one.edits(made))
    assert one.worth(frozenset()) == 0.0


@pytest.mark.parametrize("kind", ["chain", "synergy"])
def test_tree_search_finds_more_than_greedy_and_random_with_as_many_candidates(kind: str) -> None:
    found = {
        strategy: [landscapes.search(landscapes.landscape(kind, s), strategy, s, 100) for s in range(10)]  # type: ignore[arg-type]
        for strategy in ("mcts", "greedy", "random")
    }
    assert landscapes.lead(found["mcts"], found["greedy"])[0] > 0.05
    assert statistics.mean(found["mcts"]) > 1.5 * statistics.mean(found["random"])


def test_of_edits_that_are_the_same_one_is_a_program() -> None:
    one = next(w for seed in range(9) if any((w := landscapes.landscape("idle", seed)).same.values()))
    idle = next(edit for edit, twin in one.same.items() if twin is None)
    alias, twin = next((edit, twin) for edit, twin in one.same.items() if twin is not None)
    assert one.code(frozenset({idle})) == frozenset()
    assert one.worth(frozenset({idle})) == 0.0
    assert one.code(frozenset({alias})) == one.code(frozenset({twin}))


def test_a_rewrite_closes_rules_off_and_not_the_other_way() -> None:
    one = landscapes.landscape("closing", 0)
    ((strong, shut),) = one.shuts.items()
    after = {rule for rule, _ in one.edits(frozenset({(strong, 0)}))}
    assert not after & shut
    assert all(strong in {rule for rule, _ in one.edits(frozenset({(other, 0)}))} for other in shut)


@pytest.mark.parametrize(("kind", "least"), [("saturated", 0.0), ("closing", 0.05)])
def test_tree_search_leads_where_one_rewrite_brings_nearly_all(kind: str, least: float) -> None:
    found = {
        strategy: [landscapes.search(landscapes.landscape(kind, s), strategy, s, 100) for s in range(12)]
        for strategy in ("mcts", "greedy")
    }  # type: ignore[misc]
    assert landscapes.lead(found["mcts"], found["greedy"])[0] > least


def test_the_lead_is_the_mean_of_paired_differences() -> None:
    middle, low, high = landscapes.lead([1.0, 2.0, 3.0, 4.0], [0.5, 1.5, 2.5, 3.0])
    assert middle == pytest.approx(0.625)
    assert low <= middle <= high
    assert low >= 0.5
    assert high <= 1.0


def test_experience_starts_from_the_prior_and_goes_by_what_was_seen() -> None:
    tried, other, strange = (edit(program(), line, 0.6, rule) for line, rule in (("a", "x"), ("b", "x"), ("c", "y")))
    known = Experience()
    assert known.expect(tried) == 0.6 * PRIOR_GAIN
    for _ in range(20):
        known.learn(tried, 1.0)
    assert known.expect(tried) > 0.9
    assert 0.6 * PRIOR_GAIN < known.expect(other) <= known.expect(tried)  # of the same rule: a part of it
    assert known.expect(strange) == 0.6 * PRIOR_GAIN
    for _ in range(5):
        known.learn(strange, FAILED_GAIN)
    assert known.expect(strange) < 0.0


def test_the_command_prints_a_table_and_changes_constants_for_itself_alone(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    kept = puct.BEST_SHARE
    to = tmp_path / "r.json"
    command = ["--seeds", "2", "--candidates", "5", "--with", "BEST_SHARE=0.5", "--with", "RULE_WEIGHT=3"]
    assert landscapes.main([*command, "--record", str(to)]) == 0
    assert "| deceptive |" in capsys.readouterr().out
    record = json.loads(to.read_text())
    assert (record["constants"]["BEST_SHARE"], record["constants"]["RULE_WEIGHT"]) == (0.5, 3.0)
    assert kept == puct.BEST_SHARE


@pytest.mark.parametrize("text", ["BEST_SHARE", "BEST_SHARE=much", "NO_SUCH=1"])
def test_a_constant_that_there_is_not_is_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        landscapes.main(["--with", text])
    assert raised.value.code == 2
    assert text.partition("=")[0] in capsys.readouterr().err


def test_another_size_of_what_gained_most_is_tried_before_refinements_that_bring_nothing() -> None:
    found = {
        strategy: [landscapes.search(landscapes.landscape("sizes", s), strategy, s, 100) for s in range(16)]  # type: ignore[arg-type]
        for strategy in ("mcts", "greedy", "random")
    }
    assert landscapes.lead(found["mcts"], found["greedy"])[0] > 0.1
    assert landscapes.lead(found["mcts"], found["random"])[0] > 0.0


def test_fewer_candidates_in_flight_find_more_with_as_many_candidates() -> None:
    grounds = [landscapes.landscape("chain", seed) for seed in range(8)]
    few, many = ([landscapes.search(g, "mcts", s, 100, ahead) for s, g in enumerate(grounds)] for ahead in (5, 18))
    assert landscapes.lead(few, many)[0] > 0.3


@pytest.mark.parametrize("seed", [1, 3])
def test_a_long_search_leaves_what_it_has_refined_for_long(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """On a GPU one search of a thousand candidates built on two channels a thread to its end, where four bring more with what follows."""
    where = landscapes.landscape("deceptive", seed)
    found = landscapes.search(where, "mcts", seed, 900, 18)
    monkeypatch.setattr(puct, "REFINED", 1e9)
    assert found > landscapes.search(where, "mcts", seed, 900, 18) + 0.5
