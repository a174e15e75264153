"""What a tuning run says of how much was tried."""

import pytest

from engine.evaluate.evaluator import Signals
from engine.run.tuning_verdict import TuningExtent, configurations, verdict

MEASURED, PREDICTED = Signals("measured", {"name": "a"}), Signals("predicted", {"arch": "sm_90"})


@pytest.mark.parametrize(
    ("counts", "said"),
    [
        # Three points, of which one is the original: "2 of 3 tried" was followed by "every point was tried".
        (
            (2, 3, 2, "measured", True, 0),
            "2 of 2 feasible points beside the original tried, 2 evaluations on the device",
        ),
        ((2, 3, 2, "measured", False, 0), "2 of 3 feasible points tried, 2 evaluations on the device"),
        (
            (9, 12, 14, "measured", True, 2),
            "9 of 9 feasible points beside the original tried, 14 evaluations on the device",
        ),
        ((1, 2, 1, "predicted", True, 0), "1 of 1 feasible points beside the original tried"),
        ((1, 5, 1, "measured", False, 0), "1 of 5 feasible points tried, 1 evaluation on the device"),
    ],
)
def test_the_numbers_agree(counts, said):
    assert configurations(*counts) == said


def test_a_budget_that_went_into_setting_up_is_no_verdict_on_the_template():
    """It said that no point is faster, 0 of 2 tried: nothing had been tried."""
    said = verdict("saxpy", None, [], MEASURED, TuningExtent("0 of 2 feasible points tried", False, (8.31, 1.2)))
    assert said == (
        "No point of the template was tried for saxpy: the budget was spent on enumerating the feasible points (8.3 s) and on "
        "setting up the original (1.2 s)."
    )
    assert verdict("saxpy", None, [], PREDICTED, TuningExtent("1 of 2 feasible points tried", False, None)) == (
        "No point of the template is faster than the original saxpy: 1 of 2 feasible points tried."
    )
    assert "was interrupted" in verdict(
        "saxpy", None, [], MEASURED, TuningExtent("0 of 2 feasible points tried", True, (8.31, 1.2))
    )
