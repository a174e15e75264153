import numpy as np
import pytest

from engine.statistics import PROCESS_SD, between_processes, paired_ratio, weighted_ratio


def test_the_interval_covers_the_truth_about_as_often_as_it_says():
    rng = np.random.default_rng(1)
    hits = 0
    for trial in range(200):
        original = 100 * np.exp(rng.normal(0, 0.02, 30))
        candidate = 80 * np.exp(rng.normal(0, 0.02, 30))
        interval = paired_ratio(original, candidate, seed=trial)
        hits += interval.low <= 1.25 <= interval.high
    assert hits >= 180


def test_a_drift_common_to_both_cancels():
    drift = np.linspace(1, 2, 20)
    interval = paired_ratio(100 * drift, 50 * drift)
    assert interval.ratio == pytest.approx(2.0)
    assert interval.half_width < 1e-9


def test_the_weighted_ratio_is_the_geometric_mean():
    pairs = [([2.0] * 5, [1.0] * 5), ([8.0] * 5, [1.0] * 5)]
    assert weighted_ratio(pairs, [1, 1]).ratio == pytest.approx(4.0)
    assert weighted_ratio(pairs, [3, 1]).ratio == pytest.approx(2.0 ** (3 / 4) * 8.0 ** (1 / 4))


def test_one_pair_gives_no_interval():
    with pytest.raises(ValueError, match="two pairs"):
        paired_ratio([1.0], [1.0])


def test_no_pair_gives_no_interval():
    with pytest.raises(ValueError, match="two pairs"):
        paired_ratio([], [])


@pytest.mark.parametrize("count", [2, 3, 4, 5, 10, 61])
def test_medians_and_quantiles_are_numpys(count):
    rng = np.random.default_rng(count)
    logs = rng.normal(0, 0.02, count)
    found = paired_ratio(100 * np.exp(logs), np.full(count, 100.0), seed=7)
    draws = np.random.default_rng(7).integers(0, count, (400, count))
    low, high = np.quantile(np.median(logs[draws], axis=1), (0.025, 0.975))
    expected = np.exp([np.median(logs), low, high])
    assert [found.ratio, found.low, found.high] == pytest.approx(expected.tolist(), rel=1e-12)


def _repeated(rng, process_sd):
    """An interval of one process with what another measured; the truth is 1.25."""

    def measured():
        shift = rng.normal(0, process_sd)
        return paired_ratio(125 * np.exp(rng.normal(0, 0.002, 40) + shift), 100 * np.exp(rng.normal(0, 0.002, 40)))

    first, second = measured(), measured()
    return between_processes(second, first.ratio)


@pytest.mark.parametrize("process_sd", [0.0, PROCESS_SD, 3 * PROCESS_SD])
def test_intervals_of_two_runs_overlap_whatever_processes_do(process_sd):
    rng = np.random.default_rng(2)
    overlaps = 0
    for _ in range(100):
        one, other = _repeated(rng, process_sd), _repeated(rng, process_sd)
        overlaps += one.low <= other.high and other.low <= one.high
    assert overlaps >= 90


def test_without_another_process_the_prior_alone_widens():
    alone = paired_ratio([2.0] * 9, [1.0] * 9)
    widened = between_processes(alone, None)
    assert widened.low < alone.low
    assert widened.high / widened.ratio - 1 == pytest.approx(2.776 * PROCESS_SD, rel=0.01)
