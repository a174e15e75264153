import pytest

from engine.cuda.constants import integers
from engine.cuda.parse import parse
from tests.spent import spent


def test_constants_are_found_through_others():
    unit = parse(
        b"#define A (B * 2)\n#define B C\nconstexpr int C = 1 << D;\nenum { D = 3 };\n#define E sizeof(A)\n", "k.cu"
    )
    assert integers(unit, ["A", "C", "E", "nowhere"]) == {"A": 16, "C": 8}


@pytest.mark.parametrize("first", ["", "#define A0 1\n"], ids=["circle", "no circle"])
def test_constants_that_all_name_each_other_end_soon(first):
    """Eight macros in a circle took 8^9 steps."""
    names = [f"A{i}" for i in range(40)]
    if first:
        lines = [f"#define {name} ({' + '.join(names[:i])})\n" for i, name in enumerate(names) if i]
    else:
        lines = [f"#define {name} ({' + '.join(names)})\n" for name in names]
    unit = parse((first + "".join(lines)).encode(), "k.cu")
    with spent() as cost:
        assert integers(unit, ["A7"]) == ({"A7": 64} if first else {})
    assert cost.seconds < 1
