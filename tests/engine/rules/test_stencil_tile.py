import pytest

from tests.engine.rules.equality import assert_equal
from tests.engine.rules.workbench import after, compiles, device, make, one, propose

PLANE = """
#define IDX(y, x) ((y) * width + (x))
__global__ void smooth(const float* in, float* out, int height, int width) {
    int x = blockIdx.x * blockDim.x + threadIdx.x;
    int y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= width || y >= height) {
        return;
    }
    if (x == 0 || y == 0 || x == width - 1 || y == height - 1) {
        out[IDX(y, x)] = in[IDX(y, x)];
        return;
    }
    out[IDX(y, x)] = 0.2f * (in[IDX(y, x)] + in[IDX(y - 1, x)] + in[IDX(y + 1, x)] + in[IDX(y, x - 1)] + in[IDX(y, x + 1)]);
}
"""
PLANE_LAUNCH = """
    dim3 block(8, 8);
    dim3 grid((width + block.x - 1) / block.x, (height + block.y - 1) / block.y);
    smooth<<<grid, block>>>(in, out, height, width);
"""
PLANE_SIZES = {
    "sizes": [{"height": 4096, "width": 4096}],
    "check": [{"height": 7, "width": 129}],
    "elements": {"in": "height*width", "out": "height*width"},
}
# The neighbours of a loop, counted from a macro, with guards around each; the load is hinted.
LINE = """
#define RADIUS 3
__constant__ float weight[2 * RADIUS + 1] = {1, 2, 3, 4, 3, 2, 1};
__global__ void blur(const float* in, float* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        float sum = 0.0f;
        for (int k = -RADIUS; k <= RADIUS; ++k) {
            const int at = i + k;
            if (at >= 0 && at < n) {
                sum += weight[k + RADIUS] * __ldg(&in[at]);
            }
        }
        out[i] = sum;
    }
}
"""
LINE_LAUNCH = "    blur<<<(n + 255) / 256, 256>>>(in, out, n);"
# A batch of volumes: the fourth dimension has no neighbours.
VOLUME = """
__global__ void heat(const float* __restrict__ u, float* __restrict__ v, int nx, int ny, int nz) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    int j = blockIdx.y * blockDim.y + threadIdx.y;
    int k = blockIdx.z * blockDim.z + threadIdx.z;
    if (i >= 1 && i < nx - 1 && j >= 1 && j < ny - 1 && k >= 1 && k < nz - 1) {
        int c = (k * ny + j) * nx + i;
        v[c] = u[c] + 0.1f * (u[c - 1] + u[c + 1] + u[c - nx] + u[c + nx] + u[c - nx * ny] + u[c + ny * nx] - 6.0f * u[c]);
    }
}
"""
VOLUME_LAUNCH = """
    dim3 block(8, 8, 4);
    dim3 grid((nx + 7) / 8, (ny + 7) / 8, (nz + 3) / 4);
    heat<<<grid, block>>>(u, v, nx, ny, nz);
"""
VOLUME_SIZES = {
    "sizes": [{"nx": 256, "ny": 256, "nz": 256}],
    "check": [{"nx": 7, "ny": 9, "nz": 5}],
    "elements": {"u": "nx*ny*nz", "v": "nx*ny*nz"},
}


def test_a_plane_with_a_macro_for_its_index() -> None:
    site = make(PLANE, PLANE_LAUNCH, **PLANE_SIZES)
    edited = one(site, "stencil_tile", block="32x8x1", per=1)
    text = device(edited)
    assert "__shared__ float tile[10][34];" in text
    assert "tile[threadIdx.y][threadIdx.x + 1] + tile[threadIdx.y + 2][threadIdx.x + 1]" in text
    assert edited.configs[0].block == (32, 8, 1)
    assert edited.configs[0].grid == (128, 512, 1)
    several = one(site, "stencil_tile", block="32x8x1", per=4)
    assert several.configs[0].grid == (128, 128, 1)
    assert "return;" not in device(several)
    own = one(site, "stencil_tile", block="8x8x1")
    assert "__shared__ float tile[10][10];" in device(own)
    assert_equal(site, [edited, several], [{"height": 7, "width": 129}, {"height": 1, "width": 1}])


def test_a_line_with_neighbours_counted_by_a_loop() -> None:
    site = make(LINE, LINE_LAUNCH)
    edited = one(site, "stencil_tile", block="256x1x1")
    assert "__shared__ float tile[262];" in device(edited)
    assert "weight[k + RADIUS] * tile[threadIdx.x + k + 3];" in device(edited)
    assert_equal(site, [edited], [{"n": 1}, {"n": 1003}], races=True)


def test_a_volume() -> None:
    site = make(VOLUME, VOLUME_LAUNCH, **VOLUME_SIZES)
    edited = one(site, "stencil_tile", block="32x4x2", per=4)
    assert "__shared__ float tile[10][6][34];" in device(edited)
    assert_equal(site, [edited], [{"nx": 7, "ny": 9, "nz": 11}], tolerance=1e-5)


@pytest.mark.parametrize("case", ["plane", "line", "volume", "template", "wide"])
def test_what_comes_out_compiles(case: str) -> None:
    site, expression = {
        "plane": (make(PLANE, PLANE_LAUNCH, **PLANE_SIZES, newline="\r\n"), ""),
        "line": (make(LINE, LINE_LAUNCH), ""),
        "volume": (make(VOLUME, VOLUME_LAUNCH, **VOLUME_SIZES), ""),
        "template": (
            make(
                LINE.replace("__global__", "template <typename T>\n__global__").replace("float* in", "T* in"),
                LINE_LAUNCH.replace("blur<<<", "blur<float><<<"),
            ),
            "blur<float>",
        ),
        "wide": (make(LINE.replace("int n", "size_t n").replace("int i ", "size_t i "), LINE_LAUNCH), ""),
    }[case]
    found = propose(site, "stencil_tile")
    assert len(found) >= 3
    for proposal in found:
        compiles(after(site, proposal), expression)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("in[at]", "in[i]"),  # no neighbours
        ("in[at]", "in[2 * i + k]"),  # not side by side
        ("in[at]", "in[at % 7]"),
        ("k <= RADIUS; ++k", "k <= n; ++k"),  # a radius that is not known
        ("#define RADIUS 3", "#define RADIUS 40"),
        ("out[i] = sum;", "out[i] = sum; in[i] = 0.0f;"),
        ("out[i] = sum;", "out[i] = sum; __syncthreads();"),
        ("float sum = 0.0f;", "float sum = threadIdx.x;"),
        ("i + k;", "i + out[k + RADIUS] * 0;"),
    ],
)
def test_nothing_for_other_forms(old: str, new: str) -> None:
    source = LINE.replace("const float* in", "float* in").replace("__ldg(&in[at])", "in[at]")
    assert propose(make(source, LINE_LAUNCH), "stencil_tile")
    assert not propose(make(source.replace(old, new), LINE_LAUNCH), "stencil_tile")


def test_a_launch_has_blocks_where_the_interior_is_empty() -> None:
    """A grid of `n - 1` elements had no block for n = 1: the launch failed where the original did nothing."""
    site = make(VOLUME, VOLUME_LAUNCH, **VOLUME_SIZES)
    assert_equal(site, [one(site, "stencil_tile", block="32x4x2", per=4)], [{"nx": 1, "ny": 1, "nz": 1}])
