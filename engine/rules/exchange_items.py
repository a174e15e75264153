"""Compare-exchange stages with several elements to a thread, in registers.

Source of the method: H. Peters, O. Schulz-Hildebrandt, N. Luttenberger, "Fast in-place sorting with CUDA based on bitonic sort" (2010):
elements that change hands through shared memory between runs of stages leave each stage within a thread. There a minimum or maximum of
whole numbers is one instruction; two threads that exchange an element by a shuffle take three.
"""

from dataclasses import dataclass, replace

from engine.cuda.syntax import children, compact, inside, names, text, walk
from engine.rewrite import Edit, Edits, Node, Proposals, Site, Span, proposal, reindent, template
from engine.rules.idioms import WARP, is_barrier, is_thread, one_dimensional, size_of, with_pragma
from engine.rules.idioms.segments import BarrierSegment, NoSegments, fewer_threads, segments_of, thread_changes
from engine.rules.shared_padding import wider
from engine.rules.warp_exchange import Stages, element_of, sorted_by, stages_of, upwards, worked

_ITEMS = (32, 16, 8, 4, 2)
_GAP_BYTES = 16
# Of every three pairs one takes multiply-adds (of none, 3, 4 and 6 of twelve this was the fastest on an H200).
_SUMS = 3
_WORDS = frozenset({"int", "unsigned int", "unsigned"})


class ExchangeItems:
    """Blocks of fewer threads, each with several of the elements that pairs compare and exchange."""

    name = "exchange_items"
    summary = "Give each thread several of the elements that are compared and exchanged"

    def propose(self, site: Site) -> Proposals:
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
            # Strides below the number of threads that leave a thread's own elements stay within a warp.
            if threads % WARP or not 0 < threads <= items * WARP:
                continue
            said = f"Compare and exchange {items} elements in each of {threads} threads"
            for sums in (0, *([_SUMS] if _may_sum(stages, items, threads) else ())):
                edits = _edits(site, segments, stages, _ItemShare(items, threads, sums))
                by_sums = ", a third of the pairs by sums" if sums else ""
                yield from proposal(self.name, said + by_sums, edits, 0.7 - 0.05 * rank, items=items, sums=sums)


def _reachable(site: Site, stages: Stages, segments: list[BarrierSegment]) -> bool:
    """Whether what the stages use is still declared where they stand, and not within a loop over elements."""
    gone = {name for segment in segments for name in segment.own}
    own = {text(n) for n in walk(stages.nest) if n.type == "identifier" and is_thread(site, n)}
    return not names(stages.nest) & gone - own - {stages.partner}


@dataclass(frozen=True)
class _ItemShare:
    """How many elements each of how many threads has. `sums`: one of so many pairs takes a sum (0: none)."""

    items: int
    threads: int
    sums: int


def _may_sum(stages: Stages, items: int, threads: int) -> bool:
    """Whether nearly all pairs are one thread's, of elements of 32 bits that go up."""
    whole = sorted_by(stages, items * threads) is not None
    return whole and threads <= items and all(a.type in _WORDS for a in stages.arrays)


def _edits(site: Site, segments: list[BarrierSegment], stages: Stages, share: _ItemShare) -> Edits | None:
    nest = _nest(site, stages, share)
    return fewer_threads(site, segments, share.threads, share.items, nest.edits, nest.put)


@dataclass(frozen=True)
class _Nest:
    """The edits of the nest, and what stands around it with other text: accesses to a thread's own elements, extents of the arrays."""

    edits: list[Edit]
    put: dict[Node, str]


def _own_accesses(site: Site, stages: Stages, array: str, *, above: bool) -> list[Node] | None:
    """The accesses to an array above or below the nest; None where one is not to the thread's own element."""
    uses = [n for n in walk(site.body) if n.type == "identifier" and text(n) == array and not inside(n, stages.nest)]
    found = []
    for use in uses:
        node = use.parent
        index = element_of(node, array) if node is not None else None
        if use.end_byte <= stages.nest.start_byte if above else use.start_byte >= stages.nest.end_byte:
            if node is not None and node.type == "array_declarator":
                continue
            if node is None or index is None or not is_thread(site, index):
                return None
            found.append(node)
    return found


