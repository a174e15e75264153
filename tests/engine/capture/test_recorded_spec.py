"""Specs from recordings: equal to the hand-written ones of the examples, and honest about what cannot be restored."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from engine.capture.manifest import (
    CPU_CALL,
    VERSION,
    Buffer,
    Manifest,
    RecordedArgument,
    RecordedKernel,
    RecordedLaunch,
    find_recorded,
    load_manifest,
    save_manifest,
)
from engine.capture.recorded_spec import recorded_spec
from engine.capture.recorded_values import fill_of, filling_size, fitting_size
from engine.cuda.load import load_program
from engine.errors import UsageError
from engine.process.sandbox import sandbox
from engine.run.ready_spec import SpecMaker
from engine.spec.dtypes import parse_dtype
from engine.spec.find import find_spec
from engine.spec.kernel_spec import Fill, KernelSpec
from engine.spec.launch_config import evaluate
from tests.engine.capture.example_programs import NAMES, bare_copy, hand_written, shapes, synthetic_recording

Shape = tuple[tuple[int, int, int], tuple[int, int, int]]


def assert_equal_specs(spec: KernelSpec, wanted: KernelSpec) -> None:
    """The same arguments by role, type, size and value; sizes of the same value at every shape."""
    assert [a.name for a in spec.arguments] == [a.name for a in wanted.arguments]
    for own, other in zip(spec.arguments, wanted.arguments, strict=True):
        assert (own.role, own.type, own.value == "") == (other.role, other.type, other.value == ""), own.name
        assert not own.value or float(own.value) == float(other.value), own.name
        for case in (*wanted.check, *wanted.time):
            assert _value(own.size, case.sizes) == _value(other.size, case.sizes), own.name
    assert spec.deterministic == wanted.deterministic


def _value(text: str, sizes: object) -> object:
    from engine.spec.extents import value_at

    return value_at(text, sizes) if text else ""  # type: ignore[arg-type]


@pytest.mark.parametrize("name", NAMES)
def test_a_recorded_spec_equals_the_hand_written_one(name: str, tmp_path: Path) -> None:
    _, wanted = hand_written(name)
    file = bare_copy(name, tmp_path)
    synthetic_recording(name, tmp_path)
    made = recorded_spec(tmp_path, wanted.kernel)
    assert made is not None
    assert made.missing == (), made.text
    assert_equal_specs(made.spec, wanted)
    recorded = [dict(c.sizes) for c in shapes(wanted)]
    assert [dict(c.sizes) for c in made.spec.time] == recorded
    assert [c.weight for c in made.spec.time] == [1.0, 0.333]
    # The text is a spec that reads back as the same.
    file.write_bytes(made.text.encode() + file.read_bytes())
    read, _ = find_spec(tmp_path, file)
    assert_equal_specs(read, wanted)
    program = hand_written(name)[0]
    for case in read.time:
        assert evaluate(program, read, 0, case.sizes) == evaluate(program, wanted, 0, case.sizes)


def _changed(root: Path, name: str, **changes: object) -> None:
    """The recording with fields of its kernel replaced."""
    folder = root / ".optiml" / "capture"
    found = load_manifest(folder)
    assert found is not None
    kernel = dataclasses.replace(found.kernels[0], **changes)  # type: ignore[arg-type]
    save_manifest(folder, dataclasses.replace(found, kernels=(kernel,)))


def test_no_recording_and_another_kernels_recording(tmp_path: Path) -> None:
    bare_copy("softmax", tmp_path)
    assert recorded_spec(tmp_path, "softmax_kernel") is None
    synthetic_recording("softmax", tmp_path)
    assert recorded_spec(tmp_path, "other_kernel") is None
    assert recorded_spec(tmp_path, "other.cu:softmax_kernel") is None
    assert recorded_spec(tmp_path, "softmax.cu:softmax_kernel") is not None


def test_a_launch_that_the_source_does_not_give_is_named(tmp_path: Path) -> None:
    bare_copy("softmax", tmp_path)
    kernel = synthetic_recording("softmax", tmp_path)
    launches = tuple(dataclasses.replace(r, grid=(999, 1, 1)) for r in kernel.launches)
    _changed(tmp_path, "softmax", launches=launches)
    made = recorded_spec(tmp_path, "softmax_kernel")
    assert made is not None
    assert any("<<<(999, 1, 1)" in gap for gap in made.missing)


def test_a_launch_that_no_source_has_is_fitted(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    kernel = synthetic_recording("gemv", tmp_path)
    text = bare_copy("gemv", tmp_path).read_text()
    (tmp_path / "gemv.cu").write_text(text[: text.index("\n}\n") + 3])  # the kernel without its host code
    made = recorded_spec(tmp_path, "gemv_kernel")
    assert made is not None
    assert made.missing == ()
    launch = made.spec.steps[0].launch
    assert launch is not None
    threads = kernel.launches[0].block[0]
    assert (launch.grid, launch.block) == ((f"cdiv(rows, {threads})",), (str(threads),))


def test_a_written_buffer_is_no_input(tmp_path: Path) -> None:
    file = bare_copy("gemv", tmp_path)
    file.write_text(file.read_text().replace("const float* x", "float* x"))
    kernel = synthetic_recording("gemv", tmp_path)
    x = kernel.launches[0].arguments[1]
    buffer = dataclasses.replace(x.buffers[0], after=kernel.launches[0].arguments[0].buffers[0].before)
    arguments = (
        kernel.launches[0].arguments[0],
        dataclasses.replace(x, buffers=(buffer,)),
        *kernel.launches[0].arguments[2:],
    )
    _changed(tmp_path, "gemv", launches=(dataclasses.replace(kernel.launches[0], arguments=arguments),))
    made = recorded_spec(tmp_path, "gemv_kernel")
    assert made is not None
    assert made.spec.argument("x").role == "inout"


def test_addresses_in_a_buffer_are_refused_by_name(tmp_path: Path) -> None:
    file = bare_copy("gemv", tmp_path)
    file.write_text(file.read_text().replace("const float* a", "const unsigned long long* a"))
    kernel = synthetic_recording("gemv", tmp_path)
    first = kernel.launches[0].arguments[0]
    buffer = dataclasses.replace(first.buffers[0], addresses=3)
    arguments = (dataclasses.replace(first, buffers=(buffer,)), *kernel.launches[0].arguments[1:])
    _changed(tmp_path, "gemv", launches=(dataclasses.replace(kernel.launches[0], arguments=arguments),))
    made = recorded_spec(tmp_path, "gemv_kernel")
    assert made is not None
    assert "'a' contains addresses of GPU memory, which cannot be restored" in made.missing


def test_a_recording_of_an_older_source(tmp_path: Path) -> None:
    file = bare_copy("gemv", tmp_path)
    synthetic_recording("gemv", tmp_path)
    file.write_text(file.read_text().replace("int rows, int cols) {", "int rows, int cols, int lda) {", 1))
    made = recorded_spec(tmp_path, "gemv_kernel")
    assert made is not None
    assert made.missing[0] == "the recording has 5 arguments, the source 6: run 'optiml capture' again"


def test_kernels_of_one_name_in_two_files(tmp_path: Path) -> None:
    kernel = synthetic_recording("gemv", tmp_path)
    folder = tmp_path / ".optiml" / "capture"
    found = load_manifest(folder)
    assert found is not None
    found = dataclasses.replace(found, kernels=(kernel, dataclasses.replace(kernel, file="b.cu")))
    with pytest.raises(UsageError, match=r"recorded from several files: b\.cu, gemv\.cu; write FILE:KERNEL"):
        find_recorded(found, "gemv_kernel")
    assert find_recorded(found, "b.cu:gemv_kernel") is not None
    assert find_recorded(found, "b.cu:ns::gemv_kernel") is None


def _pointer(address: int, size: int) -> RecordedArgument:
    data = address.to_bytes(8, "little").hex()
    return RecordedArgument(8, data, (Buffer(0, "device", address, size, 0, 0, 0, "", ""),))


def _save(
    root: Path, name: str, shape: Shape, arguments: Sequence[RecordedArgument], *others: Shape, call: str = ""
) -> None:
    """A recording of one launch of a kernel in `NAME.cu`, and of shorter ones of other shapes with the same arguments."""
    launches = tuple(
        RecordedLaunch(call, *s, (0, 0, 0), 0, "", 1, 2.0 if s == shape else 1.0, tuple(arguments))
        for s in (shape, *others)
    )
    kernel = RecordedKernel(name, name, f"{name}.cu", 1, name, "", "", 1.0, 1, 1.0, 0, (), launches)
    folder = root / ".optiml" / "capture"
    folder.mkdir(parents=True, exist_ok=True)
    save_manifest(folder, Manifest(1, ("./p",), 0, 1.0, (kernel,), ()))


def test_a_product_of_sizes_that_fills_an_allocation_counts_more_than_a_drafted_one() -> None:
    sizes = {"count": 96, "width": 2048, "height": 1024, "k": 2}
    names, room = [*sizes], 96 * 2048 * 1024 * 4
    assert filling_size(names, [(sizes, room)], 4, "3*k*k*height") == "count*width*height"
    assert filling_size(names, [(sizes, room)], 4, "height*width*count") == ""  # which explains it as well
    assert filling_size(names, [(sizes, room + 4)], 4, "3*k*k*height") == ""
    assert filling_size(names, [(sizes, 8)], 4, "1") == ""  # no length of the kernel's


def test_scalars_that_were_zero_in_a_recorded_launch(tmp_path: Path) -> None:
    """`first` is a size for the draft, as it bounds a loop; `phase` is one as it differs between launches."""
    (tmp_path / ".git").mkdir()
    (tmp_path / "sums.cu").write_text(
        "__global__ void sums(float* x, int n, int first, int phase) {\n"
        "  int i = blockIdx.x * blockDim.x + threadIdx.x;\n"
        "  if (i >= n) return;\n"
        "  float s = phase;\n"
        "  for (int k = first; k < 4; ++k) s += x[i] * k;\n"
        "  for (int k = 0; k < first; ++k) s -= x[i];\n"
        "  x[i] = s;\n"
        "}\n"
        "void run(float* x, int n, int f, int p) { sums<<<(n + 255) / 256, 256>>>(x, n, f, p); }\n"
    )
    pointer = _pointer(1 << 32, 4 * 4096)
    launches = tuple(
        RecordedLaunch(
            CPU_CALL, (16, 1, 1), (256, 1, 1), (0, 0, 0), 0, "", 1, 1.0,
            (pointer, *(RecordedArgument(4, v.to_bytes(4, "little").hex(), ()) for v in (4096, first, phase))),
        )
        for first, phase in ((0, 0), (2, 1))
    )  # fmt: skip
    kernel = RecordedKernel("sums", "sums", "sums.cu", 1, "sums", "", "", 1.0, 2, 1.0, 0, (), launches)
    folder = tmp_path / ".optiml" / "capture"
    folder.mkdir(parents=True)
    save_manifest(folder, Manifest(1, ("./p",), 0, 1.0, (kernel,), ()))
    made = recorded_spec(tmp_path, "sums")
    assert made is not None
    assert made.missing == (), made.text
    assert [(c.sizes["first"], c.sizes["phase"]) for c in made.spec.time] == [(0, 0), (2, 1)]
    (tmp_path / "sums.cu").write_bytes(made.text.encode() + (tmp_path / "sums.cu").read_bytes())
    assert len(find_spec(tmp_path, tmp_path / "sums.cu")[0].time) == 2


def test_a_large_buffer_of_a_launch_that_is_always_the_same(tmp_path: Path) -> None:
    """As many elements as the launch has threads; of another length it may be an allocator's segment."""
    (tmp_path / ".git").mkdir()
    (tmp_path / "add.cu").write_text(
        "__global__ void add(int* x, int v) { x[blockIdx.x * blockDim.x + threadIdx.x] += v; }\n"
        "int main() { int* x; add<<<4096, 256>>>(x, 3); }\n"
    )
    value = RecordedArgument(4, (3).to_bytes(4, "little").hex(), ())
    _save(tmp_path, "add", ((4096, 1, 1), (256, 1, 1)), [_pointer(1 << 32, 4 << 20), value])
    made = recorded_spec(tmp_path, "add")
    assert made is not None
    assert (made.spec.argument("x").size, made.missing) == ("1048576", ())
    _save(tmp_path, "add", ((4096, 1, 1), (256, 1, 1)), [_pointer(1 << 32, 4 << 20), value], ((64, 1, 1), (256, 1, 1)))
    made = recorded_spec(tmp_path, "add")
    assert made is not None
    assert (made.spec.argument("x").size, made.missing) == ("1048576", ())
    assert "assumed: the longest-running launch alone" in made.text
    _save(tmp_path, "add", ((4096, 1, 1), (256, 1, 1)), [_pointer(1 << 32, 20_000_000), value])
    made = recorded_spec(tmp_path, "add")
    assert made is not None
    assert made.missing
    _save(tmp_path, "add", ((4096, 1, 1), (256, 1, 1)), [_pointer(1 << 32, 20_000_000), value], call=CPU_CALL)
    made = recorded_spec(tmp_path, "add")
    assert made is not None
    assert (made.spec.argument("x").size, made.missing) == ("5000000", ())


