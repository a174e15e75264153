"""What a draft assumes, and says so: launches, whole tiles, rows of tables, shapes to check."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from engine.cpu import CpuMachine
from engine.cpu.draft_probe import CpuProbe
from engine.cuda.parse import parse
from engine.process.sandbox import sandbox
from engine.spec.draft import DraftForm, OriginalRuns, draft
from engine.spec.kernel_spec import Fill, Role
from engine.spec.launch_config import evaluate
from engine.spec.usage import Usage
from tests.engine.spec.drafts import LAUNCHER
from tests.engine.spec.drafts import program as _program
from tests.engine.spec.drafts import read_back as _read_back
from tests.runtime import with_runtime
from tests.spent import spent


@pytest.mark.parametrize(("index", "size", "least"), [("i", "n*m", 64), ("i * m", "m*m*n", 8)])
def test_a_kernel_that_odd_sizes_break_is_tried_with_whole_tiles(index: str, size: str, least: int) -> None:
    """It asserts that sizes are even, or without a guard its last block goes beyond the arrays: nothing fits at odd sizes."""

    def probe(sizes: Mapping[str, int]) -> Mapping[str, int]:
        threads = -(-sizes["n"] * sizes["m"] // 256) * 256
        return {"x": threads * sizes["m"]} if index != "i" else {} if sizes["n"] % 2 else {"x": threads}

    code = f"""
__global__ void k(float *x, int n, int m) {{ int i = blockIdx.x * blockDim.x + threadIdx.x; x[{index}] = n * m; }}
void run(float *x, int n, int m) {{ k<<<(n * m + 255) / 256, 256>>>(x, n, m); }}
"""
    for form in ("comments", "toml"):
        made = draft(_program(code), "k", runs=OriginalRuns(probe=probe), written=DraftForm(form=form))
        assert (made.missing, made.spec.argument("x").size) == ((), size)
        assert "# assumed: the kernel is made for whole tiles" in made.text
        assert {v % least for case in made.spec.check for v in case.sizes.values()} == {0}
        assert max(math.prod(c.sizes.values()) * (c.sizes["m"] if least == 8 else 1) for c in made.spec.check) <= 65536
        assert _read_back(_program(code), made, form).check == made.spec.check
    made = draft(_program(code), "k", runs=OriginalRuns(probe=lambda sizes: {}))
    assert "whole tiles" not in made.text  # no better, so the shapes stay awkward


def test_blocks_that_only_larger_sizes_have_are_not_taken_for_all_there_are() -> None:
    code = """
__global__ void k(float *x, int n, int m, int l) { x[blockIdx.x * 32 + threadIdx.x] = n < m * l; }
void run(float *x, int n, int m, int l) { k<<<l / 32, 32>>>(x, n, m, l); }
"""
    probe = lambda s: {"x": s["l"] // 32 * 32} if s["l"] >= 32 else {}  # noqa: E731
    made = draft(_program(code), "k", runs=OriginalRuns(probe=probe))
    assert (made.missing, made.spec.argument("x").size) == ((), "l")
    assert "whole tiles" in made.text


@pytest.mark.parametrize(
    ("index", "reach", "size", "high"),
    [
        ("at[i] * m + j", lambda s, i: (i + 1) * s["m"], "256*m", {"int": "256", "signed char": "128"}),
        (
            "i * m + at[i]",
            lambda s, i: (s["n"] - 1) * s["m"] + i + 1,
            "n*m",
            {"int": "m", "signed char": "min(m, 128)"},
        ),
        ("at[i]", lambda s, i: 1, "", {"int": "256", "signed char": "128"}),
    ],
)
@pytest.mark.parametrize("kind", ["int", "signed char"])
def test_a_buffer_that_others_index_is_as_large_as_its_indices_say(
    kind: str, index: str, reach: Callable[[Mapping[str, int], int], int], size: str, high: Mapping[str, str]
) -> None:
    code = f"""
