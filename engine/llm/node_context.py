"""What is told to a model about one node of the search: a snapshot, so that the search may go on meanwhile."""

import difflib
import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from engine.cuda.closure import closure
from engine.cuda.kernel import Span
from engine.errors import OptimlError
from engine.llm.edits import Workplace
from engine.llm.plain_words import plain
from engine.llm.spans import marked, spans_of
from engine.llm.techniques import Technique
from engine.model import Evaluation, LaunchConfig, Outcome, Program, Target
from engine.predict.targets import figures_for
from engine.profile.evidence import array_bytes, heaviest_case
from engine.rules import make_site
from engine.search.tree import Node
from engine.spec.kernel_spec import KernelSpec

_MOST_DIFF_LINES = 60
_MOST_TRIED = 16
_MOST_PARTS, _LEAST_PART = 3, 0.1  # of a predicted time, and of its largest part. Ours
_NEAR_ROOF = 2.0  # times a floor, from which on the floor itself has to be lowered. Ours
_AT_ROOF = 1.05  # times a floor that are the floor, as far as its figures are known. Ours
# Lines that leave figures open are none of the spec: who edits the kernel has to see them.
_SPEC_LINE = re.compile(rb"^[ \t]*//[ \t]*optiml:(?![ \t]*(?:tune|where)[ \t]+[^\s=.])[^\n]*\n?", re.M)


@dataclass(frozen=True)
class Diagnosed:
    """What profiling one program gave: sentences, the counters as text by name, the codes of the findings, for how long it keeps each
    arithmetic pipe busy, and the parts of a predicted time, both in microseconds. `pending`: more is to come."""

    sentences: tuple[str, ...] = ()
    counters: Mapping[str, str] = field(default_factory=dict)
    codes: tuple[str, ...] = ()
    pending: bool = False
    pipes_us: Mapping[str, float] = field(default_factory=dict)
    parts_us: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Ancestor:
    """The node itself, its parent or its grandparent: how fast it is, and what the step to it changed."""

    name: str
    standing: str
    diff: str = ""


@dataclass(frozen=True)
class Context:
    """One node: the workplace for its edits, its lineage (the node first), what was tried from it, and what is known of it.

    `tried` and `memory` are sentences, `approach` says what to try now. Holds no check case, no seed, no tolerance and no drawn data.
    """

    place: Workplace
    target: Target
    lineage: tuple[Ancestor, ...]
    tried: tuple[str, ...] = ()
    diagnosed: Diagnosed = Diagnosed()
    memory: tuple[str, ...] = ()
    steps: tuple[str, ...] = ()
    branch: Ancestor | None = None  # the best program of another branch, with what it changed of the original
    approach: str = ""
    techniques: tuple[Technique, ...] = ()
    floor: str = ""  # how near the program is to what binds it: the bytes of its arrays, or the arithmetic that it does
    review: str = ""  # what a judge expected of the step to it and what came of that; "" without a judge that helps

    @property
    def program(self) -> Program:
        return self.place.program

    @property
    def about(self) -> str:
        """The way from the original to the node, for a person: its edits, the first one first."""
        return " > ".join(("original", *self.steps))

    @property
    def spec(self) -> KernelSpec:
        return self.place.spec


def make_context(
    node: Node, spec: KernelSpec, target: Target, *, counters: Sequence[str], diagnosed: Diagnosed | None = None,
    memory: Sequence[str] = (),
) -> Context:  # fmt: skip
    """The context of a node as the tree is now.

    Raises SourceError and KeyError where its program cannot be read: nothing can be proposed for it then.
    """
    sites = tuple(make_site(node.program, spec, step, target) for step in range(len(spec.steps)))
    path = node.path()
    lineage = []
    for name, at in zip(("This version", "Its parent", "Its grandparent"), reversed(path), strict=False):
        before = at.parent.program if at.parent is not None else None
        # The source is in the prompt: of the step to it only what is no longer there.
        diff = program_diff(before, at.program, added=at is not node) if before is not None else ""
        lineage.append(Ancestor(name, standing(at), diff))
    siblings = [other for other in node.parent.children if other is not node] if node.parent is not None else []
    others = {"The best so far": best_of(path[0]), "Its best sibling": max(siblings, key=_worth, default=None)}
    shown: list[Node] = list(path)
    for name, other in others.items():
        if other is not None and other not in shown and _worth(other) > 0:
            shown.append(other)
            since = common(other, node)
            changed = "this version" if since is node else of_both(since)
            named = f"{name} (changes to {changed})"
            lineage.append(Ancestor(named, standing(other), program_diff(since.program, other.program)))
    tried = [_tried(child) for child in sorted(node.children, key=lambda c: c.id)[-_MOST_TRIED:]]
    place = Workplace(sites, path[0].program, tuple(counters))
    steps = tuple(plain(at.proposal.summary) for at in path if at.proposal is not None)
    diagnosed = diagnosed or Diagnosed()
    floor = " ".join(filter(None, (_floor(node, spec, target, diagnosed.pipes_us), _parts(diagnosed.parts_us))))
    return Context(place, target, tuple(lineage), tuple(tried), diagnosed, tuple(memory), steps, floor=floor)


