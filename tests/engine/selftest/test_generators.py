"""Generators: one seed gives one list of cases, another seed other texts, and every edit fits its original."""

from __future__ import annotations

import pytest

from engine.selftest.generators.protocol import Generator, generated, generators

ALL = generators()


@pytest.mark.parametrize("one", ALL, ids=lambda one: one.name)
def test_a_seed_gives_its_texts_and_another_seed_others(one: Generator) -> None:
    first, again, other = (generated(seed, [one.name]) for seed in (1, 1, 2))
    assert first == again
    assert len(one.defends) > 15
    assert [case.changed() for case in first] != [case.changed() for case in other]
    for case in first:
        assert dict(case.changed()) != {name: case.before.get(name) for name in case.changed()}, case.name
        assert case.gpu or case.cpu
        assert len(case.idea) > 5


def test_names_are_unique() -> None:
    names = [case.name for case in generated(3)]
    assert len({one.name for one in ALL}) == len(ALL)
    assert len(set(names)) == len(names)


def test_what_looks_at_the_output_looks_before_it_writes() -> None:
    cases = [case for seed in range(12) for case in generated(seed, ["reads-output"])]
    assert len(cases) > 30
    for case in cases:
        assert "(float)y[i]" in case.edits[0][1].partition(";")[0], case.edits
