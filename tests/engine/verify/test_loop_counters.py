"""An edit's counters may not leave their types at sizes which the original's own arithmetic bears."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest

from engine.cuda.load import load_program
from engine.errors import OptimlError, SourceError
from engine.selftest.cases import load_cases, original_text
from engine.spec.find import find_spec
from engine.verify.loop_counters import added_overflow
from tests.spent import spent

TEXT = original_text("scale").decode()
BODY = TEXT[TEXT.index("    int i") : TEXT.index("}\n\nvoid run")]
STRIDE = "blockDim.x * gridDim.x"
LOOP = f"for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += {STRIDE}) y[i] = 2.5f * x[i] + 1.0f;\n"


def refused(folder: Path, before: str, after: str) -> str:
    (folder / ".git").mkdir()
    (folder / "a.cu").write_text(before)
    spec, _ = find_spec(folder, folder / "a.cu")
    program = load_program(folder / "a.cu")
    return added_overflow(program, program.replace({program.kernel_file: after.encode()}), spec) or ""


@pytest.mark.parametrize(
    "body",
    [
        LOOP,
        f"const int stride = {STRIDE};\n{LOOP.replace(STRIDE, 'stride')}",
        LOOP.replace(f"i += {STRIDE}", f"i = i + {STRIDE}"),
        LOOP.replace(STRIDE, "1 << 20"),
        LOOP.replace(STRIDE, "2048 * 132 * 8"),
        LOOP.replace("i < n;", "n > i;"),
        LOOP.replace("i < n;", "(long long) i < n;"),
        LOOP.replace("i < n;", "i < min(n, 2147483647);"),
        f"int i = threadIdx.x; while (i < n) {{ y[i] = x[i]; i += {STRIDE}; }}",
        f"int i = threadIdx.x; while (true) {{ if (i >= n) break; y[i] = x[i]; i += {STRIDE}; }}",
        f"int i = threadIdx.x; do {{ const int next = i + {STRIDE}; if (i < n) y[i] = x[i]; i = next; }} while (i < n);",
        f"for (int k = 0; k < 4; ++k) {{ int i = threadIdx.x + k * {STRIDE}; if (i < n) y[i] = x[i]; }}",
        f"int c = threadIdx.x; for (; c + 3 * {STRIDE} < n; c += 4 * {STRIDE}) y[c] = x[c];",
        f"int i = threadIdx.x; int& at = i; while (i < n) {{ y[i] = x[i]; at += {STRIDE}; }}",
        f"int i = threadIdx.x; int* at = &i; while (i < n) {{ y[i] = x[i]; *at += {STRIDE}; }}",
        "for (int s = 1; s < n; s *= 2) y[s] = x[s];",
        LOOP.replace("int i", "index_t i"),
        "for (auto i = (int) threadIdx.x; i < n; i += gridDim.x * 32) y[i] = x[i];",
        LOOP.replace("int i", "decltype(n) i"),
        LOOP.replace(STRIDE, "WHOLE"),
        LOOP.replace(f"i += {STRIDE}", "ONWARD(i)"),
    ],
)  # fmt: skip
def test_a_counter_that_passes_its_types_end_is_refused(tmp_path: Path, body: str) -> None:
    macros = f"using index_t = int;\n#define WHOLE ({STRIDE})\n#define ONWARD(a) a += {STRIDE}\n"
    before = TEXT.replace("// optiml: args.x", macros + "// optiml: args.x")
    assert "the end of its type" in refused(tmp_path, before, before.replace(BODY, body))


@pytest.mark.parametrize(
    "body",
    [
        LOOP.replace("int i", "unsigned int i"),
        LOOP.replace("int i", "size_t i"),
        LOOP.replace("int i", "long long i"),
        LOOP.replace("int i", "size_t i").replace("i < n;", "i < size_t(n) * 4;"),
        LOOP.replace("int i", "float i").replace("i < n;", "i < 4.0f * n;").replace("[i]", "[int(i)]"),
        LOOP.replace(STRIDE, "4"),  # as near to the limit as the rounding of the grid
        LOOP.replace(STRIDE, "8 * blockDim.x"),
        LOOP.replace(STRIDE, "blockDim.x * blockDim.y"),
        LOOP.replace("i < n;", "i < n / 4;"),
        LOOP.replace("i < n;", "i < 4096;"),
        f"for (unsigned int k = threadIdx.x; k < n; k += {STRIDE}) {{ const int i = k; y[i] = x[i]; }}",
        f"for (unsigned c = threadIdx.x; c + 3LL * {STRIDE} < n; c += 4 * {STRIDE}) y[c] = x[c];",
        "int i = (gridDim.x - 1 - blockIdx.x) * blockDim.x + threadIdx.x;\n    if (i < n) y[i] = x[i];",
        "int i = (blockIdx.y * gridDim.x + blockIdx.x) * blockDim.x + threadIdx.x;\n    if (i < n) y[i] = x[i];",
        f"for (int left = n - threadIdx.x; left > 0; left -= {STRIDE}) y[n - left] = x[n - left];",
        "for (int tile = blockIdx.x; tile < n / 256; tile += gridDim.x) y[tile * 256] = x[tile];",
        "int found = 0; for (int i = 0; i < n; ++i) found += __popc(i); if (found < n) y[0] = found;",
        "float sum = 0.0f; for (int i = 0; i < n; ++i) sum += x[i]; if (sum < n) y[0] = sum;",
    ],
)  # fmt: skip
def test_a_counter_that_holds_every_size_is_not(tmp_path: Path, body: str) -> None:
    assert refused(tmp_path, TEXT, TEXT.replace(BODY, f"    {body}\n")) == ""


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("scale<<<blocks, threads>>>(x, y, n)", "scale<<<blocks, threads>>>(x, y, 65536)"),  # every visible caller
        ("// optiml: check = [{ n = 1 }, { n = 903 }, { n = 4100 }]",
         "// optiml: args.n.value = \"4096\"\n// optiml: check = [{ n = 1 }]"),
        ("    if (i < n) {\n        y[i] = 2.5f * x[i]", "    if (i < n) {\n        y[i] = 2.5f * x[4 * i]"),  # wraps at 2^29 itself
        (BODY, "    " + LOOP),  # the same loop in other words
    ],
)  # fmt: skip
def test_a_size_that_the_original_does_not_bear_is_no_fault(tmp_path: Path, old: str, new: str) -> None:
    before = TEXT.replace(old, new)
    assert before != TEXT
    body = before[before.index("void scale(") : before.index("}\n\nvoid run")]
    after = before.replace(body, "void scale(const float* x, float* y, int n) {\n    " + LOOP.replace("2.5f", "2.50f"))
    assert refused(tmp_path, before, after) == ""


@pytest.mark.parametrize(
    ("share", "before", "refuses"),
    [("SHARE", "template <int SHARE>\n", False), ("Form::SHARE", "struct Form { static constexpr int SHARE = 256; };\n", False),
     ("Form::SHARE", "struct Form { static constexpr int SHARE = 1 << 20; };\n", True), ("OF_A_HEADER", "", False)],
)  # fmt: skip
def test_constants_that_stand_elsewhere(tmp_path: Path, share: str, before: str, refuses: bool) -> None:
    after = TEXT.replace(BODY, "    " + LOOP.replace(STRIDE, share)).replace(
        "__global__ void scale", f"{before}__global__ void scale"
    )
    assert (refused(tmp_path, TEXT, after) != "") is refuses


def test_a_templates_argument_is_that_of_the_launch(tmp_path: Path) -> None:
    before = TEXT.replace("__global__ void scale", "template <typename T, int SHARE>\n__global__ void scale")
    for value, refuses in (("256", False), ("1048576", True)):
        (tmp_path / value).mkdir()
        text = before.replace("scale<<<blocks", f"scale<float, {value}><<<blocks")
        text = text.replace("// optiml: args.x", f'// optiml: kernel = "scale<float, {value}>"\n// optiml: args.x')
        after = text.replace(BODY, "    " + LOOP.replace(STRIDE, "SHARE"))
        assert (refused(tmp_path / value, text, after) != "") is refuses


@pytest.mark.parametrize(
    ("blocks", "refuses"),
    [("(n + 255) / 256", True), ("min((n + 255) / 256, 1056)", True), ("min((n + 255) / 256, 128)", False),
     ("n < 60000 ? n : 60000", True), ("128", False), ("(n + 255) / 256 > 96 ? 96 : (n + 255) / 256", False)],
)  # fmt: skip
def test_a_grid_that_its_launch_limits_makes_a_small_step(tmp_path: Path, blocks: str, refuses: bool) -> None:
    after = TEXT.replace(BODY, "    " + LOOP).replace("(n + threads - 1) / threads", blocks)
    assert (refused(tmp_path, TEXT, after) != "") is refuses


@pytest.mark.parametrize("of", ["gridDim.x", "1"])
def test_definitions_in_each_other_do_not_take_hours(tmp_path: Path, of: str) -> None:
    chain = "".join(f"const int s{i} = s{i - 1} + s{i - 1};\n" for i in range(1, 60))
    body = f"const int s0 = {of} * threadIdx.x;\n{chain}" + LOOP.replace(STRIDE, "s59 * gridDim.x").replace(
        "i < n;", "i + s59 < n;"
    )
    with spent() as cost:
        assert refused(tmp_path, TEXT, TEXT.replace(BODY, f"    {body}"))
    assert cost.seconds < 20


@pytest.mark.parametrize("macro", ["#define M(a) M(a), M(a), a += 1", "#define M(a) a += 1, M(a)"])
def test_macros_in_each_other_do_not_either(tmp_path: Path, macro: str) -> None:
    after = TEXT.replace(BODY, "    for (int i = threadIdx.x; i < n; M(i)) y[i] = x[i];\n").replace(
        "__global__", f"{macro}\n__global__"
    )
    with spent() as cost, suppress(SourceError):  # nested too deeply once they are written out
        assert "too long" in refused(tmp_path, TEXT, after)
    assert cost.seconds < 20


def test_of_unsigned_sizes_a_counter_of_64_bits_is_asked(tmp_path: Path) -> None:
    before = TEXT.replace("int n)", "unsigned int n)").replace("int i =", "unsigned int i =")
    own = before[before.index("    unsigned int i") : before.index("}\n\nvoid run")]
    after = before.replace(own, "    " + LOOP.replace("int i", "unsigned int i"))
    assert refused(tmp_path, before, after).endswith("count in 64 bits")


def test_helpers_count_too(tmp_path: Path) -> None:
    helper = f"__device__ void all(const float* x, float* y, int n) {{\n    {LOOP}}}\n__global__ void scale"
    after = TEXT.replace(BODY, "    all(x, y, n);\n").replace("__global__ void scale", helper)
    assert "'i'" in refused(tmp_path, TEXT, after)


@pytest.mark.parametrize("case", load_cases("honest"), ids=lambda case: case.name)
def test_honest_cases_count_safely(tmp_path: Path, case) -> None:  # type: ignore[no-untyped-def]
    try:
        before, after = case.before[case.path].decode(), case.text().decode()
    except (OptimlError, KeyError):
        pytest.skip("of other files")
    assert refused(tmp_path, before, after) == ""
