import dataclasses
import json
import re

import pytest

from engine.cuda.edit import edit_program
from engine.errors import OptimlError, RefusedError, SourceError, SpecError, UsageError
from engine.model import LaunchConfig, Resources, Target
from engine.process.decode import decode
from engine.spec.kernel_spec import KernelSpec
from engine.spec.reader import specs_in
from engine.tune.declare import declared
from engine.tune.feasible import Feasible, check_left, feasible, fits
from engine.tune.space import Excluded
from engine.tune.template import locate, program_at, tunable

from .kernels import SAXPY, program, template


def test_tune_lines_make_a_template_whose_points_rewrite_the_constants():
    made = template()
    assert made.space.names == ("BLOCK", "ITEMS")
    assert made.default == (256, 1)
    text = program_at(made.original, made, (64, 4)).data.decode()
    assert "#define BLOCK 64\n#endif\nconstexpr int ITEMS = 4;" in text
    assert text.replace("BLOCK 64", "BLOCK 256").replace("ITEMS = 4;", "ITEMS = 1;") == SAXPY


def test_the_default_point_changes_nothing():
    made = template()
    assert edit_program(made.original, made.proposal(made.default).edits).digest == made.original.digest


def test_the_feasible_set_holds_the_targets_limits_before_anything_is_compiled():
    made = template()
    found = feasible(made, Target())
    assert len(found.points) == 9
    said = {e.condition: e.points for e in found.excluded}
    assert said == {"BLOCK * ITEMS <= 4096": 1, "1 <= threads per block <= 1024": 2}
    assert made.figures((64, 4)).launches == (
        (LaunchConfig((256, 1, 1), (64, 1, 1)),),
        (LaunchConfig((65536, 1, 1), (64, 1, 1)),),
    )


def test_static_shared_memory_counts_by_its_expression():
    text = SAXPY.replace("    int i =", "    __shared__ double tile[BLOCK][ITEMS * 33];\n    int i =", 1)
    made = template(text)
    assert made.figures((64, 2)).shared_bytes == 64 * 66 * 8
    assert {e.condition for e in feasible(made, Target()).excluded} >= {"static shared memory <= 49152 bytes"}


def test_registers_times_threads_are_held_against_the_register_file():
    launch = ((LaunchConfig((1, 1, 1), (1024, 1, 1)),),)
    assert fits((Resources(64, 0, 0, 0, 0),), launch, Target()) == ""
    assert fits((Resources(65, 0, 0, 0, 0),), launch, Target()) == "registers * threads <= 65536"


def test_a_block_has_a_kilobyte_less_of_shared_memory_than_its_multiprocessor():
    """The system keeps it: a block of 233,472 bytes was taken for possible on sm_90, where the driver says 232,448."""
    of = {n: ((LaunchConfig((1, 1, 1), (32, 1, 1), n),),) for n in (231424, 232448, 233472)}
    assert fits((Resources(32, 0, 0, 0, 0),), of[232448], Target()) == ""
    assert fits((Resources(32, 0, 0, 0, 0),), of[233472], Target()) == "shared memory <= 232448 bytes"
    assert fits((Resources(32, 1024, 0, 0, 0),), of[231424], Target()) == ""
    assert fits((Resources(32, 1028, 0, 0, 0),), of[231424], Target()) == "shared memory <= 232448 bytes"
    text = SAXPY.replace("<<<grid, BLOCK>>>", "<<<grid, BLOCK, 232448 * ITEMS>>>")
    assert {e.condition: e.points for e in feasible(template(text), Target()).excluded} == {
        "BLOCK * ITEMS <= 4096": 1, "1 <= threads per block <= 1024": 2, "dynamic shared memory <= 232448 bytes": 6,
    }  # fmt: skip


def test_a_declared_launch_may_name_the_constants():
    text = SAXPY.partition("void run")[0].replace(
        "// optiml: check", '// optiml: launch = { grid = "cdiv(n, BLOCK * ITEMS)", block = "BLOCK" }\n// optiml: check'
    )
    made = template(text)
    assert made.figures((128, 4)).launches[0] == (LaunchConfig((128, 1, 1), (128, 1, 1)),)
    assert made.figures((64, 1)).launches[0] == (LaunchConfig((1024, 1, 1), (64, 1, 1)),)
    assert dict(made.spec.steps[0].launch.constants) == {"BLOCK": 256, "ITEMS": 1}
    assert decode(KernelSpec, json.loads(json.dumps(dataclasses.asdict(made.spec)))) == made.spec


