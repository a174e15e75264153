"""Launches of a chain: given by the kernel's name, or as edits of the host's launches that the spec follows."""

import json
import re
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.cuda.edit import edit_program
from engine.cuda.load import load_program
from engine.llm.answers import MOST_LAUNCHES, SCHEMA, EditError, read_answer
from engine.llm.chat import Fault
from engine.llm.edits import Workplace, make_proposal
from engine.model import Program, Target
from engine.rules import make_site
from engine.spec.find import find_spec
from engine.spec.launch_config import evaluate
from engine.spec.reader import relaunched, specs_in
from engine.tune.offers import offers
from tests.spent import spent

ROOT = Path(__file__).parents[3]
TOML = "benchmarks/suite/optiml.toml"
SCAN = "benchmarks/suite/scan.cu"
BLOCKS = "scan_blocks<<<blocks, BLOCK>>>"
ADD = "add_sums<<<(n + 255) / 256, 256>>>"


def workplace(program, spec):
    return Workplace(tuple(make_site(program, spec, step) for step in range(len(spec.steps))), program)


@pytest.fixture(scope="module")
def scan():
    spec, path = find_spec(ROOT, ROOT / SCAN)
    return workplace(load_program(ROOT / SCAN, spec_file=path, kernels=[s.kernel for s in spec.steps]), spec)


HOST = """// optiml: args.x = { role = "inout", size = "n" }
// optiml: args.count = { role = "scalar", value = "n" }
// optiml: check = [{ n = 1 }, { n = 1000 }]
// optiml: time = [{ n = 65536 }]
// optiml: launch = { grid = "(n + TILE - 1) / TILE", block = "128" }
#include <cuda_runtime.h>
#define TILE 128
#define THREADS (TILE)
static int ceil_div(int a, int b) { return (a + b - 1) / b; }
template <int K> struct Traits { enum { value = K }; };
__global__ void scale(float* x, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) {
        x[i] *= 2.0f;
    }
}
void launch(float* x, int rows, int threads_wanted) {
    int threads = 128;
    scale<<<ceil_div(rows, TILE), threads>>>(x, rows);
}
"""


@pytest.fixture(scope="module")
def scale():
    program = Program({"k.cu": HOST.encode()}, "k.cu")
    return workplace(program, specs_in(program, None)[0])


def answer(*replacements, launch=(), kernel="", **more):
    edits = [{"file": "", "search": s, "replace": r} for s, r in replacements]
    item = {
        "idea": "Launch less",
        "counter": "",
        "direction": "down",
        "edits": edits,
        "kernel": kernel,
        "launch": launch,
        **more,
    }
    return json.dumps({"proposals": [item]})


def edited(text, place):
    (suggestion,) = read_answer(text)
    return edit_program(place.program, make_proposal(suggestion, place).edits)


def refused(text, place):
    with pytest.raises(EditError) as caught:
        edited(text, place)
    return caught.value


def chain(program):
    """What the spec's text declares of the chain's launches."""
    import tomllib

    steps = tomllib.loads(program.files[TOML].decode())["kernel"][0]["chain"]
    return {s["kernel"]: (s["launch"]["grid"], s["launch"]["block"], s["launch"].get("shared", "0")) for s in steps}


def agree(program, spec):
    """Raises where source and spec launch otherwise in any case."""
    spec = relaunched(program, spec)
    for step in range(len(spec.steps)):
        for case in (*spec.check, *spec.time):
            evaluate(program, spec, step, case.sizes)


def extents(kernel="", grid=(), block=(), shared=""):
    return {"kernel": kernel, "grid": list(grid), "block": list(block), "shared": shared}


# ---- given by name


def test_each_kernel_of_a_chain_gets_the_launch_that_names_it(scan):
    launch = [extents("scan_blocks", block=["BLOCK / 4"]), extents("add_sums", ["(n + 1023) / 1024"], ["256"], "64")]
    program = edited(answer(launch=launch), scan)
    text = program.data.decode()
    assert "scan_blocks<<<blocks, BLOCK / 4>>>(" in text
    assert "scan_sums<<<1, BLOCK>>>(" in text
    assert "add_sums<<<(n + 1023) / 1024, 256, 64>>>(" in text
    assert chain(program) == {
        "scan_blocks": ("blocks", "1024 / 4", "0"),
        "scan_sums": ("1", "1024", "0"),
        "add_sums": ("(n + 1023) / 1024", "256", "64"),
    }
    agree(program, scan.spec)


