import re
from dataclasses import replace
from pathlib import Path

import pytest

from engine.compile.nvrtc import NvrtcCompiler
from engine.errors import RefusedError
from engine.evaluate.build import Builder
from engine.model import Target
from engine.process.sandbox import sandbox
from engine.spec.reader import specs_in
from engine.tune.dispatch import NothingToSelect, check, generate, possible, same_code
from engine.tune.dispatch_target import holds, reached
from engine.tune.template import program_at
from engine.tune.tuning_result import Branch, Range, ShapeBest
from tests.runtime import kept_code

from .kernels import SAXPY, template

SMALL, LARGE = {"BLOCK": 64, "ITEMS": 1}, {"BLOCK": 128, "ITEMS": 4}

IN_AN_IF = (
    SAXPY.partition("void run")[0]
    + """void run(float a, const float* x, float* y, int n) {
    if (n > 0) {
        saxpy<<<(n + BLOCK * ITEMS - 1) / (BLOCK * ITEMS), BLOCK>>>(a, x, y, n);
    }
}
"""
)


def shapes(made, *values):
    return [
        ShapeBest(case.name, case.sizes, 1.0, chosen, 10.0, 2.0, 1.9, 2.1, 1.1)
        for case, chosen in zip(made.spec.time, values, strict=True)
    ]


def test_dispatch_code_is_the_kernel_as_a_template_and_a_launch_that_selects():
    made = template()
    program, selection = generate(made, None, shapes(made, SMALL, LARGE), SMALL)
    text = program.data.decode()
    assert selection.key == "n"
    assert [(b.ranges, b.values, b.cases) for b in selection.branches] == [
        ((Range("n", 1048576, 16777217),), LARGE, ("n=16777216",)),
        ((), SMALL, ("n=65536",)),
    ]
    assert "template <int BLOCK, int ITEMS>\n__global__ void saxpy(" in text
    assert text.count("#define") == text.count("tune") == text.count("constexpr") == 0
    assert (
        """    if (n >= 1048576 && n < 16777217) {
        const int per_block = 128 * 4;
        dim3 grid((n + per_block - 1) / per_block);
        saxpy<128, 4><<<grid, 128>>>(a, x, y, n);
    } else {
        const int per_block = 64 * 1;
        dim3 grid((n + per_block - 1) / per_block);
        saxpy<64, 1><<<grid, 64>>>(a, x, y, n);
    }
}
"""
        in text
    )


def test_the_instances_are_the_machine_code_and_launches_that_were_tuned(tmp_path: Path):
    made = template()
    program, selection = generate(made, None, shapes(made, SMALL, LARGE), SMALL)
    spec = specs_in(program, None)[0]
    assert spec.steps[0].template_args == "64, 1"
    with NvrtcCompiler("sm_90", cache=kept_code(), sandbox=sandbox(False), jobs=1) as compiler:
        point = Builder(made.spec, tmp_path, compiler, Target())
        point.original(made.original)
        for branch in selection.branches:
            values = tuple(branch.values[n] for n in made.space.names)
            own = replace(spec, steps=(replace(spec.steps[0], template_args=", ".join(map(str, values))),))
            instance = Builder(own, tmp_path, compiler, Target()).original(program)
            tuned = point.candidate(program_at(made.original, made, values))
            assert same_code(instance, tuned)
            assert not same_code(instance, point.candidate(program_at(made.original, made, (256, 2))))


@pytest.mark.parametrize("text", [SAXPY, IN_AN_IF], ids=["plain", "in an if"])
def test_each_shape_leads_to_its_branch_alone(text):
    made = template(text)
    program, selection = generate(made, None, shapes(made, SMALL, LARGE), SMALL)
    spec = specs_in(program, None)[0]
    holds(program, spec, selection)
    # Beyond the largest size that was measured the general configuration is launched again.
    for n, arguments in (
        (1, "64, 1"),
        (1048575, "64, 1"),
        (1048576, "128, 4"),
        (16777216, "128, 4"),
        (16777217, "64, 1"),
    ):
        assert [s.template_args for s in reached(program, spec, {"n": n})] == [arguments]
    for old, new, says in (
        ("n < 16777217", "n < 16777216", r"launches saxpy<64, 1> for n=16777216, where saxpy<128, 4> is the best"),
        ("n >= 1048576", "n >= 1", r"launches saxpy<128, 4> for n=65536"),
        ("n >= 1048576 && n < 16777217", "elsewhere(n)", r"launches saxpy<128, 4> and saxpy<64, 1> for n=65536"),
    ):
        broken = program.replace({"k.cu": program.data.replace(old.encode(), new.encode())})
        with pytest.raises(RefusedError, match=says):
            holds(broken, spec, selection)


