import pytest

from engine.errors import SourceError
from engine.model import LaunchConfig, Program
from engine.source.edit import edit_program
from engine.source.launch import block_constants, evaluate, relaunch, set_constant, sites
from engine.source.parse import parse
from engine.spec.model import Argument, KernelSpec, LaunchExpr, Step

KERNEL = "__global__ void k(float* x, int n, int m) { x[0] = n + m; }\n"


def program(host, head=""):
    return Program({"k.cu": (head + KERNEL + host).encode()}, "k.cu")


def spec(launch=None, template=""):
    arguments = (
        Argument("x", "float", "out", "n"),
        Argument("n", "int", "scalar"),
        Argument("m", "int", "scalar", value="2*n"),
    )
    return KernelSpec("k.cu", (Step("k", template, ("x", "n", "m"), launch),), arguments, (), ())


def config(grid, block, shared=0):
    fill = lambda t: (*t, 1, 1)[:3]  # noqa: E731
    return LaunchConfig(fill(grid), fill(block), shared)


@pytest.mark.parametrize(
    ("head", "host", "expected"),
    [
        ("", "void h(float* x, int n, int m) { k<<<(n + 255) / 256, 256>>>(x, n, m); }", config((4,), (256,))),
        ("", "void h(float* x, int a, int b) { int t = 128; int g = (a + t - 1) / t; k<<<g, t>>>(x, a, b); }", config((8,), (128,))),
        ("", "void h(float* x, int n, int m) { dim3 b(16, 8); dim3 g((n + b.x - 1) / b.x, (m + b.y - 1) / b.y); k<<<g, b>>>(x, n, m); }", config((63, 250), (16, 8))),
        ("#define T 64\n#define CEIL(a, b) (((a) + (b) - 1) / (b))\n", "void h(float* x, int n, int m) { k<<<CEIL(n, T), T>>>(x, n, m); }", config((16,), (64,))),
        ("constexpr int T = 32 * 4;\ninline int cdiv(int a, int b) { return (a + b - 1) / b; }\n", "void h(float* x, int n, int m) { k<<<cdiv(n, T), T>>>(x, n, m); }", config((8,), (128,))),
        ("", "void h(float* x, int n, int m) { dim3 g; g.x = n / 10; g.y = 3; k<<<g, dim3{32, 2}, 4 * sizeof(float)>>>(x, n, m); }", config((100, 3), (32, 2), 16)),
        ("", "void h(float* x, int n, int m) { const size_t t = static_cast<size_t>(n > 512 ? 512 : 32); k<<<std::min(n, 7), (unsigned)t>>>(x, n, m); }", config((7,), (512,))),
        ("", "void h(float* x, int n, int m) { int t = 32; t = 64; k<<<1, t>>>(x, n, m); }", config((1,), (64,))),
        ("", "void h(float* x, int n, int m) { dim3 block(m / 100); auto grid = dim3(2, 2, 2); k<<<grid, block>>>(x, n, m); }", config((2, 2, 2), (20,))),
        ("", "void h(float* x, int n, int m) { k<<<(int)ceil(n / 256.0), 256>>>(x, n, m); }", config((4,), (256,))),
    ],
)  # fmt: skip
def test_launches_evaluate_through_what_they_depend_on(head, host, expected):
    assert evaluate(program(host, head), spec(), 0, {"n": 1000}) == expected


@pytest.mark.parametrize(
    ("host", "message"),
    [
        ("", "no launch of 'k'"),
        ("void h(float* x, int n, int m) { int t = 32; if (n > 5) t = 64; k<<<1, t>>>(x, n, m); }", "changed in a way"),
        ("void h(float* x, int n, int m) { int t = 32; t += 1; k<<<1, t>>>(x, n, m); }", "changed in a way"),
        (
            "void h(float* x, int n, int m) { for (int i = 0; i < 3; i++) k<<<i, 32>>>(x, n, m); }",
            "loop that changes 'i'",
        ),
        ("void h(float* x, int n, int m) { k<<<blocks_for(n), 32>>>(x, n, m); }", "'blocks_for' is not understood"),
        ("void h(float* x, int n, int m) { k<<<unknown, 32>>>(x, n, m); }", "'unknown' is not known"),
        ("void h(float* x, int n, int m) { k<<<1, 32>>>(x, n, m); k<<<2, 32>>>(x, n, m); }", "differ"),
        (f"void h(float* x, int n, int m) {{ k<<<{'(' * 3000}1{')' * 3000}, 32>>>(x, n, m); }}", "nested|understood|many"),
        ("#define A B\n#define B A\nvoid h(float* x, int n, int m) { k<<<A, 32>>>(x, n, m); }", "circle"),
    ],
)
def test_what_cannot_be_evaluated_says_why(host, message):
    with pytest.raises(SourceError, match=message):
        evaluate(program(host), spec(), 0, {"n": 1000})


