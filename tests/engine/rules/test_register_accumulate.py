import pytest

from engine.rewrite.site import Site
from tests.engine.rules.equality import assert_equal
from tests.engine.rules.workbench import compiles, device, make, one, propose

SIZES = ({"rows": 512, "cols": 4096},)
CHECK = ({"rows": 1, "cols": 1}, {"rows": 7, "cols": 129})
ELEMENTS = {"x": "rows*cols", "y": "cols", "z": "rows*cols"}
LAUNCH = "    k<<<(cols + 63) / 64, 64>>>(x, y, z, rows, cols);"
HEAD = """__global__ void k(const float* x, float* y, float* z, int rows, int cols) {
    int c = blockIdx.x * blockDim.x + threadIdx.x;
    if (c >= cols) return;
"""
SUM = HEAD + "    y[c] = 0.0f;\n    for (int r = 0; r < rows; r++) {\n        y[c] += x[r * cols + c];\n    }\n}"


def site_of(source: str, launch: str = LAUNCH, newline: str = "\n") -> Site:
    return make(source, launch, sizes=SIZES, check=CHECK, elements=ELEMENTS, newline=newline)


def test_an_element_set_before_the_loop_becomes_a_local() -> None:
    edited = one(site_of(SUM), "register_accumulate")
    assert device(edited).endswith(
        "    float y_value = 0.0f;\n"
        "    for (int r = 0; r < rows; r++) {\n"
        "        y_value += x[r * cols + c];\n"
        "    }\n"
        "    y[c] = y_value;\n"
        "}"
    )
    compiles(edited)
    assert not propose(edited, "register_accumulate")


def test_a_loop_that_may_not_run_touches_nothing() -> None:
    site = site_of(HEAD + "    for (int r = 1; r < rows; r++)\n        y[c] = fmaxf(y[c], x[r * cols + c]);\n}")
    edited = one(site, "register_accumulate")
    code = device(edited)
    assert "    if (1 < rows) {\n        float y_value = y[c];\n        for (int r = 1; r < rows; r++)\n" in code
    assert "            y_value = fmaxf(y_value, x[r * cols + c]);\n        y[c] = y_value;\n    }" in code
    compiles(edited)


GOOD = {
    "plain sum": "y[c] = 0; for (int r = 0; r < rows; r++) y[c] += x[r*cols+c]; }",
    "spelled out": "for (int r = 0; r < rows; r++) y[c] = y[c] + x[r*cols+c]; }",
    "maximum by comparison": "y[c] = x[c];\n for (int r = 0; r < rows; r++) if (x[r*cols+c] > y[c]) y[c] = x[r*cols+c]; }",
    "maximum by choice": "for (int r = 0; r < rows; r++) y[c] = x[r*cols+c] > y[c] ? x[r*cols+c] : y[c]; }",
    "while": "y[c] = 1; int r = 0; while (r < rows) { y[c] += x[r*cols+c]; ++r; } }",
    "set earlier": "y[c] = 0; float a = 2; for (int r = 0; r < rows; r++) y[c] += a * x[r*cols+c]; y[c] *= 3; }",
    "left early": "y[c] = 0; for (int r = 0; r < rows; r++) { if (x[r*cols+c] > 1) break; y[c] += x[r*cols+c]; } }",
    "inner loop": "for (int r = 0; r < rows; r++) for (int i = 0; i < 1; ++i) { z[r*cols+c] = 0; "
    "for (int j = 0; j < 5; ++j) { z[r*cols+c] += j * x[r*cols+c]; } } }",
    "two at once": "y[c] = 0; z[c] = 1; for (int r = 0; r < rows; r++) { y[c] += x[r*cols+c]; z[c] *= 1 + x[c]; } }",
    "through a pointer": "float* out = y + c; *out = 1; for (int r = 0; r < rows; r++) { *out += x[r*cols+c]; } }",
}


