"""Headers of our own that stand in for those of libraries: taken where they are needed, and only there."""

from __future__ import annotations

from engine.cuda.load import resolve_include
from engine.cuda.slice import device_slice
from engine.cuda.standins import is_standin, standins_of
from engine.model import Program
from engine.spec.draft import draft

MATRIX = b"""#include "opencv2/core/cuda/common.hpp"
using namespace cv::cuda;
__global__ void twice(const PtrStepSz<float> src, PtrStep<float> dst) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y;
    if (x < src.cols && y < src.rows) dst(y, x) = 2 * src(y, x);
}
void run(PtrStepSz<float> src, PtrStep<float> dst) { twice<<<dim3((src.cols + 255) / 256, src.rows), 256>>>(src, dst); }
"""


def test_a_kernel_of_a_library_view_has_its_fields_as_arguments() -> None:
    made = draft(Program({"a.cu": MATRIX}, "a.cu"), "twice")
    values = {a.name: a.value for a in made.spec.arguments}
    assert (values["src.cols"], values["src.rows"], values["src.step"]) == ("cols", "rows", "cols*4")
    assert values["dst.step"] == "cols*4"
    assert made.spec.argument("src.data").size == "rows*cols"


def test_the_slice_holds_what_is_needed_of_it() -> None:
    text = device_slice(Program({"a.cu": MATRIX}, "a.cu"), ["twice"], root=None).text
    assert "struct PtrStepSz" in text
    assert "GlobPtrSz" not in text


def test_nothing_of_it_stays_where_nothing_is_needed() -> None:
    plain = b"#include <cutlass/array.h>\n__global__ void k(float* x) { x[0] = 1; }\n"
    text = device_slice(Program({"a.cu": plain}, "a.cu"), ["k"], root=None).text
    assert "cutlass" not in text


def test_a_macro_alone_keeps_it() -> None:
    macro = b"#include <cutlass/cutlass.h>\nCUTLASS_DEVICE float f() { return 1; }\n__global__ void k(float* x) { x[0] = f(); }\n"
    assert "#define CUTLASS_DEVICE" in device_slice(Program({"a.cu": macro}, "a.cu"), ["k"], root=None).text


def test_the_repository_comes_first() -> None:
    files = {"include/opencv2/core/cuda/common.hpp": b"struct Own {};\n", "a.cu": MATRIX}
    found = resolve_include("opencv2/core/cuda/common.hpp", True, "a.cu", files=files, root=None)
    assert found == ("include/opencv2/core/cuda/common.hpp", b"struct Own {};\n")
    assert [*standins_of(files)] == []
    there = resolve_include("opencv2/core/cuda/common.hpp", True, "a.cu", files={"a.cu": MATRIX}, root=None)
    assert there is not None
    assert is_standin(there[0])


def test_a_condition_on_the_modules_of_a_library_is_that_of_a_whole_build() -> None:
    code = b"""#include "opencv2/opencv_modules.hpp"
#ifndef HAVE_OPENCV_CUDEV
#error "cudev is required"
#else
#include "opencv2/cudev.hpp"
__global__ void k(const cv::cuda::PtrStepSz<float> src, cv::cuda::PtrStep<float> dst) {
    int x = blockIdx.x * cv::cudev::WARP_SIZE + cv::cudev::Warp::laneId();
    if (x < src.cols) dst(0, x) = src(0, x);
}
#endif
"""
    program = Program({"a.cu": code}, "a.cu")
    text = device_slice(program, ["k"], root=None).text
    assert "#define HAVE_OPENCV_CUDEV" in text
    assert "struct Warp" in text
    assert not [gap for gap in draft(program, "k").missing if gap.key == "compile.defines"]


def test_rows_are_as_long_as_those_of_a_matrix_that_says_so() -> None:
    code = MATRIX.replace(b"const PtrStepSz<float> src", b"const PtrStepSz<float> src, int w").replace(
        b"2 * src(y, x)", b"w * src(y, x)"
    )
    values = {a.name: a.value for a in draft(Program({"a.cu": code}, "a.cu"), "twice").spec.arguments}
    assert values["dst.step"] == "cols*4"
