"""Inline PTX on the CPU: what each instruction comes to, and which are refused by name."""

from __future__ import annotations

import pytest

from engine.cpu.host_source import without_comments
from engine.cpu.inline_ptx import REFUSED, refusals, without_ptx


def translated(text: str) -> str:
    return without_ptx(text, without_comments(text))


def test_lines_keep_their_numbers() -> None:
    text = 'a;\nasm volatile("ld.global.nc.v2.f32 {%0, %1}, [%2];"\n  : "=f"(x),\n "=f"(y) : "l"(p));\nb;\n'
    made = translated(text)
    assert made.count("\n") == text.count("\n")
    assert "asm" not in made
    assert made.splitlines()[4] == "b;"


def test_a_macro_keeps_its_continuations() -> None:
    text = '#define LD(x, p) asm volatile("ld.global.f32 %0, [%1];" \\\n : "=f"(x) : "l"(p))\n'
    assert translated(text).count("\\\n") == 1


@pytest.mark.parametrize(
    "code",
    [
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%0,%0,%0}, {%1}, {%1}, {%0};",
        "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %0, %0, %0}, [%1];",
        "fma.rn.f16x2 %0, %1, %1, %1;",
    ],
)
def test_an_instruction_without_a_meaning_becomes_a_call_that_is_no_c(code: str) -> None:
    made = translated(f'asm volatile("{code}" : "=r"(x) : "r"(y));')
    assert REFUSED in made
    assert f'error("inline PTX {code.split(" ")[0].replace("::", "")}")' in refusals(made)


def test_text_without_ptx_is_left_alone() -> None:
    text = 'const char* s = "asm volatile(x)"; // asm("a")\n'
    assert translated(text) == text
    assert refusals(text) == ""


def test_copies_are_put_by_until_they_are_waited_for() -> None:
    text = 'asm("cp.async.ca.shared.global [%0], [%1], 4;" :: "r"(a), "l"(b));\n'
    text += 'asm("cp.async.commit_group;");\nasm("cp.async.wait_group 1;");\n'
    put, close, wait = translated(text).splitlines()
    assert "optiml_copy_put(" in put
    assert "copy_some" not in put
    assert "optiml_copy_close();" in close
    assert "optiml::wait_for_copies(1);" in wait
    assert "optiml::wait_for_all_copies();" in translated('asm("cp.async.wait_all;");')
