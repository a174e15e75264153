from engine.compile.built import Built
from engine.model import Binary, LaunchConfig, Program, Resources
from engine.profile.evidence import array_bytes, evidence_for, heaviest_case, request_for
from engine.spec.kernel_spec import Argument, Case, KernelSpec, Step

SPEC = KernelSpec(
    file="k.cu",
    steps=(Step("k", "", ("x", "y", "n")),),
    arguments=(Argument("x", "float", "in", "n"), Argument("y", "double", "inout", "n"), Argument("n", "int", "scalar")),
    check=(Case("small", {"n": 4}),),
    time=(Case("a", {"n": 1000}), Case("b", {"n": 3000}), Case("c", {"n": 2000})),
)  # fmt: skip


def built(text: str, arch: str = "sm_90") -> Built:
    binary = Binary(b"", arch, ("k",), (Resources(40, 0, 0, 0, 0),), "hash")
    launches = tuple((LaunchConfig((n, 1, 1), (64, 1, 1)),) for n in (1, 10, 30, 20))
    return Built(Program({"k.cu": b""}, "k.cu"), text, ("k",), binary, launches)


def test_what_is_read_and_written_counts_twice():
    assert array_bytes(SPEC, 2) == 3000 * (4 + 2 * 8)


def test_the_heaviest_timing_case_is_asked_for():
    assert heaviest_case(SPEC) == 2
    request = request_for(built(""), SPEC)
    assert (request.case, request.launches[0].blocks, request.key) == (2, 30, "hash")
    assert request_for(built(""), SPEC, 3, "id").launches[0].blocks == 20


def test_the_width_of_an_access_is_claimed_only_where_the_text_shows_no_wider_one():
    (plain,) = evidence_for(built("__global__ void k(const float* x, double* y, int n) { y[0] += x[n]; }"), SPEC, 2)
    assert plain.load_width == plain.store_width == 8.0
    for text in (
        "float4 v;",
        "reinterpret_cast<const T*>(x)",
        "(const float4*)x",
        "uint2 u",
        "__half2 h",
        "memcpy_async(a)",
    ):
        (wide,) = evidence_for(built(text), SPEC, 2)
        assert wide.load_width is None, text


def test_occupancy_where_the_architecture_is_known():
    (known,) = evidence_for(built(""), SPEC, 2)
    assert known.occupancy is not None
    assert known.occupancy.limit == "grid"
    (unknown,) = evidence_for(built("", "sm_123"), SPEC, 2)
    assert unknown.occupancy is None