def _number(value: int) -> RecordedArgument:
    return RecordedArgument(4, value.to_bytes(4, "little").hex(), ())


def _declared(tmp_path: Path, text: str, launch: Shape, arguments: list[RecordedArgument]) -> KernelSpec:
    """The spec of the kernel `k` that is launched so, by host code that gives no such launch."""
    (tmp_path / ".git").mkdir(exist_ok=True)
    (tmp_path / "k.cu").write_text(text)
    _save(tmp_path, "k", launch, arguments, call=CPU_CALL)
    made = recorded_spec(tmp_path, "k")
    assert made is not None
    assert made.missing == (), made.text
    program = load_program(tmp_path / "k.cu")
    (time,) = made.spec.time
    given = evaluate(program, made.spec, 0, time.sizes)
    assert (given.grid, given.block) == launch
    (tmp_path / "k.cu").write_text(made.text + text)
    assert find_spec(tmp_path, tmp_path / "k.cu")[0].check == made.spec.check
    return made.spec


def test_a_grid_that_nothing_gives_counts_threads(tmp_path: Path) -> None:
    """A buffer of 2**25 elements, which no check made smaller: the host's number of elements is no argument."""
    spec = _declared(
        tmp_path,
        "__global__ void k(int step, int* x) { int i = blockIdx.x * 256 + threadIdx.x; if (x[i] > step) x[i] -= step; }\n",
        ((131072, 1, 1), (256, 1, 1)),
        [_number(2), _pointer(1 << 40, 4 << 25)],
    )
    assert (spec.argument("x").size, spec.time[0].sizes["threads"]) == ("threads", 1 << 25)
    assert [c.sizes["threads"] for c in spec.check[:3]] == [768, 1280, 256]


