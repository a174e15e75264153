"""Use cheaper arithmetic where the tolerance may allow it."""

from __future__ import annotations

import re
from collections.abc import Iterator

from engine.cuda.syntax import called, children, names, strip, text, walk
from engine.rewrite import Edit, Node, Proposal, Site, Span, proposal

# Errors of a few units in the last place near 1, by the CUDA C++ Programming Guide's table of intrinsic functions. Sine and
# cosine are left out: their error is absolute and grows with the argument.
_INTRINSICS = {"expf": "__expf", "exp10f": "__exp10f", "logf": "__logf", "log2f": "__log2f", "log10f": "__log10f",
               "powf": "__powf"}  # fmt: skip


class FastMath:
    """Single-precision intrinsics for exponentials and logarithms, and `rsqrtf` for the reciprocal of a root.

    What they cost in accuracy is judged like any other change: against the tolerance, on fresh inputs.
    """

    name = "fast_math"
    summary = "Use cheaper single-precision arithmetic"

    def propose(self, site: Site) -> Iterator[Proposal]:
        if not site.sound:
            return
        bodies = _bodies(site)
        roots = [e for body in bodies for e in _roots(body)]
        yield from (
            proposal(
                self.name, "Take reciprocal square roots in one instruction", site.in_file(*roots), 0.2, form="rsqrt"
            )
            if roots
            else ()
        )
        calls = [e for body in bodies for e in _intrinsics(body)]
        # Half the instructions of expf; only kernels that compute more than they move notice.
        yield from (
            proposal(
                self.name,
                "Use the hardware's exponential and logarithm",
                site.in_file(*calls),
                0.15,
                form="intrinsics",
            )
            if calls
            else ()
        )


def _bodies(site: Site) -> list[Node]:
    """The kernel's body and those of the functions of the file that only it calls."""
    mine = {f.name: f for f in site.unit.functions if f.qualifier == "device" and f.name in site.kernel.calls}
    others = [f for f in site.unit.functions if f.name not in mine and f.name != site.kernel.name]
    private = [f for n, f in mine.items() if not any(n in names(o.node) for o in others)]
    found = [site.body]
    for function in private:
        if not function.node.has_error:
            found += [n for n in walk(function.node) if n.type == "compound_statement"][:1]
    return found


def _intrinsics(body: Node) -> list[Edit]:
    edits = []
    for node in walk(body):
        if node.type == "call_expression" and called(node) in _INTRINSICS:
            function = node.child_by_field_name("function")
            if function is not None and function.type == "identifier":
                edits.append(Edit(Span(function.start_byte, function.end_byte), _INTRINSICS[text(function)]))
    return edits


def _roots(body: Node) -> list[Edit]:
    """`1.0f / sqrtf(x)` as `rsqrtf(x)`."""
    edits: list[Edit] = []
    for node in walk(body):
        sign, left, right = (node.child_by_field_name(f) for f in ("operator", "left", "right"))
        if node.type != "binary_expression" or sign is None or left is None or right is None or text(sign) != "/":
            continue
        one = re.fullmatch(r"1(?:\.0*)?f", text(strip(left)))
        if (
            not one
            or right.type != "call_expression"
            or called(right) != "sqrtf"
            or any(e.span.contains(Span(node.start_byte, node.end_byte)) for e in edits)
        ):
            continue
        arguments = right.child_by_field_name("arguments")
        if arguments is not None and len(children(arguments)) == 1:
            edits.append(Edit(Span(node.start_byte, node.end_byte), f"rsqrtf{text(arguments)}"))
    return edits
