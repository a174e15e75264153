"""Convolution layers through tiles: what matches, what must not, and that the sums stay the same."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest

from engine.rewrite.site import Site
from engine.rules import rules
from tests.engine.rules.equality import assert_equal, results
from tests.engine.rules.workbench import after, compiles, device, host, machine_code, make, one, propose

PADDED = """__global__ void conv(const float* in, const float* filters, float* out, int images, int inputs, int outputs,
                     int height, int width) {
    int x = blockIdx.x * blockDim.x + threadIdx.x;
    int y = blockIdx.y * blockDim.y + threadIdx.y;
    int image = blockIdx.z / outputs;
    int k = blockIdx.z % outputs;
    if (x >= width || y >= height) {
        return;
    }
    float sum = 0.0f;
    for (int c = 0; c < inputs; ++c) {
        for (int dy = -1; dy <= 1; ++dy) {
            for (int dx = -1; dx <= 1; ++dx) {
                int sy = y + dy;
                int sx = x + dx;
                if (sy >= 0 && sy < height && sx >= 0 && sx < width) {
                    float pixel = in[((image * inputs + c) * height + sy) * width + sx];
                    sum += pixel * filters[(k * inputs + c) * 9 + (dy + 1) * 3 + dx + 1];
                }
            }
        }
    }
    out[((image * outputs + k) * height + y) * width + x] = sum;
}"""
LAUNCH = """    dim3 block(16, 16);
    dim3 grid((width + 15) / 16, (height + 15) / 16, images * outputs);
    conv<<<grid, block>>>(in, filters, out, images, inputs, outputs, height, width);"""
CHECK = (
    {"images": 1, "inputs": 1, "outputs": 1, "height": 1, "width": 2},
    {"images": 2, "inputs": 5, "outputs": 9, "height": 9, "width": 18},
)
TIME = ({"images": 8, "inputs": 32, "outputs": 64, "height": 112, "width": 112},)
SIZES = {
    "in": "images*inputs*height*width", "filters": "outputs*inputs*9", "out": "images*outputs*height*width", "bias": "outputs",
}  # fmt: skip

# The number of one output is taken apart, rows and columns outside are passed over, and filter, stride and padding are arguments.
FLAT = """__global__ void conv(const float* x, const float* w, const float* bias, float* y, int n, int c_in, int h, int wd, int c_out,
                     int k, int h_out, int w_out, int stride, int pad) {
    int index = blockIdx.x * blockDim.x + threadIdx.x;
    int total = n * c_out * h_out * w_out;
    if (index >= total) return;
    int tmp = index;
    int ow = tmp % w_out; tmp /= w_out;
    int oh = tmp % h_out; tmp /= h_out;
    int oc = tmp % c_out; tmp /= c_out;
    int b = tmp;
    float acc = bias[oc];
    for (int ic = 0; ic < c_in; ic++) {
        for (int kh = 0; kh < k; kh++) {
            int ih = oh * stride - pad + kh;
            if (ih < 0 || ih >= h) continue;
            #pragma unroll
            for (int kw = 0; kw < k; kw++) {
                int iw = ow * stride - pad + kw;
                if (iw < 0 || iw >= wd) continue;
                acc = fmaf(x[((b * c_in + ic) * h + ih) * wd + iw], w[((oc * c_in + ic) * k + kh) * k + kw], acc);
            }
        }
    }
    y[index] = acc > 0.0f ? acc : 0.0f;
}"""
FLAT_LAUNCH = """    int total = n * c_out * h_out * w_out;
    conv<<<(total + 255) / 256, 256>>>(x, w, bias, y, n, c_in, h, wd, c_out, k, h_out, w_out, stride, pad);"""
FLAT_SIZES = {"x": "n*c_in*h*wd", "w": "c_out*c_in*k*k", "bias": "c_out", "y": "n*c_out*h_out*w_out"}

# No border: blocks of a named size, batch and output channel along axes of the grid, a pointer to each image.
VALID = """#define TILE 16
__global__ void conv(const float* __restrict__ x, const float* __restrict__ w, float* __restrict__ y, int batch, int c_in, int h,
                     int wd, int c_out) {
    const int h_out = h - 3 + 1;
    const int w_out = wd - 3 + 1;
    const int tx = threadIdx.x;
    const int ow = blockIdx.x * TILE + tx;
    const int oh = blockIdx.y * TILE + threadIdx.y;
    const int b = blockIdx.z / c_out;
    const int oc = blockIdx.z % c_out;
    if (oh < h_out && ow < w_out) {
        const float* image = x + b * c_in * h * wd;
        float sum = 0.f;
        for (int ic = 0; ic < c_in; ++ic)
            for (int r = 0; r < 3; ++r)
                for (int s = 0; s < 3; ++s)
                    sum += w[oc * c_in * 9 + ic * 9 + r * 3 + s] * image[ic * h * wd + (oh + r) * wd + ow + s];
        y[((b * c_out + oc) * h_out + oh) * w_out + ow] = sum;
    }
}"""
VALID_LAUNCH = """    dim3 grid((wd - 2 + 15) / 16, (h - 2 + 15) / 16, batch * c_out);
    conv<<<grid, dim3(16, 16)>>>(x, w, y, batch, c_in, h, wd, c_out);"""
VALID_SIZES = {"x": "batch*c_in*h*wd", "w": "c_out*c_in*9", "y": "batch*c_out*(h-2)*(wd-2)"}

# One plane, one filter.
PLANE = """#define R 2
__global__ void conv(const float* in, const float* mask, float* out, int width, int height) {
    int col = blockIdx.x * blockDim.x + threadIdx.x;
    int row = blockIdx.y * blockDim.y + threadIdx.y;
    if (col < width && row < height) {
        float sum = 0.0f;
        for (int i = 0; i < 2 * R + 1; i++) {
            for (int j = 0; j < 2 * R + 1; j++) {
                int r = row - R + i;
                int c = col - R + j;
                if (r >= 0 && r < height && c >= 0 && c < width) {
                    sum += in[r * width + c] * mask[i * (2 * R + 1) + j];
                }
            }
        }
        out[row * width + col] = sum;
    }
}"""
PLANE_LAUNCH = """    dim3 grid((width + 15) / 16, (height + 15) / 16);
    conv<<<grid, dim3(16, 16)>>>(in, mask, out, width, height);"""


def site_of(source: str = PADDED, launch: str = LAUNCH) -> Site:
    return make(source, launch, sizes=TIME, check=CHECK, elements=SIZES)


def flat(k: int = 3, stride: int = 1, pad: int = 1, source: str = FLAT) -> Site:
    def case(n: int, c_in: int, c_out: int, h: int, wd: int) -> dict[str, int]:
        given = {"n": n, "c_in": c_in, "c_out": c_out, "h": h, "wd": wd, "k": k, "stride": stride, "pad": pad}
        return given | {"h_out": (h + 2 * pad - k) // stride + 1, "w_out": (wd + 2 * pad - k) // stride + 1}

    check = (case(1, 1, 1, k, k + 2), case(2, 3, 5, 11, 19))
    return make(source, FLAT_LAUNCH, sizes=(case(4, 16, 32, 56, 56),), check=check, elements=FLAT_SIZES)


def valid(source: str = VALID) -> Site:
    def case(batch: int, c_in: int, c_out: int, h: int, wd: int) -> dict[str, int]:
        return {"batch": batch, "c_in": c_in, "c_out": c_out, "h": h, "wd": wd}

    check = (case(1, 1, 1, 3, 4), case(2, 6, 10, 12, 21))
    return make(source, VALID_LAUNCH, sizes=(case(8, 16, 16, 66, 66),), check=check, elements=VALID_SIZES)


def plane() -> Site:
    check = ({"width": 2, "height": 1}, {"width": 70, "height": 19})
    sizes = {"in": "width*height", "out": "width*height", "mask": "25"}
    return make(PLANE, PLANE_LAUNCH, sizes=({"width": 4096, "height": 4096},), check=check, elements=sizes)


def checks(site: Site) -> list[dict[str, int]]:
    return [dict(case.sizes) for case in site.spec.check]


def test_tiles_pass_shared_memory() -> None:
    edited = one(site_of(), "conv_tile", tile_w=16, tile_h=16, tile_k=64, copies=0)
    code = device(edited)
    assert "__shared__ float in_tile[4 * 18][24];" in code
    assert "out[((image * outputs + k) * height + y) * width + x] = sum;" in code
    assert "dim3 grid((width + 15) / 16, (height + 15) / 16, images * ((outputs + 63) / 64));" in host(edited)
    compiles(edited)
    assert not propose(edited, "conv_tile")


def test_places_of_pixels_are_worked_out_once() -> None:
    """A stage takes no division of its own, and all its loads are on their way before the first is stored."""
    code = device(one(site_of(), "conv_tile", tile_w=16, tile_h=16, tile_k=32, copies=0, tensor=0))
    assert "from[v] = inside ? y2 * width + x2 : -1;" in code[: code.index("for (int first_c = 0;")]
    text = machine_code(one(site_of(), "conv_tile", tile_w=16, tile_h=16, tile_k=32, copies=0, tensor=0))
    loop = text[text.index("LDG") : text.index("FFMA")]
    assert len(re.findall(r"\bLDG\b", loop)) == 4 * 3 + 9
    assert loop.rindex("LDG") < loop.index("STS")
    assert not re.search(r"\b(?:LDL|STL)\b", text)  # no spills


def test_places_are_as_wide_as_the_authors_arithmetic() -> None:
    """A plane of more than 2^31 pixels, of a width that is no `int`."""
    source = PADDED.replace("int height, int width)", "int height, long long width)")
    source = source.replace("int sx = x + dx", "long long sx = x + dx").replace("int x = b", "long long x = b")
    code = device(one(site_of(source), "conv_tile", tile_w=16, tile_h=16, tile_k=32, copies=0, tensor=0))
    assert "long long from[3];" in code


def test_the_inner_loop_multiplies_nearly_all_the_time() -> None:
    code = machine_code(one(site_of(), "conv_tile", tile_w=16, tile_h=16, tile_k=64, copies=0))
    blocks = re.split(r"^\.L_x_\d+:", code, flags=re.M)
    inner = max(blocks, key=lambda block: len(re.findall(r"\bFFMA\b", block)))
    products, loads = (len(re.findall(rf"\b{name}\b", inner)) for name in ("FFMA", r"LDS(?:\.64|\.128)?"))
    assert products == 9 * 4 * 2 * 8
    assert loads <= products / 20
    assert len(re.findall(r"^\s+/\*[0-9a-f]+\*/", inner, flags=re.M)) < 1.15 * products
    assert not re.search(r"\b(?:LDL|STL)\b", code)  # no spills


def test_taps_and_channels_are_multiplied_on_tensor_cores() -> None:
    """For each row of taps 3 x 2 x 8 products of 16 x 8 x 8, thrice, in two halves; nothing is spilled."""
    site = site_of()
    for proposal in propose(site, "conv_tile", tensor=1):
        code = machine_code(after(site, proposal))
        halves = (int(proposal.parameters["per_h"]) * int(proposal.parameters["per_w"]) // 2 + 3) // 4
        assert len(re.findall(r"\bHMMA\.1688\.F32\.TF32\b", code)) == 3 * 3 * 2 * 4 * halves
        assert not re.search(r"\b(?:LDL|STL)\b", code)


def test_a_condition_of_the_authors_stands_once() -> None:
    """Behind the same one of the tile's no check could meet it."""

    def authors(source: str) -> set[int]:
        site = site_of(source)
        texts = [device(after(site, proposal)) for proposal in propose(site, "conv_tile")]
        assert texts
        return {text.count("x >= width") - text.count("k >= outputs") for text in texts}

    assert authors(PADDED) == {0}
    assert 0 not in authors(PADDED.replace("x >= width ||", "x > width - 1 || x >= width ||"))


