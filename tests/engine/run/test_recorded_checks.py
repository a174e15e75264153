"""A recorded spec is checked at sizes at which the kernel keeps to its buffers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from engine.cuda.load import load_program
from engine.process.sandbox import sandbox
from engine.run.ready_spec import SpecMaker
from engine.spec.draft import Draft, draft
from engine.spec.kernel_spec import Case
from engine.spec.spec_text import spec_text

# Transposes tiles of 16 x 16 without asking where the matrix ends, as samples do that are only run at multiples.
CODE = """
__global__ void turn(float* out, const float* in, int width) {
    int x = blockIdx.x * 16 + threadIdx.x, y = blockIdx.y * 16 + threadIdx.y;
    out[x * width + y] = in[y * width + x];
}
void run(float* out, const float* in, int width) { turn<<<dim3((width + 15) / 16, (width + 15) / 16), dim3(16, 16)>>>(out, in, width); }
"""


def _recorded(file: Path, widths: tuple[int, ...]) -> Draft:
    spec = draft(load_program(file), "turn").spec
    sized = tuple(replace(a, size="width*width") if a.role != "scalar" else a for a in spec.arguments)
    cases = tuple(Case(f"width={w}", {"width": w}) for w in widths)
    spec = replace(spec, arguments=sized, check=cases, time=(Case("width=1024", {"width": 1024}),))
    return Draft(spec, spec_text(spec, {"time": ["recorded: the sizes"]}, (), "comments", ""), ())


def test_checks_at_which_the_kernel_fails_give_way_to_others(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    file = tmp_path / "turn.cu"
    file.write_text(CODE)
    found = _recorded(file, (1, 7, 33))
    ready = SpecMaker(tmp_path, sandbox(False), recorded=lambda root, kernel, *, kept=frozenset(): found).ready(
        file, "turn"
    )
    assert ready.source == "recorded"
    assert ready.spec.check
    assert all(int(case.sizes["width"]) % 16 == 0 for case in ready.spec.check)
    assert [case.sizes["width"] for case in ready.spec.time] == [1024]
    assert "assumed: shapes at which the kernel keeps to its buffers" in ready.text
    assert "recorded: the sizes" in found.text


def test_checks_that_hold_stay_as_recorded(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    file = tmp_path / "turn.cu"
    file.write_text(CODE)
    found = _recorded(file, (16, 48))
    ready = SpecMaker(tmp_path, sandbox(False), recorded=lambda root, kernel, *, kept=frozenset(): found).ready(
        file, "turn"
    )
    assert [case.sizes["width"] for case in ready.spec.check] == [16, 48]


def test_an_output_that_is_not_written_whole_is_part_of_the_inputs(tmp_path: Path) -> None:
    """A kernel that stores what it finds was refused: it "leaves 1 of 1 elements of the output unwritten"."""
    (tmp_path / ".git").mkdir()
    file = tmp_path / "turn.cu"
    file.write_text(CODE.replace("out[", "if (in[0] > 1e30f) out["))
    asked: list[frozenset[str]] = []

    def recorded(root: Path, kernel: str, *, kept: frozenset[str] = frozenset()) -> Draft:
        asked.append(kept)
        found = _recorded(file, (16, 48))
        roles = tuple(replace(a, role="inout") if a.name in kept else a for a in found.spec.arguments)
        spec = replace(found.spec, arguments=roles)
        return Draft(spec, spec_text(spec, {}, (), "comments", ""), ())

    ready = SpecMaker(tmp_path, sandbox(False), recorded=recorded).ready(file, "turn")
    assert asked == [frozenset(), {"out"}]
    assert ready.spec.argument("out").role == "inout"