def test_a_grid_that_nothing_gives_counts_blocks(tmp_path: Path) -> None:
    spec = _declared(
        tmp_path,
        "__global__ void k(int cols, const float* x, float* y) {\n"
        "    for (int i = threadIdx.x; i < cols; i += 256) y[blockIdx.x * cols + i] = 2 * x[blockIdx.x * cols + i];\n}\n",
        ((729, 1, 1), (256, 1, 1)),
        [_number(1000), _pointer(1 << 40, 2_916_000), _pointer(1 << 41, 2_916_000)],
    )
    assert [spec.argument(n).size for n in ("x", "y")] == ["cols*blocks", "cols*blocks"]
    assert len({(c.sizes["cols"], c.sizes["blocks"]) for c in spec.check}) >= 3
    assert max(c.sizes["blocks"] for c in spec.check) < 10


def test_a_scalar_that_is_an_extent_of_the_grid_is_a_size(tmp_path: Path) -> None:
    """The kernel does not use `dims`, and the host's text gave the grid a name of its own, for which no value fits."""
    spec = _declared(
        tmp_path,
        "__global__ void k(int n, int dims, const int* v, float* y) {\n"
        "    v += 32 * blockIdx.y; y += n * blockIdx.y;\n"
        "    for (int i = threadIdx.x; i < n; i += 128) y[i] = v[i % 32];\n}\n"
        "void run(int n, int dims, const int* v, float* y) {\n"
        "    dim3 grid; grid.y = dims; for (grid.x = 1; grid.x < n / 4096; grid.x *= 2);\n"
        "    k<<<grid, 128>>>(n, dims, v, y);\n}\n",
        ((1, 1000, 1), (128, 1, 1)),
        [_number(5000), _number(1000), _pointer(1 << 40, 128_000), _pointer(1 << 41, 20_000_000)],
    )
    assert (spec.argument("v").size, spec.argument("dims").value) == ("32*dims", "")
    assert _value(spec.argument("y").size, {"n": 7, "dims": 3}) == 21
    assert dict(spec.time[0].sizes) == {"n": 5000, "dims": 1000}
    assert len({c.sizes["dims"] for c in spec.check}) >= 3


