from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.cpu import Unsupported
from engine.cpu.host_source import mark_exits, place_shared, prepare, without_comments


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("__shared__ float a[N];", "float (&a)[N] = OPTIML_SHARED(a);"),
        ("__shared__ float a[N], b[M][K + 1];", "float (&a)[N] = OPTIML_SHARED(a), (&b)[M][K + 1] = OPTIML_SHARED(b);"),
        ("static __shared__ int flag;", "int (&flag) = OPTIML_SHARED(flag);"),
        ("__shared__ volatile T t[2][B];", "volatile T (&t)[2][B] = OPTIML_SHARED(t);"),
        ("volatile __shared__ T t[4];", "volatile T (&t)[4] = OPTIML_SHARED(t);"),
        ("extern __shared__ float s[];", "float (&s)[] = OPTIML_DYNAMIC(s);"),
        ("extern __shared__ __align__(16) unsigned char s[];", "unsigned char (&s)[] = OPTIML_DYNAMIC(s);"),
        ("alignas(16) __shared__ float a[8];", "float (&a)[8] = OPTIML_SHARED(a);"),
        ("__shared__ Pair<int, 4> p[2];", "Pair<int, 4> (&p)[2] = OPTIML_SHARED(p);"),
        ("__shared__ std::pair<int, int> p;", "std::pair<int, int> (&p) = OPTIML_SHARED(p);"),
        ("__shared__ struct { int a[2], b; } u;", "struct { int a[2], b; } (&u) = OPTIML_SHARED(u);"),
        ("__shared__ float a[sizeof(T) > 4 ? 8 : 4];", "float (&a)[sizeof(T) > 4 ? 8 : 4] = OPTIML_SHARED(a);"),
        ("int i; __shared__ float a[4]; i = 1;", "int i; float (&a)[4] = OPTIML_SHARED(a); i = 1;"),
    ],
)
def test_shared_declarations(text: str, expected: str) -> None:
    assert place_shared(text).split() == expected.split()


def test_lines_stay_where_they_are() -> None:
    text = "a;\n__shared__\n  float a[4],\n  b[2]; /* __shared__ */ // __shared__ x\nc;\n"
    placed = place_shared(text)
    assert placed.count("\n") == text.count("\n")
    assert placed.splitlines()[4] == "c;"
    assert placed.splitlines()[3].startswith("  (&b)[2] = OPTIML_SHARED(b);")


def test_shared_in_a_macro_is_refused() -> None:
    with pytest.raises(Unsupported):
        place_shared("#define TILE \\\n  __shared__ float t[4];\n")


def test_exits_are_marked_only_in_kernels() -> None:
    text = "__device__ void f() { return; }\n__global__ void k(int n) {\n  if (n) return;\n  for (;;) {\n    return;\n  }\n}\n"
    marked = mark_exits(text)
    assert marked.splitlines()[0] == text.splitlines()[0]
    assert "return optiml_leave(__LINE__ - 0, __LINE__ - 1, __FILE__);" in marked.splitlines()[2]
    assert "return optiml_leave(__LINE__ - 1, __LINE__ - 3, __FILE__);" in marked.splitlines()[4]
    assert marked.splitlines()[6] == " optiml_leave(0x7fffffff, 0, __FILE__);}"


def test_exits_are_marked_in_a_kernel_with_attributes() -> None:
    marked = mark_exits("__global__ void __maxnreg__(64) k(int n) { if (n) return; }\n")
    assert marked.startswith("__global__ void __maxnreg__(64) k(int n) { if (n) return optiml_leave(")


def test_path_cannot_leave_its_string() -> None:
    first = prepare("int x;", 'a"\n#include "/etc/passwd', []).splitlines()[0]
    assert first.count('"') == 2


@given(st.text(max_size=300))
def test_blanking_keeps_offsets(text: str) -> None:
    plain = without_comments(text)
    assert len(plain) == len(text)
    assert plain.count("\n") == text.count("\n")


@given(st.text(alphabet="__shared__ float a[4],;{}()<>=/*\"'\n#externx", max_size=120))
def test_any_text_is_placed_or_refused(text: str) -> None:
    try:
        placed = place_shared(text)
    except Unsupported:
        return
    assert placed.count("\n") == text.count("\n")
