"""Check sizes that no spec names: what is drawn could stand in the spec."""

from __future__ import annotations

import random
from pathlib import Path

from engine.cuda.load import load_program
from engine.evaluate.build import Builder
from engine.evaluate.secret_cases import SecretCases
from engine.model import Target
from engine.spec.data import generate
from engine.spec.find import find_spec

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
