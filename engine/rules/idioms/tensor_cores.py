"""Products in single precision on tensor cores: every factor is the sum of two numbers that TF32 holds.

Source: Ootomo and Yokota, "Recovering Single Precision Accuracy from Tensor Cores While Surpassing the FP32 Theoretical Peak
Performance" (2022): three products, without that of the two rests; longer sums are added outside of the tensor cores.
PTX ISA, "Matrix Fragments for mma.m16n8k8", for the elements that each thread holds.
"""

import re
from collections.abc import Callable

from engine.rewrite import template

# Their tensor cores multiply in TF32 at four times the rate of single precision and more, so that three products pay.
_ARCHITECTURES = frozenset({"80", "90", "100", "103"})
INDEPENDENT = 8  # products that hide the latency of one


def worthwhile(arch: str) -> bool:
    """Whether an architecture's tensor cores are so much faster that three products take less time than one."""
    found = re.fullmatch(r"sm_(\d+)[af]?", arch)
    return found is not None and found[1] in _ARCHITECTURES


def functions(name: Callable[[str], str]) -> str:
    """The device functions `product` and `split`, by the names that `name` gives them."""
    snippet = template("engine.rules", "tensor_cores")
    return snippet.render(**{hole: name(hole) for hole in snippet.holes}) + "\n"


__all__ = ["INDEPENDENT", "functions", "worthwhile"]