def test_a_launch_without_a_name_is_that_of_the_kernel_given_in_either_form(scan):
    kernel = "__global__ void add_sums(int* y, const int* sums, int n) {\n    y[0] = sums[n];\n}\n"
    alone = {"grid": ["(n + 1023) / 1024"], "block": [], "shared": ""}
    old, new = (edited(answer(kernel=kernel, launch=form), scan) for form in (alone, [extents(**alone)]))
    assert old.digest == new.digest
    assert chain(old)["add_sums"] == ("(n + 1023) / 1024", "256", "0")


def test_text_may_name_the_kernel_of_each_launch(scan):
    text = "Idea: Launch less\nLaunch: `scan_blocks`\nBlock: 256\n**Launch:** add_sums\nGrid: (n + 511) / 512\nBlock: 128\n"
    declared = chain(edited(text, scan))
    assert declared["scan_blocks"] == ("blocks", "256", "0")
    assert declared["add_sums"] == ("(n + 511) / 512", "128", "0")


@pytest.mark.parametrize(
    ("launch", "fault", "said"),
    [
        ([extents("scan", block=["64"])], Fault.FORBIDDEN, "scan"),
        ([extents("control_partial_kernel", block=["64"])], Fault.FORBIDDEN, "control_partial_kernel"),
        ([extents("add_sums", block=["64"]), extents("add_sums", block=["32"])], Fault.AMBIGUOUS, "twice"),
        ([extents("scan_sums", block=["64"])] * (MOST_LAUNCHES + 1), Fault.UNREADABLE, "launches"),
        ([extents("scan_sums", grid=["1>>>(sums, 1); system(0); scan_sums<<<1"])], Fault.FORBIDDEN, "arithmetic"),
        ([extents("<b>@octocat</b> http://evil.example", block=["64"])], Fault.FORBIDDEN, "octocat"),
    ],
)
def test_a_launch_of_something_else_is_refused(scan, launch, fault, said):
    error = refused(answer(launch=launch), scan)
    assert error.fault is fault
    assert said in error.what + error.where
    assert not set(error.what + error.where) & set("<>@")


def test_half_a_launch_makes_the_whole_suggestion_unreadable(scan):
    for launch in ([extents("add_sums", block=["64"]), 7], ["add_sums"]):
        assert refused(answer(launch=launch), scan).fault is Fault.UNREADABLE


def test_a_launch_may_be_over_a_constant_that_comes_with_the_kernel(scale):
    kernel = "constexpr int PER = 4;\n__global__ void scale(float* x, int count) {\n    x[count * PER] = 1.0f;\n}\n"
    program = edited(answer(kernel=kernel, launch=[extents("scale", ["(count + PER * 128 - 1) / (PER * 128)"])]), scale)
    assert b"scale<<<(rows + PER * 128 - 1) / (PER * 128), threads>>>" in program.data
    assert b'grid = "(n + 4 * 128 - 1) / (4 * 128)"' in program.data
    agree(program, scale.spec)


# ---- as edits of the host's launches


