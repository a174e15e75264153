"""Inline assembly that an edit may add: asynchronous copies and their waits, approximations, products in TF32, and nothing
that looks like them."""

from __future__ import annotations

import pytest

from engine.cuda.items import tokens_of
from engine.verify.allowed_assembly import allowed_statements

PRODUCT = (
    'asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"'
    ' : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));'
)
HALF = PRODUCT.replace("m16n8k8", "m16n8k16").replace("tf32.tf32", "f16.f16")
COPY = 'asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(at), "l"(from) : "memory");'


@pytest.mark.parametrize(
    "text",
    [
        COPY, PRODUCT, PRODUCT.replace("asm(", "asm volatile("),
        HALF, HALF.replace("f16.f16", "bf16.bf16"),
        'asm volatile("cp.async.commit_group;" ::: "memory");', 'asm volatile("cp.async.wait_group 0;\\n");', 'asm("cp.async.wait_all;");',
        '__asm__ volatile("cp.async.cg.shared.global.L2::128B " "[%0], [%1], 16;\\n" :: "r"(at), "l"(from));',
        'asm volatile("cp.async.wait_group %0;" :: "n"(N));',
        'asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" :: "r"(a), "l"(b), "r"(c));',
        'asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x * 1.44269504f));', 'asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));',
    ],
)  # fmt: skip
def test_these_are_allowed_with_their_strings(text: str) -> None:
    tokens = tokens_of(text)
    starts, strings = allowed_statements(tokens)
    assert starts == {0}
    assert sorted(strings) == sorted(token.text for token in tokens if token.kind == "string")


@pytest.mark.parametrize(
    "text",
    [
        'asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));', 'asm volatile("cp.async.commit_group; exit;");',
        'asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" : "=r"(at) : "l"(from));', 'asm("cp.async.wait_group 0;" EVIL);',
        'asm goto("cp.async.wait_all;");', 'asm volatile("st.global.u32 [%1], %0;" :: "r"(at), "l"(from));', "asm volatile;",
        'asm volatile("cp.async.bulk.commit_group;");', 'asm volatile(R"(cp.async.wait_all;)");',
        'asm("ex2.approx.ftz.f16 %0, %1;" : "=f"(y) : "f"(x));', 'asm("sin.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));',
        'asm("sqrt.approx.ftz.f32 %0, %1; exit;" : "=f"(y) : "f"(x));', 'asm("sqrt.approx.ftz.f32 %1, %0;" : "=f"(y) : "f"(x));',
        'asm("sqrt.approx.ftz.f32 %0, %1;" : "+f"(y) : "f"(x));', 'asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x) : "memory");',
        'asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(y), "=f"(z) : "f"(x));', 'asm("sqrt.approx.ftz.f32 %0, %1;" :: "=f"(y), "f"(x));',
        'asm("lg2.approx.ftz.f32 %0, %1;" EVIL : "=f"(y) : "f"(x));',
        PRODUCT.replace("m16n8k8", "m16n8k4"), PRODUCT.replace("tf32.tf32", "bf16.bf16"), PRODUCT.replace("{%8, %9}", "{%9, %8}"),
        HALF.replace("f16.f16", "f16.bf16"), HALF.replace("m16n8k16", "m16n8k8"), HALF.replace(".f32 {", ".f16 {"),
        PRODUCT.replace('"+f"', '"=f"'), PRODUCT.replace('"r"(b[1])', '"l"(b)'), PRODUCT.replace(", {%0, %1, %2, %3};", "; exit;"),
        'asm volatile("cp.async.wait_all;"\n#define X\n);', 'asm volatile("cp.async.wait_all;" ::: "memory", "evil");',
    ],
)  # fmt: skip
def test_other_assembly_is_not(text: str) -> None:
    assert allowed_statements(tokens_of(text)) == (frozenset(), ())
