"""Which pointer parameters callers pass one buffer for."""

from __future__ import annotations

import pytest

from engine.cuda.aliasing import shared_buffers
from engine.cuda.launch import sites
from engine.cuda.parse import parse
from engine.model import Program

KERNEL = "__global__ void k(const float* x, float* y, int n) { y[0] = x[0] + n; }\n"
WRAPPER = "void run(const float* in, float* out, int n) { k<<<1, 32>>>(in, out, n); }\n"


def shared(host: str) -> list[tuple[str, str, str]] | None:
    program = Program({"k.cu": (KERNEL + host).encode()}, "k.cu")
    kernel = parse(program.data, "k.cu").kernel("k")
    found = shared_buffers(program, kernel, sites(program, "k"))
    return None if found is None else [(pair.first, pair.second, pair.where) for pair in found]


def test_nothing_is_known_without_a_launch() -> None:
    assert shared("") is None


@pytest.mark.parametrize("host", [WRAPPER, WRAPPER + "void both(float* a, float* b) { run(a, b, 3); }\n"])
def test_buffers_of_their_own(host: str) -> None:
    assert shared(host) == []


@pytest.mark.parametrize("arguments", ["a, a", "a, a + n", "(const float*)a, &a[n]", "v.data(), v.data()"])
def test_one_buffer_at_the_launch(arguments: str) -> None:
    assert shared(f"void run(float* a, V v, int n) {{\n  k<<<1, 32>>>({arguments}, n); }}\n") == [("x", "y", "k.cu:3")]


def test_one_buffer_at_the_call_of_a_wrapper() -> None:
    host = WRAPPER + "void twice(float* a) { run(a, a, 3); }\n"
    assert shared(host) == [("x", "y", "k.cu:3")]
    host = WRAPPER + "void outer(float* p, float* q) { run(p, q, 3); }\nvoid twice(float* a) {\n  outer(a, a);\n}\n"
    assert shared(host) == [("x", "y", "k.cu:5")]


def test_types_and_functions_are_no_buffers() -> None:
    host = "void run(void* a, void* b, int n) { k<<<1, 32>>>(cast<half>(a), static_cast<half*>(b), n); }\n"
    assert shared(host) == []
