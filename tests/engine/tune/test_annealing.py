import math

import numpy as np
import pytest

from engine.tune.annealing import DualAnnealing, acceptance, ranks, temperature, visit
from engine.tune.strategy import Known, Listed

GRID = tuple((b, t, m) for b in (32, 64, 128, 256, 512) for t in (1, 2, 4, 8) for m in (0, 1, 2) if b * t <= 1024)


def worth(point):
    block, tile, mode = point
    return -((math.log2(block * tile) - 9) ** 2) / 3 + 0.3 * math.log2(tile) - (0.5 if mode != 1 else 0.0)


def test_visits_at_two_are_cauchys_distribution():
    drawn = np.abs(visit(np.random.default_rng(0), 0.3, 40_000, q=2.0))
    assert np.quantile(drawn, 0.5) == pytest.approx(0.3, rel=0.05)
    assert np.quantile(drawn, 0.9) == pytest.approx(0.3 * math.tan(0.45 * math.pi), rel=0.08)


@pytest.mark.parametrize("heat", [1.0, 0.2])
def test_visits_follow_the_published_density(heat):
    q = 2.62
    drawn = np.abs(visit(np.random.default_rng(1), heat, 60_000, q))
    # Far tails are heavy: the density is compared within a bound, by its own integral.
    width = heat ** (1 / (3 - q))
    x = np.linspace(0.0, 50 * width, 400_001)
    density = (1 + (q - 1) * x**2 / width**2) ** (-1 / (q - 1))
    for share in (0.1, 0.3, 0.6):
        expected = density[: int(len(x) * share)].sum() / density.sum()
        within = drawn[drawn <= x[-1]]
        assert (within <= x[-1] * share).mean() == pytest.approx(expected, abs=0.01)


def test_the_temperature_falls_as_a_power_and_the_chance_with_it():
    falling = [temperature(k) for k in range(1, 60)]
    assert falling[0] == 1.0
    assert falling == sorted(falling, reverse=True)
    assert temperature(40) / temperature(20) == pytest.approx(0.5**1.62, rel=0.1)
    assert temperature(1, 1.000001) / temperature(3, 1.000001) == pytest.approx(
        2.0, rel=0.01
    )  # log(1 + k): Boltzmann's
    assert acceptance(-0.1, 1.0) == 1.0
    assert acceptance(0.1, 1.0) == pytest.approx(0.4 ** (1 / 6))
    assert acceptance(0.2, 1.0) == 0.0  # (1 - q) worse >= heat: never
    assert acceptance(0.5, 1.0, q=0.99999) == pytest.approx(math.exp(-0.5), rel=1e-3)


def test_powers_of_two_are_one_step_apart():
    found, spans = ranks(((64, 1), (256, 8), (128, 1), (64, 3)))
    assert found.tolist() == [[0, 0], [2, 2], [1, 0], [0, 1]]
    assert spans.tolist() == [2, 2]


def test_a_new_best_is_climbed_from_before_the_chain_goes_on():
    strategy = DualAnnealing(Known(GRID, 0, None))
    strategy.tell((64, 2, 0), 0.0)
    for value in (-3.0,) * 4 + (1.0,):  # the last visit of the chain finds something
        trial = strategy.ask(1)[0]
        strategy.tell(trial, value)
    best = trial
    near = list(strategy.ask(4))
    rank = dict(zip(GRID, ranks(GRID)[0].tolist(), strict=True))
    steps = [[abs(a - b) for a, b in zip(rank[p], rank[best], strict=True)] for p in near]
    beside = [s for s in steps if sorted(s) == [0, 0, 1]]
    assert len(beside) >= 3
    strategy.tell(near[0], 2.0)  # better: the search goes on from there
    after = strategy.ask(1)[0]
    assert sum(a != b for a, b in zip(after, near[0], strict=True)) == 1


def test_only_feasible_points_that_were_not_tried_are_asked_for():
    sparse = tuple(p for p in GRID if (p[0] // 32 + p[1]) % 3)
    strategy = DualAnnealing(Known(sparse, 5, None))
    seen = []
    while trials := strategy.ask(7):
        assert all(t in sparse and t not in seen for t in trials)
        seen.append(trials[-1])  # another than the first: the device takes what is compiled
        strategy.tell(trials[-1], worth(trials[-1]) if len(seen) % 5 else None)
    assert sorted(seen) == sorted(sparse)


def test_it_starts_anew_where_it_has_cooled_down():
    points = tuple((i, j) for i in range(40) for j in range(20))
    strategy = DualAnnealing(Known(points, 0, None))
    jumps = []
    at = None
    for _ in range(300):
        trial = strategy.ask(1)[0]
        if at is not None:
            jumps.append(max(abs(a - b) for a, b in zip(trial, at, strict=True)))
        if at is None:
            at = trial
        strategy.tell(trial, 1.0 if trial == at else -5.0)  # nothing else is ever accepted
    cooled = np.median(jumps[100:170])
    assert cooled < np.median(jumps[:8])
    assert max(jumps[180:260]) > cooled  # hot again


def test_it_finds_more_than_chance():
    def reached(make):
        best = []
        for seed in range(12):
            strategy = make(Known(GRID, seed, 12))
            found = -math.inf
            for _ in range(12):
                trial = strategy.ask(1)[0]
                found = max(found, worth(trial))
                strategy.tell(trial, worth(trial))
            best.append(found)
        return sum(best) / len(best)

    assert reached(DualAnnealing) > reached(lambda known: Listed("random", known)) + 0.05
