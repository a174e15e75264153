import numpy as np
import pytest

from engine.tune.columns import Columns
from engine.tune.strategy import Start
from engine.tune.surrogate import Surrogate

POINTS = tuple((b, t) for b in range(16, 273, 16) for t in (1, 2, 4, 8))


def test_parameters_span_one_and_powers_of_two_are_equally_far():
    own = Columns(POINTS).own
    assert own.min() == 0.0
    assert own.max() == 1.0
    tiles = own[:4, -1]
    assert np.diff(tiles) == pytest.approx([1 / 3] * 3)


def test_values_that_are_no_powers_of_two_show_what_divides_them():
    own = Columns(POINTS).own
    assert own.shape == (len(POINTS), 3)  # the tile has no column of that kind
    divided = {b: own[POINTS.index((b, 1)), 1] for b in (16, 48, 32, 96, 64, 192, 256)}
    assert divided[16] == divided[48] == 0.0
    assert divided[32] == divided[96] == 0.5
    assert divided[64] == divided[192] == divided[256] == 1.0


def test_what_is_not_known_of_a_point_is_taken_from_its_nearest():
    columns, random = Columns(POINTS), np.random.default_rng(0)
    known = {}
    for index in random.permutation(len(POINTS))[:30]:
        known[int(index)] = float(random.integers(0, 9))
        columns.describe(int(index), {"registers": known[int(index)]})
        if len(known) % 7 == 0:
            columns.table()  # looked at in between
    names, table = columns.table()
    assert names == ["0", "1", "2", "registers"]
    low, span = min(known.values()), max(known.values()) - min(known.values())
    for i in range(len(POINTS)):
        apart = {k: float(((columns.own[i] - columns.own[k]) ** 2).sum()) for k in known}
        nearest = {known[k] for k in known if apart[k] == pytest.approx(min(apart.values()))}
        assert table[i, 3] * span + low in [pytest.approx(v) for v in nearest]


def test_features_that_were_told_together_may_be_told_apart_later():
    """Each then has nearest points of its own."""
    columns, single = Columns(POINTS), {name: Columns(POINTS) for name in ("registers", "occupancy")}
    random = np.random.default_rng(1)
    for step, index in enumerate(random.permutation(len(POINTS))[:24].tolist()):
        wanted = [("registers", "occupancy"), ("registers",), ("occupancy",)][0 if step < 8 else 1 + step % 2]
        told = {name: float(random.integers(0, 9)) for name in wanted}
        columns.describe(index, told)
        for name, value in told.items():
            single[name].describe(index, {name: value})
        if step % 5 == 0:
            columns.table()
    names, table = columns.table()
    assert names == ["0", "1", "2", "occupancy", "registers"]
    for name, one in single.items():
        assert np.array_equal(table[:, names.index(name)], one.table()[1][:, 3])


def test_a_figure_that_is_the_same_everywhere_is_no_column():
    columns = Columns(POINTS)
    for index in range(5):
        columns.describe(index, {"spilled": 0.0})
    assert columns.table()[0] == ["0", "1", "2"]


def test_a_ranking_of_some_loses_no_point():
    points = tuple((b, t, u) for b in range(32, 1025, 32) for t in (1, 2, 4, 8) for u in (0, 1, 2, 3, 5))
    strategy = Surrogate(Start(points, 0, None))
    told = set()
    for _ in range(14):
        trial = strategy.ask(1)[0]
        told.add(trial)
        strategy.tell(trial, -abs(trial[0] - 256) / 256 + trial[1] / 8)
        asked = list(strategy.ask(len(points)))
        assert len(asked) == len(set(asked)) == len(points) - len(told)
        assert not told & set(asked)