@pytest.mark.parametrize("name", GOOD)
def test_gives_the_same_results(name: str) -> None:
    site = site_of(HEAD + GOOD[name])
    edited = one(site, "register_accumulate")
    assert "_value" in device(edited)
    compiles(edited)
    assert_equal(site, [edited], ({"rows": 1, "cols": 1}, {"rows": 9, "cols": 70}), tolerance=0.0)


BAD = {
    "only overwritten": "for (int r = 0; r < rows; r++) y[c] = x[r*cols+c]; }",
    "index that moves": "for (int r = 0; r < rows; r++) y[r] += x[r*cols+c]; }",
    "index through an array": "for (int r = 0; r < rows; r++) y[(int)x[r]] += 1; }",
    "two elements": "y[c] = 0; for (int r = 0; r < rows; r++) { y[c] += x[r]; y[c+1] += x[r]; } }",
    "written at times": "for (int r = 0; r < rows; r++) if (x[r*cols+c] > 0) y[c] += x[r*cols+c]; }",
    "perhaps no iteration": "for (int r = 0; r < rows; r++) { if (x[r] > 0) continue; y[c] += x[r]; } }",
    "index variable changes": "int i = c; y[i] = 0; for (int r = 0; r < rows; r++) { y[i] += x[r]; i++; } }",
    "index changes before": "int i = c; y[i] = 0; i++; if (i < cols) for (int r = 0; r < rows; r++) { y[i] += 1; } }",
    "left for good": "y[c] = 0; for (int r = 0; r < rows; r++) { if (x[r] > 9) return; y[c] += x[r]; } }",
    "barrier": "y[c] = 0; for (int r = 0; r < rows; r++) { y[c] += x[r]; __syncthreads(); } }",
    "atomic": "y[c] = 0; for (int r = 0; r < rows; r++) { y[c] += x[r]; atomicAdd(&y[0], 1.0f); } }",
    "address taken": "y[c] = 0; for (int r = 0; r < rows; r++) { float* p = &y[c]; *p += x[r]; y[c] += p[0]; f(p); } }",
    "unknown function": "y[c] = 0; for (int r = 0; r < rows; r++) { y[c] += get(r); } }",
    "another pointer to it": "float* q = y; y[c] = 0; for (int r = 0; r < rows; r++) { y[c] += x[r]; q[r] = 1; } }",
}


@pytest.mark.parametrize("name", BAD)
def test_nothing_where_the_element_may_be_seen_or_change(name: str) -> None:
    assert not propose(site_of(HEAD + "    " + BAD[name]), "register_accumulate")


def test_nothing_where_a_launch_passes_one_buffer_twice() -> None:
    assert not propose(site_of(SUM, LAUNCH.replace("x, y, z", "y, y, z")), "register_accumulate")


def test_restrict_settles_what_the_launch_does_not_show() -> None:
    launch = LAUNCH.replace("x, y, z", "y, y, z")
    assert propose(site_of(SUM.replace("float* y", "float* __restrict__ y"), launch), "register_accumulate")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("float* y", "volatile float* y"),
        ("y[c] += x[r * cols + c];", "y[c] += x[r * cols + c] @@ 2;"),
        ("y[c] += x[r * cols + c];", "\n#if 1\n        y[c] += x[r * cols + c];\n#endif\n"),
        ("y[c] += x[r * cols + c];", "ADD;"),
    ],
)
def test_nothing_for_code_it_cannot_read(old: str, new: str) -> None:
    assert old in SUM
    assert not propose(
        site_of("#define ADD y[c] += x[c]; if (y[c] > 3) return\n" + SUM.replace(old, new)), "register_accumulate"
    )


def test_crlf_and_the_authors_pragma_are_kept() -> None:
    source = SUM.replace("    for", "#pragma unroll 4\n    for")
    edited = one(site_of(source, newline="\r\n"), "register_accumulate")
    assert edited.program.data.count(b"\r\n") == edited.program.data.count(b"\n")
    assert "float y_value = 0.0f;\n#pragma unroll 4\n    for" in device(edited)
    compiles(edited)
