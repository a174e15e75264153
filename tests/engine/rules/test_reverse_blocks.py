"""Blocks in reverse order: which kernels of a chain gain by it, which must not be touched, and that results stay the same."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engine.cuda.edit import edit_program
from engine.rewrite.site import Site
from engine.rules import make_site
from engine.spec.kernel_spec import Step
from tests.engine.rules.equality import assert_equal
from tests.engine.rules.workbench import compiles, device, make, propose

ADD = """
__global__ void add(int* y, const int* sums, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        y[i] += sums[i / 1024];
    }
}

__global__ void first(const int* x, int* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        y[i] = x[i];
    }
}
"""
LAUNCH = "    first<<<(n + 255) / 256, 256>>>(y, y, n);\n    add<<<(n + 255) / 256, 256>>>(y, sums, n);"
CHECK = ({"n": 1}, {"n": 1003}, {"n": 4096})


def alone(source: str = ADD, *, launch: str = LAUNCH, n: int = 1 << 24) -> Site:
    return make(source, launch, sizes=[{"n": n}], check=CHECK, elements={"sums": "n / 1024 + 1"})


def second(source: str = ADD, arguments: tuple[str, ...] = ("sums", "y", "n"), *, n: int = 1 << 24) -> Site:
    """The kernel as the second of a chain whose first is given `arguments`."""
    site = alone(source, n=n)
    return make_site(site.program, replace(site.spec, steps=(Step("first", "", arguments), *site.spec.steps)), 1)


def reversed_alone(site: Site) -> Site:
    (proposal,) = propose(site, "reverse_blocks")
    return make_site(edit_program(site.program, proposal.edits), alone().spec)


def test_the_block_number_counts_down() -> None:
    edited = reversed_alone(second())
    code = device(edited)
    assert (
        "const unsigned int block = gridDim.x - 1 - blockIdx.x;\n    int i = block * blockDim.x + threadIdx.x;" in code
    )
    assert code.count("int i = blockIdx.x * blockDim.x + threadIdx.x;") == 1  # the first kernel keeps its order
    compiles(edited)
    assert_equal(alone(), [edited], CHECK, races=True)


def test_the_outermost_axis_of_the_grid_is_reversed() -> None:
    plane = ADD.replace(
        "int i = blockIdx.x * blockDim.x + threadIdx.x;\n    if (i < n) {\n        y[i] +=",
        "int i = (blockIdx.y * gridDim.x + blockIdx.x) * blockDim.x + threadIdx.x;\n    if (i < n) {\n        y[i] +=",
    )
    launch = LAUNCH.replace("add<<<(n + 255) / 256, 256>>>", "add<<<dim3(4, (n + 1023) / 1024), 256>>>")
    site = alone(plane, launch=launch)
    chain = make_site(
        site.program, replace(site.spec, steps=(Step("first", "", ("sums", "y", "n")), *site.spec.steps)), 1
    )
    edited = reversed_alone(chain)
    assert "const unsigned int block = gridDim.y - 1 - blockIdx.y;" in device(edited)
    assert "int i = (block * gridDim.x + blockIdx.x) * blockDim.x" in device(edited)
    assert_equal(site, [edited], CHECK)


def test_counting_down_is_not_proposed_again() -> None:
    site = second()
    (proposal,) = propose(site, "reverse_blocks")
    assert not propose(make_site(edit_program(site.program, proposal.edits), site.spec, 1), "reverse_blocks")


def test_only_what_an_earlier_kernel_stored_counts() -> None:
    assert not propose(alone(), "reverse_blocks")  # nothing ran before
    assert not propose(second(arguments=("y", "sums", "n")), "reverse_blocks")  # y is only read there, sums is small
    assert not propose(second(n=1 << 20), "reverse_blocks")  # all of it is still in L2


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("void add(int* y", "void add(volatile int* y"),
        ("y[i] +=", "__threadfence();\n        y[i] +="),
        ("y[i] +=", "int turn = atomicAdd(y, 0);\n        y[i] += turn +"),
        ("int i = blockIdx.x", "dim3 b = blockIdx;\n    int i = b.x"),
        ("__global__ void add", "__device__ int at() { return blockIdx.x; }\n__global__ void add"),
        ("__global__ void add", "#define BLOCK_NUMBER blockIdx.x\n__global__ void add"),
    ],
)
def test_blocks_that_may_depend_on_their_order_keep_it(old: str, new: str) -> None:
    assert old in ADD
    assert not propose(second(ADD.replace(old, new, 1)), "reverse_blocks")


def test_an_atomic_whose_result_is_unused_orders_nothing() -> None:
    assert propose(
        second(ADD.replace("y[i] += sums[i / 1024];", "atomicAdd(&y[i], sums[i / 1024]);")), "reverse_blocks"
    )