__global__ void k(const {kind} *at, const float *x, float *y, int n, int m) {{
    int i = blockIdx.x;
    for (int j = threadIdx.x; j < m; j += blockDim.x) y[i * m + j] = x[{index}];
}}
void run(const {kind} *at, const float *x, float *y, int n, int m) {{ k<<<n, 128>>>(at, x, y, n, m); }}
"""
    probes = [lambda s, i=i: {"at": s["n"], "x": reach(s, i), "y": s["n"] * s["m"]} for i in (0, 1)]
    made = draft(_program(code), "k", runs=OriginalRuns(probe=probes[0], moved=probes[1]))
    assert [bool(made.missing), made.spec.argument("x").size] == [not size, size]
    assert made.spec.argument("at").fill == Fill("integers", "0", high[kind])
    if size:
        assert _read_back(_program(code), made, "comments").arguments == made.spec.arguments


def test_what_the_host_knows_of_the_device_is_assumed() -> None:
    code = LAUNCHER.replace("blocks = (n + threads - 1) / threads", "blocks = gNumSMs * max_threads_per_sm / threads")
    made = draft(_program("int gNumSMs = 0, max_threads_per_sm = 0;" + code), "k")
    assert made.missing == ()
    assert made.spec.time[0].sizes == {"n": 1 << 24, "threads": 256, "gNumSMs": 132, "max_threads_per_sm": 2048}
    assert made.spec.check[1].sizes == {"n": 129, "threads": 256, "gNumSMs": 2, "max_threads_per_sm": 1024}


def test_sizes_that_the_launch_alone_knows_are_sizes() -> None:
    code = """
__global__ void k(const float *x, float *y, int cols) {
    for (int j = threadIdx.x; j < cols; j += blockDim.x) y[blockIdx.x * cols + j] = x[blockIdx.x % 2 * cols + j];
}
void run(const float *x, float *y, int batch, int rows, int cols) { k<<<dim3(rows * batch), 128>>>(x, y, cols); }
"""

    def probe(sizes: Mapping[str, int]) -> Mapping[str, int]:
        return {"x": 2 * sizes["cols"], "y": sizes["batch"] * sizes["rows"] * sizes["cols"]}

    for form in ("comments", "toml"):
        made = draft(_program(code), "k", runs=OriginalRuns(probe=probe), written=DraftForm(form=form))
        assert made.missing == ()
        assert [made.spec.argument(name).size for name in "xy"] == ["2*cols", "cols*rows*batch"]
        assert made.spec.time[0].sizes == {"cols": 512, "rows": 512, "batch": 512}
        assert "# assumed: the shapes; assumed: rows, batch of the launch are sizes" in made.text
        spec = _read_back(_program(code), made, form)
        assert evaluate(_program(code), spec, 0, {"cols": 5, "rows": 7, "batch": 3}).grid == (21, 1, 1)


@pytest.mark.parametrize("reach", [lambda n, m, i: (i + 1) * m, lambda n, m, i: n * m])
def test_a_table_is_found_by_what_its_indices_move_though_the_text_does_not_show_it(
    reach: Callable[[int, int, int], int],
) -> None:
    code = """
