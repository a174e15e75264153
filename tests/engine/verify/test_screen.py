"""The text screening: refuses what a candidate must not change, and nothing that honest edits and our own rules change."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.cuda.edit import edit_program
from engine.cuda.load import load_program, repository_root
from engine.evaluate.analysis import Analysis
from engine.model import Outcome, Program
from engine.predict.targets import target_for
from engine.selftest.cases import SelfCase, load_cases, original_text
from engine.spec.find import find_spec
from engine.spec.kernel_spec import KernelSpec
from engine.spec.reader import specs_in
from engine.verify.screen import screen

EXAMPLES = sorted((Path(__file__).parents[3] / "examples").glob("*.cu"))
TEXTUAL = [c for c in load_cases("attacks") if c.gpu == (Outcome.SCREENED_OUT,) and c.reason]
# Refused by what the compiler or the launch says, not by their text.
LATER = {
    "atomic-of-a-block",
    "rounded-reciprocal",
    "rows-in-grid-y",
    "clock-dependent",
    "clock-idle",
    "float-counter",
    "sleeps",
    "static-by-macro",
    "time-bomb",
    "too-many-threads",
    "too-much-shared",
}


def _load(path: Path) -> tuple[Program, KernelSpec]:
    spec, spec_path = find_spec(repository_root(path), path)
    return load_program(path, spec_file=spec_path, kernels=[step.kernel for step in spec.steps]), spec


def _screened(case: SelfCase, folder: Path) -> str | None:
    path = folder / f"{case.original}.cu"
    path.write_bytes(original_text(case.original))
    program, spec = _load(path)
    return screen(program, program.replace({program.kernel_file: case.text()}), spec)


@pytest.mark.parametrize("case", [c for c in TEXTUAL if c.name not in LATER], ids=lambda case: case.name)
def test_refuses(case: SelfCase, tmp_path: Path) -> None:
    reason = _screened(case, tmp_path)
    assert reason is not None
    assert case.reason in reason


@pytest.mark.parametrize("case", load_cases("honest"), ids=lambda case: case.name)
def test_lets_honest_edits_through(case: SelfCase, tmp_path: Path) -> None:
    assert _screened(case, tmp_path) is None


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_lets_every_proposal_of_the_rules_through(path: Path) -> None:
    program, spec = _load(path)
    proposals, _ = Analysis(spec, repository_root(path), target_for("sm_90")).propose(program)
    assert proposals
    for proposal in proposals:
        assert screen(program, edit_program(program, proposal.edits), spec) is None, proposal.summary


def test_an_unchanged_program_is_fine_and_another_set_of_files_is_not(tmp_path: Path) -> None:
    path = tmp_path / "scale.cu"
    path.write_bytes(original_text("scale"))
    program, spec = _load(path)
    assert screen(program, program, spec) is None
    more = Program({**program.files, "new.cu": b""}, program.kernel_file)
    assert screen(program, more, spec) == "adds or removes files"


FILLED = """\
// optiml: args.y = { role = "out", size = "n" }
// optiml: args.taps = { fill = "normal" }
// optiml: time = [{ n = 4096 }]
__constant__ float taps[3];
__global__ void k(float* y, int n) { int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) y[i] = taps[i % 3]; }
void run(float* y, const float* t, int n) { cudaMemcpyToSymbol(taps, t, sizeof taps); k<<<n / 256, 256>>>(y, n); }
"""


@pytest.mark.parametrize(
    "new", ["__constant__ float taps[4];", "__constant__ double taps[3];", "__device__ float taps[3];"]
)
def test_a_constant_that_host_code_fills_keeps_its_declaration(new: str) -> None:
    program = Program({"k.cu": FILLED.encode()}, "k.cu")
    (spec,) = specs_in(program, None)
    edited = program.replace({"k.cu": FILLED.replace("__constant__ float taps[3];", new).encode()})
    assert "taps" in (screen(program, edited, spec) or "")
    honest = program.replace({"k.cu": FILLED.replace("y[i] = taps[i % 3]", "y[i] = taps[i - i / 3 * 3]").encode()})
    assert screen(program, honest, spec) is None


def test_a_constant_in_a_header_keeps_its_declaration() -> None:
    text = (
        FILLED.replace("__constant__ float taps[3];", '#include "taps.h"').replace("void run", "#if 0\nvoid run")
        + "#endif\n"
    )
    program = Program({"k.cu": text.encode(), "taps.h": b"__constant__ float taps[3];\n"}, "k.cu")
    (spec,) = specs_in(program, None)
    edited = program.replace({"taps.h": b"__constant__ float taps[3 + 1];\n"})
    assert screen(program, edited, spec) is not None
