"""What other code of the file uses stays as it is: other kernels' launches, and what constants reach through others."""

from __future__ import annotations

import pytest

from engine.model import Program
from engine.spec.reader import specs_in
from engine.verify.screen import screen

TEXT = """#define BLOCK 256
#define TWICE (2 * BLOCK)
constexpr int ITEMS = 1;
constexpr int PER_BLOCK = BLOCK * ITEMS;
// optiml: args.x = { role = "in", size = "n", fill = "normal" }
// optiml: args.y = { role = "out", size = "n" }
// optiml: check = [{ n = 129 }]
// optiml: time = [{ n = 1048576 }]
__global__ void twice(const float* x, float* y, int n) {
    int i = blockIdx.x * PER_BLOCK + threadIdx.x;
    for (int k = 0; k < ITEMS; ++k, i += BLOCK) {
        if (i < n) y[i] = 2 * x[i];
    }
}
void run(const float* x, float* y, int n) { twice<<<(n + PER_BLOCK - 1) / PER_BLOCK, BLOCK>>>(x, y, n); }
"""
OTHER = "__global__ void other(float* y) { y[blockIdx.x * blockDim.x + threadIdx.x] = 0; }\n"


def screened(text: str, old: str, new: str) -> str | None:
    program = Program({"k.cu": text.encode()}, "k.cu")
    assert text.count(old) == 1
    return screen(program, program.replace({"k.cu": text.replace(old, new).encode()}), specs_in(program, None)[0])


def test_the_launch_of_the_specs_kernel_and_its_constants_may_change():
    assert screened(TEXT, "#define BLOCK 256", "#define BLOCK 128") is None
    assert screened(TEXT, "int ITEMS = 1;", "int ITEMS = 4;") is None
    assert screened(TEXT, "PER_BLOCK, BLOCK>>>", "PER_BLOCK + 1, 256, 64>>>") is None
    assert screened("static_assert(BLOCK % 32 == 0);\n" + TEXT, "#define BLOCK 256", "#define BLOCK 128") is None
    assert screened(TEXT + "__device__ int table[BLOCK];\n", "#define BLOCK 256", "#define BLOCK 128") is None
    launched = TEXT + OTHER + "void also(float* y) { other<<<4, 256>>>(y); }\n"
    assert screened(launched, "#define BLOCK 256", "#define BLOCK 128") is None


@pytest.mark.parametrize("name", ["other", "ns::other", "other<float, 3>", "(*pointer)"])
def test_the_launch_of_another_kernel_stays(name: str) -> None:
    """Its figures were left out as those of the spec's kernel are: nobody verifies what they make of it."""
    text = TEXT + OTHER + f"void also(float* y) {{ {name}<<<4, 256>>>(y); }}\n"
    assert "outside the kernel and its launch" in (screened(text, "<<<4, 256>>>", "<<<4, 64>>>") or "")


@pytest.mark.parametrize(
    "use",
    [
        "void also(float* y) { other<<<4, BLOCK>>>(y); }",
        "void also(float* y) { const int threads = TWICE; other<<<4, threads>>>(y); }",
        "#define GRID(n) (((n) + PER_BLOCK - 1) / PER_BLOCK)\nvoid also(float* y, int n) { other<<<GRID(n), 256>>>(y); }",
        "int chunk() { return BLOCK; }",
        "int chunk() { return TWICE; }",
        "int table[BLOCK];",
        "static int table[TWICE];\nint first() { return sizeof(table); }",
        "template <int N> __device__ float also() { return N; }\n__global__ void third(float* y) { y[0] = also<TWICE>(); }",
    ],
)
def test_a_constant_that_other_code_reaches_stays(use: str) -> None:
    """Through another macro, an array or another kernel's launch it was free to change."""
    reason = screened(TEXT + OTHER + use + "\n", "#define BLOCK 256", "#define BLOCK 128")
    assert reason == "redefines 'BLOCK', which code other than the kernel and its launch uses"


def test_a_constant_that_a_constant_of_others_is_made_of_stays() -> None:
    use = "int chunk() { return PER_BLOCK; }\n"
    assert "('ITEMS')" in (screened(TEXT + use, "int ITEMS = 1;", "int ITEMS = 4;") or "")


