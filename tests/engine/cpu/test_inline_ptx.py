"""Inline PTX on the CPU: what each instruction comes to, and which are refused by name."""

from __future__ import annotations

import numpy as np
import pytest

from engine.cpu.host_source import without_comments
from engine.cpu.inline_ptx import REFUSED, refusals, without_ptx
from tests.engine.cpu.conftest import Make, launch


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
        "mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {%0,%0}, {%1}, {%1}, {%0};",
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


def test_an_operand_of_another_architecture_is_refused_only_where_it_is_needed() -> None:
    made = translated('asm volatile("v_dot2_f32_f16 %0, %1, %1, %0" : "+v"(x) : "v"(y));')
    assert f"{REFUSED}constraint_v();" in made


def test_fractions_keep_their_bits_in_shuffles_and_in_registers_of_two(make: Make) -> None:
    code = """
__global__ void k(const float* x, float* y, int n) {
  int t = threadIdx.x;
  float v = x[t], other, low, high;
  unsigned long long both;
  asm volatile("shfl.sync.bfly.b32 %0, %1, %2, 0x1f, 0xffffffff;" : "=f"(other) : "f"(v), "r"(1));
  asm("mov.b64 %0, {%1, %2};" : "=l"(both) : "f"(v), "f"(other));
  asm("mov.b64 {%0, %1}, %2;" : "=f"(low), "=f"(high) : "l"(both));
  y[t] = other; y[n + t] = low; y[2 * n + t] = high;
}
"""
    x = np.linspace(-0.9, 0.9, 32, dtype=np.float32)
    buffers = [("x", "in", x), ("y", "out", np.zeros(96, np.float32)), ("n", "scalar", np.int32(32))]
    (done,) = make(code, "k", launch(1, 32), buffers).runs((0,))
    assert not done.findings
    other = x.reshape(16, 2)[:, ::-1].ravel()
    np.testing.assert_array_equal(done.outputs["y"], np.concatenate([other, x, other]))
