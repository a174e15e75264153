import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.model import CaseTiming, Evaluation, Measurement, Outcome, Resources
from engine.search.reward import CONSTANTS, Proxies, Reward, failed

counts = st.one_of(st.none(), st.floats(0, 1e15))
shares = st.one_of(st.none(), st.floats(0, 1))
proxies = st.builds(Proxies, counts, counts, shares, shares)


@st.composite
def measurements(draw):
    ratio = draw(st.floats(0.3, 1000))
    below, above = draw(st.floats(1.0, 1.3)), draw(st.floats(1.0, 1.3))
    return Measurement((), ratio, ratio / below, ratio * above)


def passed(measurement, resources=()):
    return Evaluation(Outcome.ACCEPTED, measurement, resources=resources)


def measured(ratio, spread=1.01):
    return Measurement((), ratio, ratio / spread, ratio * spread)


@given(measurements(), measurements(), proxies, proxies, proxies)
def test_no_counters_lift_a_slower_kernel_over_a_faster_one(one, other, original, of_one, of_other):
    reward = Reward()
    reward.original = original
    slower, faster = sorted((one, other), key=lambda m: m.ratio)
    if slower.high < faster.low:
        slow, fast = (of_one, of_other) if slower is one else (of_other, of_one)
        assert reward(passed(slower), slow) <= reward(passed(faster), fast)
    if slower.ratio * 2 ** (2.001 * CONSTANTS.proxy_cap) < faster.ratio:
        assert reward(passed(slower), of_one) < reward(passed(faster), of_other)


@given(measurements(), proxies, proxies)
def test_counters_shift_a_reward_by_no_more_than_their_cap(measurement, original, of_it):
    reward = Reward()
    reward.original = original
    plain, shifted = reward(passed(measurement)), reward(passed(measurement), of_it)
    assert abs(shifted - plain) <= CONSTANTS.proxy_cap + 1e-9


def test_counters_decide_where_the_clock_does_not():
    reward = Reward()
    reward.original = Proxies(1e9, 1e6, 0.5, 0.8)
    alike = passed(measured(1.0, 1.05))
    lean, fat = Proxies(5e8, 1e6, 0.5, 0.8), Proxies(2e9, 2e6, 0.25, 0.9)
    assert reward(alike, lean) > reward(alike) > reward(alike, fat)
    relieved = Proxies(1e9, 1e6, 0.5, 0.3)
    assert reward(alike, relieved) > reward(alike)
    exact = passed(measured(1.0, 1.0))
    assert reward(exact, lean) == reward(exact) == 0.0  # the clock leaves nothing open


def test_without_proxies_time_alone_counts():
    reward = Reward(proxies=False)
    reward.original = Proxies(1e9, 1e6, 0.5, 0.8)
    evaluation = passed(measured(2.0, 1.1))
    assert reward(evaluation, Proxies(1e6, 1e3, 1.0, 0.0)) == 1.0


def test_a_prediction_has_a_stand_in_for_its_interval():
    reward = Reward()
    reward.original = Proxies(1e9, 1e6)
    predicted = passed(Measurement((), 2.0, 2.0, 2.0, predicted=True))
    gained = reward(predicted, Proxies(1e8, 1e5)) - reward(predicted)
    assert 0 < gained <= CONSTANTS.predicted_interval


def test_every_way_to_fail_has_its_own_fixed_penalty_below_every_neutral_outcome():
    reward = Reward()
    for outcome in Outcome:
        if failed(outcome):
            value = reward(Evaluation(outcome, measured(9.0)))
            assert value == getattr(CONSTANTS, outcome.value) < CONSTANTS.unmeasured
    assert reward(Evaluation(Outcome.UNSTABLE, measured(9.0))) == CONSTANTS.unmeasured
    assert reward(Evaluation(Outcome.DUPLICATE, measured(2.0))) == pytest.approx(1.0)


def test_guardrail_penalties_come_off():
    reward = Reward()
    reward.resources = (Resources(32, 0, 0, 0, 0),)
    clean, spilling = (Resources(64, 0, 0, 0, 0),), (Resources(64, 0, 0, 8, 8),)
    plain = reward(passed(measured(2.0), clean))
    assert reward(passed(measured(2.0), spilling)) == pytest.approx(plain - CONSTANTS.spills_penalty)
    lost = CaseTiming("small", 1.0, 10.0, 10.2, 0.98, 0.97, 0.99, 9)
    mixed = dataclasses.replace(measured(2.0), cases=(lost,))
    assert reward(passed(mixed, clean)) == pytest.approx(plain - CONSTANTS.losing_case_penalty)


def test_every_constant_has_its_reason_and_goes_into_the_result():
    described = json.loads(json.dumps(CONSTANTS.described()))
    assert set(described) == {f.name for f in dataclasses.fields(CONSTANTS)}
    assert all(len(d["reason"]) > 10 and isinstance(d["value"], float) for d in described.values())
    assert sum(d["value"] for n, d in described.items() if n.endswith("_weight")) == pytest.approx(1.0)
