"""Vectors of a stencil's neighbours in registers: what matches, what must not, and that the results stay the same."""

from __future__ import annotations

import re
from typing import Any

import pytest

from engine.rewrite.site import Site
from tests.engine.rules.equality import assert_equal
from tests.engine.rules.test_stencil_tile import LINE as BLUR
from tests.engine.rules.test_stencil_tile import LINE_LAUNCH as BLUR_LAUNCH
from tests.engine.rules.test_stencil_tile import PLANE, PLANE_LAUNCH, PLANE_SIZES, VOLUME, VOLUME_LAUNCH, VOLUME_SIZES
from tests.engine.rules.workbench import after, compiles, device, host, machine_code, make, one, propose

PLANES = (
    {"height": 1, "width": 1},
    {"height": 7, "width": 129},
    {"height": 11, "width": 64},
    {"height": 9, "width": 8},
)
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
BOXES = ({"nx": 1, "ny": 1, "nz": 1}, {"nx": 33, "ny": 9, "nz": 5}, {"nx": 16, "ny": 10, "nz": 4})
# All eight neighbours and a second input; unsigned sizes, a factor that depends on the column, a local behind the border's test.
BOX = """
__global__ void smooth(const float* in, const float* k, float* out, unsigned int height, unsigned int width) {
    unsigned int x = blockIdx.x * blockDim.x + threadIdx.x;
    unsigned int y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= width || y >= height) return;
    unsigned int i = y * width + x;
    float own = in[i];
    if (x < 1 || y < 1 || x > width - 2 || y > height - 2) {
        out[i] = own;
        return;
    }
    float sides = in[i - 1] + in[i + 1] + in[i - width] + in[i + width];
    float corners = in[i - width - 1] + in[i - width + 1] + in[i + width - 1] + in[i + width + 1];
    out[i] = own + k[i] * (sides + 0.5f * corners) * (x % 2 ? 1.0f : 2.0f);
}
"""
# The interior in a condition, with the border in its other branch; neighbours at distance 2, in 64 bits.
NESTED = """
__global__ void smooth(const double* __restrict__ in, double* __restrict__ out, size_t height, size_t width) {
    const size_t x = blockIdx.x * blockDim.x + threadIdx.x;
    const size_t y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x < width && y < height) {
        if (x >= 2 && x + 2 < width && y >= 1) {
            double sum = in[y * width + x - 2];
            sum += in[y * width + x + 2];
            sum -= in[(y - 1) * width + x];
            out[y * width + x] = sum;
        } else {
            out[y * width + x] = in[y * width + x];
        }
    }
}
"""
BRANCHES = PLANE.replace("        return;\n    }\n    out", "    } else {\n    out").replace(
    "(y, x + 1)]);\n", "(y, x + 1)]);\n    }\n"
)
LINE = """
__global__ void smooth(const float* in, float* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i > 0 && i < n - 1) {
        out[i] = in[i - 1] - 2.0f * in[i] + in[i + 1];
    }
}
"""
# A filter with tests of its neighbours: as conditions around the sum, and as `continue` in nested loops.
FILTER = """
#define R 2
__global__ void filter(const float* in, const float* w, float* out, int height, int width) {
    int x = blockIdx.x * blockDim.x + threadIdx.x;
    int y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x < width && y < height) {
        float sum = 0.0f;
        for (int dy = -R; dy <= R; dy++) {
            const int row = y + dy;
            if (row < 0 || row >= height) continue;
            for (int dx = -1; dx < 2; dx++) {
                if (x + dx >= 0 && x + dx < width) {
                    sum += w[(dy + R) * 3 + dx + 1] * in[row * width + x + dx];
                }
            }
        }
        out[y * width + x] = sum;
    }
}
"""
CASES: dict[str, tuple[str, str, dict[str, Any], Any]] = {
    "plane": (PLANE, PLANE_LAUNCH, PLANE_SIZES, PLANES),
    "box": (
        BOX,
        PLANE_LAUNCH.replace("(in, out", "(in, k, out"),
        {**PLANE_SIZES, "elements": dict.fromkeys(("in", "k", "out"), "height*width")},
        PLANES[1:],
    ),
    "branches": (BRANCHES, PLANE_LAUNCH, PLANE_SIZES, PLANES),
    "nested": (NESTED, PLANE_LAUNCH, PLANE_SIZES, PLANES),
    "line": (LINE, "    smooth<<<(n + 255) / 256, 256>>>(in, out, n);", {}, ({"n": 1}, {"n": 1003}, {"n": 4096})),
    "blur": (BLUR, BLUR_LAUNCH, {}, ({"n": 1}, {"n": 1003}, {"n": 4096})),
    "filter": (
        FILTER,
        PLANE_LAUNCH.replace("smooth<<<grid, block>>>(in, out", "filter<<<grid, block>>>(in, w, out"),
        {**PLANE_SIZES, "elements": {"in": "height*width", "w": "15", "out": "height*width"}},
        PLANES,
    ),
    "volume": (VOLUME, VOLUME_LAUNCH, VOLUME_SIZES, BOXES),
    "border": (
        BORDER,
        GRID.replace("ARGUMENTS", "u, f, next, nx, ny, nz"),
        {**VOLUME_SIZES, "elements": dict.fromkeys(("u", "f", "next"), "nx*ny*nz")},
        BOXES,
    ),
}


def site_of(case: str, old: str = "", new: str = "", newline: str = "\n") -> Site:
    code, launch, sizes, _ = CASES[case]
    assert old in code
    return make(code.replace(old, new), launch, newline=newline, **sizes)


