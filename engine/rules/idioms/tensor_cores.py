"""Products on tensor cores: of factors of 16 bits, and of factors in single precision as sums of two numbers that TF32 holds each.

Source: Ootomo and Yokota, "Recovering Single Precision Accuracy from Tensor Cores While Surpassing the FP32 Theoretical Peak
Performance" (2022): three products, without that of the two rests; longer sums are added outside of the tensor cores.
PTX ISA, "Matrix Fragments for mma.m16n8k8" and "mma.m16n8k16", for the elements that each thread holds.
"""

import re

from engine.rewrite import Namer, template

# Their tensor cores multiply in TF32 at four times the rate of single precision and more, so that three products pay.
_ARCHITECTURES = frozenset({80, 90, 100, 103})
INDEPENDENT = 8  # products that hide the latency of one
# Types of 16 bits -> what PTX calls them, and the function that gives their bits.
_PAIRED = {
    **dict.fromkeys(("half", "__half"), ("f16", "__half_as_ushort")),
    **dict.fromkeys(("nv_bfloat16", "__nv_bfloat16"), ("bf16", "__bfloat16_as_ushort")),
}


def worthwhile(arch: str) -> bool:
    """Whether an architecture's tensor cores are so much faster that three products take less time than one."""
    return _number(arch) in _ARCHITECTURES


def paired(element: str, arch: str) -> bool:
    """Whether an architecture's tensor cores multiply 16 x 16 by 16 x 8 elements of a type, two of them in a register."""
    return element in _PAIRED and _number(arch) >= 80


def _number(arch: str) -> int:
    """The number of an architecture, 90 of "sm_90a"; 0 of what is none."""
    found = re.fullmatch(r"sm_(\d+)[af]?", arch)
    return int(found[1]) if found is not None else 0


def functions(name: Namer) -> str:
    """The device functions `product` and `split` for single precision, by the names that `name` gives them."""
    snippet = template("engine.rules", "tensor_cores").sections()["tf32"]
    return snippet.render(**{hole: name(hole) for hole in snippet.holes}) + "\n"


def pair_functions(element: str, name: Namer) -> str:
    """The device functions `product` and `pair` for elements of a type of 16 bits, by the names that `name` gives them."""
    kind, as_ushort = _PAIRED[element]
    snippet = template("engine.rules", "tensor_cores").sections()["pairs"]
    given = {"product": name("product"), "pair": name("pair"), "element": element}
    return snippet.render(kind=kind, as_ushort=as_ushort, **given) + "\n"
