"""A recorded spec is checked at sizes at which the kernel keeps to its buffers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from engine.cuda.load import load_program
from engine.process.sandbox import sandbox
from engine.run.ready_spec import Recorded, SpecMaker
from engine.spec.draft import Draft, draft
from engine.spec.kernel_spec import Case, Role
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
    ready = SpecMaker(tmp_path, sandbox(False), recorded=lambda root, kernel, *, roles={}: found).ready(file, "turn")
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
    ready = SpecMaker(tmp_path, sandbox(False), recorded=lambda root, kernel, *, roles={}: found).ready(file, "turn")
    assert [case.sizes["width"] for case in ready.spec.check] == [16, 48]


def test_an_output_that_is_not_written_whole_is_part_of_the_inputs(tmp_path: Path) -> None:
    """A kernel that stores what it finds was refused: it "leaves 1 of 1 elements of the output unwritten"."""
    (tmp_path / ".git").mkdir()
    file = tmp_path / "turn.cu"
    file.write_text(CODE.replace("out[", "if (in[0] > 1e30f) out["))
    asked: list[Mapping[str, Role]] = []
    ready = SpecMaker(tmp_path, sandbox(False), recorded=_with_roles(_recorded(file, (16, 48)), asked)).ready(
        file, "turn"
    )
    assert asked == [{}, {"out": "inout"}]
    assert ready.spec.argument("out").role == "inout"


def _with_roles(found: Draft, asked: list[Mapping[str, Role]]) -> Recorded:
    def recorded(root: Path, kernel: str, /, *, roles: Mapping[str, Role] = MappingProxyType({})) -> Draft:
        asked.append(dict(roles))
        arguments = tuple(replace(a, role=roles.get(a.name, a.role)) for a in found.spec.arguments)
        spec = replace(found.spec, arguments=arguments)
        return Draft(spec, spec_text(spec, {}, (), "comments", ""), ())

    return recorded


def test_an_output_whose_uses_are_not_seen_is_one_where_all_of_it_is_written_first(tmp_path: Path) -> None:
    """A buffer that the kernel stores to as `float4` was an input as well, and refused: no output depends on it."""
    (tmp_path / ".git").mkdir()
    file = tmp_path / "turn.cu"
    file.write_text(
        CODE.replace("out[x * width + y] =", "float* own = reinterpret_cast<float*>(out);\n    own[x * width + y] =")
    )
    found = _recorded(file, (16, 33))  # with 33 rows it leaves its buffers
    both = replace(
        found.spec, arguments=tuple(replace(a, role="inout") if a.name == "out" else a for a in found.spec.arguments)
    )
    asked: list[Mapping[str, Role]] = []
    recorded = _with_roles(replace(found, spec=both), asked)
    ready = SpecMaker(tmp_path, sandbox(False), recorded=recorded).ready(file, "turn")
    assert asked == [{}, {"out": "out"}]
    assert ready.spec.argument("out").role == "out"


def test_a_grid_that_is_always_the_same_is_checked_at_the_recorded_size(tmp_path: Path) -> None:
    """Of a kernel without a guard: at every other size it leaves its buffers."""
    (tmp_path / ".git").mkdir()
    file = tmp_path / "twice.cu"
    file.write_text(
        "__global__ void twice(float* x, int n, int times) {\n"
        "  int i = blockIdx.x * blockDim.x + threadIdx.x;\n"
        "  for (int k = 0; k < times; ++k) { x[i] *= 2; x[n + i] += 1; }\n"
        "}\n"
        "void run(float* x) { twice<<<24, 128>>>(x, 24 * 128, 9000); }\n"
    )
    spec = draft(load_program(file), "twice").spec
    arguments = tuple(
        replace(a, size="2*n", role="inout") if a.role != "scalar" else replace(a, value="") for a in spec.arguments
    )
    checks = tuple(Case(f"n={n},times={t}", {"n": n, "times": t}) for n, t in ((1, 1), (7, 129), (129, 7)))
    time = (Case("n=3072,times=9000", {"n": 3072, "times": 9000}),)
    spec = replace(spec, arguments=arguments, check=checks, time=time)
    found = Draft(spec, spec_text(spec, {}, (), "comments", ""), ())
    ready = SpecMaker(tmp_path, sandbox(False), recorded=lambda root, kernel, *, roles={}: found).ready(file, "twice")
    assert [case.sizes for case in ready.spec.check] == [{"n": 3072, "times": 7}]


def test_a_kernel_of_one_block_is_not_checked_where_its_blocks_would_race(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    file = tmp_path / "twist.cu"
    file.write_text(
        "__global__ void twist(float* y, const float* x, int n) {\n"
        "  int i = blockIdx.x * blockDim.x + threadIdx.x;\n"
        "  if (i < n) y[n - 1 - i] = x[i];\n"
        "  __syncthreads();\n"
        "  if (i < n) y[i] = y[i] * 2 + x[i];\n"
        "}\n"
        "void run(float* y, const float* x, int n) { twist<<<(n + 63) / 64, 64>>>(y, x, n); }\n"
    )
    spec = draft(load_program(file), "twist").spec
    checks = tuple(Case(f"n={n}", {"n": n}) for n in (1, 129, 903))
    sized = tuple(replace(a, size="n") if a.role != "scalar" else a for a in spec.arguments)
    spec = replace(spec, arguments=sized, check=checks, time=(Case("n=60", {"n": 60}),))
    found = Draft(spec, spec_text(spec, {}, (), "comments", ""), ())
    ready = SpecMaker(tmp_path, sandbox(False), recorded=lambda root, kernel, *, roles={}: found).ready(file, "twist")
    assert max(int(case.sizes["n"]) for case in ready.spec.check) in range(2, 65)


def test_shapes_keep_the_proportions_of_the_recorded_ones(tmp_path: Path) -> None:
    """A pooling kernel is given the sides of its input and its output: at most other sizes it leaves its input."""
    (tmp_path / ".git").mkdir()
    file = tmp_path / "pool.cu"
    file.write_text(
        "__global__ void pool(const float* x, float* y, int step, int side, int less) {\n"
        "  int i = blockIdx.x * blockDim.x + threadIdx.x;\n"
        "  if (i >= less * less) return;\n"
        "  int row = i / less * step, column = i % less * step;\n"
        "  float most = 0;\n"
        "  for (int r = 0; r < step; ++r)\n"
        "    for (int c = 0; c < step; ++c) most = fmaxf(most, x[(row + r) * side + column + c]);\n"
        "  y[i] = most;\n"
        "}\n"
        "void run(const float* x, float* y, int step, int side, int less) {\n"
        "  pool<<<(less * less + 127) / 128, 128>>>(x, y, step, side, less);\n"
        "}\n"
    )
    spec = draft(load_program(file), "pool").spec
    sized = tuple(
        replace(a, value="", size={"x": "side*side", "y": "less*less"}.get(a.name, "")) for a in spec.arguments
    )
    sizes = [{"step": s, "side": a, "less": b} for s, a, b in ((3, 1, 1), (3, 7, 33), (3, 33, 17), (2, 2048, 1024))]
    *checks, time = [Case(",".join(f"{n}={v}" for n, v in own.items()), own) for own in sizes]
    spec = replace(spec, arguments=sized, check=tuple(checks), time=(time,))
    found = Draft(spec, spec_text(spec, {}, (), "comments", ""), ())
    ready = SpecMaker(tmp_path, sandbox(False), recorded=lambda root, kernel, *, roles={}: found).ready(file, "pool")
    several = [c.sizes for c in ready.spec.check if c.sizes["less"] > 1]
    assert len(several) >= 2
    assert all(own["side"] >= own["step"] * own["less"] for own in several), several
