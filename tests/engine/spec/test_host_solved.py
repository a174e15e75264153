"""Launches that depend on what the host keeps in an object, of which a kernel is passed a copy."""

from pathlib import Path

import pytest

from engine.arith import evaluate_int
from engine.cuda.parse import parse
from engine.spec.draft import draft
from engine.spec.drafted_callers import passed_products
from engine.spec.launch_config import evaluate
from tests.engine.spec.drafts import program, tried

CODE = """
struct Matrix { int width; };
__global__ void twice(float* x, int rows, int width) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < width) x[blockIdx.y * width + i] *= 2.0f;
}
void run(float* x, const Matrix* up, int rows) {
    int intermediate = up->width;
    twice<<<dim3((up->width + 255) / 256, rows), 256>>>(x, rows, intermediate);
}
"""


@pytest.mark.parametrize(
    "code", [CODE, CODE.replace("intermediate);", "up->width);"), CODE.replace("= up->width;", "= up->width * 2;")]
)
def test_a_field_of_an_object_is_the_parameter_that_it_is_passed_for(code: str) -> None:
    text = program(code)
    made = draft(text, "twice")
    assert not [gap for gap in made.missing if "launch" in gap]
    assert set(made.spec.time[0].sizes) == {"rows", "width"}
    halved = 2 if "* 2;" in code else 1
    launch = evaluate(text, made.spec, 0, {"rows": 3, "width": 2048})
    assert launch.grid == (2048 // halved // 256, 3, 1)


PRODUCT = """
__global__ void k(const float* x, float* y, int steps, int inner, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    int first = i / inner * inner * 2 + i % inner;
    y[i] = x[first] + 2.0f * x[first + inner];
}
void run(const float* x, float* y, int batch, int steps, int inner) {
    int n = batch * steps * inner;
    k<<<(n + 255) / 256, 256>>>(x, y, steps, inner, n);
}
"""


def test_a_size_that_the_host_computes_of_others_has_its_value(tmp_path: Path) -> None:
    """At a count that is no multiple of a row the kernel reads beyond any expression of the sizes."""
    made = tried(PRODUCT, tmp_path)
    assert made.missing == ()
    arguments = {a.name: a for a in made.spec.arguments}
    assert arguments["count"].value == "batch*steps*inner"
    assert evaluate_int(arguments["x"].size, {"batch": 3, "steps": 5, "inner": 7}) == 2 * 3 * 5 * 7
    assert set(made.spec.time[0].sizes) == {"batch", "steps", "inner"}


def test_a_product_of_what_has_a_value_stays_a_size(tmp_path: Path) -> None:
    """A loop around the launch tells the value of `steps`: no size of that name is there to multiply with."""
    looped = PRODUCT.replace(
        "    int n = batch", "    for (steps = 1; steps < 9; steps *= 2) {\n    int n = batch"
    ).replace(", n);", ", n); }")
    text = program(looped)
    assert passed_products(text, parse(text.data, "k.cu").kernel("k")) == {"count": ("batch", "steps", "inner")}
    made = tried(looped, tmp_path)
    arguments = {a.name: a for a in made.spec.arguments}
    assert (arguments["steps"].value, arguments["count"].value) == ("1", "")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("batch * steps * inner;", "batch * steps * inner;\n    if (batch > 3) n = 7;"),  # not always
        ("batch * steps * inner;", "batch + steps * inner;"),
        ("steps, inner, n)", "1, 2, n)"),  # of nothing that the kernel is given
    ],
)
def test_other_values_are_no_products(old: str, new: str) -> None:
    assert old in PRODUCT
    text = program(PRODUCT.replace(old, new))
    assert passed_products(text, parse(text.data, "k.cu").kernel("k")) == {}
