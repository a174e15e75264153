"""Names that compilers define differently."""

from __future__ import annotations

import pytest

from engine.verify.compiler_names import names_by_compiler

KERNEL = "__global__ void k(float* y) { y[0] = 1.0f; }\n"


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("#ifdef __NVCC__\n#define A 1\n#else\n#define A 2\n#endif\n", {"A"}),
        ("#if defined(__CUDACC_RTC__) || FAST\nconstexpr int b = 1;\n#endif\n", {"b"}),
        ("#if FAST\n#elif __CUDA_ARCH__ >= 800\n__device__ int c() { return 1; }\n#endif\n", {"c"}),
        ("#ifndef GUARD_H\n#define GUARD_H\nconstexpr int d = 1;\n#endif\n", set()),
        (f"#ifdef __CUDACC__\n#define E 1\n{KERNEL}#endif\n", set()),
        ("#ifdef __NVCC__\n#if FAST\n#define F 1\n#endif\n#endif\n#define G 1\n", {"F"}),
    ],
)
def test_names_under_a_compilers_condition(text: str, names: set[str]) -> None:
    assert names_by_compiler([text], {"k"}) == names
