"""Check sizes that no spec names: what is drawn could stand in the spec."""

from __future__ import annotations

import json
import random
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

from engine.compile.built import Built
from engine.cuda.load import load_program
from engine.errors import OptimlError
from engine.evaluate.build import Builder
from engine.evaluate.secret_cases import MOST, SecretCases
from engine.model import Binary, Target
from engine.process.decode import decode
from engine.spec.data import generate, scalars
from engine.spec.find import find_spec
from engine.spec.kernel_spec import KernelSpec

ROOT = Path(__file__).resolve().parents[3]


def test_drawn_sizes_of_a_sparse_matrix_belong_together() -> None:
    """601 entries were drawn for a matrix of 50 by 8, which ended the run."""
    path = ROOT / "benchmarks" / "suite" / "spmv.cu"
    spec, spec_path = find_spec(ROOT, path)
    program = load_program(path, spec_file=spec_path)
    builder = Builder(spec, ROOT, None, Target())  # type: ignore[arg-type]
    drawn = 0
    for seed in range(30):
        secret = SecretCases(spec, builder, random.Random(seed))
        secret.draw(program)
        for case in secret.cases:
            assert generate(spec, case, seed, "declared")
            drawn += 1
    assert drawn > 0


def test_one_case_has_other_values_of_real_scalars() -> None:
    """A factor that the spec names was written into a kernel, and every check passed that factor."""
    path = ROOT / "engine" / "selftest" / "originals" / "axpy.cu"
    spec, spec_path = find_spec(ROOT, path)
    program = load_program(path, spec_file=spec_path)
    builder = Builder(spec, ROOT, None, Target())  # type: ignore[arg-type]
    for seed in range(10):
        secret = SecretCases(spec, builder, random.Random(seed))
        secret.draw(program)
        secret.keep(secret.cases)
        first, *others = secret.cases
        assert first.sizes in [case.sizes for case in spec.check]
        assert scalars(spec, first)["a"] == np.float32(first.changed["a"]) != 2.5
        assert [case.changed for case in others] == [{}] * MOST
        (sent,) = decode(KernelSpec, json.loads(json.dumps(asdict(replace(spec, time=(first,)))))).time
        assert sent.changed == first.changed  # as a device's process has it


CHOSEN = """// optiml: args.x = { role = "inout", size = "n" }
// optiml: check = [{ n = 9, block_size = 256 }, { n = 903, block_size = 128 }]
// optiml: time = [{ n = 1048576, block_size = 256 }]
__global__ void twice(float* x, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] *= 2.0f;
}
void run(float* x, int n, int block_size) { twice<<<(n + block_size - 1) / block_size, block_size>>>(x, n); }
"""


@pytest.mark.parametrize("bound", [None, 512])
def test_a_block_that_the_host_chooses_can_be_launched_as_large_as_the_original_s(
    tmp_path: Path, bound: int | None
) -> None:
    """`__launch_bounds__(256)` was accepted for a host function that takes blocks up to 1024 threads."""
    (tmp_path / ".git").mkdir()
    (tmp_path / "k.cu").write_text(CHOSEN)
    spec, spec_path = find_spec(tmp_path, tmp_path / "k.cu")
    program = load_program(tmp_path / "k.cu", spec_file=spec_path)
    builder = Builder(spec, tmp_path, None, Target())  # type: ignore[arg-type]
    builder.original_binary = Binary(b"", "sm_90", ("twice",), (), "", (bound,))
    secret = SecretCases(spec, builder, random.Random(1))
    secret.cases = tuple(each.case for each in secret.callers(program))  # as where the original passes them all
    largest = bound or 1024
    assert max(int(sizes["block_size"]) for sizes in secret.sizes) == largest
    for most in (256, 512, 1024):
        binary = replace(builder.original_binary, most_threads=(most,))
        built = Built(program, "", (), binary, builder.launches(program))
        if most < largest:
            with pytest.raises(OptimlError, match=f"a block of {largest} threads exceeds .* of {most}"):
                secret.launches(built)
        else:
            assert secret.launches(built)


SIDES = """// optiml: args.x = { role = "inout", size = "rows*cols" }
// optiml: check = [{ rows = 3, cols = 5 }, { rows = 40, cols = 70 }]
// optiml: time = [{ rows = 4096, cols = 4096 }]
__global__ void twice(float* x, int rows, int cols) {
    int c = blockIdx.x * blockDim.x + threadIdx.x, r = blockIdx.y * blockDim.y + threadIdx.y;
    if (r < rows && c < cols) x[(size_t)r * cols + c] *= 2.0f;
}
void run(float* x, int rows, int cols) {
    twice<<<GRID, dim3(16, 16)>>>(x, rows, cols);
}
"""


@pytest.mark.parametrize(
    ("grid", "grows"), [("dim3((cols + 15) / 16, (rows + 15) / 16)", True), ("rows * cols", False)]
)
def test_a_million_rows_are_asked_of_an_edit_where_the_original_has_them_in_x(
    tmp_path: Path, grid: str, grows: bool
) -> None:
    """Blocks of 8 rows in y instead of 16 are no fault: such a grid had its end before."""
    (tmp_path / ".git").mkdir()
    (tmp_path / "k.cu").write_text(SIDES.replace("GRID", grid))
    spec, spec_path = find_spec(tmp_path, tmp_path / "k.cu")
    program = load_program(tmp_path / "k.cu", spec_file=spec_path)
    secret = SecretCases(spec, Builder(spec, tmp_path, None, Target()), random.Random(1))  # type: ignore[arg-type]
    secret.draw(program)
    assert any(sizes["rows"] > 1_000_000 for sizes in secret.sizes) is not grows


def test_launches_that_were_made_with_a_candidate_are_not_read_of_its_text_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A device read each candidate's text, and the best one's, for longer than it took to verify and time most of them."""
    path = ROOT / "examples" / "softmax.cu"
    spec, spec_path = find_spec(ROOT, path)
    program = load_program(path, spec_file=spec_path)
    builder = Builder(spec, ROOT, None, Target())  # type: ignore[arg-type]
    secret = SecretCases(spec, builder, random.Random(1))
    secret.draw(program)
    secret.keep(secret.cases)
    assert builder.further_sizes() == list(secret.sizes)
    named, binary = builder.launches(program), Binary(b"", "sm_90", (), (), "")
    plain = Built(program, "", (), binary, named)
    made = replace(plain, further=builder.further_launches(program))
    expected = secret.whole(plain)
    assert len(expected.launches) == len(named) + len(secret.cases)

    def again(*_: object) -> None:
        raise AssertionError("read again")

    monkeypatch.setattr(builder, "launches_for", again)
    assert secret.whole(made) == expected
    with pytest.raises(AssertionError, match="read again"):
        secret.whole(plain)