def _nest(site: Site, stages: Stages, share: _ItemShare) -> _Nest:
    """The nest with elements in registers, and what it needs: a function above the kernel, room in shared memory."""
    items, threads = share.items, share.threads
    fresh = site.fresh_names()
    # The elements' loops have names of their own.
    for taken in ("first", "item"):
        fresh(taken)
    k, element, lower, apart, spread = (fresh(base) for base in ("k", "element", "lower", "apart", "spread"))
    arrays, stride = {a.name: a.type for a in stages.arrays}, stages.stride
    own, other, first, second = (
        {name: fresh(f"{name}_{which}") for name in arrays} for which in ("own", "other", "first", "second")
    )
    part = {a.name: fresh(f"{a.name}_spread") if a.dynamic else a.name for a in stages.arrays}

    def lines(form: str) -> str:
        return "\n".join(
            form.format(T=kind, a=a, own=own[a], other=other[a], first=first[a], second=second[a], part=part[a])
            for a, kind in arrays.items()
        )

    by_element = replace(stages, thread=element)
    sort = sorted_by(stages, items * threads)
    up = upwards(by_element)
    given = {
        "items": str(items), "threads": str(threads), "k": k, "element": element, "lower": lower, "stride": stride, "apart": apart,
        "spread": spread, "regroup": fresh("regroup"), "received": lines(f"{{T}} {{other}}[{items}];"), "turned": "", "back": "",
        "far": f"{stride} >= {threads}",
        "number": f"{spread} ? {k} * {threads} + threadIdx.x % {threads} : threadIdx.x * {items} + {k}",
        "taken": lines(f"{{own}}[{k}] = {{a}}[{k} * {threads} + threadIdx.x];"),
        "given": lines(f"{{a}}[{k} * {threads} + threadIdx.x] = {{own}}[{k}];"),
    }  # fmt: skip
    near, sent, lanes, turned = f"{k} ^ {apart}", k, f"{apart} / {items}", "0"
    parts = template("engine.rules", "exchange_items").sections()
    if sort is not None:
        # The second of two sorted runs is compared in reverse, so that all elements go up; any order is as good to begin with.
        mirrored = fresh("mirrored")
        given["first"] = f"const bool {mirrored} = !{spread} && {stride} == {sort.size} / 2;"
        near, sent = f"{k} ^ ({mirrored} ? 2 * {apart} - 1 : {apart})", f"{mirrored} ? {items - 1} - {k} : {k}"
        lanes, turned = f"({mirrored} ? 2 * {apart} - {items} : {apart}) / {items}", f"{spread} ? {sort.size} / 2 : 0"
        low, high = ("min", "max") if sort.ascending else ("max", "min")
        pair = f"({{own}}[{k}], {{other}}[{k}]"
        larger = f"{high}{pair})"
        if share.sums:
            given |= {"low": low, "high": high, "rest": fresh("rest"), "minus": fresh("minus")}
            # The one far stride of the shortest such runs is not worth another order of the elements: it takes shuffles.
            given["far"] = f"{stride} >= {threads} && {sort.size} > {2 * threads}"
            larger = (
                f"({apart} < {items} && {k} % {share.sums} == 0 ? {given['rest']}{pair}, {given['minus']}) : {larger})"
            )
        work = lines(f"{{own}}[{k}] = {lower} ? {low}{pair}) : {larger};")
    elif up is not None:
        work = lines(f"{{own}}[{k}] = {lower} ? min({{own}}[{k}], {{other}}[{k}]) : max({{own}}[{k}], {{other}}[{k}]);")
        ((array, kind),) = arrays.items()
        turn = parts["turn"]
        given["turned"] = turn.render(**given | {"own": own[array], "up": f"({up})", "T": kind})
        given["back"] = given["turned"].partition("\n")[2]
    else:
        work = lines(f"{{T}} {{first}} = {lower} ? {{own}}[{k}] : {{other}}[{k}];") + "\n"
        work += lines(f"{{T}} {{second}} = {lower} ? {{other}}[{k}] : {{own}}[{k}];") + "\n"
        work += worked(by_element, first, second) + "\n" + lines(f"{{own}}[{k}] = {lower} ? {{first}} : {{second}};")
    partners = lines(f"{{other}}[{k}] = {{own}}[{near}];")
    if threads > items or share.sums:  # else each stride stays within a thread in one order or the other
        shuffles = lines(f"{{other}}[{k}] = __shfl_xor_sync(0xffffffffu, {{own}}[{sent}], {lanes});")
        unit = site.indent_unit
        partners = (
            f"if ({apart} < {items}) {{\n{reindent(partners, '', unit)}\n}} else {{\n{reindent(shuffles, '', unit)}\n}}"
        )
    given |= {
        "sync": "__syncwarp();" if threads == WARP else "__syncthreads();",
        "partners": partners, "first": given.get("first", ""), "work": work,
        "begin": "true" if sort is None else "false",
        "regrouped": lines(f"{given['regroup']}({{own}}, {{part}}, {spread}, {turned});"),
        "last": lines(f"{given['regroup']}({{own}}, {{part}}, true, 0);"),
    }  # fmt: skip
    left_out = {"turn"} if share.sums else {"turn", "sum", "minus"}
    code = {name: part_.render(**given) for name, part_ in parts.items() if name not in left_out}
    nest, body = stages.nest, stages.loop.child_by_field_name("body")
    assert body is not None  # the pattern has one
    margin, inner = site.indent_at(nest.start_byte), site.indent_at(stages.loop.start_byte)
    changes = [(body.start_byte, body.end_byte, f"{{\n{reindent(code['step'], '', inner + site.indent_unit)}{inner}}}")]
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
    # Where the code around the nest uses a thread's own elements alone, they never leave the thread.
    around = [{a: _own_accesses(site, stages, a, above=side) for a in arrays} for side in (True, False)]
    kept = [all(uses is not None for uses in side.values()) for side in around]
    before = "" if kept[0] else ("" if met else "__syncthreads();\n") + code["load"]
    after = code["after"] + ("" if kept[1] else code["store"])
    gaps = {a.name: items * threads // WARP * (_GAP_BYTES // size_of(a.type)) for a in stages.arrays}
    room = [
        f"__shared__ {a.type} {part[a.name]}[{items * threads + gaps[a.name]}];\n" for a in stages.arrays if a.dynamic
    ]
    begin = reindent("".join(room) + before + code.get("minus", "") + code["before"], "", margin).lstrip()
    end = reindent(after, "", margin).rstrip()
    top = site.body.start_byte + 1
    declared = "".join(f"\n{margin}{line}" for line in lines(f"{{T}} {{own}}[{items}];").split("\n"))
    edits = [
        Edit.insert(site.declaration_start, code["helper"] + code.get("sum", "")),
        Edit.insert(top, declared),
        Edit(Span(with_pragma(nest), nest.end_byte), f"{begin}{margin}#pragma unroll\n{margin}{loops}\n{end}"),
    ]
    put = dict(wider(site, a, gaps[a.name]) for a in stages.arrays if not a.dynamic)
    for side, every in zip(around, kept, strict=True):
        for a, uses in side.items() if every else ():
            put |= dict.fromkeys(uses or (), f"{own[a]}[{fresh('first')} / {threads}]")
    return _Nest(edits, put)
