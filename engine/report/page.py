"""One self-contained HTML page of a run."""

from __future__ import annotations

import base64
import hashlib
import json
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.model import PASSED
from engine.predicted_number import approximate
from engine.report.branches import BranchLine, branches
from engine.report.candidate_diffs import step_edits, tree_edits
from engine.report.number_words import gain, plain, short_number, sign, speed, time_words, when, words
from engine.report.plots import comparison_plots, plots, tuning_plots
from engine.report.roofline import Roofline, roofline
from engine.report.run_comparison import compare
from engine.report.run_folder import StoredRun
from engine.report.safe_text import clean, said_throughout, short, speedup_words, upper_first
from engine.report.sources import compared_listings, heaviest_lines, listings

if TYPE_CHECKING:
    from jinja2 import Environment

    from engine.run.result import OptimizationResult
    from engine.tune.tuning_result import TuneResult

_SENTENCE, _CASES = 600, 500  # characters of a text, rows of a table of shapes
_PATCH = 200_000  # characters of a patch that is shown
_HEAT = (0.005, 0.03, 0.07, 0.15, 0.3)  # the shares of a line from which on its number has the next tint. Ours

_PARTS = (
    ("trajectory", "Trajectory"), ("shapes", "Shapes"), ("guardrails", "Guardrails"), ("roofline", "Roofline"), ("source", "Source"),
    ("tree", "Search tree"), ("proposers", "Proposers"), ("cost", "Cost"), ("reproduce", "Reproduce"),
)  # fmt: skip
_COMPARISON_PARTS = (
    ("facts", "Facts"), ("search", "Search"), ("shapes", "Shapes"), ("steps", "Steps"), ("source", "Source"),
)  # fmt: skip
_TUNING_PARTS = (
    ("configuration", "Configuration"), ("shapes", "Shapes"), ("dispatch", "Dispatch code"), ("guardrails", "Guardrails"),
    ("space", "Feasible set"), ("search", "Search"), ("cost", "Cost"), ("reproduce", "Reproduce"),
)  # fmt: skip


def render(run: StoredRun) -> str:
    """The page. Everything that is not this program's own text is escaped; the page may load nothing, whatever it holds."""
    environment = _environment()
    roof = roofline(run)
    drawn = plots(run, roof if isinstance(roof, Roofline) else None)
    tree, left_out = branches(run)
    outcomes, proposers = (_numbered(tree, name) for name in ("outcome", "proposer"))
    return environment.get_template("report.html.jinja").render(
        **_common(run.result), parts=_PARTS, run=run, plots=drawn, roof=roof, tree=tree, left_out=left_out, outcomes=outcomes,
        proposers=proposers, edits=tree_edits(run, tree), step_edits=step_edits(run), listings=listings(run), heaviest=heaviest_lines(run),
        cases_most=_CASES, passed=PASSED, always=said_throughout(run.result.diagnosis, run.result.trajectory),
    )  # fmt: skip


def render_comparison(a: StoredRun, b: StoredRun, names: tuple[str, str]) -> str:
    """The page of two runs beside each other; `names` say which is which. As `render`."""
    environment = _environment()
    drawn = comparison_plots({"A": a, "B": b}) if a.result.mode == b.result.mode else {}
    common = {**_common(b.result), "predicted": a.result.mode == b.result.mode == "predicted"}
    return environment.get_template("comparison.html.jinja").render(
        **common, parts=_COMPARISON_PARTS, a=a, b=b, names=names, c=compare(a, b), plots=drawn,
        listings=compared_listings(a, b, ("A", "B")),
    )  # fmt: skip


def _numbered(tree: Sequence[BranchLine], name: str) -> dict[str, tuple[int, int]]:
    """Each value of a property of the candidates but the original, with its number on the page and how many have it."""
    counts = Counter(str(getattr(branch.node, name)) for branch in tree[1:])
    ordered = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
    return {value: (number, count) for number, (value, count) in enumerate(ordered)}


def render_tuning(result: TuneResult, patches: Mapping[str, str]) -> str:
    """The page of a tuning run, with its patches by name; as `render`."""
    environment = _environment()
    drawn = tuning_plots(result)
    return environment.get_template("tuning.html.jinja").render(
        **_common(result), parts=_TUNING_PARTS, plots=drawn, patches=patches, cases_most=_CASES,
    )  # fmt: skip


def _common(result: OptimizationResult | TuneResult) -> dict[str, Any]:
    """What every page is made with."""
    here = Path(__file__).parent / "templates"
    style = (here / "report.css").read_text(encoding="utf-8")
    script = (here / "report.js").read_text(encoding="utf-8")
    return {
        "r": result, "predicted": result.mode == "predicted", "speedup_words": speedup_words, "style": style,
        "script": script, "command": _command(result.provenance.get("command")),
        "policy": f"default-src 'none'; style-src {_digest(style)}; script-src {_digest(script)}; base-uri 'none'; form-action 'none'",
        "versions": _mapping(result.provenance.get("versions")), "device": _mapping(result.signals.get("device")),
    }  # fmt: skip


def _environment() -> Environment:
    import jinja2  # takes longer to import than the commands that write no page

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("engine.report"), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True,
        lstrip_blocks=True, finalize=_visible,
    )  # fmt: skip
    environment.filters.update(
        # Our own file, and what it has escaped.
        drawing=lambda chart: environment.filters["safe"](
            environment.get_template("chart.svg.jinja").render(chart=chart)
        ),
        speed=speed,
        approximate=approximate,
        time=time_words,
        words=words,
        plain=plain,
        table=_mapping,
        text=_text,
        compact=_compact,
        kinds=_kinds,
        short_number=short_number,
        sign=sign,
        heat=lambda share: sum(share >= least for least in _HEAT),
        unseen=lambda text: clean(text) != text or len(text) > _PATCH,
        shown=lambda text: text[:_PATCH],
        gain=gain,
        when=when,
        point=_point,
        without=lambda sentences, others: [s for s in sentences if s not in others],
        sentence=upper_first,
        rows=_rows,
    )
    return environment


def _visible(value: Any) -> Any:
    """What every expression of the template passes before it is escaped."""
    if value is None:
        return ""
    # Macros and our own drawings are marked as escaped already; everything else is text to be cleaned.
    return value if hasattr(value, "__html__") else clean(str(value))


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


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