def test_a_declared_launch_must_agree_with_the_source():
    declared = LaunchExpr(("(n+255)/256",), ("256",))
    host = "void h(float* x, int n, int m) { k<<<(n + 255) / 256, %d>>>(x, n, m); }"
    assert evaluate(program(host % 256), spec(declared), 0, {"n": 1000}) == config((4,), (256,))
    assert evaluate(program(""), spec(declared), 0, {"n": 1000}) == config((4,), (256,))
    with pytest.raises(SourceError, match="the spec launches"):
        evaluate(program(host % 128), spec(declared), 0, {"n": 1000})


def rewritten(host, head="", **wanted):
    before = program(host, head)
    kernel = parse(before.data, "k.cu").kernel("k")
    after = edit_program(before, relaunch(before, sites(before, "k"), kernel, **wanted))
    return after, after.data.decode().split(KERNEL)[1]


def test_relaunch_rewrites_the_definitions_that_serve_nothing_else():
    host = "void h(float* p, int a, int b) {\n  int t = 256;\n  int g = (a + t - 1) / t;\n  k<<<g, t>>>(p, a, b);\n}"
    after, text = rewritten(host, grid=["(n+63)/64"], block=["64"])
    assert text == "void h(float* p, int a, int b) {\n  int t = 64;\n  int g = (a+63)/64;\n  k<<<g, t>>>(p, a, b);\n}"
    assert evaluate(after, spec(), 0, {"n": 1000}) == config((16,), (64,))


def test_relaunch_leaves_a_variable_that_serves_something_else():
    host = "void h(float* p, int a, int b) { int t = 256; use(t); k<<<a / t, t>>>(p, a, b); }"
    after, text = rewritten(host, block=["64"])
    assert "int t = 256; use(t); k<<<a / t, 64>>>" in text


def test_relaunch_writes_dim3_and_shared_memory_in_the_hosts_terms():
    host = "void h(float* p, int a) { k<<<1, 1>>>(p, a + 1, 5); }"
    after, text = rewritten(host, grid=["n", "m"], block=["32", "8"], shared="n*4")
    assert "k<<<dim3((a + 1), 5), dim3(32, 8), (a + 1)*4>>>(p, a + 1, 5)" in text


def test_relaunch_changes_every_site():
    host = "void h(float* p, int a, int b) { k<<<1, 2>>>(p, a, b); }\nvoid g(float* q, int c) { k<<<3, 4>>>(q, c, c); }"
    _, text = rewritten(host, block=["64"])
    assert "k<<<1, 64>>>(p, a, b)" in text
    assert "k<<<3, 64>>>(q, c, c)" in text


def test_launches_in_other_files_are_seen_and_changed():
    files = {"k.cu": KERNEL.encode(), "main.cpp": b"void h(float* p, int a) { k<<<1, 128>>>(p, a, a); }\n"}
    before = Program(files, "k.cu")
    assert [s.path for s in sites(before, "k")] == ["main.cpp"]
    after = edit_program(
        before, relaunch(before, sites(before, "k"), parse(before.data, "k.cu").kernel("k"), block=["64"])
    )
    assert b"<<<1, 64>>>" in after.files["main.cpp"]


def test_block_constants_are_found_through_macros_and_locals():
    head = "#define T 256 // threads\n"
    host = "void h(float* x, int n, int m) { const int t = T; k<<<n / t, t>>>(x, n, m); }"
    before = program(host, head)
    (constant,) = block_constants(before, sites(before, "k")[0])
    assert (constant.name, constant.value, constant.in_kernel) == ("T", 256, False)
    edits = set_constant(before, "k.cu", "T", "128")
    after = edit_program(before, {"k.cu": edits})
    assert after.data.startswith(b"#define T 128 // threads\n")
    assert evaluate(after, spec(), 0, {"n": 1000}) == config((7,), (128,))


def test_two_templates_instances_are_told_apart():
    kernel = "template <int B> __global__ void k(float* x, int n, int m) { x[0] = B; }\n"
    host = "void h(float* x, int n, int m) { k<64><<<1, 64>>>(x, n, m); k<128><<<1, 128>>>(x, n, m); }"
    files = Program({"k.cu": (kernel + host).encode()}, "k.cu")
    assert evaluate(files, spec(template="128"), 0, {"n": 1}) == config((1,), (128,))
