import pytest

from tests.engine.rules.workbench import SCALE, SCALE_LAUNCH, compiles, device, make, one, propose


def test_qualifies_every_pointer_and_makes_inputs_const() -> None:
    site = make(SCALE.replace("const float* x", "float *x"), SCALE_LAUNCH)
    edited = one(site, "restrict", restrict=2)
    assert "const float *__restrict__ x, float* __restrict__ y" in device(edited)
    compiles(edited)
    assert not propose(edited, "restrict", restrict=2)


def test_host_parameters_stay_as_they_are() -> None:
    edited = one(make(SCALE, SCALE_LAUNCH), "restrict", restrict=2)
    assert "void run(const float* x, float* y, float a, int n)" in edited.program.data.decode()


def test_prototype_is_edited_as_well() -> None:
    proto = "__global__ void scale(float* x, float* y, float a, int n);\n"
    site = make(proto + SCALE.replace("const float* x", "float* x"), SCALE_LAUNCH)
    edited = one(site, "restrict", restrict=2)
    assert device(edited).count("const float* ") == 2
    compiles(edited)


def test_crlf_is_kept() -> None:
    edited = one(make(SCALE, SCALE_LAUNCH, newline="\r\n"), "restrict", restrict=2)
    assert edited.program.data.count(b"\r\n") == edited.program.data.count(b"\n")


@pytest.mark.parametrize(
    "launch",
    ["    scale<<<(n + 255) / 256, 256>>>(y, y, a, n);", "    scale<<<(n + 255) / 256, 256>>>(y + n, y, a, n);"],
)
def test_nothing_where_a_launch_passes_one_buffer_twice(launch: str) -> None:
    assert not propose(make(SCALE, launch), "restrict")


def test_pointer_that_escapes_is_not_made_const() -> None:
    source = """
__device__ float first(float* p) { return p[0]; }
__global__ void scale(float* x, float* y, float a, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = a * first(x) + x[i];
}
"""
    edited = one(make(source, SCALE_LAUNCH), "restrict", restrict=2)
    assert "scale(float* __restrict__ x" in device(edited)
    compiles(edited)


@pytest.mark.parametrize("write", ["x[i] += 1.0f;", "x[i]++;", "*x = 0.0f;", "atomicAdd(&x[0], 1.0f);", "x = y;"])
def test_written_pointer_is_not_made_const(write: str) -> None:
    source = SCALE.replace("const float* x", "float* x").replace("y[i] = a * x[i];", f"y[i] = a; {write}")
    edited = one(make(source, SCALE_LAUNCH), "restrict", restrict=2)
    assert "const float" not in device(edited)
    compiles(edited)


def test_volatile_pointer_keeps_its_type() -> None:
    site = make(SCALE.replace("const float* x", "volatile float* x"), SCALE_LAUNCH)
    assert "const" not in device(one(site, "restrict", restrict=2))


def test_nothing_beside_a_conditional_in_the_body() -> None:
    source = SCALE.replace("        y[i]", "#ifdef FAST\n        y[i] = 0;\n#endif\n        y[i]")
    assert not propose(make(source, SCALE_LAUNCH), "restrict")


LONE = SCALE.replace("const float* x, ", "").replace("y[i] = a * x[i];", "y[i] = a * y[n - i];")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("__global__", "__device__ float table[256];\n__global__"),
        ("float a,", "Pair a,"),
        ("y[i] = a * y[n - i];", "keep(y[i]);"),
    ],
)
def test_one_pointer_has_nothing_to_overlap(old: str, new: str) -> None:
    types = "struct Pair { float* first; float second; };\n__device__ void keep(float x) { }\n"
    launch = SCALE_LAUNCH.replace("x, ", "")
    assert not propose(make(types + LONE, launch), "restrict")
    assert propose(make(types + LONE.replace(old, new), launch), "restrict")


def test_nothing_where_no_launch_is_seen() -> None:
    assert not propose(make(SCALE, ""), "restrict")


def test_nothing_where_a_caller_passes_one_buffer_twice() -> None:
    host = SCALE_LAUNCH + "\n}\nvoid twice(float* x, float a, int n) {\n    run(x, x, a, n);"
    assert not propose(make(SCALE, host), "restrict")
