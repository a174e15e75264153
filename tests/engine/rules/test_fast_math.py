from tests.engine.rules.test_unroll import LAUNCH, ROWS, SIZES
from tests.engine.rules.workbench import compiles, device, make, one, propose


def test_reciprocal_root() -> None:
    source = ROWS.replace("y[i] = sum;", "y[i] = 1.0f / sqrtf(sum + 1e-5f);")
    edited = one(make(source, LAUNCH, **SIZES), "fast_math", form="rsqrt")
    assert "y[i] = rsqrtf(sum + 1e-5f);" in device(edited)
    compiles(edited)


def test_intrinsics_also_in_functions_of_the_kernel_alone() -> None:
    source = "__device__ float f(float v) { return expf(v); }\n" + ROWS.replace(
        "x[i * m + j];", "f(x[i * m + j]) + logf(2.0f);"
    )
    edited = one(make(source, LAUNCH, **SIZES), "fast_math", form="intrinsics")
    assert "return __expf(v);" in device(edited)
    assert "__logf(2.0f)" in device(edited)
    compiles(edited)


def test_functions_that_others_call_stay() -> None:
    source = (
        "__device__ float f(float v) { return expf(v); }\n__device__ float g(float v) { return f(v); }\n"
        + ROWS.replace("x[i * m + j];", "f(x[i * m + j]);")
    )
    assert not propose(make(source.replace("__device__ float g", "__device__ float g"), LAUNCH, **SIZES), "fast_math")


def test_double_precision_stays() -> None:
    source = ROWS.replace("y[i] = sum;", "y[i] = 1.0 / sqrt((double)sum) + exp((double)sum);")
    assert not propose(make(source, LAUNCH, **SIZES), "fast_math")
