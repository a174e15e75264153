"""Device functions that combine one value of each thread, and give the result to all of them."""

from __future__ import annotations

from typing import Literal

from engine.rules.idioms.loop_reduction import Reduction

Team = Literal["warp", "block", "column"]
_OPERATORS = {"sum": "+", "product": "*", "and": "&", "or": "|", "xor": "^"}
_FULL = "0xffffffffu"


def combine(left: str, right: str, reduction: Reduction) -> str:
    """C text of the value that two partial results make. `right` must be a plain name."""
    if reduction.operation in _OPERATORS:
        return f"{left} {_OPERATORS[reduction.operation]} {right}"
    if reduction.function:
        return f"{reduction.function}({left}, {right})"
    return f"{right} {'>' if reduction.operation == 'max' else '<'} {left} ? {right} : {left}"


def function(name: str, team: Team, reduction: Reduction, template: bool, unit: str) -> str:
    """A `__device__` function `name` that combines `value` over a team of threads; every one gets the result.

    `warp`: the 32 threads of a warp (butterfly of shuffles). `block`: all threads of a 1-D block whose size is a
    multiple of 32 (shuffles, then one value per warp through shared memory). `column`: the threads of one threadIdx.x.
    `template`: the type is a template parameter. `unit` is one level of indentation.
    Source: CUDA C++ Programming Guide, "Warp Shuffle Functions".
    """
    kind = "Value" if template else reduction.type
    step = [
        "for (int offset = 16; offset > 0; offset /= 2) {",
        f"{unit}const {kind} other = __shfl_xor_sync({_FULL}, value, offset);",
        f"{unit}value = {combine('value', 'other', reduction)};",
        "}",
    ]
    lines: list[str]
    if team == "warp":
        lines = [*step, "return value;"]
    elif team == "block":
        rest = "partial[0]" if reduction.idempotent else reduction.identity(kind)
        lines = [
            f"__shared__ {kind} partial[32];",
            "const int lane = threadIdx.x % 32;",
            *step,
            "__syncthreads();  // an earlier call's results have been read",
            "if (lane == 0) {",
            f"{unit}partial[threadIdx.x / 32] = value;",
            "}",
            "__syncthreads();",
            f"value = lane < blockDim.x / 32 ? partial[lane] : {rest};",
            *step,
            "return value;",
        ]
    else:
        lines = [
            f"__shared__ {kind} partial[1024];",
            "__syncthreads();  // an earlier call's results have been read",
            "partial[threadIdx.y * blockDim.x + threadIdx.x] = value;",
            "__syncthreads();",
            "value = partial[threadIdx.x];",
            "for (int y = 1; y < blockDim.y; ++y) {",
            f"{unit}const {kind} other = partial[y * blockDim.x + threadIdx.x];",
            f"{unit}value = {combine('value', 'other', reduction)};",
            "}",
            "return value;",
        ]
    header = "template <typename Value>\n" if template else ""
    body = "\n".join(unit + line for line in lines)
    return f"{header}__device__ __forceinline__ {kind} {name}({kind} value) {{\n{body}\n}}\n"
