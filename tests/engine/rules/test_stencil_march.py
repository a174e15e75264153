"""Marching along z with a register queue: what matches, what must not, and that the results stay the same."""

from __future__ import annotations

import re
from typing import Any

import pytest

from engine.rewrite.site import Site
from tests.engine.rules.equality import assert_equal
from tests.engine.rules.test_stencil_tile import PLANE, PLANE_LAUNCH, PLANE_SIZES, VOLUME, VOLUME_LAUNCH, VOLUME_SIZES
from tests.engine.rules.workbench import after, compiles, device, host, machine_code, make, one, propose

BOX = ({"nx": 1, "ny": 1, "nz": 1}, {"nx": 33, "ny": 9, "nz": 5}, {"nx": 7, "ny": 10, "nz": 19})
GRID = """
    dim3 block(8, 8, 8);
    dim3 grid((nx + 7) / 8, (ny + 7) / 8, (nz + 7) / 8);
    step<<<grid, block>>>(ARGUMENTS);
"""
# The border is copied, with a return; a second input has no neighbours.
BORDER = """
__global__ void step(const float* u, const float* f, float* next, int nx, int ny, int nz) {
    int x = blockIdx.x * blockDim.x + threadIdx.x;
    int y = blockIdx.y * blockDim.y + threadIdx.y;
    int z = blockIdx.z * blockDim.z + threadIdx.z;
    if (x >= nx || y >= ny || z >= nz) {
        return;
    }
    int i = (z * ny + y) * nx + x;
    if (x == 0 || y == 0 || z == 0 || x == nx - 1 || y == ny - 1 || z == nz - 1) {
        next[i] = u[i];
        return;
    }
    next[i] = (u[i - 1] + u[i + 1] + u[i - nx] + u[i + nx] + u[i - nx * ny] + u[i + nx * ny] - f[i]) / 6.0f;
}
"""
# A cube: one size, unsigned indices in another order, no locals.
CUBE = """
__constant__ float w[3] = {0.5f, 0.25f, -0.125f};
__global__ void step(const float* in, float* out, unsigned int n) {
    unsigned int i = blockIdx.z * blockDim.z + threadIdx.z;
    unsigned int j = blockIdx.y * blockDim.y + threadIdx.y;
    unsigned int k = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= 1 && i < n - 1 && j >= 1 && j < n - 1 && k >= 1 && k < n - 1) {
        out[i*n*n + j*n + k] = w[0] * in[i*n*n + j*n + k] + w[1] * (in[i*n*n + j*n + (k-1)] + in[i*n*n + j*n + (k+1)])
            + w[1] * (in[i*n*n + (j-1)*n + k] + in[i*n*n + (j+1)*n + k]) + w[2] * (in[(i-1)*n*n + j*n + k] + in[(i+1)*n*n + j*n + k]);
    }
}
"""
# Two arrays, distances of two planes, a macro for the index, 64 bits.
WAVE = """
#define AT(x, y, z) (((z) * ny + (y)) * nx + (x))
template <typename T>
__global__ void step(const T* __restrict__ p, const T* __restrict__ v, T* __restrict__ q, size_t nx, size_t ny, size_t nz) {
    const size_t x = blockIdx.x * blockDim.x + threadIdx.x;
    const size_t y = blockIdx.y * blockDim.y + threadIdx.y;
    const size_t z = blockIdx.z * blockDim.z + threadIdx.z;
    if (x >= nx || y >= ny || z >= nz) return;
    if (z < 2 || z + 2 >= nz || x < 1 || x + 1 >= nx || y < 1 || y + 1 >= ny) { q[AT(x, y, z)] = 0; return; }
    q[AT(x, y, z)] = __ldg(&p[AT(x, y, z - 2)]) + p[AT(x, y, z + 2)] - p[AT(x - 1, y, z)] * p[AT(x + 1, y, z + 1)]
        + v[AT(x, y - 1, z)] * v[AT(x, y + 1, z)] - v[AT(x, y, z - 1)] + v[AT(x, y, z)];
}
"""
CASES: dict[str, tuple[str, str, str, dict[str, Any]]] = {
    "volume": (VOLUME, VOLUME_LAUNCH, "", VOLUME_SIZES),
    "border": (
        BORDER,
        GRID.replace("ARGUMENTS", "u, f, next, nx, ny, nz"),
        "",
        {**VOLUME_SIZES, "elements": dict.fromkeys(("u", "f", "next"), "nx*ny*nz")},
    ),
    "cube": (
        CUBE,
        GRID.replace("ARGUMENTS", "in, out, n").replace("nx", "n").replace("ny", "n").replace("nz", "n"),
        "",
        {"sizes": [{"n": 256}], "check": [{"n": 5}], "elements": {"in": "n*n*n", "out": "n*n*n"}},
    ),
    "wave": (
        WAVE,
        GRID.replace("ARGUMENTS", "p, v, q, nx, ny, nz").replace("step<<<", "step<float><<<"),
        "step<float>",
        {**VOLUME_SIZES, "elements": dict.fromkeys(("p", "v", "q"), "nx*ny*nz")},
    ),
}


