"""Launches that depend on what the host keeps in an object, of which a kernel is passed a copy."""

import pytest

from engine.spec.draft import draft
from engine.spec.launch_config import evaluate
from tests.engine.spec.drafts import program

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
