"""Predictions of kernels with known behaviour: order, bounds, and two times measured on an H200."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from engine.compile.compiler import Translation
from engine.compile.nvrtc import NvrtcCompiler
from engine.errors import RefusedError
from engine.model import LaunchConfig
from engine.predict.counts import AccessCounts, KernelCounts, Kind, SiteCounts
from engine.predict.predictor import Predictor
from engine.predict.targets import figures_for
from engine.predict.timing_model import Fitted, Prediction, _atomics_s, executions, merged
from engine.process import sandbox as module
from tests.runtime import kept_code

Predict = Callable[..., Prediction]


@pytest.fixture(scope="module")
def predictor() -> Predictor:
    works, why = module.available()
    if not works:
        pytest.skip(f"no sandbox here: {why}")
    return Predictor("sm_90", sandbox=module.sandbox())


@pytest.fixture(scope="module")
def compiler() -> Iterator[NvrtcCompiler]:
    with NvrtcCompiler("sm_90", cache=kept_code(), sandbox=module.sandbox(), jobs=1) as made:
        yield made


@pytest.fixture(scope="module")
def predict(predictor: Predictor, compiler: NvrtcCompiler) -> Predict:
    def one(
        text: str, launch: LaunchConfig, sites: tuple[SiteCounts, ...], read: float, written: float, blocks: float = 0.0
    ) -> Prediction:
        binary = compiler.compile(Translation(text, "a.cu", ("k",), line_info=True))
        counts = AccessCounts((KernelCounts(launch, sites, read, written, block_load_bytes=blocks),))
        return predictor.predict(binary, [launch], counts)

    return one


def line(blocks: int, threads: int, shared: int = 0) -> LaunchConfig:
    return LaunchConfig((blocks, 1, 1), (threads, 1, 1), shared)


COPY = (
    "__global__ void k(const float* a, float* b, int n) {\n int i = blockIdx.x * blockDim.x + threadIdx.x;\n"
    " if (i < n)\n  b[i] = a[i] * 2;\n}"
)
STRIDED = COPY.replace("a[i]", "a[(i % 4096) * 4096 + i / 4096]")
SIZE = 1 << 26


def copying(load_sectors: float) -> tuple[SiteCounts, ...]:
    warps = SIZE / 32
    return (
        SiteCounts(4, "global", "load", 4, warps, SIZE, warps * load_sectors, cache_lines=warps * load_sectors / 4),
        SiteCounts(4, "global", "store", 4, warps, SIZE, warps * 4, cache_lines=warps),
    )


def test_a_large_copy_takes_what_the_memory_allows(predict: Predict) -> None:
    warps = SIZE / 4 / 32
    sites = (
        SiteCounts(4, "global", "load", 16, warps, SIZE / 4, warps * 16, cache_lines=warps * 4),
        SiteCounts(4, "global", "store", 16, warps, SIZE / 4, warps * 16, cache_lines=warps * 4),
    )
    text = COPY.replace("float*", "float4*").replace("a[i] * 2", "a[i]")
    found = predict(text, line(SIZE // 4 // 256, 256), sites, 4.0 * SIZE, 4.0 * SIZE)
    assert found.bound == "memory"
    assert 1.0 <= found.time_us / (8 * SIZE / 4.17e12 * 1e6) < 1.4
    assert found.arch == "sm_90"
    # One element for each thread: too few bytes in flight. Such a copy's bytes take a stencil 249 µs on an H200.
    narrow = predict(COPY, line(SIZE // 256, 256), copying(4), 4.0 * SIZE, 4.0 * SIZE)
    assert narrow.bound == "latency"
    assert 1.3 * found.time_us < narrow.time_us < 300


def test_strided_loads_cost_more_and_are_named(predict: Predict) -> None:
    near = predict(COPY, line(SIZE // 256, 256), copying(4), 4.0 * SIZE, 4.0 * SIZE)
    # Neighbours in a sector belong to threads 4096 apart, so to another block: each block touches a sector per load.
    far = predict(STRIDED, line(SIZE // 256, 256), copying(32), 4.0 * SIZE, 4.0 * SIZE, 32.0 * SIZE)
    assert far.time_us > 1.1 * near.time_us
    assert far.terms["cache"] > 4 * near.terms["cache"]
    assert any("Line 4: 32.0 sectors per load request (ideal: 4.0)" in said for said in far.sentences)
    assert not any("sectors per" in said for said in near.sentences)


def test_the_naive_product_is_near_its_measured_time(predict: Predict) -> None:
    # One thread per element, 2048³ in float: 3.18 ms on an H200.
    n = 2048
    text = (
        "__global__ void k(const float* a, const float* b, float* c, int n) {\n"
        " int col = blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.y * blockDim.y + threadIdx.y;\n"
        " if (row < n && col < n) { float s = 0;\n"
        "  for (int i = 0; i < n; i++)\n"
        "   s += a[row * n + i] * b[i * n + col];\n"
        "  c[row * n + col] = s; }\n}"
    )
    warps = n * n / 32
    sites = (
        SiteCounts(5, "global", "load", 4, warps * n, warps * n * 32, warps * n * 2, "a"),
        SiteCounts(5, "global", "load", 4, warps * n, warps * n * 32, warps * n * 2, "b"),
        SiteCounts(6, "global", "store", 4, warps, warps * 32, warps * 4, "c"),
    )
    found = predict(text, LaunchConfig((n // 16, n // 16, 1), (16, 16, 1)), sites, 8.0 * n * n, 4.0 * n * n)
    assert found.bound == "load/store units"
    assert 2000 < found.time_us < 5000


def test_products_on_tensor_cores_take_their_time(predict: Predict) -> None:
    text = (
        "__global__ void k(float* c, int n) {\n float s[4] = {}; unsigned a = threadIdx.x, b = 1;\n"
        "#pragma unroll 1\n"
        " for (int i = 0; i < 512; ++i)\n"
        '  asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%4,%4,%4}, {%5,%5}, {%0,%1,%2,%3};"\n'
        '   : "+f"(s[0]), "+f"(s[1]), "+f"(s[2]), "+f"(s[3]) : "r"(a), "r"(b));\n'
        " c[threadIdx.x] = s[0] + s[1] + s[2] + s[3]; }"
    )
    found = predict(text, line(132 * 32, 256), (), 0.0, 0.0)
    assert found.terms["compute"] == pytest.approx(512 * 7.3 * 64 / 1.98e3)  # each scheduler has 64 warps


def test_a_warp_per_row_beats_a_thread_per_row(predict: Predict) -> None:
    rows = cols = 4096
    body = (
        " float m = -1e30f;\n"
        " for (int i = {start}; i < n; i += {step})\n"
        "  m = fmaxf(m, x[r * n + i]);\n"
        "{reduce}"
        " y[r] = m; }}"
    )
    slow = (
        "__global__ void k(const float* x, float* y, int n) {\n int r = blockIdx.x * blockDim.x + threadIdx.x;\n"
        + body.format(start="0", step="1", reduce="")
    )
    fast = (
        "__global__ void k(const float* x, float* y, int n) {\n int r = blockIdx.x * 4 + threadIdx.x / 32;\n"
        + body.format(
            start="threadIdx.x % 32",
            step="32",
            reduce=" for (int o = 16; o; o >>= 1) m = fmaxf(m, __shfl_xor_sync(~0u, m, o));\n",
        )
    )
    lanes = float(rows * cols)

    def loads(sectors: float, requests: float) -> SiteCounts:
        return SiteCounts(5, "global", "load", 4, requests, lanes, requests * sectors)

    store: Kind = "store"
    first = predict(
        slow,
        line(rows // 128, 128),
        (loads(32, lanes / 32), SiteCounts(6, "global", store, 4, 128, 4096, 512)),
        lanes * 4,
        rows * 4,
    )
    second = predict(
        fast,
        line(rows // 4, 128),
        (loads(4, lanes / 32), SiteCounts(7, "global", store, 4, 4096, 4096 * 32, 4096)),
        lanes * 4,
        rows * 4,
    )
    assert first.time_us > 3 * second.time_us
    assert any("SMs get a block" in said for said in first.sentences)


def test_bank_conflicts_cost_and_are_named(predict: Predict) -> None:
    text = (
        "__global__ void k(float* x, int n) {\n __shared__ float s[32][PITCH];\n"
        " for (int i = 0; i < n; i++) {\n  s[threadIdx.y][threadIdx.x] = i;\n  __syncthreads();\n"
        "  x[threadIdx.x] = s[threadIdx.x][threadIdx.y];\n  __syncthreads(); }\n}"
    )
    requests = 1e6

    def run(pitch: str, passes: float) -> Prediction:
        sites = (
            SiteCounts(4, "shared", "store", 4, requests, requests * 32, requests),
            SiteCounts(6, "shared", "load", 4, requests, requests * 32, requests * passes),
            SiteCounts(6, "global", "store", 4, requests, requests * 32, requests * 4),
        )
        return predict(text.replace("PITCH", pitch), LaunchConfig((132, 1, 1), (32, 32, 1)), sites, 0.0, 4096.0)

    bad, good = run("32", 32), run("33", 1)
    assert bad.time_us > good.time_us
    assert bad.bound == "shared memory"
    assert any("bank conflicts, 32.0 passes per load" in said for said in bad.sentences)


def test_contended_atomics_bound_a_kernel(predict: Predict) -> None:
    text = (
        "__global__ void k(const float* x, float* y, int n) {\n int i = blockIdx.x * blockDim.x + threadIdx.x;\n"
        " if (i < n)\n  atomicAdd(y, x[i]);\n}"
    )
    n = 1 << 24
    sites = (
        SiteCounts(4, "global", "load", 4, n / 32, n, n / 8),
        SiteCounts(4, "global", "atomic", 4, n / 32, n, n / 32, same_address=float(n)),
    )
    found = predict(text, line(n // 256, 256), sites, 4.0 * n, 32.0)
    assert found.bound == "atomics"
    assert found.time_us > 5000


def test_a_vector_atomic_is_cheaper_than_its_elements() -> None:
    """Rows of 64 floats added to by float4 take 66 µs on an H200 where 64 additions of a float take 141."""

    def seconds(lanes: float) -> float:
        same = lanes / 32
        site = SiteCounts(3, "global", "atomic", 4, lanes / 32, lanes, float(1 << 22), same_address=same)
        counts = KernelCounts(line(1 << 17, 256), (site,), 7e7, 3.3e7)
        return _atomics_s(counts, Fitted())

    scalar, vector = seconds(float(1 << 25)), seconds(float(1 << 23))
    assert 90e-6 < scalar < 141e-6
    assert vector == pytest.approx(scalar / 4)


def test_an_atomic_alone_in_its_warp_is_counted_once() -> None:
    """131,072 additions of one lane to one address were predicted to take 629 µs; the kernel around them takes 239 on an H200."""
    n = float(1 << 17)
    site = SiteCounts(3, "global", "atomic", 4, n, n, n, same_address=n)
    assert _atomics_s(KernelCounts(line(1 << 17, 256), (site,), 4.0, 4.0), Fitted()) == pytest.approx(n * 2.4e-9)


def test_executions_follow_the_counts(predictor: Predictor, compiler: NvrtcCompiler) -> None:
    text = (
        "__global__ void k(const float* x, float* y, int n) {\n float s = 0;\n#pragma unroll 4\n"
        " for (int i = threadIdx.x; i < n; i += 32)\n  s += x[i];\n y[threadIdx.x] = s;\n}"
    )
    binary = compiler.compile(Translation(text, "a.cu", ("k",), line_info=True))
    code = predictor.code(binary)[binary.entries[0]]
    launch = line(10, 32)
    counts = KernelCounts(launch, (SiteCounts(5, "global", "load", 4, 4000, 128000, 16000),), 1.0, 1.0)
    runs = executions(code, counts, launch)
    assert runs[0] == 10
    widest = max(range(1, len(code.loops)), key=lambda i: code.loops[i].loads)
    assert runs[widest] * code.loops[widest].loads == pytest.approx(4000, rel=0.1)
    assert predictor.code(binary) is predictor.code(binary)


def test_what_cannot_run_is_refused(predict: Predict, predictor: Predictor, compiler: NvrtcCompiler) -> None:
    with pytest.raises(RefusedError, match="no block"):
        predict(COPY, line(1, 256, 300 << 10), copying(4), 1.0, 1.0)
    binary = compiler.compile(Translation(COPY, "a.cu", ("k",)))
    with pytest.raises(RefusedError, match="one launch"):
        predictor.predict(binary, [], AccessCounts(()))


def test_empty_counts_still_give_a_time(predict: Predict) -> None:
    found = predict(COPY, line(1, 32), (), 0.0, 0.0)
    assert 0 < found.time_us < 10
    assert found.bound == "launch"


def test_the_longest_warp_bounds_a_kernel(predictor: Predictor, compiler: NvrtcCompiler) -> None:
    binary = compiler.compile(Translation(COPY, "a.cu", ("k",), line_info=True))
    launch = line(1024, 256)

    def run(longest: float) -> Prediction:
        counts = KernelCounts(launch, copying(4), 4.0 * SIZE, 4.0 * SIZE, max_warp_loads=longest)
        return predictor.predict(binary, [launch], AccessCounts((counts,)))

    assert run(100_000).terms["latency"] > 10 * run(1).terms["latency"]
    assert run(100_000).bound == "latency"


def test_scattered_stores_are_paid_one_by_one(predict: Predict) -> None:
    # A naive transpose: the stores of a warp go to 32 sectors, 4 bytes each, and L1 does not gather them.
    text = COPY.replace("b[i]", "b[(i % 4096) * 4096 + i / 4096]")
    warps = SIZE / 32
    near = predict(COPY, line(SIZE // 256, 256), copying(4), 4.0 * SIZE, 4.0 * SIZE)
    sites = (copying(4)[0], SiteCounts(4, "global", "store", 4, warps, SIZE, warps * 32))
    far = predict(text, line(SIZE // 256, 256), sites, 4.0 * SIZE, 4.0 * SIZE)
    assert far.bound == "cache"
    assert far.time_us > 1.4 * near.time_us


def test_accesses_that_the_compiler_joins_are_counted_once(predictor: Predictor, compiler: NvrtcCompiler) -> None:
    text = (
        "__global__ void k(float* x) {\n __shared__ __align__(16) float s[256];\n s[threadIdx.x] = x[threadIdx.x];\n __syncthreads();\n"
        " float t = 0;\n for (int i = 0; i < 64; i++)\n  t = fmaf(t, t, s[i]);\n x[threadIdx.x] = t;\n}"
    )
    binary = compiler.compile(Translation(text, "a.cu", ("k",), line_info=True))
    code = predictor.code(binary)[binary.entries[0]]
    sites = (
        SiteCounts(7, "shared", "load", 4, 64 * 8, 64 * 256, 64 * 8),
        SiteCounts(3, "shared", "store", 4, 8, 256, 8),
        SiteCounts(8, "global", "store", 4, 8, 256, 32),
    )
    load, shared_store, store = merged(code, KernelCounts(line(1, 256), sites, 1.0, 1.0), line(1, 256)).sites
    assert (load.requests, load.passes) == (64 * 8 / 4, 64 * 8 / 4)  # sixteen LDS.128 for 64 loads
    assert (shared_store, store) == sites[1:]


def test_a_loop_at_lines_that_no_thread_came_to_does_not_run(predictor: Predictor, compiler: NvrtcCompiler) -> None:
    text = (
        "__global__ void k(const float* x, float* y, int n, int m) {\n float s = 0;\n"
        " for (int i = 0; i < n; i++)\n  s += x[i * 64];\n"
        " for (int i = 0; i < m; i++)\n  s *= x[i * 96 + 5];\n"
        " y[threadIdx.x] = s;\n}"
    )
    binary = compiler.compile(Translation(text, "a.cu", ("k",), line_info=True))
    code = predictor.code(binary)[binary.entries[0]]
    sites = (
        SiteCounts(4, "global", "load", 4, 1000, 32000, 1000),
        SiteCounts(7, "global", "store", 4, 1, 32, 4),
    )
    runs = executions(code, KernelCounts(line(1, 32), sites, 1.0, 1.0), line(1, 32))
    visited = [run for loop, run in zip(code.loops, runs, strict=True) if any(m.line == 4 for m in loop.memory)]
    skipped = [
        run for loop, run in list(zip(code.loops, runs, strict=True))[1:] if any(m.line == 6 for m in loop.memory)
    ]
    assert max(visited) > 50
    assert skipped
    assert set(skipped) == {0.0}


def test_a_store_of_part_of_a_sector_costs_several(predict: Predict) -> None:
    warps = SIZE / 32

    def stored(lanes: float) -> float:
        store = SiteCounts(4, "global", "store", 4, warps, lanes, warps * 4, cache_lines=warps)
        return predict(COPY, line(SIZE // 256, 256), (copying(4)[0], store), 4.0 * SIZE, 4.0 * SIZE).terms["cache"]

    assert stored(SIZE / 4) > 2 * stored(SIZE)


def test_many_small_blocks_are_bound_by_their_starts(predict: Predict) -> None:
    # A stencil of 8192 by 8192 in blocks of 8 by 8 took 634 µs on an H200, in blocks of 32 by 8 it took 249.
    sites = copying(4)
    small = predict(COPY, line(SIZE // 64, 64), sites, 4.0 * SIZE, 4.0 * SIZE)
    assert small.bound == "block starts"
    assert 500 < small.time_us < 800


def test_what_a_block_shares_comes_from_l2_once(predict: Predict) -> None:
    # Every warp of a block reads the same sectors: with the counts of a block they are paid once, else each time.
    warps = SIZE / 32

    def cache(block_bytes: float, total: float) -> float:
        load = SiteCounts(
            4, "global", "load", 4, warps, SIZE, warps * 4, "a", cache_lines=warps, block_bytes=block_bytes
        )
        sites = (load, copying(4)[1])
        return predict(COPY, line(SIZE // 256, 256), sites, 1 << 20, 4.0 * SIZE, total).terms["cache"]

    assert cache(SIZE / 2.0, SIZE / 2.0) < 0.7 * cache(4.0 * SIZE, 4.0 * SIZE)


def test_a_prediction_is_never_below_what_its_counts_make_compulsory(
    predictor: Predictor, compiler: NvrtcCompiler
) -> None:
    text = (
        "__global__ void k(const float* x, float* y, int n) {\n float s = 0;\n"
        " for (int i = 0; i < n; i++)\n  s = fmaf(s, s, x[i]);\n y[blockIdx.x * 256 + threadIdx.x] = s;\n}"
    )
    binary = compiler.compile(Translation(text, "a.cu", ("k",), line_info=True))
    launch = line(1320, 256)
    warps, trips = 1320 * 8.0, 4096.0
    sites = (
        SiteCounts(4, "global", "load", 4, warps * trips, warps * trips * 32, warps * trips, cache_lines=warps * trips),
        SiteCounts(5, "global", "store", 4, warps, warps * 32, warps * 4, cache_lines=warps),
    )
    counts = KernelCounts(launch, sites, 16384.0, warps * 128)
    found = predictor.predict(binary, [launch], AccessCounts((counts,)))
    peak = figures_for("sm_90")
    flops_us = warps * trips * 32 / (peak.fp32_lanes * peak.target.multiprocessors * peak.clock_hz) * 1e6
    assert found.time_us > flops_us
    assert found.time_us > (16384.0 + warps * 128) / peak.dram_bytes_s * 1e6


ROUNDS = """__global__ void k(float* y, int n) {
  float v = y[threadIdx.x];
  %s
  for (int j = 0; j < %s; j++) v = v * v + 1.f;
  y[threadIdx.x] = v;
}"""


@pytest.mark.parametrize("bound", ["n", "48"])
def test_unrolling_does_not_change_what_a_loop_computes(
    predictor: Predictor, compiler: NvrtcCompiler, bound: str
) -> None:
    """A loop without memory accesses once had eight trips however large the compiler had made its body: 16 times the work."""
    launch = line(1, 32)
    work = []
    for pragma in ("#pragma unroll 1", "", "#pragma unroll 4", "#pragma unroll 16"):
        binary = compiler.compile(Translation(ROUNDS % (pragma, bound), "a.cu", ("k",), line_info=True))
        (code,) = predictor.code(binary).values()
        runs = executions(code, KernelCounts(launch, (), 0, 0), launch)
        work.append(sum(loop.fp32 * run for loop, run in zip(code.loops, runs, strict=True)))
    assert max(work) <= 2.1 * min(work)  # the compiler also writes a few trips of the rest as straight code
    if bound == "48":
        assert (
            48 <= work[0] <= 50
        )  # no more than the machine code can execute; a constant may be made by such an instruction