__device__ float of(const float *row, int j) { return row[j]; }
__global__ void k(const int *at, const float *x, float *y, int n, int m) {
    int row = at[blockIdx.x];
    for (int j = threadIdx.x; j < m; j += blockDim.x) y[blockIdx.x * m + j] = of(x + row * m, j);
}
void run(const int *at, const float *x, float *y, int n, int m) { k<<<n, 128>>>(at, x, y, n, m); }
"""
    probes = [lambda s, i=i: {"at": s["n"], "x": reach(s["n"], s["m"], i), "y": s["n"] * s["m"]} for i in (0, 1)]
    made = draft(_program(code), "k", runs=OriginalRuns(probe=probes[0], moved=probes[1]))
    assert made.missing == ()
    assert made.spec.argument("x").size == ("256*m" if reach(1, 1, 1) == 2 else "n*m")
    assert made.spec.argument("at").fill == Fill("integers", "0", "256")


_THROUGH_FUNCTIONS = """
__device__ float of(float *p, int i) { return p[i]; }
__device__ void put(float *p, int i, float v) { p[i] = v; }
__device__ void add(float *p, int i, float v) { p[i] += v; }
__global__ void k(float *x, float *y, float *sum, float *some, float *border, unsigned char *bytes, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    put(y, i, of(x, i));
    add(sum, i, of(x, i));
    if (i % 2 == 0) put(some, i, 1);
    if (i > 0 && i < n - 1) border[i] = of(y, i);
    bytes[i] = 7;
}
void run(float *x, float *y, float *sum, float *some, float *border, unsigned char *bytes, int n) {
    k<<<(n + 127) / 128, 128>>>(x, y, sum, some, border, bytes, n);
}
"""


def test_roles_are_what_trials_show(tmp_path: Path) -> None:
    program = _program(_THROUGH_FUNCTIONS)
    text = draft(program, "k")
    probe = CpuProbe(program, text.spec, _machine(tmp_path), tmp_path)
    made = draft(program, "k", runs=OriginalRuns(probe=probe.touched, moved=probe.moved, roles=probe.roles))
    names = ("x", "y", "sum", "some", "border", "bytes")
    assert made.missing == ()
    assert [text.spec.argument(n).role for n in names] == ["inout"] * 4 + ["out"] * 2
    assert [made.spec.argument(n).role for n in names] == ["in", "out", "inout", "inout", "inout", "out"]
    said = {n: next(line for line in made.text.splitlines() if f"args.{n} " in line) for n in names}
    assert "assumed: only read, though the pointer is not const" in said["x"]
    assert "assumed: each element is written before it is read" in said["y"]
    assert "assumed" not in said["sum"] + said["bytes"]
    assert "assumed: what it does not write stays" in said["border"]
    assert made.spec.argument("border").size == "n - 1"
    assert [c.sizes["n"] for c in made.spec.check] == [2, 129, 903, 4099]
    assert _read_back(program, made, "comments").arguments == made.spec.arguments


@pytest.mark.parametrize(
    ("roles", "role"),
    [
        ([{"y": "out"}, {"y": "out"}], "out"),
        ([{"y": "out"}, {}], "out"),
        ([{"y": "out"}, {"y": "inout"}], "inout"),
        ([{"y": "out"}, {"y": "in"}], "inout"),
        ([{}, {}], "inout"),
    ],
)
def test_roles_are_only_believed_where_all_trials_agree(roles: Sequence[Mapping[str, Role]], role: Role) -> None:
    code = LAUNCHER.replace("y[i] = x[i]", "y[i] += x[i]")
    left = [*roles, *roles]
    probe = lambda sizes: dict.fromkeys("xy", sizes["n"])  # noqa: E731
    made = draft(_program(code), "k", runs=OriginalRuns(probe=probe, roles=lambda sizes: left.pop()))
    assert made.spec.argument("y").role == role
    atomic = code.replace("y[i] += x[i]", "atomicAdd(&y[0], x[i])")
    made = draft(_program(atomic), "k", runs=OriginalRuns(probe=probe, roles=lambda sizes: {"y": "out"}))
    assert (made.spec.argument("y").role, made.spec.argument("y").fill) == ("inout", Fill("constant", "0"))


def test_what_ends_a_trial_tells_no_roles(tmp_path: Path) -> None:
    code = LAUNCHER.replace("y[i] = x[i]", "y[n > 99 ? i - n * 4096 : i] = x[i]")
    probe = CpuProbe(_program(code), draft(_program(code), "k").spec, _machine(tmp_path), tmp_path)
    assert probe.roles({"n": 64}) == {}  # not tried before: the room that it needs is not known
    assert [probe.touched({"n": 64}), probe.roles({"n": 64})] == [{"x": 64, "y": 64}, {"y": "out"}]
    assert [probe.touched({"n": 100}), probe.roles({"n": 100})] == [{}, {}]


def test_roles_are_tried_though_the_time_for_the_reach_is_spent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    probe = CpuProbe(_program(LAUNCHER), draft(_program(LAUNCHER), "k").spec, _machine(tmp_path), tmp_path)
    assert [probe.touched({"n": n}) for n in (63, 64)] == [{"x": n, "y": n} for n in (63, 64)]
    monkeypatch.setattr("engine.cpu.draft_probe._MAX_S", 0.0)
    assert [probe.touched({"n": 65}), probe.roles({"n": 64})] == [{}, {"y": "out"}]
    monkeypatch.setattr("engine.cpu.draft_probe._MAX_ROLES_S", 0.0)
    assert [probe.roles({"n": n}) for n in (63, 64)] == [{}, {"y": "out"}]  # what was found out stays


def _machine(folder: Path) -> CpuMachine:
    return CpuMachine(with_runtime(folder) / "cpu", sandbox=sandbox(False), scratch=folder)


HEADS = """
__global__ void k(const float *x, float *y, int rows, int width, int heads) {
    int size = QUOTIENT, i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < rows * heads) {
        float sum = 0;
        for (int j = 0; j < size; j++) sum += x[i / heads * width + i % heads * size + j];
        y[i] = sum;
    }
}
void run(const float *x, float *y, int rows, int width, int heads) { k<<<(rows * heads + 63) / 64, 64>>>(x, y, rows, width, heads); }
"""


def test_a_size_that_is_divided_by_another_is_a_multiple_of_it(tmp_path: Path) -> None:
    program = _program(HEADS.replace("QUOTIENT", "width / heads"))
    probe = CpuProbe(program, draft(program, "k").spec, _machine(tmp_path), tmp_path)
    made = draft(program, "k", runs=OriginalRuns(probe=probe.touched, roles=probe.roles))
    assert made.missing == ()
    assert [made.spec.argument(n).size for n in "xy"] == ["rows*width", "rows*heads"]
    cases = [*made.spec.check, *made.spec.time]
    assert [c.sizes["heads"] for c in cases] == [1, 2, 3, 5, 8]
    assert all(int(c.sizes["width"]) % c.sizes["heads"] == 0 for c in cases)
    assert any(int(c.sizes["width"]) % 2 for c in cases[1:])
    assert made.spec.time[0].sizes["width"] >= 1024


@pytest.mark.parametrize(
    ("text", "divided"),
    [
        ("width / heads", True),
        ("rows + (int)width / heads", True),
        ("-width / heads * 2", True),
        ("rows * width / heads", False),
        ("rows / width / heads", False),
        ("(rows + width) / heads", False),
        ("x[width] / heads", False),
        ("width / heads[0]", False),
        ("width / heads.x", False),
        ("width / 4", False),
        ("width / width", False),
        ("p.width / heads", False),
    ],
)
def test_which_sizes_are_divided(text: str, divided: bool) -> None:
    unit = parse(HEADS.replace("QUOTIENT", text).encode(), "k.cu")
    found = Usage(unit, unit.kernel("k")).divided(["rows", "width", "heads"])
    assert found == ({"width": "heads"} if divided else {"rows": "width"} if text.startswith("rows /") else {})


def test_a_trial_without_a_block_says_nothing(tmp_path: Path) -> None:
    code = """
