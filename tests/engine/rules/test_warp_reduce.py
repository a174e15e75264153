"""Reduction trees in shared memory: which spellings are known, what takes their place, and that it gives the same."""

from __future__ import annotations

import pytest

from engine.rewrite.site import Site
from tests.engine.rules.equality import assert_equal
from tests.engine.rules.workbench import compiles, device, make, one, propose

SUM = """
__global__ void total(const float* x, float* y, int n) {
    __shared__ float part[128];
    const int t = threadIdx.x;
    float sum = 0.0f;
    for (int i = blockIdx.x * blockDim.x + t; i < n; i += blockDim.x * gridDim.x) {
        sum += x[i];
    }
    part[t] = sum;
    __syncthreads();
    for (int s = blockDim.x / 2; s > 0; s >>= 1) {
        if (t < s) {
            part[t] += part[t + s];
        }
        __syncthreads();
    }
    if (t == 0) {
        y[blockIdx.x] = part[0];
    }
}
"""
LAUNCH = "    total<<<3, 128>>>(x, y, n);"
LOOP = SUM[SUM.index("    for (int s") : SUM.index("    if (t == 0)")]
STEP = "part[t] += part[t + s];"


def site(source: str = SUM, launch: str = LAUNCH) -> Site:
    return make(source, launch, elements={"y": "3"})


def test_the_whole_tree_in_registers() -> None:
    edited = one(site(), "warp_reduce", form="registers")
    kernel = device(edited).split("__global__")[1]
    assert "for (int s" not in kernel
    assert "    block_sum(part);\n    if (t == 0) {" in kernel
    assert "value = threadIdx.x < blockDim.x / 32 ? part[threadIdx.x] : static_cast<float>(0);" in device(edited)
    compiles(edited)
    assert not propose(edited, "warp_reduce")


def test_a_pragma_goes_with_its_loop() -> None:
    source = SUM.replace("    for (int s", "    #pragma unroll 4\n    for (int s")
    edited = device(one(site(source), "warp_reduce", form="registers"))
    assert "#pragma" not in edited
    assert "    __syncthreads();\n    block_sum(part);\n    if (t == 0) {" in edited
    assert "    #pragma unroll 4\n    for (int s" in device(one(site(source), "warp_reduce", form="tail"))


def test_the_last_levels_alone() -> None:
    edited = one(site(), "warp_reduce", form="tail")
    assert "for (int s = blockDim.x / 2; s >= 32; s >>= 1) {" in device(edited)
    assert "    warp_sum(part);\n    if (t == 0) {" in device(edited)
    compiles(edited)


TWO = (
    SUM.replace("float part[128];", "float part[128], most[128];")
    .replace("    part[t] = sum;", "    most[t] = t < n ? x[t] : x[0];\n    part[t] = sum;")
    .replace(STEP, STEP + "\n            most[t] = fmaxf(most[t], most[t + s]);")
    .replace("= part[0]", "= part[0] + most[t]")
)
UPWARD = LOOP.replace("s = blockDim.x / 2; s > 0; s >>= 1", "s = 1; s < blockDim.x; s *= 2")
VOLATILE = SUM.replace("s > 0", "s > 32").replace(
    "    if (t == 0)",
    "    if (t < 32) {\n        volatile float* v = part;\n"
    + "".join(f"        v[t] += v[t + {d}];\n" for d in (32, 16, 8, 4, 2, 1))
    + "    }\n    if (t == 0)",
)
CALLED = (
    "__device__ void last(volatile float* v, int k) {\n"
    + "".join(f"    v[k] = v[k] + v[k + {d}];\n" for d in (32, 16, 8, 4, 2, 1))
    + "}\n"
    + SUM.replace("s > 0", "s > 32").replace("    if (t == 0)", "    if (t < 32) last(part, t);\n    if (t == 0)")
)
SPELLINGS = {
    "two arrays, result by the first thread": TWO,
    "minimum by comparison, barrier first": SUM.replace("    __syncthreads();\n    for (int s", "    for (int s")
    .replace(
        LOOP.replace("    for", "    for"),
        LOOP.replace("        __syncthreads();\n", "")
        .replace("{\n        if", "{\n        __syncthreads();\n        if", 1)
        .replace(STEP, "if (part[t + s] < part[t]) part[t] = part[t + s];"),
    )
    .replace("sum += x[i]", "sum = fminf(sum, x[i])"),
    "upwards by remainder": SUM.replace(LOOP, UPWARD.replace("t < s", "t % (2 * s) == 0")),
    "upwards by index": SUM.replace(
        LOOP,
        UPWARD.replace("        if (t < s)", "        int at = 2 * s * t;\n        if (at < blockDim.x)").replace(
            STEP, "part[at] += part[at + s];"
        ),
    ),
    "constants": "#define THREADS 128\n" + SUM.replace("blockDim.x / 2", "THREADS / 2").replace("[128]", "[THREADS]"),
}


