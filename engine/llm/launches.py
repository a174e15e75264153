"""The launches of a suggestion: those that it gives, and those that its edits of host code make, which the spec has to follow."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from engine.cuda.constants import integers, words
from engine.cuda.edit import edit_program
from engine.cuda.kernel import Edit
from engine.cuda.launch import relaunch, sites
from engine.cuda.parse import parse
from engine.cuda.terms import kernel_terms
from engine.errors import OptimlError, SourceError
from engine.llm.answers import MOST_LAUNCHES, EditError, Launch, Suggestion
from engine.llm.chat import Fault
from engine.llm.plain_words import plain
from engine.model import LaunchConfig, Program
from engine.rewrite.proposal import merge
from engine.rewrite.site import Site
from engine.spec.constant_values import open_constants
from engine.spec.kernel_spec import KernelSpec, LaunchExpr
from engine.spec.launch_config import evaluate
from engine.spec.reader import relaunched
from engine.spec.rewrite import relaunch_spec

if TYPE_CHECKING:
    from engine.llm.edits import Workplace

Edits = Mapping[str, tuple[Edit, ...]]

_MOST_EXPRESSION = 200  # characters
_EXPRESSION = re.compile(r"[\w\s+\-*/%().,?:&|=!]*", re.ASCII)
_WORD = re.compile(r"(?<![\w.])[A-Za-z_]\w*", re.ASCII)
_DO = 'leave the host code as it is and give the launch in "launch", over the kernel\'s parameters'
_NO_VALUE = "in some case it has no whole value, or one beyond a GPU's limits"
_PARTS = ("grid", "block", "shared")


def launch_edits(suggestion: Suggestion, place: Workplace, changed: Edits) -> dict[str, tuple[Edit, ...]]:
    """Edits beside `changed`, the suggestion's own: source and spec with the launches that it gives, and the spec with those that
    its edits of host code make.

    All are against the place's program. Raises EditError where a launch cannot be given, or the spec cannot follow it.
    """
    program = _edited(place.program, changed)
    given: dict[str, LaunchExpr] = {}
    parts: list[Edits] = []
    for kernel, launch in _by_kernel(suggestion, place):
        if kernel in given:
            raise EditError(f"the launch of '{kernel}' is given twice", fault=Fault.AMBIGUOUS)
        given[kernel] = launch
        parts += [_given(launch, site, program) for site in place.sites if site.kernel.name == kernel]
    for site, names in _differing(place, program):
        launch = given.get(site.kernel.name, LaunchExpr((), (), ""))
        fixed = {name for name, value in zip(_PARTS, (launch.grid, launch.block, launch.shared), strict=True) if value}
        parts.append(_followed(site, program, [name for name in names if name not in fixed]))
    edits = merge(*parts)
    if edits is None:
        raise EditError("its edits overlap", do="give each launch once", fault=Fault.AMBIGUOUS)
    whole = merge(changed, edits)
    if edits and whole is not None:
        for site, names in _differing(place, _edited(place.program, whole)):
            if names:
                raise _refusal(site, "source and spec would launch otherwise")
    return edits


def _edited(program: Program, edits: Edits) -> Program:
    try:
        return edit_program(program, edits) if edits else program
    except OptimlError as error:
        raise EditError(error.what, error.where, error.do, fault=Fault.FORBIDDEN) from None


# ---- launches that are given


def _by_kernel(suggestion: Suggestion, place: Workplace) -> Iterator[tuple[str, LaunchExpr]]:
    if len(suggestion.launches) > MOST_LAUNCHES:
        raise EditError(f"has over {MOST_LAUNCHES} launches")
    for launch in suggestion.launches:
        yield _kernel(launch, suggestion, place), launch.extents


def _kernel(launch: Launch, suggestion: Suggestion, place: Workplace) -> str:
    """Whose launch it is: the kernel that it names, else the one that the suggestion gives or names in its blocks, else the first."""
    known = [site.kernel.name for site in place.sites]
    name = launch.kernel.partition("<")[0].rpartition("::")[2].strip()
    if launch.kernel:
        if name not in known:
            shown = plain(launch.kernel, 60)
            raise EditError(
                f"a launch names '{shown}'", do=f"name one of: {', '.join(dict.fromkeys(known))}", fault=Fault.FORBIDDEN
            )
        return name
    texts = [suggestion.kernel, *(r.search for r in suggestion.replacements)]
    return next((k for k in known if any(re.search(rf"\b{re.escape(k)}\b", text) for text in texts)), known[0])


def _given(launch: LaunchExpr, site: Site, program: Program) -> dict[str, tuple[Edit, ...]]:
    """Source and spec of the site's program with a launch. `program` is the one with the suggestion's other edits."""
    if len(launch.grid) > 3 or len(launch.block) > 3:
        raise EditError("a launch has at most three extents", fault=Fault.FORBIDDEN)
    for text in (*launch.grid, *launch.block, launch.shared):
        # Comma, comparison and shift would end one argument of the launch and begin another.
        if len(text) > _MOST_EXPRESSION or not _EXPRESSION.fullmatch(text) or "//" in text or "/*" in text:
            raise EditError(
                f"the launch expression '{plain(text)[:60]}' is no arithmetic over the kernel's parameters",
                fault=Fault.FORBIDDEN,
            )
    shared: str | None = launch.shared.strip()
    if not shared or (shared == "0" and not any(c.shared_bytes for c in site.configs)):
        shared = None
    grid, block = launch.grid or None, launch.block or None
    refusal = EditError("the launch cannot be seen or rewritten", do="keep the launch as it is", fault=Fault.FORBIDDEN)
    if not site.launch_visible:
        raise refusal
    try:
        host = relaunch(site.program, site.launches, site.kernel, grid=grid, block=block, shared=shared)
        spec = relaunch_spec(site.program, site.spec, site.step, _valued(launch, shared, site, program))
    except OptimlError:
        raise refusal from None
    edits = merge(host, spec)
    if edits is None:
        raise refusal
    return edits


def _valued(launch: LaunchExpr, shared: str | None, site: Site, program: Program) -> LaunchExpr:
    """The launch with constants that the suggestion brings or changes as numbers: the site's program has the old ones.

    Those that its tune lines leave open are among its `constants`.
    """
    unit = parse(program.data, program.kernel_file)
    names = set(words(" ".join((*launch.grid, *launch.block, shared or "")))) - {p.name for p in site.kernel.parameters}
    before, after = integers(site.unit, names), integers(unit, names)
    kept = {name: value for name, value in open_constants(unit).items() if name in names}
    values = {n: str(value) for n, value in after.items() if n not in kept and before.get(n) != value}

    def valued(text: str) -> str:
        return _WORD.sub(lambda m: values.get(m[0], m[0]), text)

    grid, block = (tuple(map(valued, extents)) for extents in (launch.grid, launch.block))
    return LaunchExpr(grid, block, valued(shared or ""), tuple(kept.items()))


# ---- launches that the edits of host code make


def _differing(place: Workplace, program: Program) -> list[tuple[Site, list[str]]]:
    """The sites whose launch a spec declares and a program's host code makes, with the parts in which the two differ.

    Raises EditError where host code has no value any more: nobody would know what the caller launches.
    """
    sites = [s for s in place.sites if s.spec.steps[s.step].launch is not None and s.launches]
    if not sites:
        return []
    host = replace(place.spec, steps=tuple(replace(step, launch=None) for step in place.spec.steps))
    try:
        spec = relaunched(program, place.spec)
    except OptimlError:
        raise _refusal(sites[0], _NO_VALUE) from None
    found = []
    for site in sites:
        try:
            launched = _configs(site, program, host)
        except SourceError:
            if _written(site, program) == _written(site, site.program) and not _evaluable(site, host):
                continue  # as it was: what the spec declares is all that is known
            raise _refusal(site, _obstacle(site, program)) from None
        try:
            # Without a source what the spec declares is all there is.
            declared = _configs(site, Program({spec.file: b""}, spec.file), spec)
        except SourceError:
            raise _refusal(site, _NO_VALUE) from None
        pairs = list(zip(launched, declared, strict=True))
        same = (
            all(a.grid == b.grid for a, b in pairs),
            all(a.block == b.block for a, b in pairs),
            all(a.shared_bytes == b.shared_bytes for a, b in pairs),
        )
        found.append((site, [part for part, equal in zip(_PARTS, same, strict=True) if not equal]))
    return found


def _configs(site: Site, program: Program, spec: KernelSpec) -> list[LaunchConfig]:
    return [evaluate(program, spec, site.step, case.sizes) for case in site.cases]


def _evaluable(site: Site, spec: KernelSpec) -> bool:
    try:
        return bool(_configs(site, site.program, spec))
    except SourceError:
        return False


def _written(site: Site, program: Program) -> list[tuple[str, ...]]:
    return [tuple(part.text for part in launch.parts) for launch in sites(program, site.kernel.name)]


def _followed(site: Site, program: Program, parts: Sequence[str]) -> Edits:
    """Edits of the spec in the site's program that make it declare these parts of what `program` launches."""
    if not parts:
        return {}
    for launch in sites(program, site.kernel.name):
        try:
            texts = dict(zip(_PARTS, (*kernel_terms(program, launch, site.kernel, _sizes(site)), ("0",)), strict=False))
            grid, block = (texts[part] if part in parts else () for part in ("grid", "block"))
            launched = LaunchExpr(grid, block, texts["shared"][0] if "shared" in parts else "")
            return relaunch_spec(site.program, site.spec, site.step, launched)
        except OptimlError:
            continue
    raise _refusal(site, _obstacle(site, program))


def _sizes(site: Site) -> set[str]:
    return set().union(*(case.sizes for case in site.cases))


def _obstacle(site: Site, program: Program) -> str:
    """Why the spec cannot follow. It is told to a model: no value of a case is in it, and of the source single names alone."""
    for launch in sites(program, site.kernel.name):
        try:
            kernel_terms(program, launch, site.kernel, _sizes(site))
        except SourceError as error:
            return re.sub(r"'(?![\w:.]{1,60}'(?!.*')).*'", "an expression", error.what, flags=re.S)
    return _NO_VALUE


def _refusal(site: Site, why: str) -> EditError:
    return EditError(
        f"the launch of '{site.kernel.name}' does not carry over to its kernel spec: {why}",
        do=_DO,
        fault=Fault.FORBIDDEN,
    )