def test_a_drafted_stride_is_no_size_where_it_was_recorded_otherwise(tmp_path: Path) -> None:
    """`i / step` looked like a row of a matrix without gaps: the 4 of `step` was taken for the number of rows."""
    spec = _declared(
        tmp_path,
        "__global__ void k(const float* x, float* y, int rows, int step) {\n"
        "    int i = blockIdx.x * 256 + threadIdx.x;\n    if (i >= step * rows) return;\n"
        "    float s = 0;\n    for (int j = i % step; j < rows; j += step) s += x[j];\n    if (i % step == 0) y[i / step] = s;\n}\n"
        "void run(const float* x, float* y, int rows) {\n"
        "    int step = 4;\n    k<<<(step * rows + 255) / 256, 256>>>(x, y, rows, step);\n}\n",
        ((63, 1, 1), (256, 1, 1)),
        [_pointer(1 << 40, 16_000), _pointer(1 << 41, 16_000), _number(4000), _number(4)],
    )
    assert (spec.argument("step").value, dict(spec.time[0].sizes)) == ("4", {"rows": 4000})


def test_a_drafted_size_that_the_allocation_has_no_room_for_is_none(tmp_path: Path) -> None:
    """`w` is a band beyond which nothing is looked at: `rows + w` elements were asked for, where the program has 103."""
    spec = _declared(
        tmp_path,
        "__global__ void k(int* e, int rows, int w) { for (int i = 0; i < rows + w; i++) if (i <= rows) e[i] = i; }\n"
        "void run(int* e, int rows, int w) { k<<<1, 1>>>(e, rows, w); }\n",
        ((1, 1, 1), (1, 1, 1)),
        [_pointer(1 << 40, 4 * 103), _number(102), _number(100)],
    )
    assert spec.argument("e").size == "rows + 1"


def test_a_buffer_that_the_kernel_goes_beyond_is_as_long_as_its_allocation(tmp_path: Path) -> None:
    """`rows` and `most` were of one value, so `2*rows` filled the table: at fewer rows the kernel read beyond it."""
    text = (
        "__global__ void k(const float* table, float* y, int rows, int most) {\n"
        "    int i = blockIdx.x * 64 + threadIdx.x;\n    if (i < rows) y[i] = 2 * table[i % 8 + most];\n}\n"
        "void run(const float* table, float* y, int rows) { k<<<(rows + 63) / 64, 64>>>(table, y, rows, 512); }\n"
    )
    _declared(
        tmp_path, text, ((8, 1, 1), (64, 1, 1)),
        [_pointer(1 << 40, 4096), _pointer(1 << 41, 2048), _number(512), _number(512)],
    )  # fmt: skip
    (tmp_path / "k.cu").write_text(text)
    made = recorded_spec(tmp_path, "k")
    assert made is not None
    assert made.spec.argument("table").size == "2*rows"
    ready = SpecMaker(tmp_path, sandbox(False), recorded=recorded_spec).ready(tmp_path / "k.cu", "k")
    assert (ready.spec.argument("table").size, ready.spec.argument("y").size) == ("1024", "rows")
    assert len(ready.spec.check) > 2
    assert "as the kernel goes beyond less" in "".join(ready.assumed) + ready.text


def test_a_buffer_that_the_kernel_does_not_use_is_no_input(tmp_path: Path) -> None:
    """It was refused: "no output depends on the input"."""
    spec = _declared(
        tmp_path,
        "#define READ(name) name[i]\n"
        "__global__ void k(const float* x, const float* none, float* y, int n) {\n"
        "    int i = blockIdx.x * 64 + threadIdx.x;\n    if (i < n) y[i] = 2 * READ(x);\n}\n"
        "void run(const float* x, float* y, int n) { k<<<(n + 63) / 64, 64>>>(x, x, y, n); }\n",
        ((8, 1, 1), (64, 1, 1)),
        [_pointer(1 << 40, 2048), _pointer(1 << 41, 2048), _pointer(1 << 42, 2048), _number(512)],
    )
    assert [(a.name, a.size, a.fill.kind) for a in spec.arguments if a.role == "in"] == [
        ("x", "n", "normal"), ("none", "1", "constant"),
    ]  # fmt: skip


