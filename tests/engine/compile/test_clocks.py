"""Clocks are found in machine code, on every architecture, whatever name wrote them."""

from __future__ import annotations

import re

import pytest

from engine.compile.cubin import Cubin, disassemble
from engine.compile.program import compile_text
from engine.process.sandbox import sandbox

READS = {
    "clock": "y[i] = (float)clock();",
    "clock64": "y[i] = (float)clock64();",
    "globaltimer": 'unsigned long long t; asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t)); y[i] = (float)t;',
    "counter": 'unsigned t; asm volatile("mov.u32 %0, %%pm0;" : "=r"(t)); y[i] = (float)t;',
    "sleep": "__nanosleep(20);",
    "sleep_register": "__nanosleep((unsigned)i);",
}
KERNEL = "__global__ void k(float* y) {{ int i = threadIdx.x; double z = 0.0; for (int j = 0; j < i; ++j) z += y[j]; y[i] = (float)z; {} }}"


@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_90", "sm_100", "sm_120"])
def test_what_reads_a_clock_is_what_the_disassembler_shows(arch: str) -> None:
    for name, statement in {"none": "", **READS}.items():
        code = compile_text(KERNEL.format(statement), "k.cu", ["k"], [f"-arch={arch}", "--std=c++17"]).code
        text = disassemble(code, sandbox=sandbox())
        shown = re.findall(r"\bSR_(?:CLOCK|GLOBALTIMER|PM\d)\w*|\bNANOSLEEP", text)
        assert Cubin(code).clock_reads == len(shown), (arch, name, shown)
        assert bool(shown) is (name != "none")