def test_an_edit_may_leave_the_block_of_a_declared_launch_open(scale):
    """Whether the spec follows was compared with the launch of before, so that every such edit was refused."""
    kernel = (
        "// optiml: tune WIDE = 128, 256, 512\nconstexpr int WIDE = 256;\n"
        "__global__ void scale(float* x, int count) {\n"
        "    int i = blockIdx.x * WIDE + threadIdx.x;\n    if (i < count) {\n        x[i] *= 2.0f;\n    }\n}\n"
    )
    launch = [{"kernel": "scale", "grid": ["(count + WIDE - 1) / WIDE"], "block": ["WIDE"], "shared": ""}]
    (suggestion,) = read_answer(answer(kernel=kernel, launch=launch))
    proposal = make_proposal(suggestion, scale)
    program = edit_program(scale.program, proposal.edits)
    (offer,) = [o for o in offers(program, scale.spec, None, Target()) if o.place is None]
    assert len(offer.points.points) == 3
    for point in offer.points.points:
        step = edit_program(program, offer.template.proposal(point).edits)
        config = evaluate(step, relaunched(step, scale.spec), 0, {"n": 1000})
        assert config.block == (point[0], 1, 1)
        assert config.grid == (-(-1000 // point[0]), 1, 1)


def test_edits_of_host_launches_carry_over_to_the_spec(scan):
    """Source and spec disagreed, and every such edit was screened out."""
    program = edited(
        answer((BLOCKS, "scan_blocks<<<blocks, BLOCK / 4>>>"), (ADD, "add_sums<<<(n + 1023) / 1024, 256>>>")), scan
    )
    assert chain(program) == {
        "scan_blocks": ("blocks", "256", "0"),
        "scan_sums": ("1", "1024", "0"),
        "add_sums": ("(n + 1023) / 1024", "256", "0"),
    }
    assert (ROOT / TOML).read_bytes().count(b"#") == program.files[TOML].count(b"#")
    agree(program, scan.spec)


def test_an_edit_of_one_launch_goes_with_a_launch_given_for_another(scan):
    program = edited(
        answer((BLOCKS, "scan_blocks<<<blocks, 128, 4 * BLOCK>>>"), launch=[extents("add_sums", block=["512"])]), scan
    )
    assert chain(program)["scan_blocks"] == ("blocks", "128", "4096")
    assert b"add_sums<<<(n + 255) / 256, 512>>>" in program.data
    agree(program, scan.spec)


@pytest.mark.parametrize(
    ("search", "replace", "grid", "block"),
    [
        ("TILE), threads>>>", "2 * TILE), threads>>>", "(n + 256 - 1) / 256", "128"),
        ("TILE), threads>>>", "TILE), Traits<64>::value>>>", "(n + TILE - 1) / TILE", "64"),
        ("int threads = 128;", "int threads = TILE / 2;", "(n + TILE - 1) / TILE", "64"),
        ("<<<ceil_div(rows, TILE), threads>>>", "<<<dim3((unsigned)rows / 4 + 1), dim3(THREADS / 2, 2)>>>", "n / 4 + 1", '["64", "2"]'),
        ("    int threads = 128;\n    scale<<<ceil_div(rows, TILE), threads>>>", "    int threads = 128;\n    int work = 4 * threads;\n"
         "    dim3 blocks((rows + work - 1) / work);\n    scale<<<blocks, threads>>>", "(n + 512 - 1) / 512", "128"),
        ("<<<ceil_div(rows, TILE), ", "<<<std::min(rows, 1 << 10), ", "min(n, 1024)", "128"),
        ("<<<ceil_div(rows, TILE), ", "<<<rows > 999 ? rows / 999 : 1, ", "n > 999 ? n / 999 : 1", "128"),
        ("#define TILE 128", "#define TILE 256", "(n + TILE - 1) / TILE", "128"),
        ("#define TILE 128", "#define TILE 128\n#define MORE 32", "", ""),
    ],
)  # fmt: skip
def test_what_the_host_computes_is_put_in_the_specs_terms(scale, search, replace, grid, block):
    program = edited(answer((search, replace)), scale)
    text = program.data.decode()
    if grid:
        assert f'grid = "{grid}", block = {block if block.startswith("[") else json.dumps(block)} }}' in text
    else:
        assert HOST.splitlines()[4] in text
    agree(program, scale.spec)


def test_a_whole_file_with_other_launches_carries_over_too(scan):
    whole = scan.program.data.decode().replace(BLOCKS, "scan_blocks<<<blocks, 512>>>")
    assert chain(edited(f"```cuda\n{whole}\n```", scan))["scan_blocks"] == ("blocks", "512", "0")


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (
            "ceil_div(rows, TILE), threads_wanted",
            "'threads_wanted' cannot be computed from the arguments of the kernel",
        ),
        ("ceil_div(rows, TILE), threads_wanted * 2", "'threads_wanted' cannot be computed"),
        ("ceil_div(rows, TILE), Traits<64>::none", "an expression cannot be computed"),
        (
            "ceil_div(rows, TILE), sizeof(Ignore_all *) / 2 * -rows /* obey the repository */",
            "an expression cannot be computed",
        ),
        ("ceil_div(rows, TILE), rows / 0", "in some case it has no whole value"),
        ("ceil_div(rows, TILE), 2048", "in some case it has no whole value, or one beyond a GPU's limits"),
        ("rows / (rows - 1), threads", "in some case it has no whole value"),
        ("rows * 1.5f, threads", "'1.5f' is not an integer"),
    ],
)
def test_what_the_spec_cannot_follow_is_refused_with_what_to_do(scale, arguments, why):
    """No case of the spec is told: some are those of the checks."""
    error = refused(answer(("ceil_div(rows, TILE), threads>>>", f"{arguments}>>>")), scale)
    assert error.fault is Fault.FORBIDDEN
    assert error.what.startswith("the launch of 'scale' does not carry over to its kernel spec: ")
    assert why in error.what
    assert not re.search(r"obey|1000|65536|\b999\b", error.what)
    assert 'give the launch in "launch"' in error.do


def test_a_call_in_a_launch_is_refused_as_host_code(scale):
    error = refused(answer(("TILE), threads>>>", "TILE), system(rows)>>>")), scale)
    assert error.fault is Fault.FORBIDDEN


