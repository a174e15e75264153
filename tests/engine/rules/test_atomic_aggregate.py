import pytest

from tests.engine.rules.equality import assert_equal
from tests.engine.rules.workbench import compiles, device, make, one, propose

COUNT = """
__global__ void count(const unsigned char* data, int* bins, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        atomicAdd(&bins[data[i]], 1);
    }
}
"""
COUNT_LAUNCH = "    count<<<(n + 255) / 256, 256>>>(data, bins, n);"
SUM = """
__global__ void sum(const float* x, float* total, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float v = x[i];
    atomicAdd(total, v * v);
}
"""
SUM_LAUNCH = "    sum<<<(n + 255) / 256, 256>>>(x, total, n);"


def test_private_counters() -> None:
    edited = one(make(COUNT, COUNT_LAUNCH, elements={"bins": "256"}), "atomic_aggregate", elements=64, copies=1)
    text = device(edited)
    assert "__shared__ int block_bins[256];" in text
    assert "atomicAdd(&block_bins[bin], 1);" in text
    assert text.count("__syncthreads();") == 2
    assert "else" not in text  # a byte is always below 256
    assert edited.configs[0].grid[0] == (1 << 24) // (256 * 64)
    compiles(edited)


def test_wide_blocks_add_their_counters_once_for_all_that_the_target_holds() -> None:
    site = make(COUNT, COUNT_LAUNCH, elements={"bins": "256"})
    edited = one(site, "atomic_aggregate", threads=1024)
    assert (edited.configs[0].grid[0], edited.configs[0].block[0]) == (
        261,
        1024,
    )  # of 2 * 132 at once; 63 elements a thread
    compiles(edited)
    few = make(COUNT.replace("data[i]", "(data[i] & 3)"), COUNT_LAUNCH, elements={"bins": "5"})
    assert_equal(few, [one(few, "atomic_aggregate", threads=1024)], [{"n": 1}, {"n": 4099}], races=True)


@pytest.mark.parametrize(
    ("old", "new", "sizes"),
    [
        ("blockIdx.x * blockDim.x", "blockIdx.x * 256", 1 << 24),  # the kernel counts on its block
        ("__global__ void", "__global__ void __launch_bounds__(256)", 1 << 24),
        ("", "", 1 << 19),  # two elements for each thread that the target holds
    ],
)
def test_blocks_stay_where_wide_ones_do_not_fit(old: str, new: str, sizes: int) -> None:
    assert old in COUNT
    site = make(COUNT.replace(old, new), COUNT_LAUNCH, elements={"bins": "256"}, sizes=[{"n": sizes}])
    found = propose(site, "atomic_aggregate")
    assert found
    assert not any(p.parameters["threads"] for p in found)


def test_neighbouring_lanes_count_in_different_copies() -> None:
    site = make(COUNT, COUNT_LAUNCH, elements={"bins": "256"})
    edited = one(site, "atomic_aggregate", elements=64, copies=4)
    assert "__shared__ int block_bins[1024];" in device(edited)
    assert "[bin * 4 + threadIdx.x % 4]" in device(edited)
    compiles(edited)
    small = COUNT.replace("data[i]", "(data[i] & 3)")
    few = make(small, COUNT_LAUNCH, elements={"bins": "5"})
    assert_equal(few, [one(few, "atomic_aggregate", elements=64, copies=4)], [{"n": 1}, {"n": 4099}], races=True)


def test_as_many_private_counters_as_the_largest_case_has() -> None:
    sizes = {"sizes": [{"n": 1 << 24, "bins": 1024}], "check": [{"n": 903, "bins": 16}]}
    source = COUNT.replace("data[i]]", "min((int)data[i], nb - 1)]").replace("int n)", "int n, int nb)")
    site = make(source, COUNT_LAUNCH.replace("n);", "n, bins_count);"), elements={"bins": "bins"}, **sizes)
    assert "block_bins[1024];" in device(one(site, "atomic_aggregate", elements=64, copies=1))


def test_copies_of_many_counters_would_not_fit() -> None:
    found = propose(make(COUNT, COUNT_LAUNCH, elements={"bins": "4096"}), "atomic_aggregate")
    assert {p.parameters["copies"] for p in found} == {1}


def test_private_counters_read_sixteen_bytes_at_once() -> None:
    private = one(make(COUNT, COUNT_LAUNCH, elements={"bins": "256"}), "atomic_aggregate", elements=64, copies=1)
    edited = one(private, "row_vectorize", width=16)
    assert "const auto bin = data_pack.at[k];" in device(edited)
    compiles(edited)


def test_other_indices_keep_the_global_counter_for_what_does_not_fit() -> None:
    source = COUNT.replace("unsigned char", "int")
    edited = one(make(source, COUNT_LAUNCH, elements={"bins": "100"}), "atomic_aggregate", elements=64, copies=1)
    assert "if (static_cast<unsigned int>(bin) < 100u) {" in device(edited)
    assert "atomicAdd(&bins[bin], 1);" in device(edited)
    compiles(edited)


def test_sum_behind_an_early_return() -> None:
    edited = one(make(SUM, SUM_LAUNCH, elements={"total": "1"}), "atomic_aggregate", form="sum")
    text = device(edited)
    assert "return;" not in text.split("__global__")[1]
    assert "if (i < n) {" in text
    assert "partial += v * v;" in text
    assert "const float total2 = block_sum(partial);" in text
    compiles(edited)
    assert not propose(edited, "atomic_aggregate")


def test_sum_in_a_grid_stride_loop() -> None:
    coarse = one(make(SUM, SUM_LAUNCH, elements={"total": "1"}), "coarsen", factor=16, form="grid")
    edited = one(coarse, "atomic_aggregate", form="sum")
    assert "partial += v * v;" in device(edited)
    compiles(edited)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("atomicAdd(total, v * v);", "float before = atomicAdd(total, v);"),  # the old value is used
        ("atomicAdd(total, v * v);", "atomicAdd(total, v); total[0] = 0.0f;"),
        ("atomicAdd(total, v * v);", "atomicExch(total, v);"),
        ("atomicAdd(total, v * v);", "atomicAdd(total + 1, v);"),
    ],
)
def test_nothing_for_other_atomics(old: str, new: str) -> None:
    assert not propose(make(SUM.replace(old, new), SUM_LAUNCH, elements={"total": "2"}), "atomic_aggregate")


def test_nothing_where_the_block_is_no_multiple_of_a_warp() -> None:
    launch = "    sum<<<(n + 99) / 100, 100>>>(x, total, n);"
    assert not propose(make(SUM, launch, elements={"total": "1"}), "atomic_aggregate")


def test_nothing_where_the_number_of_counters_grows_with_the_input() -> None:
    assert not propose(make(COUNT.replace("unsigned char", "int"), COUNT_LAUNCH), "atomic_aggregate")
