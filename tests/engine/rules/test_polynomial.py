from hypothesis import given
from hypothesis import strategies as st

from engine.arith import evaluate_int
from engine.cuda.kernel_scope import Scope
from engine.cuda.polynomial import Polynomial, atom, number
from tests.engine.rules.workbench import make

NAMES = ("i", "j", "n", "m")


def of(expression: str, before: str = "") -> Polynomial:
    """The polynomial of the index with which the kernel reads `x`."""
    source = f"__global__ void k(const float* x, float* y, int i, int j, int n, int m) {{ {before} y[0] = x[{expression}]; }}"
    site = make(source, "    k<<<1, 1>>>(x, y, i, j, n, m);")
    scope = Scope(site.unit, site.kernel)
    uses = scope.uses(site.body)
    assert uses is not None
    (index,) = [u.index for u in uses if u.array == "x"]
    assert index is not None
    return index


def test_spellings_of_one_index_are_equal() -> None:
    same = ["i * n + j", "j + n * i", "(size_t)i * n + j", "(i) * (n) + j + 0", "n * (i + 1) - n + j", "i*n - -j"]
    assert len({of(e) for e in same}) == 1
    assert of("i * n + j") != of("i * m + j")
    assert of("i / 2 * 2") != of("i")
    assert of("0x10 + 010") == number(24)


def test_definitions_are_looked_through_only_while_they_hold() -> None:
    assert of("at", "int at = i * n + j;") == of("i * n + j")
    assert of("at", "int at = i; at += n;") == atom("at")
    assert of("at", "float at = i;").names() == {"at"}
    assert of("at / 2", "int at = i * n;").names() == {"i", "n"}


def test_split() -> None:
    factor, rest = of("i * n + 2 * j").split("i") or (number(0), number(0))
    assert (factor.render(), rest.render()) == ("n", "2 * j")
    assert of("i * i").split("i") is None
    assert of("i % 2 + i").split("i") is None


expressions = st.recursive(
    st.sampled_from(NAMES) | st.integers(0, 99).map(str),
    lambda inner: st.tuples(inner, st.sampled_from(["+", "-", "*"]), inner).map(lambda t: f"({t[0]} {t[1]} {t[2]})"),
    max_leaves=6,
)


@given(expressions, st.tuples(*[st.integers(-9, 9)] * 4))
def test_rendering_keeps_the_value(expression: str, values: tuple[int, ...]) -> None:
    known = dict(zip(NAMES, values, strict=True))
    assert evaluate_int(of(expression).render(), known) == evaluate_int(expression, known)


def test_pointers_are_followed_to_their_array() -> None:
    site = make(
        "__global__ void k(const float* x, float* y, int n) {"
        " const float* p = x + 2 * n; const float* q = &p[3]; float* z = y; y[1] = q[4]; *(z + n) = p[n]; z[0] += 1; }",
        "    k<<<1, 1>>>(x, y, n);",
    )
    uses = Scope(site.unit, site.kernel).uses(site.body)
    assert uses is not None
    found = sorted((u.array, u.index.render() if u.index else "", u.reads, u.writes) for u in uses)
    assert found == [
        ("x", "2 * n + 7", True, False),
        ("x", "3 * n", True, False),
        ("y", "0", True, True),
        ("y", "1", False, True),
        ("y", "n", False, True),
    ]


def test_a_pointer_that_is_handed_on_cannot_be_followed() -> None:
    for statement in ("f(x);", "y = (float*)x;", "const float* p; p = x; y[0] = p[0];", "y[0] = *x++;"):
        site = make(
            f"__global__ void k(const float* x, float* y, int n) {{ {statement} }}", "    k<<<1, 1>>>(x, y, n);"
        )
        uses = Scope(site.unit, site.kernel).uses(site.body)
        assert uses is None or all(u.index is None for u in uses if u.array == "x"), statement
