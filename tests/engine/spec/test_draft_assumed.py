"""What a draft assumes, and says so: launches, whole tiles, rows of tables, shapes to check."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping

import pytest

from engine.source.launch import evaluate
from engine.spec.draft import draft
from engine.spec.model import Fill
from tests.engine.spec.drafts import LAUNCHER
from tests.engine.spec.drafts import program as _program
from tests.engine.spec.drafts import read_back as _read_back


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
        made = draft(_program(code), "k", probe=probe, form=form)
        assert (made.missing, made.spec.argument("x").size) == ((), size)
        assert "# assumed: the kernel is made for whole tiles" in made.text
        assert {v % least for case in made.spec.check for v in case.sizes.values()} == {0}
        assert max(math.prod(c.sizes.values()) * (c.sizes["m"] if least == 8 else 1) for c in made.spec.check) <= 65536
        assert _read_back(_program(code), made, form).check == made.spec.check
    made = draft(_program(code), "k", probe=lambda sizes: {})
    assert "whole tiles" not in made.text  # no better, so the shapes stay awkward


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
    made = draft(_program(code), "k", probe=probes[0], moved=probes[1])
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


def test_a_launch_without_a_value_is_missing() -> None:
    for change, what in (
        (("(n + threads - 1)", "(rows + threads - 1)"), "'rows' is not known"),
        (("k<<<blocks, threads>>>", "k<<<1, 2000 * threads>>>"), "its block has 512000 threads"),
        (("(n + threads - 1)", "pack::size"), "'pack::size' is not known; declare 'launch' in the spec"),
    ):
        missing = draft(_program(LAUNCHER.replace(*change).replace("if (i < n)", "if (i != n)")), "k").missing
        (launch,) = [m for m in missing if m.startswith("the launch: ")]
        assert what in launch


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
        spec = _read_back(program, draft(program, "k", form=form), form)
        assert spec.steps == made.spec.steps
        assert set(spec.time[0].sizes) == {"n"}
        assert evaluate(program, spec, 0, {"n": 1000}).grid[0] == -(-1000 * (3 if "3" in threads else 1) // 256)


def test_definitions_that_grow_without_end_are_not_followed() -> None:
    chain = "".join(f"int d{k} = {' + '.join([f'd{k + 1}'] * 60)}; " for k in range(6))
    code = LAUNCHER.replace("(n + threads - 1)", "pack::size").replace("if (i < n)", f"{chain} if (i < d0)")
    begin = time.monotonic()
    assert any(m.startswith("the launch: ") for m in draft(_program(code), "k").missing)
    assert time.monotonic() - begin < 2


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
