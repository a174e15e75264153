"""Floats of eight and four bits on the CPU: hashes of conversions as CUDA 13.0's own headers give them, compiled for the host."""

from __future__ import annotations

import numpy as np

from engine.cpu.features import unsupported
from tests.engine.cpu.conftest import Make, launch

CODE = """
#include <cuda_fp8.h>
#include <cuda_fp4.h>
__device__ unsigned mixed(unsigned h, unsigned v) { return h * 1000003u + v; }
__global__ void k(unsigned* x, float* y) {
  for (int kind = 0; kind < 4; kind++) {
    auto in = kind & 1 ? __NV_E5M2 : __NV_E4M3;
    auto beyond = kind & 2 ? __NV_SATFINITE : __NV_NOSAT;
    unsigned h = 0;
    for (unsigned long long u = 0; u < 1ull << 32; u += 65521)
      h = mixed(h, __nv_cvt_float_to_fp8(__uint_as_float(u), beyond, in));
    for (int e = -30; e < 20; e++) for (int m = 0; m < 64; m++) {
      float f = ldexpf(1 + m / 64.f, e);
      h = mixed(h, __nv_cvt_float_to_fp8(f, beyond, in));
      h = mixed(h, __nv_cvt_float_to_fp8(-f, beyond, in));
    }
    x[kind] = h;
  }
  unsigned h = 0;
  for (int i = 0; i < 256; i++) {
    __nv_fp8_e4m3 a;
    __nv_fp8_e5m2 b;
    a.__x = b.__x = i;
    float u = float(a), v = float(b);
    h = mixed(mixed(h, u != u ? 1 : __float_as_uint(u)), v != v ? 1 : __float_as_uint(v));
    h = mixed(h, (unsigned)(int)a);
    h = mixed(h, (unsigned)(unsigned char)b);
    h = mixed(h, (unsigned)(signed char)a);
  }
  x[4] = h;
  h = 0;
  for (int e = -6; e < 6; e++) for (int m = 0; m < 64; m++) {
    float f = ldexpf(1 + m / 64.f, e);
    h = mixed(h, __nv_cvt_float_to_fp4(f, __NV_E2M1, cudaRoundNearest));
    h = mixed(h, __nv_cvt_float_to_fp4(-f, __NV_E2M1, cudaRoundNearest));
  }
  h = mixed(h, __nv_cvt_float_to_fp4(nanf(""), __NV_E2M1, cudaRoundNearest));
  for (int i = 0; i < 16; i++) {
    __nv_fp4_e2m1 a;
    a.__x = i;
    h = mixed(h, __float_as_uint(float(a)));
  }
  x[5] = h;
  __nv_fp8x4_e4m3 q(make_float4(1.25f, -3.f, 500.f, .001f));
  __nv_fp8x2_e5m2 p(make_float2(7.f, -1e9f));
  x[6] = q.__x;
  x[7] = p.__x;
  x[8] = __nv_fp4x4_e2m1(make_float4(1.25f, -3.f, 500.f, .001f)).__x;
  float4 r = float4(q);
  float2 s = float2(p);
  y[0] = r.x, y[1] = r.y, y[2] = r.z, y[3] = r.w, y[4] = s.x, y[5] = s.y;
  y[6] = float(static_cast<__nv_fp8_e4m3>(nv_half(0.3f))), y[7] = __half2float(__half(__nv_fp8_e5m2(0.3)));
}
"""
POWERS = [3614416443, 2518391479, 3273796217, 4020155756, 2747269120, 130]
KNOWN = [3788410035, 3479572363, 3330976696, 1191117527, 3673013294, 4282482391, 25084986, 64327, 2002]


def test_conversions_are_those_of_cuda(make: Make) -> None:
    buffers = [("x", "out", np.zeros(9, np.uint32)), ("y", "out", np.zeros(8, np.float32))]
    (done,) = make(CODE, "k", launch(1, 1), buffers).runs((0,))
    assert not done.findings
    assert done.outputs["x"].tolist() == KNOWN
    assert done.outputs["y"].tolist() == [1.25, -3, 448, 0.001953125, 7, -57344, 0.3125, 0.3125]


def test_powers_of_two(make: Make) -> None:
    code = """
#include <cuda_fp8.h>
__device__ unsigned mixed(unsigned h, unsigned v) { return h * 1000003u + v; }
__global__ void k(unsigned* x) {
  for (int kind = 0; kind < 4; kind++) {
    auto beyond = kind & 1 ? __NV_SATFINITE : __NV_NOSAT;
    auto mode = kind & 2 ? cudaRoundPosInf : cudaRoundZero;
    unsigned h = 0;
    for (unsigned long long u = 0; u < 1ull << 32; u += 65521) h = mixed(h, __nv_cvt_float_to_e8m0(__uint_as_float(u), beyond, mode));
    for (int e = -140; e < 128; e++) h = mixed(h, __nv_cvt_float_to_e8m0(ldexpf(1.f, e), beyond, mode));
    float special[] = {0.f, -0.f, INFINITY, -INFINITY, NAN, 3.4e38f, 1e-45f, -5.f};
    for (float f : special) h = mixed(h, __nv_cvt_float_to_e8m0(f, beyond, mode));
    x[kind] = h;
  }
  unsigned h = 0;
  for (int i = 0; i < 255; i++) {
    __nv_fp8_e8m0 a;
    a.__x = i;
    h = mixed(h, __float_as_uint(float(a)));
  }
  x[4] = h;
  x[5] = __nv_fp8_e8m0(5.f).__x;
}
"""
    (done,) = make(code, "k", launch(1, 1), [("x", "out", np.zeros(6, np.uint32))]).runs((0,))
    assert done.outputs["x"].tolist() == POWERS


def test_formats_that_are_not_there_are_named() -> None:
    assert unsupported("__global__ void k() { __nv_fp6_e2m3 x; }") == ("fp6 types",)
    assert not unsupported("__global__ void k(__nv_fp8_e4m3* x, __nv_fp4x2_e2m1* y) {}")
