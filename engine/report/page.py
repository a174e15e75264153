"""One self-contained HTML page of a run."""

from __future__ import annotations

import base64
import datetime
import hashlib
import json
import math
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.errors import MachineError
from engine.model import PASSED
from engine.report.branches import branches
from engine.report.read import Run
from engine.report.roofline import Roofline, roofline
from engine.report.sources import listings
from engine.report.svg import Styles
from engine.report.text import clean, said_throughout, short, speedup_words, upper_first

if TYPE_CHECKING:
    from jinja2 import Environment

    from engine.model import Measurement
    from engine.result import OptimizationResult
    from engine.tune.result import TuneResult

_SENTENCE, _CASES = 600, 500  # characters of a text, rows of a table of shapes

_PARTS = (
    ("trajectory", "Trajectory"), ("shapes", "Shapes"), ("guardrails", "Guardrails"), ("roofline", "Roofline"), ("source", "Source"),
    ("tree", "Search tree"), ("proposers", "Proposers"), ("cost", "Cost"), ("reproduce", "Reproduce"),
)  # fmt: skip
_TUNING_PARTS = (
    ("configuration", "Configuration"), ("shapes", "Shapes"), ("dispatch", "Dispatch code"), ("guardrails", "Guardrails"),
    ("space", "Feasible set"), ("search", "Search"), ("cost", "Cost"), ("reproduce", "Reproduce"),
)  # fmt: skip


def render(run: Run) -> str:
    """The page. Everything that is not this program's own text is escaped; the page may load nothing, whatever it holds.

    Raises MachineError where the extra `report` is not installed.
    """
    environment = _environment()
    from engine.report.plots import plots

    styles = Styles()
    roof = roofline(run)
    drawn = plots(run, roof if isinstance(roof, Roofline) else None, styles)
    tree, left_out = branches(run)
    return environment.get_template("report.html.jinja").render(
        **_common(run.result, styles), parts=_PARTS, run=run, plots=drawn, roof=roof, tree=tree, left_out=left_out,
        listings=listings(run), cases_most=_CASES, passed=PASSED, always=said_throughout(run.result.diagnosis, run.result.trajectory),
    )  # fmt: skip


def render_tuning(result: TuneResult, patches: Mapping[str, str]) -> str:
    """The page of a tuning run, with its patches by name; as `render`. Raises MachineError."""
    environment = _environment()
    from engine.report.plots import tuning_plots

    styles = Styles()
    drawn = tuning_plots(result, styles)
    return environment.get_template("tuning.html.jinja").render(
        **_common(result, styles), parts=_TUNING_PARTS, plots=drawn, patches=patches, cases_most=_CASES,
    )  # fmt: skip


def _common(result: OptimizationResult | TuneResult, styles: Styles) -> dict[str, Any]:
    """What every page is made with; `styles` have all drawings by now."""
    here = Path(__file__).parent / "templates"
    style = (here / "report.css").read_text(encoding="utf-8") + styles.sheet()
    script = (here / "report.js").read_text(encoding="utf-8")
    return {
        "r": result, "predicted": result.mode == "predicted", "speedup_words": speedup_words, "style": _safe(style),
        "script": _safe(script), "command": _command(result.provenance.get("command")),
        "policy": f"default-src 'none'; style-src {_digest(style)}; script-src {_digest(script)}; base-uri 'none'; form-action 'none'",
        "versions": _mapping(result.provenance.get("versions")), "device": _mapping(result.signals.get("device")),
    }  # fmt: skip


def _environment() -> Environment:
    try:
        import jinja2
        import matplotlib  # noqa: F401 - asked for here so that one error names the extra
    except ImportError as error:
        raise MachineError(
            f"the report needs a package that is not installed: {error.name}",
            do="install it with: pip install 'optiml[report]'",
        ) from None
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("engine.report"), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True,
        lstrip_blocks=True, finalize=_visible,
    )  # fmt: skip
    environment.filters.update(
        speed=speed,
        time=time_words,
        words=words,
        plain=plain,
        table=_mapping,
        text=_text,
        compact=_compact,
        kinds=_kinds,
        drawing=_safe,
        short_number=_short_number,
        gain=gain,
        when=when,
        point=_point,
        without=lambda sentences, others: [s for s in sentences if s not in others],
        sentence=upper_first,
        rows=_rows,
    )
    return environment


def _safe(text: str) -> Any:
    from markupsafe import Markup

    return Markup(text)  # our own files and the classes made of checked styles


def _visible(value: Any) -> Any:
    """What every expression of the template passes before it is escaped."""
    if value is None:
        return ""
    # Macros and our own drawings are marked as escaped already; everything else is text to be cleaned.
    return value if hasattr(value, "__html__") else clean(str(value))


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def speed(m: Measurement | None) -> str:
    """A speedup in words: measured with its interval, predicted as such."""
    if m is None:
        return "no speed"
    if m.predicted:
        return f"{m.ratio:.2f}× predicted"
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


def _short_number(value: object) -> str:
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


def _mapping(value: object) -> Mapping[str, Any]:
    """The value where it is a table, else an empty one: the inner parts of a result are not typed."""
    return value if isinstance(value, Mapping) else {}


def _point(values: Mapping[str, int]) -> str:
    return short(", ".join(f"{name} = {value}" for name, value in values.items()), _SENTENCE)


def _rows(value: object) -> Sequence[Any]:
    """The value where it is a list, else an empty one."""
    return value if isinstance(value, list | tuple) else ()


def _text(value: object) -> str:
    return short(str(value), _SENTENCE)


def _compact(value: object) -> str:
    try:
        return short(json.dumps(value, indent=1, ensure_ascii=False, default=str), 20_000)
    except RecursionError:
        return "nested too deeply to be shown"


def _command(words: object) -> str:
    return shlex.join(map(str, words)) if isinstance(words, list | tuple) else "not recorded"


def _kinds(value: Mapping[str, float]) -> list[tuple[str, float]]:
    """Entries from the largest to the smallest."""
    return sorted(value.items(), key=lambda pair: (-pair[1], pair[0]))