def test_parameters_and_conditions_may_come_from_the_command_line():
    made = template(parameters={"BLOCK": "32, 64"}, where=("BLOCK * ITEMS == 64",))
    assert feasible(made, Target()).points == ((32, 2), (64, 1))


def test_an_optiml_toml_may_declare_the_template():
    bare = "".join(line for line in SAXPY.splitlines(True) if "optiml:" not in line)
    toml = """
[[kernel]]
file = "k.cu"
kernel = "saxpy"
check = [{ n = 1 }]
time = [{ n = 65536 }]
tune = { BLOCK = [64, 128], ITEMS = "1..3" }
where = ["BLOCK * ITEMS < 384"]
args.x = { size = "n", fill = "normal" }
args.y = { role = "inout", size = "n", fill = "normal" }
args.a = { value = "3" }
"""
    made = template(bare, "optiml.toml", {"optiml.toml": toml})
    assert len(feasible(made, Target()).points) == 5
    tunable(made)  # the names in that file are no other code's


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("// optiml: tune BLOCK 64", "invalid declaration"),
        ("// optiml: tune BLOCK = ", "invalid declaration"),
        ("// optiml: tune BLOCK = 64", "tuned twice"),
        ("// optiml: tune NOWHERE = 1, 2", "neither a macro nor a constant"),
        ("// optiml: tune run = 1, 2", "neither a macro nor a constant"),
        ("// optiml: where BLOCK <= WHAT", "names 'WHAT'"),
        ("// optiml: where", "is empty"),
        ("// optiml: tune BLOCKS = 1..2000", "has 2000 values"),
    ],
)
def test_a_wrong_line_is_an_error_that_names_it(line, says):
    with pytest.raises(OptimlError, match=says) as caught:
        feasible(template(SAXPY.replace("// optiml: where", f"{line}\n// optiml: where", 1)), Target())
    assert caught.value.where == "k.cu:8"


def test_what_cannot_be_tuned_is_said():
    with pytest.raises(UsageError, match=r"'BLOCK' is defined more than once \(lines 3 and 5\)"):
        template(SAXPY.replace("#endif", "#else\n#define BLOCK 32\n#endif"))
    with pytest.raises(UsageError, match=r"'ITEMS' is defined more than once; keep one definition"):
        template(SAXPY.replace("int ITEMS = 1;", "int ITEMS = 1;\n#define ITEMS 2"))
    with pytest.raises(UsageError, match="'BLOCK' is a macro with arguments"):
        template(SAXPY.replace("#define BLOCK 256", "#define BLOCK(x) x"))
    with pytest.raises(UsageError, match="not a plain integer"):
        template(SAXPY.replace("int ITEMS = 1;", "int ITEMS = sizeof(int);"))
    with pytest.raises(UsageError, match=r"compile\.defines"):
        template(SAXPY.replace("// optiml: check", '// optiml: compile.defines = ["BLOCK=64"]\n// optiml: check'))
    with pytest.raises(UsageError, match="no parameters"):
        template("\n".join(line for line in SAXPY.split("\n") if "tune" not in line))
    with pytest.raises(SpecError, match="'tune' is not a table"):
        template(SAXPY.replace("// optiml: check", "// optiml: tune = 3\n// optiml: check"))
    with pytest.raises(SourceError, match="cannot be evaluated"):
        template(SAXPY.replace("dim3 grid((n +", "dim3 grid((unknown() +"))


