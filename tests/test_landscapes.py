"""The simulated landscapes, and that the tree search earns its name on them."""

from __future__ import annotations

import statistics

import pytest

from benchmarks import landscapes
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
    def mean(strategy: str) -> float:
        return statistics.mean(
            landscapes.search(landscapes.landscape(kind, s), strategy, s, 100)  # type: ignore[arg-type]
            for s in range(10)
        )

    tree, greedy, chance = mean("mcts"), mean("greedy"), mean("random")
    assert tree > 1.05 * greedy
    assert tree > 1.3 * chance


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


def test_the_command_prints_a_table(capsys: pytest.CaptureFixture[str], tmp_path) -> None:  # type: ignore[no-untyped-def]
    assert landscapes.main(["--seeds", "1", "--candidates", "5", "--record", str(tmp_path / "r.json")]) == 0
    assert "| deceptive |" in capsys.readouterr().out
    assert (tmp_path / "r.json").exists()