def best_of(root: Node) -> Node | None:
    """The program that gained most; None where none gained anything."""
    best, waiting = root, [root]
    while waiting:
        at = waiting.pop()
        waiting += [child for child in at.children if child.best > best.gained]
        best = at if at.gained > best.gained else best
    return best if best is not root else None


def common(a: Node, b: Node) -> Node:
    """The last program that both are made from."""
    above = b.path()
    return next(node for node in reversed(a.path()) if node in above)


def of_both(node: Node) -> str:
    """A common ancestor in words."""
    return "the original" if node.proposal is None else f"the version with '{plain(node.proposal.summary)}'"


def _worth(node: Node) -> float:
    passed = node.evaluation is not None and node.evaluation.measurement is not None
    return node.gained if passed else -math.inf


def _floor(node: Node, spec: KernelSpec, target: Target, pipes_us: Mapping[str, float]) -> str:
    """How far a program is from the roof that binds it, in its case with the most bytes: a copy of its arrays, or its own arithmetic."""
    measurement = node.evaluation.measurement if node.evaluation is not None else None
    try:
        speed, case = figures_for(target.arch).dram_bytes_s, heaviest_case(spec)
        moved = array_bytes(spec, case)
        timing = measurement.cases[case - len(spec.check)] if measurement is not None else None
    except (OptimlError, LookupError):
        return ""
    if timing is None or moved <= 0:
        return ""
    copy_us = 1e6 * moved / speed
    told = f"Its arrays hold {moved / 1e6:.3g} MB ({plain(timing.case)}), which take {copy_us:.3g} us to move at {speed / 1e12:.3g} TB/s"
    pipe = max(pipes_us, key=lambda name: pipes_us[name], default="")
    if not pipe or pipes_us[pipe] <= copy_us:
        return f"{told}; this version {_against(timing.candidate_us / copy_us)}."
    factor = timing.candidate_us / pipes_us[pipe]
    told += (
        f". Its roof is arithmetic, not memory: as it is written, it keeps the {pipe} busy for {pipes_us[pipe]:.3g} us; this version "
        f"{_against(factor)}."
    )
    return told + (" Below that it takes less or cheaper arithmetic, or another pipe." if factor < _NEAR_ROOF else "")


def _parts(parts_us: Mapping[str, float]) -> str:
    """The largest parts of a predicted time."""
    largest = sorted(parts_us.items(), key=lambda part: -part[1])[:_MOST_PARTS]
    told = [f"{name} {us:.3g} us" for name, us in largest if us >= _LEAST_PART * largest[0][1] > 0]
    return f"The largest parts of the prediction, which overlap: {', '.join(told)}." if told else ""


def _against(factor: float) -> str:
    if factor < _AT_ROOF:
        return "takes no longer than that"
    times = f"{factor:.2g}"
    return f"takes {times if factor < 100 else f'{float(times):,.0f}'} times that"


def node_key(original: Program, program: Program) -> str:
    """A name for a program that lasts as long as its code does.

    Files of specs count by what differs from the original's alone: a case for another kernel in the same file changes nothing.
    """
    h = hashlib.sha256()
    for path in sorted(program.files):
        data = program.files[path]
        if path.endswith(".toml"):
            before = original.files.get(path, b"")
            lines = [] if before == data else difflib.unified_diff(*_lines(before, data), n=0, lineterm="")
            data = "\n".join(line for line in lines if not line.startswith(("@@", "---", "+++"))).encode()
        h.update(f"{path}\0{len(data)}\0".encode())
        h.update(data)
    return h.hexdigest()[:20]


def _lines(before: bytes, after: bytes) -> tuple[list[str], list[str]]:
    first, second = (data.decode("utf-8", "replace").splitlines() for data in (before, after))
    return first, second


def standing(node: Node) -> str:
    """What a program is made by, and how fast it is."""
    what = "the original" if node.proposal is None else plain(node.proposal.summary)
    if node.evaluation is None:
        return what
    return f"{what}; {measured(node.evaluation, of_original=node.proposal is None)}"


def measured(evaluation: Evaluation, *, of_original: bool = False) -> str:
    """How fast a candidate is, in words: the ratio over the original, with its interval if it was measured, and the times."""
    measurement = evaluation.measurement
    if measurement is None:
        return ending(evaluation)
    how = "predicted" if measurement.predicted else "measured"
    several = len(measurement.cases) > 1
    times = ", ".join(
        f"{c.candidate_us:.4g} us" + (f" ({plain(c.case)})" if several else "") for c in measurement.cases
    )
    interval = "" if measurement.predicted else f" ({measurement.low:.3g} to {measurement.high:.3g})"
    told = f"{times}, {how}" if times else how
    text = told if of_original else f"{measurement.ratio:.3g}x the original's speed{interval}, {told}"
    resources = "".join(f"; {r.registers} registers, {r.shared_bytes} bytes shared" for r in evaluation.resources[:1])
    spilled = sum(r.spill_store_bytes + r.spill_load_bytes for r in evaluation.resources)
    return text + resources + (f", {spilled} bytes spilled" if spilled else "")


