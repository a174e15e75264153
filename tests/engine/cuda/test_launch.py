import pytest

from engine.cuda.edit import edit_program
from engine.cuda.host_scope import UnknownHostName
from engine.cuda.launch import block_constants, relaunch, set_constant, sites
from engine.cuda.launch_reading import readable_sites
from engine.cuda.parse import parse
from engine.errors import SourceError
from engine.model import LaunchConfig, Program
from engine.spec.kernel_spec import Argument, KernelSpec, LaunchExpr, Step
from engine.spec.launch_config import evaluate
from tests.spent import spent

H = "void h(float* x, int n, int m) "
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
        ("", H + "{ k<<<(n + 255) / 256, 256>>>(x, n, m); }", config((4,), (256,))),
        ("", "void h(float* x, int a, int b) { int t = 128; int g = (a + t - 1) / t; k<<<g, t>>>(x, a, b); }", config((8,), (128,))),
        ("", H + "{ dim3 b(16, 8); dim3 g((n + b.x - 1) / b.x, (m + b.y - 1) / b.y); k<<<g, b>>>(x, n, m); }",
         config((63, 250), (16, 8))),
        ("#define T 64\n#define CEIL(a, b) (((a) + (b) - 1) / (b))\n", H + "{ k<<<CEIL(n, T), T>>>(x, n, m); }", config((16,), (64,))),
        ("constexpr int T = 32 * 4;\ninline int cdiv(int a, int b) { return (a + b - 1) / b; }\n",
         H + "{ k<<<cdiv(n, T), T>>>(x, n, m); }", config((8,), (128,))),
        ("", H + "{ dim3 g; g.x = n / 10; g.y = 3; k<<<g, dim3{32, 2}, 4 * sizeof(float)>>>(x, n, m); }", config((100, 3), (32, 2), 16)),
        ("", H + "{ const size_t t = static_cast<size_t>(n > 512 ? 512 : 32); k<<<std::min(n, 7), (unsigned)t>>>(x, n, m); }",
         config((7,), (512,))),
        ("", H + "{ int t = 32; t = 64; k<<<1, t>>>(x, n, m); }", config((1,), (64,))),
        ("", H + "{ dim3 block(m / 100); auto grid = dim3(2, 2, 2); k<<<grid, block>>>(x, n, m); }", config((2, 2, 2), (20,))),
        ("", H + "{ const unsigned w = std::gcd(16 / sizeof(float), n); k<<<n / w, 32>>>(x, n, m); }", config((250,), (32,))),
        ("", H + "{ k<<<(int)ceil(n / 256.0), 256>>>(x, n, m); }", config((4,), (256,))),
        ("", H + "{ const int t = 128, g = (n + t - 1) / t; k<<<g, t>>>(x, n, m); }", config((8,), (128,))),
        ("", H + "{ int t = 32; if (n > 512) t = 512; else if (n > 5) t = 64; k<<<1, t>>>(x, n, m); }", config((1,), (512,))),
        ("", H + "{ int t; if (n < 512) { t = 512; } else { t = 64; t = 128; } k<<<1, t>>>(x, n, m); }", config((1,), (128,))),
        ("", "void h(float* x, int C, int m) { const int d = C / 4; k<<<C / 8, 32>>>(x, d, m); }", config((500,), (32,))),
        ("", "void h(float* x, int C, int m) { k<<<C / 8, 32>>>(x, (C - 8) * 2, m); }", config((63,), (32,))),
        ("", H + "{ k << < n / 8, 256 >> > (x, n, m); }", config((125,), (256,))),
        ("", H + "{ const int t = 16; k<<<n / 8, {t, 8, 1}, 64, s>>>(x, n, m); }", config((125,), (16, 8), 64)),
        ("", H + "{ dim3 t = {16, 8}; k<<<divUp(n, t.x), t>>>(x, n, m); }", config((63,), (16, 8))),
        ("", H + "{ k<<<n / (int)pow(2.0, 3), 32>>>(x, n, m); }", config((125,), (32,))),
        ("", "struct S { void operator()(float* x, int n, int m) const { k<<<n / 8, 32>>>(x, n, m); } };", config((125,), (32,))),
        ("", H + "{ auto go = [&](auto each) { k<<<n / 8, 32>>>(x, n, m); }; go(1); }", config((125,), (32,))),
    ],
)  # fmt: skip
def test_launches_evaluate_through_what_they_depend_on(head, host, expected):
    assert evaluate(program(host, head), spec(), 0, {"n": 1000}) == expected


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("void h(float* x, Tensor in) { k<<<in.size(0) / 8, 32>>>(x, in.size(0), 3); }", None),
        ("void h(float* x, Tensor in, int n) { k<<<in.size(0) / 8, 32>>>(x, n, 3); }", "in_size_0"),
        ("int main(int argc, char** argv) { int r = atoi(argv[1]); k<<<r / 8, 32>>>(x, n, 3); }", "r"),
        ("int main(int argc, char** argv) { int r = 64; if (argc > 1) r = atoi(argv[1]); k<<<r / 8, 32>>>(x, n, 3); }", "r"),
        ("void h(float* x, P params) { k<<<params.rows / 8, 32>>>(x, n, 3); }", "params_rows"),
        ("void h(float* x) { cudaDeviceProp p; ask(&p); k<<<p.multiProcessorCount, 32>>>(x, n, 3); }", "p_multiProcessorCount"),
    ],
)  # fmt: skip
def test_what_only_the_running_host_knows_has_a_name(host, name):
    if name is not None:
        with pytest.raises(UnknownHostName) as caught:
            evaluate(program(host), spec(), 0, {"n": 1000})
        assert caught.value.name == name
        assert f"give '{name}' a value in every case" in caught.value.do
    grid = 2000 if name == "p_multiProcessorCount" else 250 if name else 125
    assert evaluate(program(host), spec(), 0, {"n": 1000, **({name: 2000} if name else {})}).grid[0] == grid