def test_one_configuration_for_all_shapes_selects_nothing():
    made = template()
    with pytest.raises(NothingToSelect, match="best for every shape"):
        generate(made, None, shapes(made, SMALL, SMALL), SMALL)


def between(low, high, case):
    return Branch((Range("n", low, high),), LARGE, (case,))


def test_overlapping_shapes_are_refused():
    sizes = "time = [{ n = 65536 }, { n = 1048576 }, { n = 4194304 }, { n = 16777216 }]"
    made = template(SAXPY.replace("time = [{ n = 65536 }, { n = 16777216 }]", sizes))
    with pytest.raises(RefusedError, match="overlap: by n, the best values alternate over n=65536, n=1048576, n=4"):
        generate(made, None, shapes(made, SMALL, LARGE, SMALL, LARGE), SMALL)
    with pytest.raises(RefusedError, match="overlap: a and b"):
        check([between(1, 100, "a"), between(50, 200, "b"), Branch((), SMALL, ())])
    check([between(1, 100, "a"), between(100, 200, "b"), Branch((), SMALL, ())])
    with pytest.raises(RefusedError, match="without a branch"):
        check([between(1, 100, "a")])
    with pytest.raises(RefusedError, match="without a branch"):
        check([Branch((), LARGE, ("a",)), Branch((), SMALL, ())])


def test_the_shapes_that_overlap_are_named():
    """It named two shapes with different rows as those that rows cannot tell apart."""
    pairs = ((65536, 32), (256, 65536), (256, 64), (64, 65536), (65536, 256), (64, 256))
    sizes = ", ".join(f"{{ rows = {r}, cols = {c} }}" for r, c in pairs)
    made = template(MATRIX.replace("{ rows = 64, cols = 65536 }, { rows = 65536, cols = 64 }", sizes))
    one, four = {"ROWS": 1}, {"ROWS": 4}
    with pytest.raises(RefusedError) as caught:
        generate(made, None, shapes(made, one, four, one, one, four, four), one)
    told = caught.value.what.split("; ")
    assert (
        told[0]
        == "the shapes of the dispatch table overlap: by rows, rows=64,cols=65536 and rows=64,cols=256 are the same"
    )
    assert re.fullmatch(r"by cols, (rows=\d+),(cols=\d+) and (?!\1)rows=\d+,\2 are the same", told[1])
    assert told[2].startswith("by all sizes, the best values alternate over rows=")


MATRIX = """#define ROWS 4
// optiml: tune ROWS = 1, 2, 4
// optiml: args.x = { size = "rows*cols", fill = "normal" }
// optiml: args.y = { role = "out", size = "rows*cols" }
// optiml: check = [{ rows = 1, cols = 1 }]
// optiml: time = [{ rows = 64, cols = 65536 }, { rows = 65536, cols = 64 }]
__global__ void twice(const float* x, float* y, int rows, int cols) {
    for (int r = 0; r < ROWS; ++r) {
        int row = blockIdx.y * ROWS + r, col = blockIdx.x * 64 + threadIdx.x;
        if (row < rows && col < cols) y[row * cols + col] = 2 * x[row * cols + col];
    }
}
void run(const float* x, float* y, int rows, int cols) {
    twice<<<dim3((cols + 63) / 64, (rows + ROWS - 1) / ROWS), 64>>>(x, y, rows, cols);
}
"""


def test_the_size_that_tells_the_shapes_apart_is_found():
    made = template(MATRIX)
    program, selection = generate(made, None, shapes(made, {"ROWS": 1}, {"ROWS": 4}), {"ROWS": 1})
    assert selection.key in ("rows", "cols")  # their product is the same in both cases
    assert "twice<1><<<dim3((cols + 63) / 64, (rows + 1 - 1) / 1), 64>>>(x, y, rows, cols);" in program.data.decode()


