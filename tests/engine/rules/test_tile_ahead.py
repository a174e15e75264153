import pytest

from engine.rewrite.site import Site
from tests.engine.rules.equality import assert_equal
from tests.engine.rules.workbench import compiles, device, make, one, propose

TILED = """
#define TILE 16
__global__ void product(const float* a, const float* b, float* c, int m, int n, int k) {
    __shared__ float at[TILE][TILE];
    __shared__ float bt[TILE][TILE + 1];
    int row = blockIdx.y * TILE + threadIdx.y;
    int col = blockIdx.x * TILE + threadIdx.x;
    float sum = 0.0f;
    for (int t = 0; t < k; t += TILE) {
        int ak = t + threadIdx.x;
        at[threadIdx.y][threadIdx.x] = row < m && ak < k ? a[row * k + ak] : 0.0f;
        if (t + threadIdx.y < k && col < n) {
            bt[threadIdx.y][threadIdx.x] = b[(t + threadIdx.y) * n + col];
        } else {
            bt[threadIdx.y][threadIdx.x] = 0.0f;
        }
        __syncthreads();
        for (int i = 0; i < TILE; ++i) {
            sum += at[threadIdx.y][i] * bt[i][threadIdx.x];
        }
        __syncthreads();
    }
    if (row < m && col < n) {
        c[row * n + col] = sum;
    }
}
"""
LAUNCH = """
    dim3 block(TILE, TILE);
    dim3 grid((n + TILE - 1) / TILE, (m + TILE - 1) / TILE);
    product<<<grid, block>>>(a, b, c, m, n, k);
"""


def tiled(source: str = TILED, newline: str = "\n") -> Site:
    return make(
        source,
        LAUNCH,
        sizes=[{"m": 1024, "n": 1024, "k": 1024}],
        check=[{"m": 7, "n": 129, "k": 33}],
        elements={"a": "m*k", "b": "k*n", "c": "m*n"},
        newline=newline,
    )


CASES = [{"m": 20, "n": 17, "k": 40}, {"m": 3, "n": 5, "k": 1}]
FLAT = TILED[: TILED.index("        if (t")] + "        bt[threadIdx.y][threadIdx.x] = t + threadIdx.y < k && col < n ? " \
    "b[(t + threadIdx.y) * n + col] : 0.0f;\n" + TILED[TILED.index("        __syncthreads();"):]  # fmt: skip


def test_asynchronous_copies() -> None:
    site = tiled()
    edited = one(site, "tile_ahead", form="async")
    text = device(edited)
    assert text.startswith("#include <cuda_pipeline.h>\n")
    assert "__shared__ float bt[2][TILE][TILE + 1];" in text
    assert "sum += at[stage][threadIdx.y][i] * bt[stage][i][threadIdx.x];" in text
    assert "__pipeline_memcpy_async(&bt[1 - stage][threadIdx.y][threadIdx.x], &b[(t + threadIdx.y) * n + col]" in text
    compiles(edited)
    compiles(one(tiled(newline="\r\n"), "tile_ahead", form="async"))
    assert_equal(site, [edited], CASES, races=True)


def test_through_registers() -> None:
    assert not propose(tiled(), "tile_ahead", form="registers")  # a store stands inside a branch
    site = tiled(FLAT)
    edited = one(site, "tile_ahead", form="registers")
    assert device(edited).count("__syncthreads();") == 2
    compiles(edited)
    assert_equal(site, [edited], CASES, races=True)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("        __syncthreads();\n    }\n    if (row", "    }\n    if (row"),  # another order of waiting
        ("sum += at", "at[0][0] = 1.0f; sum += at"),
        ("sum += at", "c[0] = 1.0f; sum += at"),
        ("sum += at", "row += 1; sum += at"),
        ("sum += at", "sum += ak * at"),
        ("c[row * n + col] = sum;", "c[row * n + col] = sum + at[0][0];"),
        ("__shared__ float at[TILE]", "extern __shared__ float at[][TILE]; float other[TILE]"),
        ("t += TILE", "t *= 2"),
        ("int ak = t", "if (t > 64) break; int ak = t"),
        ("[TILE][TILE];", "[TILE * 32][TILE];"),  # twice that does not fit
    ],
)
def test_nothing_for_other_forms(old: str, new: str) -> None:
    assert old in TILED
    assert not propose(tiled(TILED.replace(old, new)), "tile_ahead")