def test_a_number_that_is_no_length_stays_near_the_recorded_one_in_checks(tmp_path: Path) -> None:
    """`bits` and `first` were checked at 129 and 257, and for the length no launch was found: grids of 0 blocks."""
    spec = _declared(
        tmp_path,
        "__global__ void k(const unsigned* x, unsigned* y, int bits, int first) {\n"
        "    int i = blockIdx.x * 128 + threadIdx.x;\n    unsigned v = x[i];\n"
        "    for (int b = first; b < first + bits; b++) v ^= v >> b;\n    y[i] = v;\n}\n"
        "void run(const unsigned* x, unsigned* y, int bits, int first, int n) { k<<<n / 128, 128>>>(x, y, bits, first); }\n",
        ((512, 1, 1), (128, 1, 1)),
        [_pointer(1 << 40, 1 << 18), _pointer(1 << 41, 1 << 18), _number(4), _number(0)],
    )
    assert {(c.sizes["bits"], c.sizes["first"]) for c in spec.check} == {(4, 0), (2, 0)}
    assert len({c.sizes["n"] for c in spec.check if c.sizes["n"] % 128 == 0}) >= 2


def test_a_length_that_is_the_product_of_two_others_is_that_in_checks(tmp_path: Path) -> None:
    spec = _declared(
        tmp_path,
        "__global__ void k(const float* x, float* y, int width, int height, int count) {\n"
        "    int i = blockIdx.x * 64 + threadIdx.x;\n"
        "    if (i < count) y[i] = x[i] + x[i / width * width] + (i / width + 1 < height ? x[i + width] : 0);\n}\n"
        "void run(const float* x, float* y, int w, int h) { k<<<(w * h + 63) / 64, 64>>>(x, y, w, h, w * h); }\n",
        ((469, 1, 1), (64, 1, 1)),
        [_pointer(1 << 40, 120_000), _pointer(1 << 41, 120_000), _number(300), _number(100), _number(30_000)],
    )
    assert spec.argument("count").value == "width*height"
    assert [_value(spec.argument(n).size, {"width": 3, "height": 5}) for n in ("x", "y")] == [15, 15]
    assert dict(spec.time[0].sizes) == {"width": 300, "height": 100}


def test_numbers_of_the_hosts_are_found_one_by_one(tmp_path: Path) -> None:
    """Of three names 4096 combinations were tried, which took minutes and did not reach the recorded one."""
    (tmp_path / ".git").mkdir()
    (tmp_path / "k.cu").write_text(
        "__global__ void k(float* y, int cols) { for (int i = threadIdx.x; i < cols; i += blockDim.x) y[blockIdx.x * cols + i] = 1; }\n"
        "void run(float* y, int cols, int rows, int planes, int side) { k<<<dim3(rows, planes), dim3(side)>>>(y, cols); }\n"
    )
    _save(
        tmp_path, "k", ((300, 7, 1), (96, 1, 1)), [_pointer(1 << 40, 300 * 500 * 4), _number(500)], call=CPU_CALL
    )  # fmt: skip
    made = recorded_spec(tmp_path, "k")
    assert made is not None
    assert made.missing == ()
    assert dict(made.spec.time[0].sizes) == {"cols": 500, "rows": 300, "planes": 7, "side": 96}


def test_a_number_of_the_hosts_may_be_zero(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "k.cu").write_text(
        "__global__ void k(float* y, int rows) { if (blockIdx.x < rows) y[blockIdx.x * 64 + threadIdx.x] = 1; }\n"
        "void run(float* y, int rows, int left) { k<<<rows - left, 64>>>(y, rows); }\n"
    )
    _save(tmp_path, "k", ((50, 1, 1), (64, 1, 1)), [_pointer(1 << 40, 12_800), _number(50)], call=CPU_CALL)
    made = recorded_spec(tmp_path, "k")
    assert made is not None
    assert (made.missing, dict(made.spec.time[0].sizes)) == ((), {"rows": 50, "left": 0})


def test_of_two_sizes_of_one_value_the_threads_choose(tmp_path: Path) -> None:
    """With k = m both k*n and m*n fill the allocation; the grid grows with m and n."""
    (tmp_path / ".git").mkdir()
    (tmp_path / "outer.cu").write_text(
        "__global__ void outer(const float* x, float* y, int k, int m, int n) {\n"
        "    int at = (blockIdx.y * gridDim.x + blockIdx.x) * 256 + threadIdx.y * 16 + threadIdx.x;\n"
        "    float s = 0;\n    for (int i = 0; i < k; i++) s += x[i];\n    y[at] = s;\n}\n"
        "void run(const float* x, float* y, int k, int m, int n) {\n"
        "    outer<<<dim3(n / 16, m / 16), dim3(16, 16)>>>(x, y, k, m, n);\n}\n"
    )
    numbers = [RecordedArgument(4, v.to_bytes(4, "little").hex(), ()) for v in (64, 64, 32)]
    _save(tmp_path, "outer", ((2, 4, 1), (16, 16, 1)), [_pointer(1 << 32, 256), _pointer(1 << 33, 8192), *numbers])
    made = recorded_spec(tmp_path, "outer")
    assert made is not None
    assert made.spec.argument("y").size == "m*n"