def test_a_product_of_two_sizes_may_tell_the_shapes_apart():
    sizes = "{ rows = 64, cols = 64 }, { rows = 64, cols = 8192 }, { rows = 8192, cols = 64 }"
    made = template(MATRIX.replace("{ rows = 64, cols = 65536 }, { rows = 65536, cols = 64 }", sizes))
    one, four = {"ROWS": 1}, {"ROWS": 4}
    program, selection = generate(made, None, shapes(made, one, four, four), one)
    assert selection.key == "static_cast<long long>(rows) * cols"
    assert [b.ranges for b in selection.branches] == [
        (Range("static_cast<long long>(rows) * cols", 46340, 524289),),
        (),
    ]
    holds(program, specs_in(program, None)[0], selection)


def test_two_sizes_together_tell_apart_what_neither_does_alone():
    """Short and wide, long and narrow, both: no single size or product has a range for the last one alone."""
    pairs = ((64, 64), (64, 4096), (4096, 64), (4096, 4096), (64, 65536))
    sizes = ", ".join(f"{{ rows = {r}, cols = {c} }}" for r, c in pairs)
    made = template(MATRIX.replace("{ rows = 64, cols = 65536 }, { rows = 65536, cols = 64 }", sizes))
    one, two, four = {"ROWS": 1}, {"ROWS": 2}, {"ROWS": 4}
    program, selection = generate(made, None, shapes(made, one, one, two, four, one), one)
    assert selection.key == "rows, cols"
    assert [(b.text, b.values) for b in selection.branches] == [
        ("rows from 512, below 4097, cols from 64, below 512", two),
        ("rows from 512, below 4097, cols from 512, below 65537", four),
        ("all others", one),
    ]
    spec = specs_in(program, None)[0]
    holds(program, spec, selection)
    # Guarded: what lies outside of what was measured takes the general values, in either size.
    for rows, cols, arguments in (
        (4096, 4096, "4"),
        (511, 4096, "1"),
        (512, 511, "2"),
        (4097, 64, "1"),
        (4096, 63, "1"),
        (4096, 65537, "1"),
    ):
        assert [s.template_args for s in reached(program, spec, {"rows": rows, "cols": cols})] == [arguments], (
            rows,
            cols,
        )


def test_general_values_that_no_shape_has_are_for_all_others():
    made = template()
    program, selection = generate(made, None, shapes(made, SMALL, LARGE), {"BLOCK": 256, "ITEMS": 2})
    assert [b.cases for b in selection.branches] == [("n=65536",), ("n=16777216",), ()]
    spec = specs_in(program, None)[0]
    holds(program, spec, selection)
    assert spec.steps[0].template_args == "256, 2"
    for n, arguments in ((65535, "256, 2"), (65536, "64, 1"), (2**24, "128, 4"), (2**24 + 1, "256, 2")):
        assert [s.template_args for s in reached(program, spec, {"n": n})] == [arguments]


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("__global__", "int other = BLOCK;\n__global__", "used outside the kernel and its launch"),
        ("__global__", "#if BLOCK > 64\n#endif\n__global__", "used outside"),
        ("    saxpy<<<", "    if (n > BLOCK) saxpy<<<", "not a separate statement"),
        ("(a, x, y, n);\n}", "(a, x, y, n);\n    check(grid);\n}", "is used outside the launch"),
        ("(a, x, y, n);\n}", "(a, x, y, n);\n    saxpy<<<grid, BLOCK>>>(a, x, y, n);\n}", "launched elsewhere too"),
        ("        if (j < n) {", "#if ITEMS > 1\n#endif\n        if (j < n) {", "preprocessor conditions"),
    ],
)
def test_what_is_in_the_way_is_said_before_the_search(old, new, says):
    with pytest.raises(RefusedError, match=says):
        possible(template(SAXPY.replace(old, new, 1)), None)


def test_a_launch_that_cannot_be_seen_is_refused():
    text = SAXPY.partition("void run")[0].replace(
        "// optiml: check", '// optiml: launch = { grid = "cdiv(n, BLOCK * ITEMS)", block = "BLOCK" }\n// optiml: check'
    )
    with pytest.raises(RefusedError, match="no launch of 'saxpy' was found in host code"):
        possible(template(text), None)


def test_one_timing_case_has_nothing_to_select():
    with pytest.raises(RefusedError, match="one timing case"):
        possible(template(SAXPY.replace(", { n = 16777216 }", "")), None)