@pytest.mark.parametrize("name", SPELLINGS)
def test_spellings_give_the_same_results_without_races(name: str) -> None:
    found = site(SPELLINGS[name])
    edited = one(found, "warp_reduce", form="registers")
    compiles(edited)
    assert_equal(found, [edited], [{"n": 100}], races=True)


def test_both_forms_give_the_same_results_for_any_size() -> None:
    edited = [one(site(), "warp_reduce", form=form) for form in ("registers", "tail")]
    assert_equal(site(), edited, [{"n": 1}, {"n": 1003}])


@pytest.mark.parametrize(
    "step",
    [
        "part[t] = part[t] + part[t + s];",
        "part[t] = part[s + t] + part[t];",
        "part[t] = max(part[t], part[t + s]);",
        "part[t] = part[t] > part[t + s] ? part[t] : part[t + s];",
        "part[t] = (part[t + s] < part[t]) ? part[t + s] : part[t];",
        "if (part[t] < part[t + s]) { part[t] = part[t + s]; }",
    ],
)
def test_known_steps(step: str) -> None:
    compiles(one(site(SUM.replace(STEP, step)), "warp_reduce", form="registers"))


@pytest.mark.parametrize("source", [VOLATILE, CALLED], ids=["inline", "called"])
def test_a_volatile_warp_at_the_end_is_part_of_the_tree(source: str) -> None:
    for form in ("registers", "tail"):
        edited = one(site(source), "warp_reduce", form=form)
        assert "v[t]" not in device(edited)
        assert "last(part, t)" not in device(edited)
        compiles(edited)


def test_the_size_of_the_block_under_another_name() -> None:
    local = SUM.replace("    float sum", "    const int size = blockDim.x;\n    float sum").replace(
        "blockDim.x / 2", "size / 2"
    )
    compiles(one(site(local), "warp_reduce", form="registers"))
    given = SUM.replace("int n)", "int n, int size)").replace("blockDim.x / 2; s > 0", "size / 2; s >= 1")

    def of(size: int) -> Site:
        sizes = [{"n": 1 << 20, "size": size}]
        return make(given, LAUNCH.replace("y, n", "y, n, size"), sizes=sizes, check=sizes, elements={"y": "3"})

    compiles(one(of(128), "warp_reduce", form="registers"))
    assert not propose(of(256), "warp_reduce")


def test_barriers_of_a_cooperative_group() -> None:
    source = "#include <cooperative_groups.h>\nnamespace cg = cooperative_groups;\n" + SUM.replace(
        "    const int t", "    cg::thread_block cta = cg::this_thread_block();\n    const int t"
    ).replace("__syncthreads()", "cg::sync(cta)")
    edited = one(site(source), "warp_reduce", form="registers")
    assert "s >>= 1" not in device(edited)
    assert not propose(site(source.replace("this_thread_block", "this_grid")), "warp_reduce")
    assert propose(site(source.replace("cg::sync(cta)", "cta.sync()")), "warp_reduce")


def test_a_template_keeps_its_type() -> None:
    source = "template <typename T>\n" + SUM.replace("float", "T").replace("0.0f", "T(0)")
    edited = one(site(source, "    total<float><<<3, 128>>>(x, y, n);"), "warp_reduce", form="registers")
    assert "template <typename T>\n__device__ __forceinline__ void block_sum(T* part) {" in device(edited)
    compiles(edited, "total<float>")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("t < s)", "t < s - 1)"),  # not the whole tree
        (STEP, "part[t] -= part[t + s];"),
        (STEP, "part[t] += part[t + s + 1];"),
        (STEP, "part[t] += part[t + s]; y[t] = 0.0f;"),
        ("        __syncthreads();\n    }\n    if", "    }\n    if"),
        ("blockDim.x / 2", "blockDim.x / 4"),
        ("s >>= 1", "s >>= 2"),
        ("s > 0", "s > 1"),
        ("s > 0", "s > 32"),  # and nobody reduces the rest
        ("= part[0]", "= part[0] + part[1]"),
        ("    if (t == 0) {\n        y[blockIdx.x] = part[0];", "    if (t < 3) {\n        y[t] = part[t];"),
        ("const int t = threadIdx.x", "const int t = threadIdx.x + 1"),
        ("__shared__ float part[128]", "__shared__ float part[128][1]"),
        ("__shared__ float part", "__shared__ short part"),
    ],
)
def test_nothing_for_what_only_looks_like_a_tree(old: str, new: str) -> None:
    assert old in SUM
    assert not propose(site(SUM.replace(old, new)), "warp_reduce")


@pytest.mark.parametrize("block", ["96", "16", "dim3(16, 8)"])
def test_nothing_for_other_blocks(block: str) -> None:
    assert not propose(site(SUM, f"    total<<<3, {block}>>>(x, y, n);"), "warp_reduce")