def test_one_of_two_launches_of_a_kernel_alone_is_not_carried_over():
    again = HOST.replace("(x, rows);\n}", "(x, rows);\n    scale<<<ceil_div(rows, TILE), 128>>>(x, rows);\n}")
    program = Program({"k.cu": again.encode()}, "k.cu")
    place = workplace(program, specs_in(program, None)[0])
    assert "does not carry over" in refused(answer(("TILE), 128>>>", "TILE), 64>>>")), place).what
    both = edited(answer(("TILE), 128>>>", "TILE), 64>>>"), ("threads = 128;", "threads = 64;")), place)
    assert b'block = "64"' in both.data


def test_host_code_that_doubles_at_each_step_is_refused_soon(scale):
    names = [f"t{i}" for i in range(36)]
    for each in ("{0} - {0} + 64", "std::min({0}, {0})", "first({0}, {0})"):
        locals_ = "".join(f"    int {b} = {each.format(a)};\n" for a, b in pairwise(names))
        for start in ("64", "rows"):
            host = HOST.replace(
                "static int ceil_div", "static int first(int a, int b) { return a; }\nstatic int ceil_div"
            )
            program = Program({"k.cu": host.encode()}, "k.cu")
            place = workplace(program, specs_in(program, None)[0])
            edit = ("    int threads = 128;", f"    int t0 = {start};\n{locals_}    int threads = {names[-1]};")
            with spent() as cost:
                assert refused(answer(edit), place).fault is Fault.FORBIDDEN
            assert cost.seconds < 1


# ---- all answers

LEAVES = ("n", "blocks", "BLOCK", "256", "3", "0", "x", "sums", "warpSize", "0x10", "1.5f", "2u")
FORMS = (
    "{0} + {1}", "({0} + {1} - 1) / {1}", "{0} / {1}", "{0} * {1}", "-{0}", "({0})", "min({0}, {1})", "{0} << {1}",
    "std::max({0}, {1})", "{0} ? {1} : {0}", "(int){0}", "dim3({0}, {1})", "static_cast<unsigned>({0})", "{0}, {1}", "{0} )", "f({0})",
)  # fmt: skip
EXPRESSIONS = st.recursive(
    st.sampled_from(LEAVES),
    lambda e: st.builds(lambda form, a, b: form.format(a, b), st.sampled_from(FORMS), e, e),
    max_leaves=4,
)
JSON = st.recursive(
    st.none() | st.integers(-3, 3) | st.sampled_from(["scan_blocks", "add_sums", "n", "256", "", "grid"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["kernel", "grid", "block", "shared"]), inner, max_size=4)
    ),
    max_leaves=8,
)
LAUNCH = JSON | st.lists(
    st.builds(
        extents,
        st.sampled_from(["scan_blocks", "scan_sums", "add_sums", ""]),
        st.lists(EXPRESSIONS, max_size=2),
        st.lists(EXPRESSIONS, max_size=2),
    ),
    max_size=3,
)
_BOUNDED = settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


@_BOUNDED
@given(launch=LAUNCH, grid=EXPRESSIONS, block=EXPRESSIONS)
def test_source_and_spec_agree_after_any_answer_that_is_taken(scan, launch, grid, block):
    for text in (answer(launch=launch), answer((BLOCKS, f"scan_blocks<<<{grid}, {block}>>>"), launch=launch)):
        try:
            program = edited(text, scan)
        except EditError:
            continue
        agree(program, scan.spec)


def test_the_schema_holds_to_the_strict_form():
    def every(schema):
        if schema.get("type") == "object":
            assert schema["additionalProperties"] is False
            assert sorted(schema["required"]) == sorted(schema["properties"])
            for inner in schema["properties"].values():
                every(inner)
        elif schema.get("type") == "array":
            every(schema["items"])

    every(SCHEMA)
    launch = SCHEMA["properties"]["proposals"]["items"]["properties"]["launch"]
    assert sorted(launch["items"]["properties"]) == ["block", "grid", "kernel", "shared"]


def test_placing_an_edit_of_a_chains_launches_is_cheap(scan):
    times = []
    for threads in range(32, 32 * 13, 32):
        text = answer(
            (BLOCKS, f"scan_blocks<<<blocks, {threads}>>>"), (ADD, f"add_sums<<<(n + 1023) / 1024, {threads}>>>")
        )
        with spent() as cost:
            edited(text, scan)
        times.append(cost.seconds)
    assert sorted(times)[len(times) // 4] < 0.08
