import pytest

from tests.engine.rules.workbench import compiles, device, make, one, propose

ROWS = """
__global__ void rows(const float* x, float* y, int n, int m) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        float sum = 0.0f;
        for (int j = 0; j < m; ++j) {
            sum += x[i * m + j];
        }
        y[i] = sum;
    }
}
"""
LAUNCH = "    rows<<<(n + 255) / 256, 256>>>(x, y, n, m);"
SIZES = {"sizes": [{"n": 4096, "m": 4096}], "check": [{"n": 7, "m": 13}], "elements": {"x": "n*m"}}


def test_pragma() -> None:
    edited = one(make(ROWS, LAUNCH, **SIZES), "unroll", factor="4")
    assert "        #pragma unroll 4\n        for (int j" in device(edited)
    compiles(edited)


def test_pragma_that_is_there_gets_another_factor() -> None:
    edited = one(make(ROWS, LAUNCH, **SIZES), "unroll", factor="4")
    again = one(edited, "unroll", factor="8")
    assert device(again).count("#pragma unroll") == 1
    assert "#pragma unroll 8\n" in device(again)
    assert not propose(again, "unroll", factor="8")


def test_constant_loop_is_unrolled_fully_where_the_compiler_would_not() -> None:
    source = "#define M 32\n" + ROWS.replace("j < m", "j < M").replace("+= x[i * m + j]", "+= expf(x[i * m + j])")
    edited = one(make(source, LAUNCH, **SIZES), "unroll", factor="full")
    assert "#pragma unroll\n" in device(edited)
    compiles(edited)
    for short in (source.replace("M 32", "M 12"), source.replace("expf(x[i * m + j])", "x[i * m + j]")):
        assert not propose(make(short, LAUNCH, **SIZES), "unroll", factor="full")
        held_back = short.replace("        for (int j", "        #pragma unroll 1\n        for (int j")
        assert propose(make(held_back, LAUNCH, **SIZES), "unroll", factor="full")


def test_an_index_ahead_by_steps_of_the_grid_is_compared_in_64_bits() -> None:
    """`c + 3 * step` as an int passes 2^31 at sizes for which `c + step` does not."""
    head, rest = ROWS.split("        for (int j = 0; j < m; ++j) {")
    source = head + "        for (int j = i; j < m; j += gridDim.x * blockDim.x) {" + rest
    edited = one(make(source, LAUNCH, **SIZES), "unroll", accumulators=4)
    text = device(edited)
    assert "const int end = max(static_cast<long long>(m) - static_cast<long long>(step) * 3, 0LL);" in text
    assert "for (; j < end; j += 4 * step) {" in text
    compiles(edited)


PACK = """
template <int WIDTH> struct pack {
    static constexpr int size = WIDTH;
};
"""


@pytest.mark.parametrize("bound", ["eight::size", "4 * N", "LANES"])
def test_loop_whose_constant_stands_elsewhere_is_unrolled_fully_or_not_at_all(bound: str) -> None:
    head = (
        PACK
        + "#define LANES (sizeof(float4) / sizeof(float))\nconstexpr int N = pack<4>::size;\nusing eight = pack<8>;\n"
    )
    long = ROWS.replace("j < m", f"j < {bound}").replace("+= x[i * m + j]", "+= expf(x[i * m + j]) - expf(x[j])")
    site = make(head + long, LAUNCH, **SIZES)
    factors = [p.parameters["factor"] for p in propose(site, "unroll") if "factor" in p.parameters]
    assert factors == ["full"]
    compiles(one(site, "unroll", factor="full"))
    assert not propose(make(head + ROWS.replace("j < m", f"j < {bound}"), LAUNCH, **SIZES), "unroll", factor="full")
    later = make(PACK + "__constant__ int late;\n" + ROWS.replace("j < m", "j < late"), LAUNCH, **SIZES)
    assert {p.parameters.get("factor") for p in propose(later, "unroll")} >= {"4", "8"}


def test_independent_accumulators() -> None:
    edited = one(make(ROWS, LAUNCH, **SIZES), "unroll", accumulators=4)
    text = device(edited)
    assert "float sum_1 = 0.0f, sum_2 = 0.0f, sum_3 = 0.0f;" in text
    assert "sum_3 += x[i * m + (j + 3)];" in text
    assert "sum += sum_1 + sum_2 + sum_3;" in text
    compiles(edited)


@pytest.mark.parametrize(
    ("written", "left"),
    [(" 8", "#pragma unroll 2\n"), (" 4", ""), ("", "#pragma unroll\n"), ("(16)", "#pragma unroll 4\n")],
)
def test_a_pragma_stays_with_the_loop_that_is_split(written: str, left: str) -> None:
    source = ROWS.replace("for (int j", f"#pragma unroll{written}\n        for (int j")
    text = device(one(make(source, LAUNCH, **SIZES), "unroll", accumulators=4))
    line = f"            {left}" if left else ""
    assert f"        int j = 0;\n{line}            for (; j + 3 < m; j += 4) {{" in text
    assert text.count("#pragma") == bool(left)


def test_maximum_starts_from_itself() -> None:
    source = ROWS.replace("sum += x[i * m + j];", "sum = fmaxf(sum, x[i * m + j]);")
    text = device(one(make(source, LAUNCH, **SIZES), "unroll", accumulators=2))
    assert "float sum_1 = sum;" in text
    assert "sum = fmaxf(sum, sum_1);" in text


def test_stride_that_is_an_expression_is_computed_once_in_the_variables_type() -> None:
    source = ROWS.replace("int j = 0; j < m; ++j", "int j = threadIdx.y; j < m; j += blockDim.y")
    edited = one(make(source, LAUNCH, **SIZES), "unroll", accumulators=2)
    assert "const int step = blockDim.y;" in device(edited)
    compiles(edited)


@pytest.mark.parametrize(
    "body",
    [
        "sum += x[j]; y[j] = sum;",  # a store
        "sum = sum * 0.5f + x[j];",  # a recurrence
        "sum += sum * x[j];",
        "if (x[j] > 0) sum += x[j];",
        "sum += x[j]; if (sum > 9) break;",
        "sum += atomicAdd(&y[0], 1.0f);",
        "sum -= x[j];",
    ],
)
def test_no_second_chain_for_what_is_no_reduction(body: str) -> None:
    site = make(ROWS.replace("sum += x[i * m + j];", body), LAUNCH, **SIZES)
    assert not propose(site, "unroll", accumulators=2)
    assert propose(site, "unroll", factor="4")


def test_nothing_beside_what_the_grammar_does_not_know() -> None:
    source = ROWS.replace("float sum = 0.0f;", "float sum = 0.0f; extern __shared__ __align__(16) float s[];")
    site = make(source, LAUNCH, **SIZES)
    assert site.unit.errors or site.kernel.node.has_error or "__align__" in device(site)
    if site.unit.errors:
        assert not propose(site, "unroll")