def ending(evaluation: Evaluation) -> str:
    """How a candidate failed, without what its checks were: no case, no values, no tolerance."""
    words = {
        Outcome.COMPILE_ERROR: "it does not compile",
        Outcome.WRONG_RESULT: "it computes something else",
        Outcome.MEMORY_ERROR: "it has a memory error (outside an array, not written before, or a changed input)",
        Outcome.RACE: "it has a data race, or a barrier that not all threads reach",
        Outcome.TIMED_OUT: "it does not end",
        Outcome.CRASHED: "it crashes",
        Outcome.SCREENED_OUT: "it was refused before compiling",
        Outcome.GUARDRAIL: "it fails a guardrail",
        Outcome.DUPLICATE: "it is the same machine code as another candidate",
        Outcome.UNSTABLE: "its time could not be measured well",
    }
    text = words.get(evaluation.outcome, evaluation.outcome.value.replace("_", " "))
    failure = evaluation.failure
    if failure is not None and failure.argument:
        text += f" in '{plain(failure.argument)}'"
    if failure is not None and failure.line is not None:
        text += f", line {failure.line}"
    return text


def _tried(child: Node) -> str:
    summary = plain(child.proposal.summary) if child.proposal is not None else ""
    if child.evaluation is None:
        return f"{summary}: not known yet"
    measurement = child.evaluation.measurement
    how = f"{measurement.ratio:.3g}x the original" if measurement is not None else ending(child.evaluation)
    return f"{summary}: {how}"


def program_diff(before: Program, after: Program, *, added: bool = True) -> str:
    """What an edit changes, as a unified diff of bounded length; specs left out.

    Without `added` only the lines that it replaced, under their hunks' headers.
    """
    lines: list[str] = []
    for path in sorted(after.files):
        if before.files[path] != after.files[path] and not path.endswith(".toml"):
            a, b = (without_spec(p.files[path]).splitlines() for p in (before, after))
            lines += list(difflib.unified_diff(a, b, path, path, n=1 if added else 0, lineterm=""))[2:]
    if not added:
        lines = [
            line
            for line, following in pairwise([*lines, ""])
            if line[:1] == "-" or (line[:1] == "@" and following[:1] == "-")
        ]
    if len(lines) > _MOST_DIFF_LINES:
        lines = [*lines[:_MOST_DIFF_LINES], f"({len(lines) - _MOST_DIFF_LINES} more lines)"]
    return "\n".join(lines)


def without_spec(data: bytes) -> str:
    """A file's text without the lines of its kernel spec: they hold the check cases and tolerances."""
    return _SPEC_LINE.sub(b"", data).decode("utf-8", "replace").replace("\r\n", "\n").lstrip("\ufeff")


def source_of(context: Context, *, short: bool) -> str:
    """The kernel file as a model sees it, its spans marked; `short`: only the kernels, the device functions they use, and launches."""
    unit, named = context.place.sites[0].unit, spans_of(context.place)
    if not short:
        return without_spec(marked(unit.data, 0, len(unit.data), named)).rstrip("\n")
    functions = {f.name: f for f in (*unit.functions, *unit.kernels)}
    kernels = {site.kernel.name for site in context.place.sites}
    wanted = closure(
        kernels & functions.keys(),
        lambda name: functions.keys() & re.findall(r"[A-Za-z_]\w*", unit.text(functions[name].span)),
    )
    spans = [functions[name].span for name in wanted if functions[name].qualifier != "host"]
    spans += [launch.span for site in context.place.sites for launch in site.launches if launch.path == unit.path]
    spans += [
        Span(n.start_byte, n.end_byte) for n in unit.root.children if n.type in ("preproc_def", "preproc_include")
    ]
    parts = [without_spec(marked(unit.data, s.start, s.end, named)).strip() for s in sorted(set(spans))]
    return "\n\n".join(parts)


def _extents(extents: tuple[int, int, int]) -> str:
    used = max((i for i in range(3) if extents[i] != 1), default=0)
    return " x ".join(str(n) for n in extents[: used + 1])


def launch_text(config: LaunchConfig) -> str:
    """A launch in figures, as a reader knows it."""
    grid, block = (_extents(extents) for extents in (config.grid, config.block))
    return f"{grid} blocks of {block} threads" + (
        f", {config.shared_bytes} bytes shared" if config.shared_bytes else ""
    )