@pytest.mark.parametrize("last", ["pitch", "other"])
def test_sizes_that_the_host_passes_twice_are_equal_in_checks(last: str, tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "scale.cu").write_text(
        "__global__ void scale(float* y, const float* x, int w, int h, int pitch) {\n"
        "    int i = blockIdx.x * 32 + threadIdx.x;\n    if (i < w) y[blockIdx.y * pitch + i] = 2 * x[blockIdx.y * pitch + i];\n}\n"
        "void run(float* y, const float* x, int w, int h) {\n"
        "    scale<<<dim3((w + 31) / 32, h), 32>>>(y, x, w, h, w);\n}\n".replace("pitch", last)
    )
    numbers = [RecordedArgument(4, v.to_bytes(4, "little").hex(), ()) for v in (64, 48, 64)]
    buffers = [_pointer(1 << 32, 64 * 48 * 4), _pointer(1 << 33, 64 * 48 * 4)]
    _save(tmp_path, "scale", ((2, 48, 1), (32, 1, 1)), [*buffers, *numbers])
    made = recorded_spec(tmp_path, "scale")
    assert made is not None
    assert made.missing == ()
    program = load_program(tmp_path / "scale.cu")
    for case in made.spec.check:
        assert evaluate(program, made.spec, 0, case.sizes).grid[1] == case.sizes["h"]
    assert any(c.sizes["w"] != c.sizes["h"] for c in made.spec.check)


def test_a_size_counts_the_numbers_of_vectors(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "twice.cu").write_text(
        "__device__ float f(float x) { return 2 * x; }\n"
        "__global__ void twice(float2* y, const float2* x, int n) {\n"
        "    int at = blockDim.x * blockIdx.x + threadIdx.x;\n    if (at < n / 2) { y[at].x = f(x[at].x); y[at].y = f(x[at].y); }\n}\n"
        "void run(float2* y, const float2* x, int n) { twice<<<(n / 2 + 127) / 128, 128>>>(y, x, n); }\n"
    )
    count = RecordedArgument(4, (2000).to_bytes(4, "little").hex(), ())
    _save(tmp_path, "twice", ((8, 1, 1), (128, 1, 1)), [_pointer(1 << 32, 8000), _pointer(1 << 33, 8000), count])
    made = recorded_spec(tmp_path, "twice")
    assert made is not None
    assert made.missing == ()
    assert _value(made.spec.argument("y").size, {"n": 2000}) == 1000


def test_a_grid_of_whole_tiles_is_checked_with_whole_tiles(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "copy.cu").write_text(
        "__global__ void copy(const float* x, float* y, int n) {\n"
        "    int i = blockIdx.x * 128 + threadIdx.x;\n    y[i] = x[i];\n}\n"
        "void run(const float* x, float* y, int n) { copy<<<n / 128, 128>>>(x, y, n); }\n"
    )
    count = RecordedArgument(4, (4096).to_bytes(4, "little").hex(), ())
    _save(tmp_path, "copy", ((32, 1, 1), (128, 1, 1)), [_pointer(1 << 32, 16384), _pointer(1 << 33, 16384), count])
    made = recorded_spec(tmp_path, "copy")
    assert made is not None
    program = load_program(tmp_path / "copy.cu")
    assert all(evaluate(program, made.spec, 0, c.sizes).blocks >= 1 for c in made.spec.check)


