"""Numbers, names and moments as a page writes them."""

import datetime
import math

from engine.model import Measurement, Outcome
from engine.predicted_number import approximate
from engine.report.safe_text import short

_SENTENCE = 600  # characters of a text
# What an outcome looks like without its colour: fine, neither, failed.
_SIGNS = {
    Outcome.ACCEPTED: "✓", Outcome.SCREENED: "✓", "passed": "✓",
    Outcome.SLOWER: "▼", Outcome.NO_DIFFERENCE: "=", Outcome.DUPLICATE: "=",
    "not checked": "–", "skipped": "–",
}  # fmt: skip


def sign(outcome: str) -> str:
    """The sign of an outcome or of a guardrail's verdict."""
    return _SIGNS.get(outcome, "✗")


def speed(m: Measurement | None) -> str:
    """A speedup in words: measured with its interval, predicted as such."""
    if m is None:
        return "no speed"
    if m.predicted:
        return f"{approximate(m.ratio)}× predicted"
    unstable = "" if m.stable else ", disturbed"
    return f"{m.ratio:.2f}× (95 %: {m.low:.2f} to {m.high:.2f}{unstable})"


def time_words(us: float) -> str:
    """Microseconds to four figures."""
    if us <= 0 or not math.isfinite(us):
        return "0"
    return f"{us:,.{max(0, 3 - math.floor(math.log10(us)))}f}" if us < 1e4 else f"{us:,.0f}"


def words(name: str) -> str:
    """`no_difference` as a person says it."""
    return str(name).replace("_", " ")


def plain(value: object) -> str:
    """A number or text of a table: floats to six figures, nothing for None."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}"
    return short(str(value), _SENTENCE)


def short_number(value: object) -> str:
    """As `plain`, floats to two decimals."""
    return f"{value:.2f}" if isinstance(value, float) else plain(value)


def gain(value: object) -> str:
    """Doublings of speed as a factor."""
    return f"{2.0**value:.2f}×" if isinstance(value, int | float) and abs(value) < 100 else plain(value)


def when(value: object) -> str:
    """A moment in ISO 8601 as a person writes it, to the minute; other text as it is."""
    try:
        moment = datetime.datetime.fromisoformat(str(value))
        return f"{moment.astimezone(datetime.UTC):%Y-%m-%d %H:%M} UTC" if moment.tzinfo else f"{moment:%Y-%m-%d %H:%M}"
    except (ValueError, OverflowError):
        return plain(value)
