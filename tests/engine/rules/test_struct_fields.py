"""Kernels whose sizes are fields of a struct that is passed by value, as OpenCV's images are."""

from __future__ import annotations

from engine.model import Program
from engine.rewrite.site import Site
from engine.rules import make_site
from engine.spec.reader import specs_in
from tests.engine.rules.workbench import after, propose

SOURCE = """
struct Image {
    float* data;
    int stride;
    int cols;
    int rows;
    __device__ float& operator()(int y, int x) { return data[y * stride + x]; }
    __device__ const float* ptr(int y) const { return data + y * stride; }
};
// optiml: args.from.data = { role = "in", size = "rows*cols", fill = "normal" }
// optiml: args.from.stride = { value = "cols" }
// optiml: args.from.cols = { value = "cols" }
// optiml: args.from.rows = { value = "rows" }
// optiml: args.to.data = { role = "out", size = "rows*cols" }
// optiml: args.to.stride = { value = "cols" }
// optiml: args.to.cols = { value = "cols" }
// optiml: args.to.rows = { value = "rows" }
// optiml: check = [{ cols = 7, rows = 33 }]
// optiml: time = [{ cols = 4096, rows = 4096 }]
__global__ void scaled(Image from, Image to) {
    const int x = blockIdx.x * blockDim.x + threadIdx.x;
    const int y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x < to.cols && y < to.rows) {
        to(y, x) = 2.0f * from.ptr(y)[x];
    }
}
void run(Image source, Image target) {
    dim3 block(32, 8);
    dim3 grid((target.cols + block.x - 1) / block.x, (target.rows + block.y - 1) / block.y);
    scaled<<<grid, block>>>(source, target);
}
"""


def site_of(source: str) -> Site:
    program = Program({"k.cu": source.encode()}, "k.cu")
    (spec,) = specs_in(program, None)
    return make_site(program, spec)


def test_blocks_of_another_shape_cover_the_fields() -> None:
    site = site_of(SOURCE)
    (wide,) = propose(site, "block_size", x=128, y=2)
    edited = after(site, wide)
    assert "dim3 grid((target.cols + 127) / 128, (target.rows + 1) / 2);" in edited.program.data.decode()
    assert [c.grid for c in edited.configs] == [(32, 2048, 1)]


def test_threads_take_several_elements_by_methods_of_structs() -> None:
    site = site_of(SOURCE)
    (four,) = propose(site, "coarsen", factor=4, axis="y")
    edited = after(site, four)
    assert "target.rows + 31) / 32" in edited.program.data.decode()
    assert [c.grid for c in edited.configs] == [(128, 128, 1)]


def test_fields_that_the_kernel_changes_are_no_bound() -> None:
    site = site_of(SOURCE.replace("    if (x <", "    to.cols = to.cols - 1;\n    if (x <"))
    assert not propose(site, "block_size")
    assert not propose(site, "coarsen")


def test_field_of_a_struct_that_the_launch_converts() -> None:
    source = SOURCE.replace(
        "struct Image {", "struct Plain { float* data; int cols, rows; };\nstruct Image {\n    Image(Plain p);"
    )
    source = source.replace("Image target)", "Plain target)").replace("(source, target)", "(source, (Image) target)")
    source = source.replace("    Image(Plain p);\n", "")
    site = site_of(source)
    (wide,) = propose(site, "block_size", x=128, y=2)
    assert "dim3 grid((target.cols + 127) / 128, (target.rows + 1) / 2);" in after(site, wide).program.data.decode()
