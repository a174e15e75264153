"""What a further question at a program asks for: one approach at a time, those that fit the diagnosis first."""

from dataclasses import dataclass, replace

from engine.llm.node_context import Ancestor, Context, common, of_both, program_diff, standing
from engine.llm.techniques import fitting
from engine.search.tree import Node

# A branch is worth combining with another where it gained so much over the original, in doublings (3.5 %). Ours.
_LEAST_GAIN = 0.05


@dataclass(frozen=True)
class Approach:
    """A way to make a kernel faster. `codes` are those of a diagnosis that it answers, `text` is what the model is asked for."""

    name: str
    codes: frozenset[str]
    text: str


# All ours; the codes are those of `engine.profile.diagnosis`.
APPROACHES = (
    Approach(
        "coalesce",
        frozenset({"uncoalesced", "uncoalesced_loads", "uncoalesced_stores", "partial_warps", "bank_conflicts"}),
        "Change which thread touches which element, so that the lanes of a warp access neighbouring addresses, in shared memory "
        "different banks.",
    ),
    Approach(
        "tile",
        frozenset({"excess_traffic", "memory_bound", "l1_misses", "memory_stalls"}),
        "Load what several threads use once for the whole block or warp, into shared memory or registers, and reuse it there.",
    ),
    Approach(
        "fuse",
        frozenset({"dram_saturated", "excess_traffic", "memory_bound"}),
        "Go over the data fewer times: merge loops and passes, and keep what is read again in registers or shared memory.",
    ),
    Approach(
        "more work per thread",
        frozenset(
            {"latency_bound", "low_occupancy", "dependency_stalls", "memory_stalls", "memory_queue_stalls", "tail"}
        ),
        "Let each thread work on several independent elements, with wider accesses where they are aligned, so that more loads are in "
        "flight.",
    ),
    Approach(
        "fewer instructions",
        frozenset(
            {"compute_bound", "issue_bound", "math_stalls", "divergence", "many_registers", "spills", "local_memory"}
        ),
        "Execute fewer instructions: move what does not change out of loops, simplify indices, replace divisions, and let all lanes of a "
        "warp do the same.",
    ),
    Approach(
        "other algorithm",
        frozenset({"barrier_stalls", "small_grid", "launch_bound", "shared_stalls", "shared_queue_stalls"}),
        "Use another algorithm or another division of the work: warp shuffles instead of barriers, more blocks, or one with fewer steps.",
    ),
    Approach(
        "asynchronous copies",
        frozenset({"memory_stalls", "latency_bound", "barrier_stalls"}),
        "Copy what a block needs next into shared memory asynchronously (<cuda_pipeline.h>), in two or more stages, while it works on what "
        "is there.",
    ),
    Approach(
        "tensor cores",
        frozenset({"compute_bound", "math_stalls"}),
        "Compute products of matrices, or what can be put so, on tensor cores (<mma.h>), as exactly as the source: floats as sums of two "
        "TF32 numbers.",
    ),
)
COMBINE = "Combine both: apply here what made the other branch faster, in addition to what this version already does."


def asking_for(context: Context, node: Node, round: int) -> Context:
    """The context of a question in that round: the first is open, the second combines where there is another branch, and each
    further one asks for another approach. Each comes with techniques that fit."""
    codes = context.diagnosed.codes
    if not round:
        return replace(context, techniques=fitting(context.place, codes))
    other = other_branch(node)
    answering = [a for a in APPROACHES if a.codes.intersection(codes)]
    asked = [
        *([None] if other is not None else []),
        *(*answering, *(a for a in APPROACHES if a not in answering)),
    ]
    wanted = asked[(round - 1) % len(asked)]
    if wanted is not None or other is None:
        assert wanted is not None
        shown = fitting(context.place, codes, wanted.name)
        return replace(context, approach=wanted.text, techniques=shown)
    since = common(other, node)
    branch = Ancestor(of_both(since), standing(other), program_diff(since.program, other.program))
    lineage = tuple(one for one in context.lineage if one.standing != branch.standing)
    return replace(context, approach=COMBINE, branch=branch, lineage=lineage)


def other_branch(node: Node) -> Node | None:
    """The best program that is neither on the way to this node nor made from it, where it gained much; None without one."""
    way = node.path()
    best: Node | None = None
    waiting = [way[0]]
    while waiting:
        at = waiting.pop()
        if at is node:
            continue  # what is below was made from it
        waiting += at.children
        if at not in way and at.gained > (_LEAST_GAIN if best is None else best.gained):
            best = at
    return best
