"""The strategies of the mixture: each says to a model in which direction to think. A further one is one more entry."""

from dataclasses import dataclass

from engine.errors import UsageError


@dataclass(frozen=True)
class AuthorStrategy:
    """One way to think about a task. `name` is what a result calls it, `guidance` what a model is told."""

    name: str
    title: str
    guidance: str


# After OptiML-G's mixture of thoughts over implementation strategies (OptiML, arXiv 2602.12305); the texts are ours.
STRATEGIES: tuple[AuthorStrategy, ...] = (
    AuthorStrategy(
        "memory", "Memory hierarchy",
        "Think of bytes first. Which data is read more than once, and where can it stay meanwhile: registers, shared memory, L1? "
        "Let neighbouring threads touch neighbouring addresses, and each thread move 16 bytes at a time where alignment allows. "
        "Read every input once and write every output once.",
    ),
    AuthorStrategy(
        "parallel", "Parallel decomposition",
        "Think of who does what. Choose how much work a thread, a warp and a block get, so that small and large sizes both fill "
        "the GPU: one warp or one block for each row, several rows for each block, or a grid-stride loop. Combine partial results "
        "with warp shuffles and as few barriers as possible.",
    ),
    AuthorStrategy(
        "instruction", "Instruction level",
        "Think of instructions. Unroll so that several independent loads are under way, keep several accumulators, hoist index "
        "arithmetic and divisions out of loops, use fused multiply-add and the fast forms of functions where they are accurate "
        "enough for single precision, and avoid branches that split a warp.",
    ),
    AuthorStrategy(
        "algorithm", "Algorithm",
        "Think of another way to compute the same: fewer passes over the data, an online or streaming form, a closed form, sums "
        "kept in pieces, work shared between neighbouring results. It must stay as accurate as the plain form.",
    ),
    AuthorStrategy(
        "library", "Library primitives",
        "Build on device-side primitives instead of own ones: CUB's block and warp collectives (cub::BlockReduce, "
        "cub::WarpReduce, cub::BlockScan, cub::BlockLoad with #include <cub/block/….cuh> or <cub/warp/….cuh>) and cooperative "
        "groups. Let them choose how threads exchange data; you choose block size and items per thread.",
    ),
)  # fmt: skip


def chosen(names: str) -> tuple[AuthorStrategy, ...]:
    """The strategies of a comma-separated list, "" for all. Raises UsageError."""
    known = {s.name: s for s in STRATEGIES}
    wanted = [name.strip() for name in names.split(",")] if names.strip() else list(known)
    for name in wanted:
        if name not in known:
            raise UsageError(f"unknown strategy '{name[:40]}'", "--strategies", f"expected some of {', '.join(known)}")
    return tuple(known[name] for name in dict.fromkeys(wanted))