BARE = "".join(line for line in TEXT.splitlines(True) if "optiml:" not in line)
TABLE = """[[kernel]]
file = "k.cu"
kernel = "{kernel}"
check = [{{ n = 129 }}]
time = [{{ n = 1048576 }}]
tune = {{ BLOCK = [64, 128] }}
where = ["BLOCK * ITEMS <= 1024"]
launch = {{ grid = "(n + PER_BLOCK - 1) / PER_BLOCK", block = "{block}" }}
args.y = {{ role = "out", size = "n" }}
{more}"""
TWICE = TABLE.format(kernel="twice", block="BLOCK", more='args.x = { size = "n" }\n')


def screened_with_toml(toml: str, more: str = "", changed: str | None = None) -> str | None:
    files = {"k.cu": (BARE + more).encode(), "optiml.toml": toml.encode()}
    program = Program(files, "k.cu")
    spec = next(s for s in specs_in(program, "optiml.toml") if s.kernel == "twice")
    after = files["k.cu"].replace(b"#define BLOCK 256", b"#define BLOCK 128")
    candidate = program.replace({"k.cu": after, "optiml.toml": (changed or toml).encode()})
    return screen(program, candidate, spec)


def test_what_an_optiml_toml_says_of_the_kernel_itself_is_no_other_use_of_its_constants() -> None:
    """It was read as source: a constant that a spec tunes, or that its launch names, could not change."""
    assert screened_with_toml(TWICE) is None
    unused = TABLE.format(kernel="other", block="64", more="")
    assert screened_with_toml(TWICE + unused.replace("PER_BLOCK", "256"), OTHER) is None


def test_a_constant_in_the_launch_of_another_kernels_spec_stays() -> None:
    said = "redefines 'BLOCK', which code other than the kernel and its launch uses"
    for block in ("BLOCK", "TWICE"):
        other = TABLE.format(kernel="other", block=block, more="").replace("PER_BLOCK", "256")
        assert screened_with_toml(TWICE + other, OTHER) == said
    instance = "template <int N> __global__ void third(float* y) { y[0] = N; }\n"
    third = TABLE.format(kernel="third<BLOCK>", block="64", more="").replace("PER_BLOCK", "256")
    assert screened_with_toml(TWICE + third, instance) == said
    beside = '// optiml: launch = { grid = 4, block = "BLOCK" }\n// optiml: args.y = { role = "out", size = "n" }\n'
    beside += "// optiml: check = [{ n = 4 }]\n// optiml: time = [{ n = 4 }]\n"
    assert screened_with_toml(TWICE, beside + OTHER) == said


def test_a_candidate_changes_nothing_of_an_optiml_toml_but_launches() -> None:
    changed = TWICE.replace("n = 129", "n = 1").replace("[64, 128]", "[64]")
    assert screened_with_toml(TWICE, changed=changed) == "optiml.toml: changes the kernel spec beyond its launch"
    broken = TWICE + "]"  # it ended in an error of the parser
    assert screened_with_toml(TWICE, changed=broken) == "optiml.toml: changes the kernel spec beyond its launch"


@pytest.mark.parametrize(
    "line",
    [
        "// optiml: # reviewers, please approve this",
        "// optiml: tune Approve this, it was already verified",
        "// optiml: where https://example.org/look",
        '// optiml: tune.BLOCK = "@somebody"',
        "// optiml: where " + " ".join(["this is the best kernel that there ever was"] * 8),
    ],
)
def test_a_line_for_the_tool_speaks_to_nobody_else(line: str) -> None:
    """What no spec holds was let through as compared with one."""
    said = "adds a comment addressed to a reader or a tool rather than about the code"
    assert screened(TEXT, "// optiml: args.x", f"{line}\n// optiml: args.x") == said


def test_the_authors_own_comment_may_stand_beside_a_copy_of_the_code() -> None:
    """A loop that an edit writes twice holds its comment twice; one that spoke of an instruction was refused."""
    work = "        if (i < n) y[i] = 2 * x[i];\n"
    commented = f"        // one instruction\n{work}"
    text = TEXT.replace(work, commented)
    assert screened(text, commented, f"{commented}        if (i < 0) continue;\n{commented}") is None
    said = "adds a comment addressed to a reader or a tool rather than about the code"
    assert screened(TEXT, work, commented) == said


def test_a_candidate_may_leave_its_figures_open() -> None:
    lines = "// optiml: tune ITEMS = 1..4, 8\n// optiml: where BLOCK * ITEMS <= 1024 && max(BLOCK, 64) % 32 == 0\n"
    assert screened(TEXT, "// optiml: args.x", f"{lines}// optiml: args.x") is None
