"""What nvcc makes of a whole file: the names of its kernels, as it registers them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engine.compile.cubin import Cubin
from engine.compile.nvcc import find_nvcc
from engine.compile.whole import WholeFile, WholeOptions, build_whole, plain_expression
from engine.process.sandbox import sandbox
from engine.verify.host_object import public_name
from engine.verify.whole_build import same_kernels

TEXT = b"""#include <cuda_fp16.h>
typedef half number;
namespace ns {
struct Op { int a; };
template <class T, int B, class O> __global__ void k(float* o, const T* x, size_t n, O op) { if (n) o[0] = (float)x[B] + op.a; }
}
namespace { struct Own {}; enum E { A, B }; template <E e, class T> __global__ void ke(int* x, T) { x[0] = e; } }
template <bool F, unsigned N = 4> __global__ void b(int* x) { x[threadIdx.x] = F + N; }
__global__ void plain(int* x) { x[0] = 5; }
void f(float* o, void* x) {
    ns::k<number, 64 * 2><<<1, 1>>>(o, (const half*)x, 3, ns::Op{1});
    ke<B><<<1, 1>>>((int*)x, Own{});
    b<1 == 1><<<1, 1>>>((int*)x);
    plain<<<1, 1>>>((int*)x);
}
"""


@pytest.mark.skipif(find_nvcc() is None, reason="there is no nvcc")
def test_kernels_are_named_as_people_write_them() -> None:
    whole = build_whole({"a.cu": TEXT}, "a.cu", WholeOptions((), "c++17", (), "sm_90"), sandbox())
    names = {public_name(entry): name for entry, name in whole.kernels.items()}
    assert names["_Z5plainPi"] == "plain"
    assert names["_Z1bILb1ELj4EEvPi"] == "b<true, 4>"
    assert names["_ZN2ns1kI6__halfLi128ENS_2OpEEEvPfPKT_mT1_"] == "ns::k<__half, 128, ns::Op>"
    assert sorted(names.values()) == ["b<true, 4>", "ke<(E)1, Own>", "ns::k<__half, 128, ns::Op>", "plain"]


@pytest.mark.skipif(find_nvcc() is None, reason="there is no nvcc")
def test_machine_code_alone_is_that_of_the_whole_build() -> None:
    options, uses = WholeOptions((), "c++17", (), "sm_90"), ("b<false, 2>",)
    whole = build_whole({"a.cu": TEXT}, "a.cu", options, sandbox(), uses)
    alone = build_whole({"a.cu": TEXT}, "a.cu", replace(options, device_only=True), sandbox(), uses)
    entries = Cubin(whole.cubin).entries
    assert "_Z1bILb0ELj2EEvPi" in map(public_name, entries)
    assert same_kernels(whole, alone, entries)
    assert (alone.host, alone.object, alone.kernels) == ("", b"", {})


@pytest.mark.parametrize(
    ("written", "plain"),
    [
        ("k<    ::__half, (int)128,  (bool)0> ", "k<__half, 128, false>"),
        ("ns::k<float, (unsigned long)256,  ::ns::Op< ::ns::T> >", "ns::k<float, 256, ns::Op<ns::T>>"),
        ("k< ::std::pair<int, float>, (int)-1>", "k<std::pair<int, float>, -1>"),
    ],
)
def test_what_nvcc_writes_is_made_plain(written: str, plain: str) -> None:
    assert plain_expression(written) == plain


def test_text_that_registers_nothing_names_nothing() -> None:
    assert WholeFile("", b"", b"", "__cudaRegisterEntry(__T2, ((void ( *)(int *))k< ").kernels == {}
