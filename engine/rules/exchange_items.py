"""Compare-exchange stages with several elements to a thread, in registers.

Source of the method: H. Peters, O. Schulz-Hildebrandt, N. Luttenberger, "Fast in-place sorting with CUDA based on bitonic sort" (2010):
consecutive elements in one thread leave fewer stages to shuffles, and few to shared memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from engine.cuda.syntax import children, compact, names, text, walk
from engine.rewrite import Edit, Edits, Proposal, Site, Span, proposal, template
from engine.rules.idioms.blocks import WARP, is_barrier, is_thread, one_dimensional
from engine.rules.idioms.segments import BarrierSegment, NoSegments, fewer_threads, segments_of, thread_changes
from engine.rules.reduction.register_accumulate import with_pragma
from engine.rules.warp_exchange import Stages, indented, stages_of, upwards, worked

_ITEMS = (8, 4, 16, 2)


class ExchangeItems:
    """Blocks of fewer threads, each with several of the elements that pairs compare and exchange."""

    name = "exchange_items"
    summary = "Give each thread several of the elements that are compared and exchanged"

    def propose(self, site: Site) -> Iterator[Proposal]:
        stages = stages_of(site)
        blocks = one_dimensional(site) if stages is not None else set()
        if stages is None or len(blocks) != 1 or not site.launch_visible or stages.nest not in children(site.body):
            return
        if "volatile" in compact(site.body):
            return
        try:
            segments = segments_of(site, "x", [stages.nest])
        except NoSegments:
            return
        if not _reachable(site, stages, segments):
            return
        (elements,) = blocks
        for rank, items in enumerate(_ITEMS):
            threads = elements // items
            if threads % WARP or not threads:
                continue
            edits = _edits(site, segments, stages, items, threads)
            said = f"Compare and exchange {items} elements in each of {threads} threads"
            yield from proposal(self.name, said, edits, 0.7 - 0.05 * rank, items=items)


def _reachable(site: Site, stages: Stages, segments: list[BarrierSegment]) -> bool:
    """Whether what the stages use is still declared where they stand, and not within a loop over elements."""
    gone = {name for segment in segments for name in segment.own}
    own = {text(n) for n in walk(stages.nest) if n.type == "identifier" and is_thread(site, n)}
    return not names(stages.nest) & gone - own - {stages.partner}


def _edits(site: Site, segments: list[BarrierSegment], stages: Stages, items: int, threads: int) -> Edits | None:
    return fewer_threads(site, segments, threads, items, [_nest(site, stages, items, threads)])


def _nest(site: Site, stages: Stages, items: int, threads: int) -> Edit:
    """The nest with elements in registers."""
    fresh = site.fresh_names()
    # The elements' loops have names of their own.
    for taken in ("first", "item"):
        fresh(taken)
    k, element, lower, stride = fresh("k"), fresh("element"), fresh("lower"), stages.stride
    arrays = {a.name: a.type for a in stages.arrays}
    own, other = ({name: fresh(f"{name}_{which}") for name in arrays} for which in ("own", "other"))
    first, second = ({name: fresh(f"{name}_{which}") for name in arrays} for which in ("first", "second"))

    def lines(form: str) -> str:
        return "\n".join(
            form.format(
                T=kind,
                a=a,
                own=own[a],
                other=other[a],
                first=first[a],
                second=second[a],
                k=k,
                far=f"{stride} / {items}",
            )
            for a, kind in arrays.items()
        )

    by_element = replace(stages, thread=element)
    up = upwards(by_element)
    if up is None:
        work = lines(f"{{T}} {{first}} = {lower} ? {{own}}[{{k}}] : {{other}}[{{k}}];") + "\n"
        work += lines(f"{{T}} {{second}} = {lower} ? {{other}}[{{k}}] : {{own}}[{{k}}];") + "\n"
        work += worked(by_element, first, second) + "\n" + lines(f"{{own}}[{{k}}] = {lower} ? {{first}} : {{second}};")
    else:
        work = lines(
            f"{{own}}[{{k}}] = {lower} ? min({{own}}[{{k}}], {{other}}[{{k}}]) : max({{own}}[{{k}}], {{other}}[{{k}}]);"
        )
    apart, base = fresh("apart"), fresh("base")
    given = {
        "items": str(items), "warp": str(items * WARP), "base": base, "k": k, "apart": apart, "element": element, "lower": lower,
        "stride": stride, "work": work, "declared": lines(f"{{T}} {{own}}[{items}];"),
        "received": lines(f"{{T}} {{other}}[{items}];"), "taken": lines(f"{{own}}[{{k}}] = {{a}}[{base} + {{k}}];"),
        "given": lines(f"{{a}}[{base} + {{k}}] = {{own}}[{{k}}];"),
        "neighbours": lines(f"{{other}}[{{k}}] = {{own}}[{{k}} ^ {apart}];"),
        "shuffles": lines("{other}[{k}] = __shfl_xor_sync(0xffffffffu, {own}[{k}], {far});"),
        "stores": lines(f"{{a}}[{{k}} * {threads} + threadIdx.x] = {{own}}[{{k}}];"),
        "loads": lines(f"{{other}}[{{k}}] = {{a}}[{{k}} * {threads} + (threadIdx.x ^ ({{far}}))];"),
    }  # fmt: skip
    parts = template("engine.rules", "exchange_items").sections()
    turn = ""
    if up is not None:
        ((array, kind),) = arrays.items()
        turn = parts["turn"].render(
            k=k, items=str(items), element=element, base=base, own=own[array], up=f"({up})", T=kind
        )
    given |= {"turned": turn, "back": turn.partition("\n")[2]}
    code = {
        name: parts[name].render(**{hole: given[hole] for hole in parts[name].holes})
        for name in ("before", "step", "after")
    }
    nest, body = stages.nest, stages.loop.child_by_field_name("body")
    assert body is not None  # the pattern has one
    margin, inner = site.indent_at(nest.start_byte), site.indent_at(stages.loop.start_byte)
    changes = [(body.start_byte, body.end_byte, f"{{\n{indented(code['step'], inner + site.indent_unit)}{inner}}}")]
    for loop in walk(nest):
        if loop.type == "for_statement":  # known numbers of stages leave no test of them
            inside_body = loop.child_by_field_name("body")
            headers = (part for part in children(loop) if part != inside_body)
            changes += [c for part in headers for c in thread_changes(part, {"blockDim.x": str(items * threads)})]
            if loop != nest:
                changes.append((loop.start_byte, loop.start_byte, f"#pragma unroll\n{site.indent_at(loop.start_byte)}"))
    loops = site.render(nest.start_byte, nest.end_byte, changes)
    above = nest.prev_named_sibling
    met = above is not None and is_barrier(site, above)
    before = indented(("" if met else "__syncthreads();\n") + code["before"], margin).lstrip()
    after = indented(code["after"], margin).rstrip()
    return Edit(Span(with_pragma(nest), nest.end_byte), f"{before}{margin}#pragma unroll\n{margin}{loops}\n{after}")


__all__ = ["ExchangeItems"]
