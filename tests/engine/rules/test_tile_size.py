"""Other values of the constants that size blocks and tiles: which constants, which values, and that it gives the same."""

from __future__ import annotations

import pytest

from engine.model import Target
from engine.rewrite.proposal import Family
from engine.rewrite.site import Site
from engine.rules import families
from engine.tune.feasible import feasible
from engine.tune.offers import rule_template
from tests.engine.rules.equality import assert_equal
from tests.engine.rules.workbench import after, device, make, one, propose

SIZES = ({"h": 512, "w": 512},)
CHECK = ({"h": 1, "w": 1}, {"h": 7, "w": 70}, {"h": 65, "w": 31})
ELEMENTS = {"x": "h*w", "y": "h*w"}
TURN = """#define TILE 32
constexpr int LINES = 8;

__global__ void k(const float* x, float* y, int h, int w) {
    __shared__ float tile[TILE][TILE + 1];
    int c = blockIdx.x * TILE + threadIdx.x;
    int r = blockIdx.y * TILE + threadIdx.y;
    for (int j = 0; j < TILE; j += LINES) {
        if (c < w && r + j < h) {
            tile[threadIdx.y + j][threadIdx.x] = x[(r + j) * w + c];
        }
    }
    __syncthreads();
    c = blockIdx.y * TILE + threadIdx.x;
    r = blockIdx.x * TILE + threadIdx.y;
    for (int j = 0; j < TILE; j += LINES) {
        if (c < h && r + j < w) {
            y[(r + j) * h + c] = tile[threadIdx.x][threadIdx.y + j];
        }
    }
}"""
LAUNCH = """    dim3 block(TILE, LINES);
    k<<<dim3((w + TILE - 1) / TILE, (h + TILE - 1) / TILE), block>>>(x, y, h, w);"""


def site(source: str = TURN, launch: str = LAUNCH, newline: str = "\n") -> Site:
    return make(source, launch, sizes=SIZES, check=CHECK, elements=ELEMENTS, newline=newline)


def family(there: Site) -> Family:
    (found,) = families(there, only=["tile_size"])
    return found


def points(there: Site) -> set[tuple[int, ...]]:
    return set(feasible(rule_template(there.program, family(there)), Target()).points)


def test_each_constant_is_doubled_and_halved() -> None:
    found = [p.summary for p in propose(site(), "tile_size")]
    assert found == ["Set LINES = 16", "Set LINES = 4", "Set TILE = 64", "Set TILE = 16"]
    edited = device(one(site(), "tile_size", LINES=4))
    assert "constexpr int LINES = 4;" in edited
    assert edited.replace("LINES = 4", "LINES = 8") == TURN


def test_what_is_proposed_gives_the_same() -> None:
    there = site()
    edited = [after(there, p) for p in propose(there, "tile_size")]
    made = [family(there).make({"LINES": 2, "TILE": 64}), family(there).make({"LINES": 16, "TILE": 16})]
    edited += [after(there, p) for p in made if p is not None]
    assert len(edited) == 6
    assert_equal(there, edited, CHECK, tolerance=0.0)


def test_all_constants_together_are_a_template_within_the_limits_of_the_target() -> None:
    assert family(site()).parameters == {"LINES": (2, 4, 8, 16, 32), "TILE": (8, 16, 32, 64, 128)}
    found = points(site())
    assert (8, 32) not in found  # the program as it is
    assert (16, 64) in found
    assert (32, 64) not in found  # 2,048 threads
    assert (8, 128) not in found  # 66 KB of shared memory
    assert (2, 8) not in found  # half a warp
    assert (32, 16) not in found  # more rows of threads than of the tile
    assert (16, 16) in found


def test_threads_do_not_step_over_the_end_of_the_tile() -> None:
    """Rows of threads beyond the tile write what is not theirs: on a GPU each such point costs seconds, for the context is lost."""
    square = site(TURN.replace("LINES = 8", "LINES = 32"))
    assert {p.summary for p in propose(square, "tile_size")} == {"Set LINES = 16"}  # and no TILE = 16
    assert all(tile % lines == 0 for lines, tile in points(square))
    own = (
        TURN.replace("int j = 0; j", "int j = threadIdx.y; j")
        .replace("threadIdx.y + j", "j")
        .replace("r + j", "r + j - (int)threadIdx.y")
    )
    assert (32, 16) in points(site(own.replace("LINES = 8", "LINES = 32")))  # where each thread knows its own end