@pytest.mark.parametrize(
    ("host", "message"),
    [
        ("", "no launch of 'k'"),
        (H + "{ int g = t, t = 64; k<<<g, 32>>>(x, n, m); }", "'t' is not known"),
        (H + "{ int t = 32; if (flag) t = 64; k<<<1, t>>>(x, n, m); }", "changed in an unsupported way"),
        (H + "{ int t = 32; switch (n) { case 1: t = 64; } k<<<1, t>>>(x, n, m); }", "changed in an unsupported way"),
        (H + "{ int t = 32; t += 1; k<<<1, t>>>(x, n, m); }", "changed in an unsupported way"),
        (
            H + "{ for (int i = 0; i < 3; i++) k<<<i, 32>>>(x, n, m); }",
            "loop that changes 'i'",
        ),
        (H + "{ k<<<blocks_for(n), 32>>>(x, n, m); }", "unsupported function 'blocks_for'"),
        (H + "{ k<<<unknown, 32>>>(x, n, m); }", "'unknown' is not known"),
        (H + "{ k<<<1, 32>>>(x, n, m); k<<<2, 32>>>(x, n, m); }", "differ"),
        (H + "{ if (n > 7) k<<<1, 32>>>(x, n, m); else k<<<2, 32>>>(x, n, m); }", "differ"),
        (H + "{ if (T<n>::wide) k<<<1, 32>>>(x, n, m); else k<<<2, 32>>>(x, n, m); }", "differ"),
        (H + f"{{ k<<<2 * {'(' * 3000}n{')' * 3000}, 32>>>(x, n, m); }}", "nested|understood|many"),
        (H + "{ k<<<n / 8, 32>>>(x, n / 4, m); }", "the size 'n' is not the host's 'n'"),
        ("void h(float* x, int n) { k<<<n, 32>>>(x, n, n); }", "parameters of different values"),
        ("#define G n-1\n" + H + "{ k<<<2 * G, 32>>>(x, n, m); }", "lacks parentheses"),
        ("#define S(a) a*a\n" + H + "{ k<<<S(n+1), 32>>>(x, n, m); }", "lacks parentheses around 'a'"),
        ("#define S(a) (a)+1\n" + H + "{ k<<<2*S(n), 32>>>(x, n, m); }", "lacks parentheses here"),
        (
            "#ifdef NDEBUG\n#define T 64\n#else\n#define T 32\n#endif\n" + H + "{ k<<<1, T>>>(x, n, m); }",
            "more than once",
        ),
        ("#define A B\n#define B A\n" + H + "{ k<<<A, 32>>>(x, n, m); }", "circular"),
    ],
)
def test_what_cannot_be_evaluated_says_why(host, message):
    with pytest.raises(SourceError, match=message):
        evaluate(program(host), spec(), 0, {"n": 1000})


