"""Clocks and the scope of atomics are found in machine code, on every architecture, whatever name wrote them."""

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
KERNEL = """
__global__ void {}(float* y) {{
    int i = threadIdx.x;
    double z = 0.0;
    for (int j = 0; j < i; ++j) z += y[j];
    y[i] = (float)z;
    {}
}}
"""


def _shown(code: bytes, pattern: str) -> dict[str, int]:
    """How often the disassembler shows what matches the pattern, by the name of the section."""
    parts = re.split(r"\.section\s+\.text\.(\w+)", disassemble(code, sandbox=sandbox()))
    return {name: len(re.findall(pattern, text)) for name, text in zip(parts[1::2], parts[2::2], strict=True)}


@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_90", "sm_100", "sm_120"])
def test_what_reads_a_clock_is_what_the_disassembler_shows(arch: str) -> None:
    statements = {"none": "", **READS}
    text = "".join(KERNEL.format(f"k_{name}", statement) for name, statement in statements.items())
    code = compile_text(text, "k.cu", [f"k_{name}" for name in statements], [f"-arch={arch}", "--std=c++17"]).code
    shown = _shown(code, r"\bSR_(?:CLOCK|GLOBALTIMER|PM\d)\w*|\bNANOSLEEP")
    assert Cubin(code).clock_reads == sum(shown.values()), (arch, shown)
    for name in statements:
        (count,) = [count for section, count in shown.items() if re.search(rf"k_{name}(?!_)P", section)]
        assert bool(count) is (name != "none"), (arch, name)


ATOMICS = """
__device__ __noinline__ int generic{0}(int* p) {{ return atomicAdd{0}(p, 1); }}
__global__ void k{0}(Parts s, unsigned long long* l, float* f, const int* x) {{
    __shared__ int own[4];
    int i = threadIdx.x;
    atomicAdd{0}(s.d + x[i], 1.0);
    s.d[i + 7] = atomicAdd{0}(s.d + x[i], 1.0);
    s.p[i] = generic{0}(x[i] & 1 ? own : s.p);
    atomicOr{0}(l + x[i], 3ull);
    l[i + 9] = atomicCAS{0}(l + x[i], 9ull, 3ull);
    atomicAdd{0}(f + x[i], 2.0f);
    f[i] = atomicExch{0}(f + x[i], 2.0f);
    s.p[i + 5] = atomicCAS{0}(s.p + x[i], 1, 2);
    atomicAdd{0}(&own[x[i] & 3], 1);
    s.p[i + 3] = own[0];
}}
"""


@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_90", "sm_100", "sm_120"])
def test_atomics_of_a_block_are_those_that_the_disassembler_shows(arch: str) -> None:
    scopes = ("", "_block", "_system")
    text = "struct Parts { int* p; double* d; };" + "".join(ATOMICS.format(scope) for scope in scopes)
    code = compile_text(text, "k.cu", [f"k{scope}" for scope in scopes], [f"-arch={arch}", "--std=c++17"]).code
    shown = _shown(code, r"\b(?:ATOM|RED)\S*STRONG\.(?:SM|CTA)\b")
    assert Cubin(code).block_atomics == sum(shown.values()), (arch, shown)
    assert any(shown.values())
    assert all("_block" in section for section, count in shown.items() if count), (arch, shown)
