"""The spec's own launch is rewritten in place: applied and read again, it says the new launch and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from engine.cuda.edit import apply
from engine.errors import SpecError
from engine.model import Program
from engine.spec.kernel_spec import KernelSpec, LaunchExpr
from engine.spec.reader import specs_in
from engine.spec.rewrite import relaunch_spec
from tests.spent import spent

KERNEL = """\
#define TILE 16
__global__ void scale(const float* x, float* y, int m, int w) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < m * w) y[i] = 2 * x[i];
}
__global__ void other(float* y, int m) { if (threadIdx.x < m) y[threadIdx.x] = 1; }
"""
BODY = """\
args.x = { role = "in", size = "rows*cols" }
args.y = { role = "out", size = "rows*cols" }
args.m = { value = "rows" }
args.w = { value = "cols + 1 - 1" }
time = [{ rows = 512, cols = 2048 }]
check = [{ rows = 7, cols = 9 }]
"""
LAUNCHES = {
    "inline": 'launch = { grid = "cdiv(rows*cols, 256)", block = "256" } # a note\n',
    "dotted": 'launch.grid = ["rows*cols/256 + 1"]\nlaunch.block = ["256", "1"] # a note\n',
    "table": '[launch]\ngrid = "rows*cols/256 + 1"\nblock = 256\n',
    "shared": 'launch = { block = "256", shared = "TILE_TEXT", grid = "rows" }\n'.replace("TILE_TEXT", "4*cols"),
}


def _program(form: str, text: str, newline: str = "\n") -> tuple[Program, str | None]:
    if form == "comments":
        lines = "".join(f"  // optiml: {line}\n" for line in text.splitlines())
        return Program({"a b.cu": ("// é\n" + lines + KERNEL).replace("\n", newline).encode()}, "a b.cu"), None
    toml = "[[kernel]]\nfile = 'a b.cu'\nkernel = 'scale'\n" + text.replace("[launch]", "[kernel.launch]")
    toml = "# é\n" + toml
    files = {"a b.cu": KERNEL.encode(), "optiml.toml": toml.replace("\n", newline).encode("utf-8-sig")}
    return Program(files, "a b.cu"), "optiml.toml"


def _launch(grid: Sequence[str] = (), block: Sequence[str] = (), shared: str = "") -> LaunchExpr:
    return LaunchExpr(tuple(grid), tuple(block), shared)


def _after(program: Program, spec_path: str | None, **parts: Any) -> tuple[KernelSpec, KernelSpec, Program]:
    (spec,) = specs_in(program, spec_path)
    edits = relaunch_spec(program, spec, 0, _launch(**parts))
    changed = program.replace({path: apply(program.files[path], e) for path, e in edits.items()})
    return spec, specs_in(changed, spec_path)[0], changed


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("form", ["comments", "toml"])
@pytest.mark.parametrize("launch", list(LAUNCHES))
def test_the_new_launch_is_read_back(launch: str, form: str, newline: str) -> None:
    program, path = _program(form, BODY + LAUNCHES[launch], newline)
    before, after, changed = _after(
        program, path, grid=["cdiv(m, 32)", "cdiv(w, TILE)"], block=["32", "TILE"], shared="4 * w"
    )
    expected = LaunchExpr(("cdiv(rows, 32)", "cdiv((cols + 1 - 1), 16)"), ("32", "16"), "4 * (cols + 1 - 1)")
    assert after.steps[0].launch == expected
    assert replace(after, steps=before.steps) == before
    text = changed.files[path or "a b.cu"]
    assert text.count(b"\n") == text.count(newline.encode())
    if "note" in LAUNCHES[launch]:
        assert b"# a note" in text


@pytest.mark.parametrize("form", ["comments", "toml"])
def test_parts_not_given_stay(form: str) -> None:
    program, path = _program(form, BODY + LAUNCHES["dotted"])
    before, after, _ = _after(program, path, block=["128"])
    assert before.steps[0].launch
    assert after.steps[0].launch == replace(before.steps[0].launch, block=("128",))


def test_one_launch_of_a_chain_changes() -> None:
    chain = """\
args.x = { role = "in", size = "rows" }
args.y = { role = "inout", size = "rows" }
time = [{ rows = 512, cols = 1 }]
chain = [
  { kernel = "scale", args = ["x", "y", "rows", "cols"], launch = { grid = "2", block = "256" } },
  { kernel = "other", args = ["y", "rows"], launch = { grid = "1", block = "rows" } },
]
"""
    for form in ("comments", "toml"):
        program, path = _program(form, chain)
        if path:
            text = program.files[path].replace(b"kernel = 'scale'\n", b"")
            program = program.replace({path: text})
        (spec,) = specs_in(program, path)
        edits = relaunch_spec(program, spec, 1, _launch(block=["min(m, 128)"]))
        changed = program.replace({p: apply(program.files[p], e) for p, e in edits.items()})
        steps = specs_in(changed, path)[0].steps
        assert steps[0] == spec.steps[0]
        assert steps[1].launch == LaunchExpr(("1",), ("min(rows, 128)",))


def test_a_spec_without_launch_needs_no_edit() -> None:
    program, path = _program("comments", BODY)
    (spec,) = specs_in(program, path)
    assert relaunch_spec(program, spec, 0, _launch(block=["128"])) == {}


@pytest.mark.parametrize("expression", ["nothing", "x", "m / 0", "m +", "blockDim.x"])
def test_what_cannot_be_said_in_the_spec_is_refused(expression: str) -> None:
    program, path = _program("comments", BODY + LAUNCHES["inline"])
    (spec,) = specs_in(program, path)
    with pytest.raises(SpecError):
        relaunch_spec(program, spec, 0, _launch(grid=[expression]))


def test_constants_that_use_all_before_them_end_soon() -> None:
    """Eight layers of ten macros took 10^7 steps."""
    layers = [[f"L{layer}_{i}" for i in range(10)] for layer in range(8)]
    macros = "".join(f"#define {name} 1\n" for name in layers[0]) + "".join(
        f"#define {name} ({' + '.join(below)})\n" for below, above in pairwise(layers) for name in above
    )
    program, path = _program("toml", BODY + LAUNCHES["inline"])
    program = program.replace({program.kernel_file: macros.encode() + program.data})
    spec = specs_in(program, path)[0]
    with spent() as cost:
        edits = relaunch_spec(program, spec, 0, _launch(grid=["m / L7_0 + 1"]))
    assert cost.seconds < 1
    assert [e.text for listed in edits.values() for e in listed] == ['"rows / 10000000 + 1"']


def test_constants_that_tune_lines_leave_open_keep_their_names() -> None:
    """As numbers the spec launched as before at every other point of the template, and the source otherwise."""
    program, path = _program("toml", BODY + LAUNCHES["inline"])
    tuned = b"// optiml: tune WIDE = 64, 128\nconstexpr int WIDE = 64;\nconstexpr int EACH = WIDE / 32;\n"
    program = program.replace({program.kernel_file: tuned + program.data})
    spec, after, _ = _after(program, path, grid=["m / (EACH * TILE) + 1"], block=["WIDE"])
    assert after.steps[0].launch == LaunchExpr(("rows / (EACH * 16) + 1",), ("WIDE",), "0", (("EACH", 2), ("WIDE", 64)))
    launch = LaunchExpr((), ("NEW",), "", (("NEW", 96),))  # comes with the same edit
    assert [e.text for edits in relaunch_spec(program, spec, 0, launch).values() for e in edits] == ['"NEW"']
