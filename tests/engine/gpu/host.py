"""The worker's own kernels, built by the host's compiler and run one lane after the other."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

import engine.gpu

_FOLDER = Path(engine.gpu.__file__).parent
_TOOLS = (_FOLDER / "tools.cu").read_text()
RELATIONS = (_FOLDER / "relations.cu").read_text()
_SHIM = """\
#include <math.h>
#define __device__ static
#define __global__
#define __forceinline__ inline
typedef unsigned long long u64;
typedef unsigned int u32;
struct Three { u32 x; };
static Three blockIdx = {0}, threadIdx = {0}, blockDim = {32}, gridDim = {1};
struct __half { short bits; };
struct __nv_bfloat16 { short bits; };
struct __nv_fp8_e4m3 { char bits; explicit __nv_fp8_e4m3(float) : bits(0) {} };
struct __nv_fp8_e5m2 { char bits; explicit __nv_fp8_e5m2(float) : bits(0) {} };
static __half __double2half(double) { return {0}; }
static __half __float2half(float) { return {0}; }
static __nv_bfloat16 __double2bfloat16(double) { return {0}; }
static __nv_bfloat16 __float2bfloat16(float) { return {0}; }
#define __logf fast_log
#define __sincosf fast_sincos
static float fast_log(float x) { return logf(x) + 0x1p-23f; }  // as much above as the fast one can be
static float rsqrtf(float x) { return 1.0f / sqrtf(x); }
static void fast_sincos(float x, float* s, float* c) { *s = sinf(x); *c = cosf(x); }
static u64 __umul64hi(u64 a, u64 b) { return (u64)((unsigned __int128)a * b >> 64); }
extern "C" void lane(u32 i, u32 lanes) { threadIdx.x = i; blockDim.x = lanes; }
"""


def _part(pattern: str) -> str:
    found = re.search(pattern, _TOOLS, re.DOTALL)
    assert found is not None, pattern
    return found.group()


def drawing() -> str:
    """The text of `draw` and of what it uses."""
    return _part(r"template <typename T> struct Drawn .*?(?=// Relative noise)")


def filling() -> str:
    """The text of `fill_words`, `check_guards` and of what they use."""
    atomic = "static void atomicMax(u64* at, u64 v) { if (v > *at) *at = v; }\n"
    names = ("unsigned char pattern_at", "u64 before_words", "void fill_words", "void check_guards")
    return atomic + "".join(_part(rf"[^\n]*{name}\(.*?\n}}\n") for name in names)


def moving() -> str:
    """The text of the reference copies and of what they use."""
    vectors = "struct uint4 { u32 x, y, z, w; };\nstatic uint4 make_uint4(u32 x, u32 y, u32 z, u32 w) { return {x, y, z, w}; }\n"
    return vectors + _part(r"template <u32 FROM, u32 TO>.*?MOVE\(4, 3\)\n")


def library(folders: pytest.TempPathFactory, text: str) -> ctypes.CDLL:
    """Kernels that need no more of tools.cu than its `mix`."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("no compiler of the host")
    source = folders.mktemp("kernels") / "kernels.cpp"
    source.write_text(_SHIM + _part(r"#define GOLDEN[^\n]*\n") + _part(r"__device__ u64 mix\(.*?\n}\n") + text)
    made = source.with_suffix(".so")
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-o", made, source], check=True)
    return ctypes.CDLL(str(made))


def launch(kernels: ctypes.CDLL, name: str, *arguments: Any, lanes: int = 32) -> None:
    """One block of so many threads."""
    for lane in range(lanes):
        kernels.lane(lane, lanes)
        getattr(kernels, name)(*arguments)
