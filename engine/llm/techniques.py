"""Techniques that are shown to a model: a corpus of transformations, chosen by the diagnosis and by the form of the kernel's code."""

import operator
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from engine.llm.edits import Workplace
from engine.llm.lesson_store import features_of
from engine.rewrite.site import Site

MOST = 3  # techniques in one question
_CORPUS = Path(__file__).parent / "corpus"
_COMPARE = {">=": operator.ge, "<=": operator.le, "==": operator.eq}
_CONDITION = re.compile(r"(\w+) (>=|<=|==) (\d+)")
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)
# What a condition of a technique may count beside the features of lessons: occurrences in the kernel's text.
_COUNTED = {
    "branches": re.compile(r"\bif\b|\?"),
    "divisions": re.compile(r"[\w)\]]\s*[/%]=?\s*[\w(]"),
    "accumulations": re.compile(r"\+=|=\s*(?:f?max|f?min|fma)f?\("),
    "doublings": re.compile(r"(?:\*|/)=\s*2\b|(?:<<|>>)=\s*1\b"),
    "narrow": re.compile(r"\b(?:char|int8_t|uint8_t|short|int16_t|uint16_t|half|__half|__nv_bfloat16)\b[\w\s]*\*"),
}
_FROM_ARRAY = re.compile(r"\b(?:int|unsigned|long|size_t|int64_t|auto)\s+(\w+)\s*=\s*\w+\[")
# A fitting form alone ranks below any code of the diagnosis. Ours.
_CONDITION_WORTH = 0.05


@dataclass(frozen=True)
class Technique:
    """One transformation. `approach` is that of `approaches.APPROACHES` that it belongs to, `codes` are those of a diagnosis that it
    answers, `form` holds conditions on counts of the kernel's code that all have to hold ("loops >= 1")."""

    name: str
    title: str
    approach: str
    codes: tuple[str, ...]
    form: tuple[str, ...]
    when: str
    pitfalls: str
    source: str
    code: str


@cache
def corpus() -> tuple[Technique, ...]:
    """All techniques, by name."""
    return tuple(_read(path) for path in sorted(_CORPUS.glob("*.toml")))


def _read(path: Path) -> Technique:
    data = tomllib.loads(path.read_text(encoding="utf-8"))
    codes, form = tuple(data.pop("codes")), tuple(data.pop("form"))
    return Technique(name=path.stem, codes=codes, form=form, **data)


def fitting(place: Workplace, codes: Sequence[str], approach: str = "") -> tuple[Technique, ...]:
    """At most `MOST` techniques for a program: those of the approach, of all without one, that the diagnosis and the code suggest.

    `codes` are those of the diagnosis, the bound first and then the findings, the most severe first; without any the form of the
    code decides alone.
    """
    codes = (*codes[1:], *codes[:1])  # a finding says more than what binds
    forms = [form_of(site) for site in place.sites]
    found: list[tuple[float, Technique]] = []
    for technique in corpus():
        if approach and technique.approach != approach:
            continue
        if not any(all(holds(condition, form) for condition in technique.form) for form in forms):
            continue
        answered = sum(1.0 / (1 + codes.index(code)) for code in technique.codes if code in codes)
        if answered or not codes or approach:
            found.append((answered + _CONDITION_WORTH * len(technique.form), technique))
    return tuple(technique for _, technique in sorted(found, key=lambda one: -one[0])[:MOST])


def form_of(site: Site) -> Mapping[str, float]:
    """The counts that conditions of techniques may name."""
    text = _COMMENT.sub(" ", site.unit.text(site.kernel.span))
    found = {"special": 0.0, **features_of(site)}
    found |= {name: float(len(pattern.findall(text))) for name, pattern in _COUNTED.items()}
    indirect = set(_FROM_ARRAY.findall(text))
    found["gathers"] = sum(
        "[" in index or bool(indirect.intersection(re.findall(r"\w+", index)))
        for access in site.kernel.accesses
        for index in access.indices
    )
    return found


def holds(condition: str, form: Mapping[str, float]) -> bool:
    """Whether a condition holds for a form. Raises ValueError and KeyError for what is no condition on one."""
    match = _CONDITION.fullmatch(condition)
    if match is None:
        raise ValueError(condition)
    return bool(_COMPARE[match[2]](form[match[1]], int(match[3])))
