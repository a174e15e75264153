"""Indices that pass through fewer bits than they have: what the compiler's PTX shows of them, and what is none."""

from __future__ import annotations

import pytest

from engine.compile.index_precision import FLOAT, HIGH_HALF, STORED, lossy_indices
from engine.compile.program import compile_text

HEAD = (
    "__global__ void k(const float* x, float* y, int n, int w) {\n    int i = blockIdx.x * blockDim.x + threadIdx.x;\n"
)
LOSSY = {
    "a float counter": ("for (float at = i; at < n; at += 128.0f) y[(int)at] = x[(int)at];", FLOAT),
    "a float counter from the thread's index": (
        "const float end = n, step = 128; for (float at = threadIdx.x; at < end; at += step) y[i] = x[i * w + (int)at];", FLOAT,
    ),
    "a quotient by a float reciprocal": ("if (i < n) y[i] = x[i - (int)(i * (1.0f / w)) * w];", FLOAT),
    "a power of two by float": ("int e; bool p = frexpf((float)w, &e) == 0.5f; if (i < n) y[i] = x[p ? i & (w - 1) : i % w];", FLOAT),
    "a logarithm of a size": ("if (i < n) y[i] = x[i >> (int)log2f((float)w)];", FLOAT),
    "a float bound": ("if ((float)i < (float)n) y[i] = x[i];", FLOAT),
    "a counter by a float": ("for (int c = threadIdx.x; c < w; c += 128) y[c] = x[(int)(c * 0.3333f)];", FLOAT),
    "a counter by a high product": (
        "unsigned m = 0xffffffffu / w + 1; for (int c = threadIdx.x; c < n; c += 128) y[c] = x[__umulhi(c, m)];", HIGH_HALF,
    ),
    "a counter from zero": ("for (float c = 0.0f; c < (float)w; c += 1.0f) y[i] += x[i * w + (int)c];", FLOAT),
    "a counter that is turned": ("for (int c = 0; c < w; ++c) y[i] += x[i * w + (int)(i * 0.0f + c)];", FLOAT),
    "a counter from zero by a high product": (
        "unsigned m = 0xffffffffu / w + 1; for (int c = 0; c < w; ++c) y[i] += x[__umulhi(c, m)];", HIGH_HALF,
    ),
    "a high product": ("unsigned m = 0xffffffffu / w + 1; if (i < n) y[i] = x[__umulhi(i, m)];", HIGH_HALF),
    "a shifted product": ("unsigned m = 0xffffffffu / w + 1; if (i < n) y[i] = x[(unsigned long long)i * m >> 32];", HIGH_HALF),
}  # fmt: skip
STORES = {
    "a place that a float carries": (
        "float at = 0, most = x[0]; for (int c = 1; c < w; ++c) if (x[c] > most) { most = x[c]; at = c; } z[i] = (int)at;"
    ),
    "a sum of whole numbers in a float": "float s = 0; for (int c = 0; c < w; ++c) s += (float)z[c]; z[n + i] = (int)s;",
    "an atomic": "atomicAdd(&z[0], (int)(x[i] * 8.0f));",
}  # fmt: skip
EXACT = {
    "values": "if (i < n) y[i] = x[i] / w + (float)i;",
    "values that are rounded": "if (i < n) y[i] = (int)rintf(x[i] * w);",
    "the index in the block": "int r = (int)((threadIdx.x + 0.5f) * 0.3333f); y[threadIdx.x] = x[r];",
    "divisions": "if (i < n) y[i] = x[i / w] + x[i % 7] + x[i / 1000];",
    "a counter to ten": "for (int k = 0; k < 10; ++k) y[i] += x[(int)(k * 0.3f)];",
    "a counter of taps": "\n#pragma unroll 1\nfor (int k = 0; k < 300; ++k) if (k * 0.1f > 0.5f) y[i] += x[k];",
    "a mean": "float s = 0; for (int k = 0; k < w; k++) s += x[i * w + k]; s /= w; y[i] = s > 1.0f ? s : rsqrtf(s * (1.0f / w));",
    "a double": "if (i < n) y[i] = x[(int)(i * (1.0 / w) + 0.5)];",
}  # fmt: skip


def _ptx(body: str) -> str:
    return compile_text(f"{HEAD}    {body}\n}}\n", "k.cu", ["k"], ["-arch=sm_90", "--std=c++17"]).ptx


@pytest.mark.parametrize("name", STORES)
def test_a_whole_number_that_comes_out_of_a_float_is_found_where_it_is_stored(name: str) -> None:
    text = f"{HEAD.replace('float* y,', 'float* y, int* z,')}    {STORES[name]}\n}}\n"
    assert lossy_indices(compile_text(text, "k.cu", ["k"], ["-arch=sm_90", "--std=c++17"]).ptx) & STORED


@pytest.mark.parametrize("name", LOSSY)
def test_an_index_that_loses_bits_is_found(name: str) -> None:
    body, found = LOSSY[name]
    assert lossy_indices(_ptx(body)) == found


@pytest.mark.parametrize("name", EXACT)
def test_what_loses_none_is_not(name: str) -> None:
    assert lossy_indices(_ptx(EXACT[name])) == 0