def test_a_thread_has_four_columns_of_several_rows() -> None:
    edited = one(site_of("box"), "stencil_pack", bx=32, by=4, rows=2)
    code = device(edited)
    assert "const unsigned int x0 = (blockIdx.x * blockDim.x + threadIdx.x) * 4;" in code
    assert "const unsigned int y0 = (blockIdx.y * blockDim.y + threadIdx.y) * 2;" in code
    assert "width % 4 == 0" in code
    assert "float in_near[4][6];" in code
    assert "float k_near[2][4];" in code
    assert "const float* from = in + (at + (row - 1) * width);" in code
    assert "float sides = in_near[line + 1][k2] + in_near[line + 1][k2 + 2] + in_near[line][k2 + 1]" in code
    assert "*reinterpret_cast<FloatPack4*>(out + (at + line * width)) = out_results;" in code
    assert "continue;" in code
    assert "dim3 grid((width + 127) / 128, (height + 7) / 8);" in host(edited)
    compiles(edited)
    assert not propose(edited, "stencil_pack")


def test_only_what_the_kernel_reads_is_loaded() -> None:
    """The corners of a star may lie before the array's first element."""
    code = device(one(site_of("plane"), "stencil_pack", bx=32, by=4, rows=4))
    assert "if (row >= 1 && row <= 4) {\n                in_near[row][0] = from[-1];" in code
    volume = device(one(site_of("border"), "stencil_pack", bx=32, by=1, rows=2))
    assert "float u_near[4][6];" in volume
    assert "float u_near_1[2][4];" in volume
    assert "from = u + (at + row * nx - (nx * ny));" in volume


def test_neighbours_are_loaded_once_and_as_vectors() -> None:
    code = machine_code(one(site_of("plane"), "stencil_pack", bx=32, by=4, rows=4))
    # Six rows, and two columns at the sides of four of them; the border's loop has loads of its own.
    assert len(re.findall(r"\bLDG\.E\.128", code)) == 6
    assert len(re.findall(r"\bLDG\.E\s", code)) == 4 * 2 + 5
    assert len(re.findall(r"\bSTG\.E\.128", code)) == 4
    assert not re.search(r"\b(?:LDL|STL)\b", code)


@pytest.mark.parametrize("case", CASES)
def test_the_results_stay_the_same(case: str) -> None:
    site = site_of(case, newline="\r\n" if case == "box" else "\n")
    edited = [after(site, p) for p in propose(site, "stencil_pack")]
    assert len(edited) == {"line": 2, "blur": 2, "volume": 3, "border": 3}.get(case, 4)
    for candidate in edited:
        compiles(candidate)
    assert_equal(site, edited, CASES[case][3], tolerance=1e-5, races=case == "plane")


def test_tests_of_neighbours_are_made_once_for_all_elements() -> None:
    site = site_of("filter")
    code = device(one(site, "stencil_pack", bx=64, by=2, rows=2))
    test, inside = code.split("if (inside) {")
    assert "const int dy = -2;" in test
    assert "inside = inside && !(row < 0 || row >= height);" in test
    assert test.count("inside = inside && (x + dx >= 0 && x + dx < width);") == 2
    assert "float in_near[6][6];" in inside
    assert "sum += w[(dy + R) * 3 + dx + 1] * in_near[line + dy + 2][k + dx + 1];" in inside
    before = len(re.findall(r"\bBRA\b", machine_code(site)))
    assert not re.search(r"\b(?:LDL|STL)\b", machine_code(one(site, "stencil_pack", bx=64, by=2, rows=2)))
    assert before > 0


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("x + dx >= 0 && x + dx < width", "x + dx >= 0 || x + dx < width"),
        ("x + dx >= 0 && x + dx < width", "x + dx != 3"),
        ("x + dx >= 0 && x + dx < width", "x + dx * dx >= 0"),
        ("x + dx >= 0 && x + dx < width", "w[dx + 1] > 0"),
        ("row < 0 || row >= height", "row < 0 && row >= height"),
        ("continue;", "break;"),
        ("dx < 2", "dx < width"),
        ("sum += w", "if (sum > 1.0f) sum += 1.0f; else sum += w"),
    ],
)
def test_tests_that_do_not_hold_between_the_ends_are_left_alone(old: str, new: str) -> None:
    assert propose(site_of("filter"), "stencil_pack")
    assert not propose(site_of("filter", old, new), "stencil_pack")


def test_the_shape_is_open_to_the_tuner() -> None:
    from engine.rules import families

    (family,) = [f for f in families(site_of("box")) if f.rule == "stencil_pack"]
    assert family.parameters == {"bx": (16, 32, 64, 128, 256), "by": (1, 2, 4, 8), "rows": (1, 2, 4, 8)}
    assert family.make({"bx": 128, "by": 1, "rows": 4}) is not None


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("float own = in[i];", "float own = in[i];\n    out[i] = 0.0f;"),  # stored before the border's test
        ("x < 1 || y < 1", "x < 1 || own < 1.0f"),  # what is loaded decides
        ("float corners = in[i - width - 1]", "float corners = (own > 0.0f ? in[i - width - 1] : 0.0f)"),
        ("out[i] = own + k[i]", "out[i] += k[i]"),
        ("out[i] = own + k[i]", "out[i + 1] = own + k[i]"),
        ("out[i] = own + k[i]", "for (int t = 0; t < 2; ++t) out[i] = own + k[i]"),
        ("float own = in[i];", "__syncthreads();\n    float own = in[i];"),
        ("const float* k,", "const double* k,"),
    ],
)
def test_what_looks_alike_is_left_alone(old: str, new: str) -> None:
    assert propose(site_of("box"), "stencil_pack")
    assert not propose(site_of("box", old, new), "stencil_pack")