def site_of(case: str, old: str = "", new: str = "", newline: str = "\n") -> Site:
    code, launch, _, sizes = CASES[case]
    assert old in code
    return make(code.replace(old, new), launch, newline=newline, **sizes)


def test_a_thread_walks_through_planes() -> None:
    edited = one(site_of("border"), "stencil_march", bx=32, by=8, steps=8, ahead=1)
    code = device(edited)
    assert "for (int step2 = 0; step2 < 8; ++step2) {" in code
    assert "int z = blockIdx.z * 8 + step2;" in code
    assert "column[3] = u[min(max(column_at, 0), column_end)];" in code
    assert "next[i] = column[1];\n            continue;" in code
    assert "u[i - nx] + u[i + nx] + column[0] + column[2] - f[i]" in code
    assert edited.configs[0].grid == (8, 32, 32)
    assert edited.configs[0].block == (32, 8, 1)
    assert "dim3 block(32, 8, 1);\n    dim3 grid((nx + 31) / 32, (ny + 7) / 8, (nz + 7) / 8);" in host(edited)
    assert not propose(edited, "stencil_march")


def test_fewer_loads_and_no_local_memory() -> None:
    site = site_of("border")
    before = machine_code(site)
    assert len(re.findall(r"\bLDG", before)) == 8  # one of the border, seven of the rest
    code = machine_code(one(site, "stencil_march", steps=8, bx=32, by=8))
    assert len(re.findall(r"\bLDG", code)) == 3 + 8 * 6 - 1
    assert not re.search(r"\b(?:LDL|STL)\b", code)


@pytest.mark.parametrize("case", CASES)
def test_the_results_stay_the_same(case: str) -> None:
    site = site_of(case, newline="\r\n" if case == "border" else "\n")
    expression = CASES[case][2]
    edited = [after(site, p) for p in propose(site, "stencil_march")]
    assert len(edited) == 5
    for candidate in edited:
        compiles(candidate, expression)
    sizes = [{"n": 1}, {"n": 2}, {"n": 37}] if case == "cube" else BOX
    assert_equal(site, edited, sizes, expression=expression, tolerance=1e-5, races=True)


def test_every_array_with_a_column_has_a_queue() -> None:
    code = device(one(site_of("wave"), "stencil_march", steps=8, bx=32, by=8))
    assert "T column[6];" in code  # five planes of p and one ahead
    assert "T column_v[3];" in code  # two planes of v and one ahead
    assert "column[0] + column[4] - p[AT(x - 1, y, z)] * p[AT(x + 1, y, z + 1)]" in code
    assert "long long column_at" in code


def test_figures_are_open_to_the_tuner() -> None:
    from engine.rules import families

    (family,) = [f for f in families(site_of("border")) if f.rule == "stencil_march"]
    assert family.parameters["steps"] == (2, 4, 8, 16, 32)
    assert family.make({"bx": 64, "by": 2, "steps": 32, "ahead": 4}) is not None


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("u[i - nx * ny] + u[i + nx * ny]", "u[i + nx - 1] + u[i + nx * ny + 1]"),  # a column of one element
        (
            "int y = blockIdx.y * blockDim.y + threadIdx.y;\n    int z =",
            "int y = blockIdx.y * blockDim.y + threadIdx.y, z =",
        ),
        (
            "int z = blockIdx.z * blockDim.z + threadIdx.z;",
            "int z = blockIdx.z * blockDim.z + threadIdx.z;\n    __syncthreads();",
        ),
        ("int i = ", "if (threadIdx.z == 0) return;\n    int i = "),
        ("int i = ", "for (int k = 0; k < nx; ++k) { if (k == x + 5) return; }\n    int i = "),
        (" - f[i]) / 6.0f;", " - f[i]) / 6.0f;\n    u[i] = 0;"),
        ("x >= nx || y >= ny || z >= nz", "x >= nx || y >= ny || z >= nz - f[0]"),
    ],
)
def test_what_looks_alike_is_left_alone(old: str, new: str) -> None:
    assert not propose(site_of("border", old, new), "stencil_march")


def test_a_plane_has_nothing_to_march_along() -> None:
    assert not propose(make(PLANE, PLANE_LAUNCH, **PLANE_SIZES), "stencil_march")


def test_a_launch_has_blocks_where_the_interior_is_empty() -> None:
    """A grid of `n - 1` elements had no block for n = 1: the launch failed where the original did nothing."""
    edited = one(site_of("volume"), "stencil_tile", block="32x4x2", per=4)
    assert_equal(site_of("volume"), [edited], [{"nx": 1, "ny": 1, "nz": 1}])