def test_conditions_may_use_the_constants_of_headers():
    """They were no constants, though the kernel's own code uses them."""
    text = SAXPY.replace(
        "// optiml: where BLOCK * ITEMS <= 4096", "// optiml: where BLOCK % WARP == 0 && BLOCK >= 2 * WARP"
    )
    made = template('#include "config.h"\n' + text, files={"config.h": "#define WARP 64\n"})
    assert {p[0] for p in feasible(made, Target()).points} == {128, 256}
    with pytest.raises(UsageError) as caught:
        template('#include "config.h"\n' + text, files={"config.h": "#define WARP warpSize\n"})
    assert caught.value.what.endswith("names 'WARP', which is not a plain integer")
    assert caught.value.do == "use the parameters BLOCK, ITEMS, or a constant such as #define WARP 32"


def test_a_constant_that_other_code_uses_is_refused_before_the_search():
    """Every point was refused by itself, and the run said that none is faster."""
    made = template(SAXPY.replace("void run(", "int chunk() { return BLOCK * 3; }\nvoid run(", 1))
    with pytest.raises(RefusedError) as caught:
        tunable(made)
    assert (caught.value.where, caught.value.what) == (
        "k.cu:6", "'BLOCK' cannot be tuned: a point redefines 'BLOCK', which code other than the kernel and its launch uses",
    )  # fmt: skip
    tunable(template())


def test_a_set_that_holds_the_original_alone_leaves_nothing_to_tune():
    """The run ended with 0 of 1 points tried and none faster."""
    with pytest.raises(RefusedError, match=r"the only feasible point is the original: BLOCK = 256, ITEMS = 1"):
        feasible(template(where=("BLOCK == 256", "ITEMS == 1")), Target())


def test_a_set_whose_points_own_compiles_leave_nothing_is_empty_too():
    """The run ended with 0 of 2 points tried and none faster."""
    limit = "registers * threads <= 65536"
    made = template(where=("BLOCK == 128", "ITEMS < 4"))
    with pytest.raises(RefusedError, match=rf"'ITEMS < 4' excludes 1; '{re.escape(limit)}' excludes the last 2"):
        check_left(made, feasible(made, Target()), {limit: 2})
    check_left(made, feasible(made, Target()), {limit: 1})
    probed = Feasible(((128, 1),), (Excluded("ITEMS < 4", 3), Excluded(limit, 8)))
    with pytest.raises(RefusedError, match=rf"'ITEMS < 4' excludes 3; '{re.escape(limit)}' excludes the last 9"):
        check_left(made, probed, {limit: 1})
    made = template(where=("BLOCK == 256", "ITEMS < 4"))
    with pytest.raises(RefusedError, match=r"the only feasible point is the original: BLOCK = 256, ITEMS = 1"):
        check_left(made, feasible(made, Target()), {limit: 1})


def test_another_file_that_launches_a_kernel_of_the_same_name_does_not_define_its_constants():
    other = "#define BLOCK 32\nvoid other(float* y) { saxpy<<<1, BLOCK>>>(1, y, y, 1); }\n"
    path, place, value = locate(program(other_cu=other), "BLOCK")
    assert (path, value) == ("k.cu", 256)
    assert SAXPY[place.start : place.end] == "256"


def test_each_of_two_kernels_has_the_lines_above_it():
    """Both had the lines of both, so that neither could be tuned: each used constants that the other's template changed."""
    other = SAXPY.replace("saxpy", "other").replace("BLOCK", "WIDE").replace("ITEMS", "EACH").replace("run(", "run2(")
    other = other.replace("tune WIDE = 64, 128, 256, 2048", "tune WIDE = 32, 64").replace("<= 4096", "<= 128")
    after = "// optiml: where EACH < 4\n"
    made = program(SAXPY + other + after)
    first, second = (declared(made, spec, None) for spec in specs_in(made, None))
    assert first.space.names == ("BLOCK", "ITEMS")
    assert [c.text for c in first.space.conditions] == ["BLOCK * ITEMS <= 4096"]
    assert second.space.names == ("WIDE", "EACH")
    assert [c.text for c in second.space.conditions] == ["WIDE * EACH <= 128", "EACH < 4"]
    for found in (first, second):
        tunable(found)
    assert feasible(second, Target()).points == ((32, 1), (32, 2), (64, 1), (64, 2))


def test_a_file_without_declarations_has_no_template():
    assert template("\n".join(line for line in SAXPY.split("\n") if "tune" not in line and "where" not in line)) is None