def test_bounds_on_threads_hold() -> None:
    bound = TURN.replace("__global__ void k", "__global__ void __launch_bounds__(256) k")
    assert {p.summary for p in propose(site(bound), "tile_size")} == {"Set LINES = 4", "Set TILE = 16"}
    own = TURN.replace("__global__ void k", "__global__ void __launch_bounds__(TILE * LINES) k")
    assert points(site(own)) == points(site())


def test_a_tile_that_the_block_does_not_size_goes_with_the_one_beside_it() -> None:
    deep = TURN.replace("#define TILE 32", "#define TILE 32\n#define DEPTH 2").replace(
        "tile[TILE][TILE + 1]", "tile[DEPTH][TILE][TILE + 1]"
    )
    deep = deep.replace("tile[threadIdx", "tile[DEPTH - 1][threadIdx")
    assert set(family(site(deep)).parameters) == {"DEPTH", "LINES", "TILE"}
    assert "DEPTH = 4" in {p.summary.removeprefix("Set ") for p in propose(site(deep), "tile_size")}


def test_lines_end_as_the_author_ends_them() -> None:
    edited = one(site(newline="\r\n"), "tile_size", TILE=16)
    assert edited.program.data.count(b"\r\n") == edited.program.data.count(b"\n")


BAD = {
    "the kernel writes the number itself": ("blockIdx.x * TILE + threadIdx.x", "blockIdx.x * 32 + threadIdx.x"),
    "another kernel has it too": ("constexpr int", "__global__ void other(float* y) { y[TILE] = 0.0f; }\nconstexpr int"),
    "it is defined twice": ("#define TILE 32", "#ifdef WIDE\n#define TILE 64\n#else\n#define TILE 32\n#endif"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_what_must_not_match(name: str) -> None:
    old, new = BAD[name]
    assert old in TURN
    source = TURN.replace(old, new, 1)
    there = make(source, LAUNCH, sizes=SIZES, check=CHECK, elements=ELEMENTS) if "other" not in new else _second(source)
    assert not propose(there, "tile_size")
    assert not families(there, only=["tile_size"])


def _second(source: str) -> Site:
    """The site of the kernel `k` behind another kernel."""
    before, _, rest = source.partition("__global__ void other")
    other, _, after_it = rest.partition("\n")
    return make(
        before + after_it + "\n__global__ void other" + other, LAUNCH, sizes=SIZES, check=CHECK, elements=ELEMENTS
    )


def test_a_constant_that_something_else_must_follow_keeps_its_value() -> None:
    made = TURN.replace("#define TILE 32", "#define SIDE 32\n#define TILE (SIDE)")
    for there in (site(made), site(launch=LAUNCH.replace("block(TILE, LINES)", "block(32, LINES)"))):
        assert {p.summary for p in propose(there, "tile_size")} == {"Set LINES = 16", "Set LINES = 4"}
    assert not propose(site(launch=LAUNCH.replace("(h + TILE - 1) / TILE", "(h + 31) / 32")), "tile_size")


def test_one_constant_of_a_flat_block_is_left_to_the_rule_of_its_own() -> None:
    flat = """#define SIZE 256
__global__ void k(const float* x, float* y, int n) {
    __shared__ float part[SIZE];
    part[threadIdx.x] = x[blockIdx.x * SIZE + threadIdx.x];
    __syncthreads();
    y[blockIdx.x * SIZE + threadIdx.x] = part[SIZE - 1 - threadIdx.x];
}"""
    there = make(flat, "    k<<<n / SIZE, SIZE>>>(x, y, n);", sizes=({"n": 1 << 20},), check=({"n": 512},))
    assert not propose(there, "tile_size")
    assert propose(there, "block_size")