def test_layers_of_few_channels_or_other_types_do_without_tensor_cores() -> None:
    assert not propose(plane(), "conv_tile", tensor=1)
    source = PADDED.replace("float", "double").replace("0.0f", "0.0")
    assert propose(site_of(source), "conv_tile")
    assert not propose(site_of(source), "conv_tile", tensor=1)


@pytest.mark.parametrize("build", [site_of, flat, valid, plane])
def test_the_sums_stay_the_same(build: Callable[[], Site]) -> None:
    site = build()
    proposals = propose(site, "conv_tile")
    assert proposals
    assert_equal(site, [after(site, p) for p in proposals], checks(site))


def test_no_races() -> None:
    site = valid()
    chosen = propose(site, "conv_tile", tile_k=16)[:1] + propose(site, "conv_tile", tile_k=8)[:1]
    chosen += propose(site, "conv_tile", tensor=1)[:2]
    assert_equal(site, [after(site, p) for p in chosen], checks(site), races=True)


@pytest.mark.parametrize(("k", "stride", "pad"), [(3, 2, 1), (5, 1, 2), (1, 1, 0), (4, 3, 0)])
def test_filters_strides_and_borders(k: int, stride: int, pad: int) -> None:
    site = flat(k, stride, pad)
    proposals = propose(site, "conv_tile", tensor=0)[:3] + propose(site, "conv_tile", tensor=1)[:1]
    assert proposals
    assert_equal(site, [after(site, p) for p in proposals], checks(site))