__global__ void k(float *y, int n) { int i = blockIdx.x * 32 + threadIdx.x; if (i < n) y[i] = i; }
void run(float *y, int n) { k<<<n / 2048, 32>>>(y, n); }
"""
    made = draft(_program(code), "k")
    probe = CpuProbe(_program(code), made.spec, _machine(tmp_path), tmp_path)
    assert probe.touched({"n": 2047}) == {}
    assert probe.touched({"n": 4096}) == {"y": 64}


def test_a_launch_without_a_value_is_missing() -> None:
    for change, what in (
        (("k<<<blocks, threads>>>", "k<<<1, 2000 * threads>>>"), "its block has 512000 threads"),
        (("(n + threads - 1)", "pack::size"), "'pack::size' is not known; declare 'launch' in the spec"),
    ):
        missing = draft(_program(LAUNCHER.replace(*change).replace("if (i < n)", "if (i != n)")), "k").missing
        (launch,) = [m for m in missing if m.startswith("the launch: ")]
        assert what in launch


def test_what_the_host_reads_is_a_size_by_its_name() -> None:
    code = LAUNCHER.replace("(n + threads - 1)", "(x.size(0) + threads - 1)").replace("if (i < n)", "if (i != n)")
    made = draft(_program(code), "k")
    assert not any("launch" in missing for missing in made.missing)
    assert "x_size_0 of the launch are sizes" in made.text
    assert all("x_size_0" in case.sizes for case in (*made.spec.check, *made.spec.time))


@pytest.mark.parametrize(
    ("change", "threads"),
    [
        (("(n + threads - 1)", "pack::size"), "n"),
        (("<<<blocks, threads>>>", "<<<1, 2000 * threads>>>"), "n"),
        (("k<<<blocks, threads>>>(x, y, n);", ""), "n"),
        (("blockIdx.x * blockDim.x + threadIdx.x; if (i < n)", "threadIdx.x+(size_t) (blockDim.x*blockIdx.x); if (i < n)"), "n"),
        (("if (i < n)", "int all = n * 3; if (i < (int)all)"), "n*3"),
        (("if (i < n)", "if (i >= n) return;"), "n"),
        (("int i = blockIdx.x * blockDim.x + threadIdx.x; if", "for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; ++i) if"), "n"),
    ],
)  # fmt: skip
def test_a_launch_that_cannot_be_read_is_assumed_where_the_kernel_says_how_many_threads_it_needs(
    change: tuple[str, str], threads: str
) -> None:
    program = _program(LAUNCHER.replace("(n + threads - 1)", "pack::size").replace(*change))
    made = draft(program, "k")
    assert made.missing == ()
    assert f'launch = {{ grid = "cdiv({threads}, 256)", block = "256" }}  # assumed: the launch' in made.text
    for form in ("comments", "toml"):
        spec = _read_back(program, draft(program, "k", written=DraftForm(form=form)), form)
        assert spec.steps == made.spec.steps
        assert set(spec.time[0].sizes) == {"n"}
        assert evaluate(program, spec, 0, {"n": 1000}).grid[0] == -(-1000 * (3 if "3" in threads else 1) // 256)


def test_definitions_that_grow_without_end_are_not_followed() -> None:
    chain = "".join(f"int d{k} = {' + '.join([f'd{k + 1}'] * 60)}; " for k in range(6))
    code = LAUNCHER.replace("(n + threads - 1)", "pack::size").replace("if (i < n)", f"{chain} if (i < d0)")
    with spent() as cost:
        assert any(m.startswith("the launch: ") for m in draft(_program(code), "k").missing)
    assert cost.seconds < 2


@pytest.mark.parametrize(
    "change",
    [
        ("if (i < n)", "if (i < x[0])"),
        ("if (i < n)", "if (i < 2 * blockDim.x)"),
        ("int i =", "int j = threadIdx.y, i ="),
        ("int i =", "extern __shared__ float s[]; int i ="),
        ("blockIdx.x * blockDim.x + threadIdx.x", "(blockIdx.x * blockDim.x + threadIdx.x) / 32"),
    ],
)
def test_no_launch_is_assumed_where_the_kernel_does_not_say(change: tuple[str, str]) -> None:
    code = LAUNCHER.replace("(n + threads - 1)", "pack::size").replace(*change)
    assert any(m.startswith("the launch: ") for m in draft(_program(code), "k").missing)


def test_checks_are_small_and_awkward_with_many_sizes_too() -> None:
    names = ["b", "t", "h", "d"]
    code = f"""
