"""Names of device functions that compute and change nothing (CUDA Math API, CUDA C++ Programming Guide)."""

# Each exists with and without the suffix f.
_ELEMENTARY = """
acos acosh asin asinh atan atan2 atanh cbrt ceil copysign cos cosh cospi erf erfc erfcinv erfcx erfinv exp exp10
exp2 expm1 fabs fdim fdivide floor fma fmax fmin fmod hypot ldexp lgamma log log10 log1p log2 normcdf nearbyint
pow rcbrt remainder rhypot rint round rsqrt sin sinh sinpi sqrt tan tanh tgamma trunc
"""
_OTHER = """
abs labs llabs min max umin umax isnan isinf isfinite signbit lrintf lrint llrintf saturatef __expf __exp10f
__logf __log2f __log10f __powf __sinf __cosf __tanf __fdividef __saturatef __frcp_rn __fsqrt_rn __frsqrt_rn
__fadd_rn __fsub_rn __fmul_rn __fmaf_rn __fdiv_rn __dadd_rn __dmul_rn __fma_rn __popc __popcll __clz __clzll
__ffs __brev __ldg __ldcs __ldca __ldcg __float2half __float2half_rn __half2float __low2float __high2float
__float2bfloat16 __float2bfloat16_rn __bfloat162float __int2float_rn __float2int_rn __float2int_rd
__float2int_rz __uint2float_rn __hadd __hsub __hmul __hdiv __hfma __hmax __hmin __hneg __habs hexp hlog hsqrt
hrsqrt htanh __int_as_float __float_as_int __uint_as_float __float_as_uint __mul24 __umul24 __mulhi __umulhi
__float22half2_rn __half22float2 __bfloat1622float2 __float22bfloat162_rn __floats2half2_rn __floats2bfloat162_rn
__low2half __high2half __low2bfloat16 __high2bfloat16 __halves2half2 __half2half2 __bfloat162bfloat162 __ushort_as_half
__half_as_ushort __hadd2 __hsub2 __hmul2 __hfma2 __hneg2 __hmax2 __hmin2 h2exp h2rsqrt h2sqrt make_half2 __dp4a
make_uchar2 make_uchar4 make_char4 make_short4 make_ushort4
make_float2 make_float3 make_float4 make_int2 make_int4 make_uint2 make_uint4 make_double2 float double int
unsigned half __half
"""
MATH_FUNCTIONS = frozenset(name + suffix for name in _ELEMENTARY.split() for suffix in ("", "f")) | frozenset(
    _OTHER.split()
)