def test_arguments_are_tested_for_the_values_of_the_cases() -> None:
    site = flat()
    edited = one(site, "conv_tile", tile_w=16, tile_h=16, tile_k=32, copies=0, tensor=0)
    assert "bool alone = k != 3 || stride != 1;" in device(edited)
    compiles(edited)
    # Another filter takes the author's loops.
    other = checks(flat(5, 2, 1))
    assert_equal(site, [edited], other)


@pytest.mark.parametrize("build", [site_of, flat])
def test_an_infinite_filter_does_not_meet_the_zeros_of_the_border(build: Callable[[], Site]) -> None:
    """0 * infinity is NaN, where the author's loops pass over what is outside."""
    site = build()
    name = "filters" if build is site_of else "w"
    (case,) = checks(site)[1:]
    expected = results(site, case, infinite=name)
    assert any(np.isfinite(each).any() and np.isinf(each).any() for each in expected.values())
    for each in propose(site, "conv_tile", tensor=0)[:2] + propose(site, "conv_tile", tensor=1)[:2]:
        got = results(after(site, each), case, infinite=name)
        for array, value in expected.items():
            np.testing.assert_allclose(got[array], value, rtol=1e-4, atol=1e-4)


def test_points_of_the_family_agree() -> None:
    site = site_of()
    (found,) = [r for r in rules() if r.name == "conv_tile"]
    (family,) = found.families(site)  # type: ignore[attr-defined]
    points = [
        {
            "tile_w": 8,
            "tile_h": 16,
            "tile_k": 8,
            "per_w": 1,
            "per_h": 2,
            "per_k": 4,
            "stage": 2,
            "copies": 1,
            "tensor": 0,
        },
        {
            "tile_w": 64,
            "tile_h": 4,
            "tile_k": 4,
            "per_w": 8,
            "per_h": 1,
            "per_k": 2,
            "stage": 8,
            "copies": 0,
            "tensor": 0,
        },
        {
            "tile_w": 8,
            "tile_h": 8,
            "tile_k": 64,
            "per_w": 2,
            "per_h": 2,
            "per_k": 8,
            "stage": 8,
            "copies": 0,
            "tensor": 1,
        },
    ]
    made = [family.make(point) for point in points]
    assert_equal(site, [after(site, p) for p in made if p is not None], CHECK)
    assert all(p is not None for p in made)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("sum += pixel", "sum -= pixel"),
        ("in[((image", "in[((k"),  # the image's number is not used
        ("int k = blockIdx.z % outputs;", "int k = blockIdx.z % inputs;"),  # digits of another number
        ("+ sx];", "+ sx + threadIdx.x];"),
        ("height + sy) * width", "height + sy * sx) * width"),
        ("sum += pixel *", "out[0] = pixel; sum += pixel *"),
        ("dy <= 1; ++dy", "dy <= inputs; ++dy"),
        ("sx < width) {", "sx < width && c < 3) {"),
        ("(dy + 1) * 3 + dx + 1]", "(dy + 1) * 3 + dx * dx]"),
        ("    out[((image", "    __syncthreads();\n    out[((image"),
        ("float sum = 0.0f;", "float sum = threadIdx.x;"),
    ],
)
def test_what_looks_alike_is_left_alone(old: str, new: str) -> None:
    assert old in PADDED
    assert propose(site_of(), "conv_tile")
    assert not propose(site_of(PADDED.replace(old, new)), "conv_tile")


def test_inputs_that_a_caller_passes_twice_are_left_alone() -> None:
    assert not propose(site_of(launch=LAUNCH.replace("(in, filters, out", "(out, filters, out")), "conv_tile")
