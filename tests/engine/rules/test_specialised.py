"""Templates with a specialisation, whose code is that of the spec's instance, and packs that its author chose."""

from dataclasses import replace

import pytest

from engine.model import Program
from engine.rewrite.site import Site
from engine.rules import make_site
from tests.engine.rules.equality import assert_equal
from tests.engine.rules.test_normal_form import found
from tests.engine.rules.workbench import device, make

SOURCE = """
#include <cuda_fp16.h>
template <typename T>
__global__ void shifted(T* x, const T* bias, int rows, int cols) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < rows * cols) x[i] = x[i] + bias[i % cols];
}
template <>
__global__ void shifted<half>(half* x, const half* bias, int rows, int cols) {
    half2* packs = (half2*)x;
    const half2* added = reinterpret_cast<const half2*>(bias);
    int offset = blockIdx.x * (cols / 2);
    for (int c = threadIdx.x; c < cols / 2; c += blockDim.x) {
        int at = offset + c;
        packs[at] = __hadd2(packs[at], added[c]);
    }
}
"""
LAUNCH = """
    shifted<float><<<(rows * cols + 127) / 128, 128>>>((float*)x, (const float*)bias, rows, cols);
    shifted<half><<<rows, 64>>>((half*)x, (const half*)bias, rows, cols);
"""
SIZES = [{"rows": 3, "cols": 136}, {"rows": 5, "cols": 16}, {"rows": 4, "cols": 10}]


def site_of(arguments: str) -> Site:
    site = make(
        SOURCE, LAUNCH, sizes=[{"rows": 4096, "cols": 4096}], check=[{"rows": 3, "cols": 10}],
        elements={"x": "rows*cols", "bias": "cols"},
    )  # fmt: skip
    step = replace(site.spec.steps[0], template_args=arguments)
    given = tuple(replace(a, type=arguments) if a.role != "scalar" else a for a in site.spec.arguments)
    return make_site(site.program, replace(site.spec, steps=(step,), arguments=given))


def test_edits_are_those_of_the_specialisation() -> None:
    site = site_of("half")
    assert [c.grid for c in site.configs] == [(4096, 1, 1)]
    edited = found(site, "row_vectorize")
    assert edited
    for one in edited:
        general, special = device(one).split("template <>")
        assert "if (i < rows * cols) x[i] = x[i] + bias[i % cols];" in general
        assert "packs_pack" in special
    assert_equal(site, edited, SIZES, expression="shifted<half>")


def test_edits_of_other_instances_are_those_of_the_template() -> None:
    site = site_of("float")
    assert [c.block for c in site.configs] == [(128, 1, 1)]
    edited = [*found(site, "vectorize"), *found(site, "block_size")]
    assert edited
    for one in edited:
        assert "packs[at] = __hadd2(packs[at], added[c]);" in device(one)
        assert "shifted<half><<<rows, 64>>>" in one.program.data.decode()
    assert_equal(site, edited[:2], SIZES, expression="shifted<float>")


@pytest.mark.parametrize(
    ("arguments", "launchers", "visible"),
    [
        ("half", "template <typename T> void go(T* x, const T* b, int r, int c) { shifted<T><<<r, 64>>>(x, b, r, c); }", False),
        (
            "half",
            "template <typename T> void go(T* x, const T* b, int r, int c) { shifted<T><<<r, 64>>>(x, b, r, c); }\n"
            "template <> void go<half>(half* x, const half* b, int r, int c) { shifted<half><<<r, 64>>>(x, b, r, c); }",
            True,
        ),
        ("float", "template <typename T> void go(T* x, const T* b, int r, int c) { shifted<T><<<r, 64>>>(x, b, r, c); }", False),
    ],
)  # fmt: skip
def test_launch_in_a_host_template_is_of_whichever_instance(arguments: str, launchers: str, visible: bool) -> None:
    site = site_of(arguments)
    data = site.program.data.replace(b"// host", f"// host\n{launchers}".encode())
    there = make_site(Program({site.program.kernel_file: data}, site.program.kernel_file), site.spec)
    assert site.launch_visible
    assert there.launch_visible == visible