@pytest.mark.parametrize(("wide", "blocks"), [("true", 2), ("false", 3)])
def test_a_launch_behind_a_constant_condition_that_does_not_hold_is_none(wide, blocks):
    head = f"struct T {{ static constexpr bool wide = {wide}; }};\n"
    host = H + "{ if constexpr (T::wide) { k<<<2, 32>>>(x, n, m); } else { k<<<unknown(n), 32>>>(x, n, m); } }"
    assert evaluate(program(host.replace("unknown(n)", "3"), head), spec(), 0, {"n": 1000}).grid[0] == blocks
    if wide == "true":
        assert evaluate(program(host, head), spec(), 0, {"n": 1000}).grid[0] == 2
    host = H + "{ if (!T::wide) { return; } else if (1) { k<<<2, 32>>>(x, n, m); } }"
    assert evaluate(program(host, head), spec(), 0, {"n": 1000}).grid[0] == 2


def test_a_declared_launch_must_agree_with_the_source():
    declared = LaunchExpr(("(n+255)/256",), ("256",))
    host = H + "{ k<<<(n + 255) / 256, %d>>>(x, n, m); }"
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
    _, text = rewritten(host, block=["64"])
    assert "int t = 256; use(t); k<<<a / t, 64>>>" in text


def test_relaunch_leaves_a_variable_that_another_of_its_declaration_needs():
    host = H + "{ const int t = 128, g = (n + t - 1) / t; k<<<g, t>>>(x, n, m); }"
    assert "int t = 128, g = (n + t - 1) / t; k<<<g, 64>>>" in rewritten(host, block=["64"])[1]
    assert "int t = 64, g = (n+63)/64; k<<<g, t>>>" in rewritten(host, grid=["(n+63)/64"], block=["64"])[1]


def test_relaunch_writes_dim3_and_shared_memory_in_the_hosts_terms():
    host = "void h(float* p, int a) { k<<<1, 1>>>(p, a + 1, 5); }"
    _, text = rewritten(host, grid=["n", "m"], block=["32", "8"], shared="n*4")
    assert "k<<<dim3((a + 1), 5), dim3(32, 8), (a + 1)*4>>>(p, a + 1, 5)" in text


@pytest.mark.parametrize(
    ("passed", "fine"),
    [
        ("a + 1", True), ("(int)std::min(a, 7)", True), ("static_cast<int>(a)", True), ("p.count", True), ("p->count", True),
        ("sizeof(float) * a", True), ("next()", False), ("a++", False), ("sizes[0]", False), ("a = 3", False), ("f<int>(a)", False),
    ],
)  # fmt: skip
def test_what_the_launch_passes_is_repeated_only_where_that_changes_nothing(passed, fine):
    before = program("void h(float* x, int a, S* p) { k<<<1, 32>>>(x, " + passed + ", 5); }")
    kernel = parse(before.data, "k.cu").kernel("k")
    if fine:
        assert relaunch(before, sites(before, "k"), kernel, grid=["n"])
    else:
        with pytest.raises(SourceError, match="cannot be duplicated"):
            relaunch(before, sites(before, "k"), kernel, grid=["n"])
        assert relaunch(before, sites(before, "k"), kernel, grid=["m"])


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
    host = H + "{ const int t = T; k<<<n / t, t>>>(x, n, m); }"
    before = program(host, head)
    (constant,) = block_constants(before, sites(before, "k")[0])
    assert (constant.name, constant.value, constant.in_kernel) == ("T", 256, False)
    edits = set_constant(before, "k.cu", "T", "128")
    after = edit_program(before, {"k.cu": edits})
    assert after.data.startswith(b"#define T 128 // threads\n")
    assert evaluate(after, spec(), 0, {"n": 1000}) == config((7,), (128,))