@pytest.mark.parametrize("count", [4706, 33_554_432])
def test_what_only_the_host_knows_is_what_fills_a_buffer(count: int, tmp_path: Path) -> None:
    """Sizes of grids with more threads than 1024, or not a power of two, were taken for those of the draft."""
    (tmp_path / ".git").mkdir()
    (tmp_path / "move.cu").write_text(
        "struct Rules { float step, bound; int few; };\n"
        "__global__ void move(float* x, const Rules* rules) {\n"
        "    int i = blockIdx.x * blockDim.x + threadIdx.x;\n"
        "    x[i] = fminf(x[i] + rules->step, rules->bound);\n}\n"
        "void run(float* x, const Rules* rules, int count) { move<<<count / 256, 256>>>(x, rules); }\n"
    )
    grid = (count // 256, 1, 1)
    _save(tmp_path, "move", (grid, (256, 1, 1)), [_pointer(1 << 40, 4 * count), _pointer(1 << 41, 12)], call=CPU_CALL)
    made = recorded_spec(tmp_path, "move")
    assert made is not None
    assert (dict(made.spec.time[0].sizes), made.missing) == ({"count": count}, ())
    assert [a.size for a in made.spec.arguments] == ["count", "1"]
    assert 0 < max(case.sizes["count"] for case in made.spec.check) < count


def test_a_host_that_counts_bytes_launches_as_it_was_recorded(tmp_path: Path) -> None:
    """The length of the buffer was taken for the bytes that its allocation was computed from; no launch followed from that."""
    (tmp_path / ".git").mkdir()
    (tmp_path / "turn.cu").write_text(
        "__global__ void turn(double2* x) {\n"
        "    int i = blockIdx.x * 512 + threadIdx.x;\n    for (int k = 0; k < 512; k += 64) x[i + k].x = -x[i + k].x;\n}\n"
        "void run(double2* x, const unsigned long* sizes, int which) {\n"
        "    unsigned long bytes = sizes[which];\n"
        "    const int half = bytes / (512 * sizeof(double2) * 2);\n"
        "    turn<<<half * 2, 64>>>(x);\n}\n"
    )
    elements = 3 * 16384
    _save(tmp_path, "turn", ((elements // 512, 1, 1), (64, 1, 1)), [_pointer(1 << 40, 16 * elements)], call=CPU_CALL)
    made = recorded_spec(tmp_path, "turn")
    assert made is not None
    assert made.missing == ()
    ((name, value),) = made.spec.time[0].sizes.items()
    assert (value, _value(made.spec.argument("x").size, {name: value})) == (16 * elements, elements)
    program = load_program(tmp_path / "turn.cu")
    assert len(made.spec.check) == 3  # one tile and more: an odd size launches nothing
    for case in made.spec.check:
        blocks = evaluate(program, made.spec, 0, case.sizes).blocks
        assert 0 < 512 * blocks == _value(made.spec.argument("x").size, case.sizes) < elements


def test_lengths_that_the_host_has_again_follow_the_kernels(tmp_path: Path) -> None:
    """Checks had the kernel's size beside a grid of the recorded one, and left their buffers."""
    (tmp_path / ".git").mkdir()
    (tmp_path / "pass.cu").write_text(
        "__global__ void step(int* d, int nodes) {\n"
        "    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;\n"
        "    d[y * nodes + x] += 1;\n}\n"
        "void run(int* d, int nodes, const int* all, const int* block) {\n"
        "    step<<<dim3(all[0] / block[0], all[1] / block[1]), dim3(block[0], block[1])>>>(d, nodes);\n}\n"
    )
    count = RecordedArgument(4, (1024).to_bytes(4, "little").hex(), ())
    _save(tmp_path, "pass", ((64, 64, 1), (16, 16, 1)), [_pointer(1 << 40, 4 << 20), count], call=CPU_CALL)
    manifest = tmp_path / ".optiml" / "capture" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"kernel": "pass"', '"kernel": "step"'))
    made = recorded_spec(tmp_path, "step")
    assert made is not None
    assert (made.spec.argument("d").size, made.missing) == ("nodes*nodes", ())
    for case in made.spec.check:
        lengths = {v for name, v in case.sizes.items() if not name.startswith("block")}
        assert len(lengths) == 1, case


@pytest.mark.parametrize("use", ["if (i < n) x[i] ^= seed;", "if (i < n && x[i] == seed) x[i] = 0;"])
@pytest.mark.parametrize(("seeds", "sizes"), [((1153631879, 2614158518), set()), ((3, 5), {"seed"})])
def test_a_number_beyond_every_buffer_is_no_size(
    seeds: tuple[int, int], sizes: set[str], use: str, tmp_path: Path
) -> None:
    """Digests that differed between launches became sizes, and were 1 in the checks."""
    (tmp_path / ".git").mkdir()
    (tmp_path / "mix.cu").write_text(
        "__global__ void mix(unsigned* x, int n, unsigned seed) {\n"
        f"    int i = blockIdx.x * blockDim.x + threadIdx.x;\n    {use}\n}}\n"
        "void run(unsigned* x, int n, unsigned seed) { mix<<<(n + 255) / 256, 256>>>(x, n, seed); }\n"
    )
    _save(tmp_path, "mix", ((4, 1, 1), (256, 1, 1)), [])
    manifest = load_manifest(tmp_path / ".optiml" / "capture")
    assert manifest is not None

    def launch(n: int, seed: int) -> RecordedLaunch:
        numbers = [RecordedArgument(4, v.to_bytes(4, "little").hex(), ()) for v in (n, seed)]
        shape = ((-(-n // 256), 1, 1), (256, 1, 1))
        return RecordedLaunch("", *shape, (0, 0, 0), 0, "", 1, float(n), (_pointer(1 << 40, 4 * n), *numbers))

    launches = tuple(launch(1000 * k, seed) for k, seed in enumerate(seeds, 1))
    kernel = dataclasses.replace(manifest.kernels[0], launches=launches)
    save_manifest(tmp_path / ".optiml" / "capture", dataclasses.replace(manifest, kernels=(kernel,)))
    made = recorded_spec(tmp_path, "mix")
    assert made is not None
    assert (set(made.spec.time[0].sizes), made.missing) == ({"n", *sizes}, ())
    assert all(set(case.sizes) == {"n", *sizes} for case in made.spec.check)
    assert sizes or made.spec.argument("seed").value == str(seeds[1])


def test_a_buffer_of_a_launch_that_is_always_the_same(tmp_path: Path) -> None:
    """One result of each block, and the number of blocks is a constant of the host."""
    (tmp_path / ".git").mkdir()
    (tmp_path / "sums.cu").write_text(
        "__global__ void sums(const float* x, float* out, int n) {\n"
        "    float s = 0;\n"
        "    for (int i = blockIdx.x; i < n; i += gridDim.x) s += x[i];\n"
        "    out[blockIdx.x] = s;\n}\n"
        "void run(const float* x, float* out, int n) { sums<<<24, 1>>>(x, out, n); }\n"
    )
    count = RecordedArgument(4, (1000).to_bytes(4, "little").hex(), ())
    x, out = 1 << 32, 1 << 33
    _save(tmp_path, "sums", ((24, 1, 1), (1, 1, 1)), [_pointer(x, 4000), _pointer(out, 96), count])
    made = recorded_spec(tmp_path, "sums")
    assert made is not None
    assert (made.spec.argument("out").size, made.spec.argument("x").size, made.missing) == ("24", "n", ())


def test_random_indices_are_below_the_size_that_they_nearly_reach() -> None:
    sizes = {"rows": 8192, "width": 50257, "near": 60000}
    indices = np.random.default_rng(0).integers(0, 50250, 8192, np.int32)
    assert fill_of(indices, parse_dtype("int32"), sizes, Fill())[0] == Fill("integers", "0", "width")
    high_only = np.arange(50_000, 50_257, dtype=np.int32)
    assert fill_of(high_only, parse_dtype("int32"), sizes, Fill())[0].high == "50257"  # from 50000: no check's width
    few = indices[:20]
    assert fill_of(few, parse_dtype("int32"), sizes, Fill())[0].high == str(few.max() + 1)


def test_floats_that_are_flags_are_drawn_as_flags() -> None:
    """`(int)x[i] == 0` held for every number between 0 and 1: "no output depends on the input"."""
    flags = np.array([0, 1, 1, 0], np.float32)
    assert fill_of(flags, parse_dtype("float"), {}, Fill())[0] == Fill("integers", "0", "2")
    assert fill_of(flags + np.float32(0.5), parse_dtype("float"), {}, Fill())[0].kind == "uniform"
    assert fill_of(flags * 3, parse_dtype("float"), {}, Fill())[0].kind == "uniform"


def test_sizes_fit_the_recorded_room() -> None:
    one, two = {"rows": 100, "cols": 30}, {"rows": 7, "cols": 50}
    assert fitting_size(["rows", "cols"], [(one, 12000), (two, 1400)], 4) == "rows*cols"
    assert fitting_size(["rows", "cols"], [(one, 12288), (two, 1536)], 4) == "rows*cols"  # an allocator's rounding
    assert fitting_size(["rows", "cols"], [(one, 1024), (two, 1024)], 4) == "256"
    assert fitting_size(["rows", "cols"], [(one, 2 << 20), (two, 5000)], 4) == ""
    threads = [({"rows": 100, "cols": 30, "block_size": b}, 12000) for b in (32, 64)]
    assert fitting_size(["rows", "cols", "block_size"], threads, 4) == "rows*cols"
    assert fitting_size(["bytes"], [({"bytes": 4096}, 4096)], 4) == "cdiv(bytes, 4)"
    heads = {"tokens": 1024, "heads": 64, "width": 128}
    per_thread = fitting_size([*heads], [(heads, 1024 * 64 * 4)], 4, (128,), lambda text: text.startswith("cdiv"))
    assert per_thread == "tokens*heads"  # a result of each row: `cdiv(tokens*heads*width, 128)` fits these sizes alone


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"version": 1}',
        '{"version": 2, "command": [], "exit_code": 0, "seconds": 1, "kernels": [], "notes": []}',
    ],
)
def test_a_manifest_that_is_none(text: str, tmp_path: Path) -> None:
    folder = tmp_path / ".optiml" / "capture"
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text(text)
    with pytest.raises(UsageError, match="the recording cannot be read"):
        recorded_spec(tmp_path, "k")


def test_a_huge_manifest_is_not_read(tmp_path: Path) -> None:
    folder = tmp_path / ".optiml" / "capture"
    folder.mkdir(parents=True)
    with open(folder / "manifest.json", "wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(UsageError, match="at most"):
        recorded_spec(tmp_path, "k")


def test_a_truncated_manifest(tmp_path: Path) -> None:
    bare_copy("gemv", tmp_path)
    synthetic_recording("gemv", tmp_path)
    path = tmp_path / ".optiml" / "capture" / "manifest.json"
    whole = path.read_bytes()
    assert json.loads(whole)
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UsageError, match="run 'optiml capture' again"):
        recorded_spec(tmp_path, "gemv_kernel")


def test_pointers_in_a_struct_are_found_by_their_offset(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "k.cu").write_text("""
struct Params { const float* x; float* y; const float* none; int n; };
__global__ void k(Params p) { int i = blockIdx.x * 256 + threadIdx.x; if (i < p.n) p.y[i] = p.x[i]; }
void run(Params p) { k<<<(p.n + 255) / 256, 256>>>(p); }
""")
    first = 0x7F00_0000_0000
    buffers = [Buffer(at, "device", first + 4096 * at, 4000, 0, 0, 0, "", "") for at in (0, 8)]
    data = b"".join(v.to_bytes(8, "little") for v in (first, first + 4096 * 8, 0, 1000))
    passed = RecordedArgument(32, data.hex(), tuple(buffers))
    launch = RecordedLaunch("cuLaunchKernel", (4, 1, 1), (256, 1, 1), (0, 0, 0), 0, "", 1, 1.0, (passed,))
    kernel = RecordedKernel("k", "k", "k.cu", 1, "k", "", "", 1.0, 1, 1.0, 8, (), (launch,))
    folder = tmp_path / ".optiml" / "capture"
    folder.mkdir(parents=True)
    save_manifest(folder, Manifest(VERSION, ("./program",), 0, 1.0, (kernel,), ()))
    made = recorded_spec(tmp_path, "k")
    assert made is not None
    assert made.missing == (), made.missing
    assert [(a.name, a.size) for a in made.spec.arguments if a.role != "scalar"] == [("p.x", "n"), ("p.y", "n")]
    assert dict(made.spec.time[0].sizes) == {"n": 1000}
    stray = dataclasses.replace(passed, buffers=(*buffers, dataclasses.replace(buffers[0], at=24)))
    _changed(tmp_path, "k", launches=(dataclasses.replace(launch, arguments=(stray,)),))
    made = recorded_spec(tmp_path, "k")
    assert made is not None
    assert any("a struct with addresses" in gap for gap in made.missing)