__global__ void k(const float *x, float *y, {", ".join(f"int {n}" for n in names)}) {{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < b * t * h * d) y[i] = 2 * x[i];
}}
"""
    for bytes_, each in (("float", 128), ("double4", 64)):
        spec = draft(
            _program(code.replace("const float", f"const {bytes_}").replace("float *y", f"{bytes_} *y")), "k"
        ).spec
        assert set(spec.time[0].sizes.values()) == {each}
        assert spec.check[0].sizes == dict.fromkeys(names, 1)
        for case in spec.check[1:]:
            sizes = list(case.sizes.values())
            assert all(v % 2 for v in sizes)
            assert len(set(sizes)) > 1
            assert 3_000 < math.prod(sizes) <= 30_000


def test_a_caller_that_passes_one_buffer_twice_is_named() -> None:
    made = draft(_program(LAUNCHER + "void twice(float *a) {\n    run(a, a, 3, 5, 64);\n}\n"), "k")
    (line,) = (line for line in made.text.splitlines() if "args.y" in line)
    assert "assumed: a buffer of its own, but k.cu:8 passes that of 'x';" in line
    assert "of its own" not in draft(_program(LAUNCHER), "k").text


def test_a_kernel_that_is_handed_on_is_not_said_to_be_launched_by_nobody() -> None:
    through = LAUNCHER.replace("k<<<blocks, threads>>>(x, y, n);", "elsewhere(&k, blocks, threads, x, y, n);")
    missing = draft(_program(through.replace("if (i < n)", "if (i < x[0])")), "k").missing
    (launch,) = [m for m in missing if m.startswith("the launch: ")]
    assert "hands the kernel on" in launch
    assert "k.cu:" in launch


def test_what_divides_the_size_of_a_block_does_so_in_every_case() -> None:
    """Heads of 3 in a row of 256: the threads of the last one met those of another, and the kernel was called racy."""
    code = """
__global__ void k(const float* x, float* y, int width, int head) {
    int heads = width / head, i = threadIdx.x;
    if (i < width) y[(blockIdx.x * heads + i / head) * head + i % head] = x[blockIdx.x * width + i];
}
void run(const float* x, float* y, int rows, int width, int head) { k<<<rows, width>>>(x, y, width, head); }
"""
    made = draft(_program(code), "k")
    cases = [case.sizes for case in (*made.spec.check, *made.spec.time)]
    assert all(case["width"] % case["head"] == 0 for case in cases)
    assert len({case["head"] for case in cases}) > 1