def test_a_value_assigned_in_the_host_is_no_constant_of_the_block():
    p = program("void h(float* x, int n, int m, int t) { t = 32; k<<<n, t>>>(x, n, m); }")
    assert block_constants(p, sites(p, "k")[0]) == ()


def test_two_templates_instances_are_told_apart():
    kernel = "template <int B> __global__ void k(float* x, int n, int m) { x[0] = B; }\n"
    host = H + "{ k<64><<<1, 64>>>(x, n, m); k<128><<<1, 128>>>(x, n, m); }"
    files = Program({"k.cu": (kernel + host).encode()}, "k.cu")
    assert evaluate(files, spec(template="128"), 0, {"n": 1}) == config((1,), (128,))


def test_a_launch_of_another_instance_is_another_launch():
    head = "#define B 128\ntemplate <int N> "
    host = H + "{ k<64><<<n, 64>>>(x, n, m); k<B><<<n, B>>>(x, n, m); }"
    assert evaluate(program(host, head), spec(template="128"), 0, {"n": 5}) == config((5,), (128,))
    assert evaluate(program(host, head), spec(template="64"), 0, {"n": 5}) == config((5,), (64,))
    with pytest.raises(SourceError, match="no launch"):
        evaluate(program(host, head), spec(template="32"), 0, {"n": 5})


def test_an_expression_passed_for_a_parameter_is_taken_at_its_word():
    host = "void h(float* x, int rows, int cols) { int n = rows * 2; k<<<n / 2, 32>>>(x, n, 2 * n); }"
    assert evaluate(program(host), spec(), 0, {"n": 10}) == config((5,), (32,))


def test_a_product_passed_for_a_parameter_is_known_wherever_it_stands():
    host = "void h(float* x, int b, int t, int m) { int g = (b*t * 32 + 63) / 64; k<<<g, 64>>>(x, b * t, m); }"
    assert evaluate(program(host), spec(), 0, {"n": 1000}) == config((500,), (64,))
    other = host.replace("b*t * 32", "t * 32")  # one of its factors alone is not
    with pytest.raises(UnknownHostName) as caught:
        evaluate(program(other), spec(), 0, {"n": 1000})
    assert (caught.value.name, caught.value.in_block) == ("t", False)


def test_a_name_that_the_block_needs_is_told_from_one_that_the_grid_needs():
    host = "void h(float* x, int n, int m, int side) { dim3 b(side, side); k<<<dim3(n / side, m), b>>>(x, n, m); }"
    with pytest.raises(UnknownHostName) as caught:
        evaluate(program(host), spec(), 0, {"n": 1000})
    assert (caught.value.name, caught.value.in_block) == ("side", True)
    assert evaluate(program(host), spec(), 0, {"n": 1000, "side": 10}) == config((100, 2000), (10, 10))


def test_a_file_with_a_kernel_of_the_same_name_launches_its_own():
    mine = KERNEL + H + "{ k<<<1, 32>>>(x, n, m); }"
    other = "__global__ void k(int* y) { y[0] = 1; }\nvoid g(int* y) { k<<<7, 77>>>(y); auto f = k; }"
    both = Program({"k.cu": mine.encode(), "other.cu": other.encode()}, "k.cu")
    assert [site.path for site in sites(both, "k")] == ["k.cu"]
    assert evaluate(both, spec(), 0, {"n": 5}) == config((1,), (32,))
    assert set(relaunch(both, sites(both, "k"), parse(both.data).kernels[0], block=["64"])) == {"k.cu"}


