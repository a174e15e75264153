"""A kernel in the spellings that the rules match, and their edits of it as edits of what its author wrote.

People write one thing in many ways: a counter declared at the top of a function, the ranks of cooperative groups, a parameter that is
moved to the thread's row, loads through hints. Each pass here writes one of them in the plain way and changes nothing else. Rules
that find nothing in the author's text are asked about the normal form. What they propose holds the passes' changes, so it is one edit.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from difflib import SequenceMatcher

from engine.cuda.edit import edit_program
from engine.model import Program
from engine.rewrite import Edit, Edits, Family, OptimlError, Proposal, Site, Span
from engine.rewrite.program_site import make_site
from engine.rules.normal_form import accesses, elements, guards, indices, inlined, loop_heads, single_values

Pass = Callable[[Site], Edits | None]
_PASSES: tuple[Pass, ...] = (
    guards.without_marks,
    inlined.inlined,
    inlined.views,
    loop_heads.own_counters,
    loop_heads.counted_loops,
    loop_heads.exclusive_bounds,
    indices.thread_ranks,
    accesses.plain_accesses,
    accesses.row_starts,
    single_values.single_values,
    loop_heads.own_starts,
    elements.summed_indices,
    elements.element_pointers,
    indices.global_indices,
    indices.without_unused,
    guards.guards_last,
    guards.work_guarded,
)


@dataclass(frozen=True)
class NormalForm:
    """The site of the program in normal form, and the program as it is."""

    site: Site
    original: Program

    def proposal(self, found: Proposal) -> Proposal | None:
        """An edit of the normal form as one of the original; None where it cannot be written so."""
        try:
            edits = differences(self.original, edit_program(self.site.program, found.edits))
            edit_program(self.original, edits)
        except (OptimlError, UnicodeDecodeError):
            return None
        return replace(found, edits=edits) if edits else None

    def family(self, found: Family) -> Family:
        """A family of edits of the normal form as one of the original."""

        def make(values: Mapping[str, int]) -> Proposal | None:
            made = found.make(values)
            return self.proposal(made) if made is not None else None

        return replace(found, make=make)


def with_edits(site: Site, edits: Edits) -> NormalForm | None:
    """The kernel after edits that change nothing of what it does; None where it cannot be edited then."""
    try:
        program = edit_program(site.program, edits)
        written = make_site(program, site.spec, site.step, site.target)
    except (KeyError, OptimlError):
        return None
    return NormalForm(written, site.program) if written.sound else None


def normal_form(site: Site) -> NormalForm | None:
    """The kernel in normal form; None where it is so already, or cannot be edited."""
    if not site.sound or not site.manageable:
        return None
    current = site
    for step in _PASSES:
        edits = step(current)
        changed = with_edits(current, edits) if edits else None
        current = changed.site if changed is not None else current
    return NormalForm(current, site.program) if current is not site else None


def differences(before: Program, after: Program) -> dict[str, tuple[Edit, ...]]:
    """Edits of whole lines that make one program the other. Raises UnicodeDecodeError for files that are not UTF-8."""
    found: dict[str, tuple[Edit, ...]] = {}
    for path, data in before.files.items():
        if after.files[path] == data:
            continue
        old, new = (each.splitlines(keepends=True) for each in (data, after.files[path]))
        starts = [0]
        for line in old:
            starts.append(starts[-1] + len(line))
        # Most of a file is as it was: what both have at the ends need not be compared.
        head = next((k for k, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new)))
        left = min(len(old), len(new)) - head
        tail = next((k for k in range(left) if old[-1 - k] != new[-1 - k]), left)
        matcher = SequenceMatcher(None, old[head : len(old) - tail], new[head : len(new) - tail], autojunk=False)
        found[path] = tuple(
            Edit(
                Span(starts[head + a], starts[head + b]),
                b"".join(new[head + c : head + d]).decode().replace("\r\n", "\n"),
            )
            for kind, a, b, c, d in matcher.get_opcodes()
            if kind != "equal"
        )
    return found


__all__ = ["NormalForm", "differences", "normal_form", "with_edits"]
