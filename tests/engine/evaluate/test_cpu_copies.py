"""Kernels that copy: the control that gives a copy of an input for the output is no control for them, and is one for all others."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from engine.cuda.load import load_program
from engine.errors import RefusedError
from engine.run.machine import Machine
from engine.spec.find import find_spec
from tests.adversarial.conftest import cpu as cpu

TEXT = """\
// optiml: args.x = {{ role = "in", size = "n", fill = {fill} }}
// optiml: args.y = {{ role = "out", size = "n" }}
// optiml: check = [{{ n = 1 }}, {{ n = 333 }}, {{ n = 700 }}]
// optiml: time = [{{ n = 1000000 }}]
__global__ void take(const {type}* x, {type}* y, int n) {{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = {value};
}}

void launch(const {type}* x, {type}* y, int n) {{
    take<<<(n + 255) / 256, 256>>>(x, y, n);
}}
"""
NORMAL, SMALL = '"normal"', '{ kind = "integers", low = 0, high = 100 }'
INSIDE = '{ kind = "uniform", low = -1, high = 1 }'


def _open(cpu: Machine, folder: Path, **holes: str) -> None:
    (folder / ".git").mkdir()
    path = folder / "k.cu"
    path.write_text(TEXT.format(**holes))
    spec, spec_path = find_spec(folder, path)
    with closing(cpu.evaluator(spec, folder, spec_path)) as evaluator:
        evaluator.open(load_program(path, spec_file=spec_path))


@pytest.mark.parametrize(
    ("type", "fill"), [("float", NORMAL), ("int", SMALL), ("unsigned char", SMALL), ("double2", NORMAL)]
)
def test_a_copy_of_whatever_stands_in_its_input_is_accepted(cpu: Machine, tmp_path: Path, type: str, fill: str) -> None:
    """`memcpy` kernels were refused: "a copy of an input would be accepted", which is their result."""
    _open(cpu, tmp_path, type=type, fill=fill, value="x[i]")


@pytest.mark.parametrize(
    ("type", "fill", "value"),
    [
        ("float", INSIDE, "fminf(x[i], 1.0f)"),
        ("float", '{ kind = "uniform", low = 0, high = 1 }', "fmaxf(x[i], 0.0f)"),
        ("int", SMALL, "x[i] < 1000 ? x[i] : 0"),
        ("int", SMALL, "x[i] & 127"),
    ],
)
def test_a_kernel_that_copies_what_its_spec_draws_is_refused(
    cpu: Machine, tmp_path: Path, type: str, fill: str, value: str
) -> None:
    """Its inputs never reach what else it does: an edit that drops that would pass."""
    with pytest.raises(RefusedError, match="a copy of an input in 'y' would be accepted as a correct result"):
        _open(cpu, tmp_path, type=type, fill=fill, value=value)
