"""Vector atomics: what matches, what must not, and that the sums stay the same."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from engine.cpu import CpuJob
from engine.model import LaunchConfig
from engine.rewrite.site import Site
from tests.engine.rules.equality import assert_equal, machine
from tests.engine.rules.workbench import after, compiles, device, host, machine_code, make, one, propose

SCATTER = """__global__ void scatter(const int* place, const float* x, float* sums, float scale, int rows, int width) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    int row = i / width;
    int at = i % width;
    if (row < rows) {
        float v = x[row * width + at];
        atomicAdd(&sums[(row & 7) * width + at], v * scale + v);
    }
}"""
# As in the gradient of an embedding: pointers to the elements, two sums, a guard of the index.
POINTERS = """__global__ void scatter(const int* place, const float* x, float* sums, float scale, int rows, int width) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    const int count = rows * width;
    if (i >= count) return;
    const int row = i / width;
    const float* from = x + i;
    float* to = sums + (row % 8) * width + i % width;
    atomicAdd(to, *from);
    if (row % 3 == 0) {
        atomicAdd(sums + width * (row & 7) + i % width, *from + scale);
    }
}"""
# Casts, a table of rows, and the element of the index itself.
CASTS = """__global__ void scatter(const int* place, const float* x, float* sums, float scale, int rows, int width) {
    unsigned int i = blockIdx.x * blockDim.x + threadIdx.x;
    unsigned int total = (unsigned int)rows * (unsigned int)width;
    if (i < total) {
        unsigned int row = i / (unsigned int)width;
        unsigned int at = i % (unsigned int)width;
        int to = place[row] & 7;
        atomicAdd(&sums[to * (unsigned int)width + at], x[i] * scale);
    }
}"""
LAUNCH = "    scatter<<<(rows * width + 127) / 128, 128>>>(place, x, sums, scale, rows, width);"
CHECK = ({"rows": 1, "width": 1}, {"rows": 9, "width": 7}, {"rows": 37, "width": 12})
ELEMENTS = {"place": "rows", "x": "rows*width", "sums": "8*width"}


def site_of(source: str = SCATTER, launch: str = LAUNCH) -> Site:
    return make(source, launch, sizes=({"rows": 65536, "width": 64},), check=CHECK, elements=ELEMENTS)


def test_four_floats_are_added_at_once() -> None:
    edited = one(site_of(), "atomic_vectorize", width=4)
    code = device(edited)
    assert "if (width % 4 == 0 && (reinterpret_cast<size_t>(sums) | reinterpret_cast<size_t>(x)) % 16 == 0) {" in code
    assert "x_float4.y * scale + x_float4.y" in code
    assert "(rows * width + 511) / 512, 128" in host(edited)
    compiles(edited)
    assert not propose(edited, "atomic_vectorize")
    listing = machine_code(edited)
    assert "REDG.E.ADD.F32x4" in listing
    assert "LDG.E.128" in listing


@pytest.mark.parametrize("source", [SCATTER, POINTERS, CASTS, SCATTER.replace("width + at", "width + (i % width)")])
def test_the_sums_stay_the_same(source: str) -> None:
    site = site_of(source)
    proposals = propose(site, "atomic_vectorize")
    assert [p.parameters["width"] for p in proposals] == [4, 2]
    edited = [after(site, p) for p in proposals]
    for each in edited:
        compiles(each)
    assert_equal(site, edited, CHECK, races=True)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("x[row * width + at]", "x[row * width + at + 1]"),  # no multiple of four
        ("x[row * width + at]", "x[row + at]"),
        ("x[row * width + at]", "x[at * rows + row]"),
        ("x[row * width + at]", "sums[row * width + at]"),  # reads what others add to
        ("v * scale + v", "v * at"),  # differs within the vector
        ("if (row < rows)", "if (row < rows && at > 2)"),
        ("if (row < rows)", "if (i < rows)"),  # ends within a row
        ("&sums[(row & 7) * width + at]", "&sums[(row & 7) * width + at / 2]"),
        ("int row = i / width;", "int row = i / rows;"),
        ("atomicAdd(", "atomicMax((int*)"),
        ("const float* x, float* sums", "const double* x, double* sums"),
    ],
)
def test_what_looks_alike_is_left_alone(old: str, new: str) -> None:
    assert propose(site_of(), "atomic_vectorize")
    assert old in SCATTER
    assert not propose(site_of(SCATTER.replace(old, new)), "atomic_vectorize")


@pytest.mark.parametrize("local", ["int other = at > 3 ? 1 : 0;", "float half = at * 0.5f; int other = (int)half;"])
def test_a_row_that_differs_within_the_vector_is_left_alone(local: str) -> None:
    """A local without an integer expression stood in the index by its name, and was taken for the row's."""
    source = SCATTER.replace("float v =", f"{local} float v =").replace("(row & 7) * width", "other * width")
    assert not propose(site_of(source), "atomic_vectorize")
    same = source.replace("at > 3", "row > 3").replace("at * 0.5f", "(row & 7) * 0.5f")
    assert propose(site_of(same), "atomic_vectorize")


def test_older_devices_have_no_vector_atomics() -> None:
    site = site_of()
    assert propose(site, "atomic_vectorize")
    assert not propose(replace(site, target=replace(site.target, arch="sm_80")), "atomic_vectorize")


def test_the_cpu_finds_a_vector_atomic_at_an_odd_address() -> None:
    code = """__global__ void scatter(float* sums, int at) {
    atomicAdd(reinterpret_cast<float4*>(sums + at), make_float4(1.0f, 2.0f, 3.0f, 4.0f));
    atomicAdd(reinterpret_cast<float2*>(sums + at), make_float2(1.0f, 2.0f));
}"""
    site = make(
        code, "    scatter<<<1, 1>>>(sums, at);", sizes=({"at": 4},), check=({"at": 4},), elements={"sums": "16"}
    )
    binary = machine().build(device(site), "kernels/a.cu", site.spec, ["scatter"])
    buffers = {"sums": np.zeros(16, np.float32)}
    right, odd = machine().run_many(
        binary, [CpuJob([LaunchConfig((1, 1, 1), (32, 1, 1), 0)], buffers, {"at": np.int32(at)}, 0) for at in (4, 1)]
    )
    assert not right.findings
    assert right.outputs["sums"][4:8].tolist() == [64.0, 128.0, 96.0, 128.0]
    assert odd.findings
