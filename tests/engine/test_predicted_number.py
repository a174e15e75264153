import pytest

from engine.predicted_number import approximate


@pytest.mark.parametrize(
    ("value", "shown"), [(2.418, "~2.4"), (41.7, "~42"), (1.0, "~1"), (0.3333, "~0.33"), (1234.0, "~1200")]
)
def test_a_prediction_has_two_significant_digits(value: float, shown: str) -> None:
    assert approximate(value) == shown