@pytest.mark.parametrize(
    "other",
    [
        "#define GO(t) k<<<1, t>>>(0, 1, 2)\nvoid g() { GO(64); }",
        "#define GO(f, t) f<<<1, t>>>(0, 1, 2)\nvoid g() { GO(k, 64); }",
        "void g(void** a) { cudaLaunchKernel((void*)k, dim3(1), dim3(64), a, 0, 0); }",
        "void g(void** a) { cudaLaunchCooperativeKernel(&k, 1, 64, a); }",
        "void g() { auto f = k; f<<<1, 64>>>(0, 1, 2); }",
    ],
)
def test_no_relaunch_while_another_launch_is_unseen(other):
    p = program(H + "{ k<<<n, 32>>>(x, n, m); }\n" + other)
    with pytest.raises(SourceError, match="cannot be edited") as error:
        relaunch(p, sites(p, "k"), parse(p.data, "k.cu").kernel("k"), block=["64"])
    assert error.value.where.startswith("k.cu:")


@pytest.mark.parametrize(
    "other",
    [
        '// k<<<1, 64>>>\nconst char* s = "k";',
        "void g() { cudaFuncSetAttribute(k, cudaFuncAttributeMaxDynamicSharedMemorySize, 1); }",
        "void g() { int grid, t; cudaOccupancyMaxPotentialBlockSize(&grid, &t, k, 0, 0); }",
        "void k(double* x); void g(double* x) { k(x); }",
        "int g(int k) { return k + 1; }",
        "int g() { int k = 3; return k; }",
        "#define OTHER(k) ((k) + 1)",
    ],
)
def test_uses_that_launch_nothing_do_not_stop_a_relaunch(other):
    p = program(H + "{ k<<<n, 32>>>(x, n, m); }\n" + other)
    edits = relaunch(p, sites(p, "k"), parse(p.data, "k.cu").kernel("k"), block=["64"])
    assert b"k<<<n, 64>>>" in edit_program(p, edits).data


def doubled(levels):
    """A host whose locals each use the one before twice, and functions that each call the one before twice."""
    last = levels - 1
    locals_ = "".join(f"int t{i} = t{i - 1} - t{i - 1} + 64; " for i in range(1, levels))
    head = "inline int f0(int a) { return a; }\ninline int g0() { return 64; }\n" + "".join(
        f"inline int f{i}(int a) {{ return f{i - 1}(a) - f{i - 1}(a) + a; }}\n"
        f"inline int g{i}() {{ return g{i - 1}() - g{i - 1}() + 64; }}\n"
        for i in range(1, levels)
    )
    uses = (f"int t0 = 64; {locals_}k<<<1, t{last}>>>", f"k<<<1, f{last}(64)>>>", f"k<<<1, g{last}()>>>")
    return [program(f"{H} {{ {use}(x, n, m); }}", head) for use in uses]


def test_definitions_that_double_at_each_step_end_soon():
    """Forty short lines of a host took 2^40 steps."""
    for small in doubled(5):
        assert evaluate(small, spec(), 0, {"n": 1000}) == config((1,), (64,))
    for large in doubled(38):
        with spent() as cost, pytest.raises(SourceError, match="too many steps"):
            evaluate(large, spec(), 0, {"n": 1000})
        assert cost.seconds < 1


def test_a_launch_through_a_pointer_that_a_switch_chooses_is_read():
    code = b"""
__global__ void one(float* x, int n) { if (threadIdx.x < n) x[threadIdx.x] = 1; }
__global__ void two(float* x, int n) { if (threadIdx.x < n) x[threadIdx.x] = 2; }
void run(float* x, int n, int which) {
    void (*kernel)(float*, int);
    for (int k = 0; k < which; ++k) {
        switch (k) {
        case 0:
            kernel = &one;
            break;
        case 1:
            kernel = &two;
            break;
        }
        kernel<<<(n + 31) / 32, 32>>>(x, n);
    }
}
void other(float* x, int n) {
    void (*kernel)(float*, int) = &one;
    kernel = &two;
    kernel<<<1, 64>>>(x, n);
}
"""
    program = Program({"k.cu": code}, "k.cu")
    for name in ("one", "two"):
        lines = [(site.line, site.kernel) for site in readable_sites(program, name)]
        assert (15, name) in lines
    assert all(site.line != 21 for site in readable_sites(program, "one"))
