"""Which headers a device compiler takes, and what stands in for the standard library where it has none."""

import re
from collections.abc import Collection

# Header -> what a kernel names when it needs it. These are kept only where it does: each costs compile time, and NVRTC
# refuses some of them. "" keeps the header always: half types may come in through a template argument alone.
_KEPT: tuple[tuple[str, str], ...] = (
    (r"cuda_(?:fp16|bf16)\.h(?:pp)?", ""),
    (r"cuda_(?:fp8|fp6|fp4)\.h(?:pp)?", r"__nv_(?:cvt_)?\w*fp[468]\w*|__nv_fp[468]\w*"),
    (r"cooperative_groups(?:\.h|/.*)", r"cooperative_groups"),
    (r"mma\.h", r"nvcuda|wmma"),
    (r"cuda_pipeline(?:_primitives|_helpers)?\.h", r"__pipeline_\w+|nvcuda|pipeline"),
    (r"cuda_awbarrier(?:_primitives|_helpers)?\.h", r"__mbarrier\w*|nvcuda|awbarrier"),
    (r"cub/.*", r"cub"),
    (r"thrust/.*", r"thrust"),
    (r"cuda/.*", r"cuda"),
    (r"nv/target", r"NV_\w+"),
    (r"math_constants\.h", r"CUDART_\w+"),
    (r"cuComplex\.h", r"cu(?:Double|Float|C)\w*|make_cu\w+"),
    (r"curand(?:_kernel|_\w+)?\.h", r"curand\w*"),
)
# Namespaces of libraries for the host: what they hold cannot be device code.
FOREIGN = frozenset({"at", "c10", "torch", "caffe2", "boost", "tensorflow", "Eigen", "folly", "absl", "fmt", "cv"})

_INTEGERS = frozenset(
    f"{sign}int{width}_t" for sign in ("", "u") for width in ("8", "16", "32", "64", "ptr", "max", "_fast8", "_fast16",
    "_fast32", "_fast64", "_least8", "_least16", "_least32", "_least64")
)  # fmt: skip
# What the host's headers define beside the standard's types, in the words of the C library and of cuda.h.
_OTHER_TYPES = {
    "uint": "unsigned int", "ushort": "unsigned short", "ulong": "unsigned long", "ssize_t": "long",
    "CUtexObject": "unsigned long long", "CUsurfObject": "unsigned long long", "CUdeviceptr": "unsigned long long",
}  # fmt: skip
# Types that a host library's header brings along (cuBLAS, cuDNN, PyTorch), and the header that is theirs.
_HALF = {
    "cuda_fp16.h": ("half", "__half", "half2", "__half2", "nv_half", "nv_half2"),
    "cuda_bf16.h": ("nv_bfloat16", "__nv_bfloat16", "nv_bfloat162", "__nv_bfloat162"),
    "cuda_fp8.h": ("__nv_fp8_e4m3", "__nv_fp8_e5m2", "__nv_fp8x4_e4m3"),
}
_CONSTANTS = {
    "__extension__": "",  # of GNU compilers: it says nothing to NVRTC, which does not know it
    "CHAR_BIT": "8", "SCHAR_MIN": "(-128)", "SCHAR_MAX": "127", "UCHAR_MAX": "255", "CHAR_MIN": "(-128)", "CHAR_MAX": "127",
    "SHRT_MIN": "(-32768)", "SHRT_MAX": "32767", "USHRT_MAX": "65535", "INT_MIN": "(-2147483647-1)", "INT_MAX": "2147483647",
    "UINT_MAX": "4294967295u", "LONG_MIN": "(-9223372036854775807l-1)", "LONG_MAX": "9223372036854775807l",
    "ULONG_MAX": "18446744073709551615ul", "LLONG_MIN": "(-9223372036854775807ll-1)", "LLONG_MAX": "9223372036854775807ll",
    "ULLONG_MAX": "18446744073709551615ull", "INT8_MIN": "(-128)", "INT8_MAX": "127", "UINT8_MAX": "255",
    "INT16_MIN": "(-32768)", "INT16_MAX": "32767", "UINT16_MAX": "65535", "INT32_MIN": "(-2147483647-1)",
    "INT32_MAX": "2147483647", "UINT32_MAX": "4294967295u", "INT64_MIN": "(-9223372036854775807l-1)",
    "INT64_MAX": "9223372036854775807l", "UINT64_MAX": "18446744073709551615ul", "SIZE_MAX": "18446744073709551615ul",
    "FLT_MAX": "3.402823466e+38f", "FLT_MIN": "1.175494351e-38f", "FLT_EPSILON": "1.192092896e-07f", "FLT_DIG": "6",
    "FLT_MANT_DIG": "24", "FLT_MAX_EXP": "128", "FLT_MIN_EXP": "(-125)", "DBL_MAX": "1.7976931348623157e+308",
    "DBL_MIN": "2.2250738585072014e-308", "DBL_EPSILON": "2.2204460492503131e-16", "DBL_DIG": "15", "DBL_MANT_DIG": "53",
    "DBL_MAX_EXP": "1024", "DBL_MIN_EXP": "(-1021)", "INFINITY": "__int_as_float(0x7f800000)",
    "NAN": "__int_as_float(0x7fffffff)", "HUGE_VALF": "__int_as_float(0x7f800000)",
    "HUGE_VAL": "__longlong_as_double(0x7ff0000000000000ll)", "M_E": "2.7182818284590452354",
    "M_LOG2E": "1.4426950408889634074", "M_LOG10E": "0.43429448190325182765", "M_LN2": "0.69314718055994530942",
    "M_LN10": "2.30258509299404568402", "M_PI": "3.14159265358979323846", "M_PI_2": "1.57079632679489661923",
    "M_PI_4": "0.78539816339744830962", "M_1_PI": "0.31830988618379067154", "M_2_PI": "0.63661977236758134308",
    "M_2_SQRTPI": "1.12837916709551257390", "M_SQRT2": "1.41421356237309504880", "M_SQRT1_2": "0.70710678118654752440",
    "EXIT_SUCCESS": "0", "EXIT_FAILURE": "1", "CUDA_VERSION": "(__CUDACC_VER_MAJOR__*1000+__CUDACC_VER_MINOR__*10)",
}  # fmt: skip


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_MATH = _words(
    "abs fabs sqrt cbrt exp exp2 expm1 log log2 log10 log1p pow sin cos tan asin acos atan atan2 sinh cosh tanh asinh acosh "
    "atanh floor ceil round trunc rint nearbyint lround llround lrint llrint fmod remainder fmin fmax fma fdim hypot erf erfc "
    "tgamma lgamma copysign nextafter ldexp frexp modf scalbn scalbln logb ilogb"
)
_FUNCTIONS = (
    _MATH
    | {f"{name}f" for name in _MATH - {"abs"}}
    | _words("isnan isinf isfinite signbit memcpy memset printf size_t ptrdiff_t")
)
_TRAITS = _words(
    "is_same is_same_v is_integral is_integral_v is_floating_point is_floating_point_v is_arithmetic is_arithmetic_v "
    "is_signed is_signed_v is_unsigned is_unsigned_v is_pointer is_pointer_v is_const is_const_v is_convertible "
    "is_convertible_v is_base_of is_base_of_v is_enum is_enum_v is_trivially_copyable is_trivially_copyable_v enable_if "
    "enable_if_t conditional conditional_t aligned_storage aligned_storage_t alignment_of alignment_of_v "
    "remove_cv remove_cv_t remove_const remove_const_t remove_reference "
    "remove_reference_t remove_pointer remove_pointer_t decay decay_t make_unsigned make_unsigned_t make_signed "
    "make_signed_t integral_constant bool_constant true_type false_type void_t underlying_type underlying_type_t "
    "add_const add_const_t common_type common_type_t declval"
)
_HEADED = {
    "numeric_limits": "limits", "pair": "utility", "make_pair": "utility", "swap": "utility", "integer_sequence": "utility",
    "index_sequence": "utility", "make_index_sequence": "utility", "tuple": "tuple", "make_tuple": "tuple", "get": "tuple",
    "array": "array", "complex": "complex", "span": "span", "byte": "cstddef", "plus": "functional",
    "multiplies": "functional", "minus": "functional", "less": "functional", "greater": "functional",
}  # fmt: skip
_OWN = {
    "min": "template <class T> __host__ __device__ constexpr const T& min(const T& a, const T& b) { return b < a ? b : a; }",
    "max": "template <class T> __host__ __device__ constexpr const T& max(const T& a, const T& b) { return a < b ? b : a; }",
    "clamp": "template <class T> __host__ __device__ constexpr const T& clamp(const T& v, const T& a, const T& b) "
    "{ return v < a ? a : b < v ? b : v; }",
}
# What device code takes from PyTorch's headers, in terms of CUDA's: name -> text. The types convert as theirs do.
_TORCH = {
    "gpuAtomicAdd": "template <class T> static __device__ __forceinline__ T gpuAtomicAdd(T* p, T v) { return atomicAdd(p, v); }",
    "gpuAtomicAddNoReturn": "template <class T> static __device__ __forceinline__ void gpuAtomicAddNoReturn(T* p, T v) "
    "{ atomicAdd(p, v); }",
    "WARP_SHFL": "template <class T> static __device__ __forceinline__ T WARP_SHFL(T v, int lane, int width = 32, "
    "unsigned mask = 0xffffffffu) { return __shfl_sync(mask, v, lane, width); }",
    "WARP_SHFL_XOR": "template <class T> static __device__ __forceinline__ T WARP_SHFL_XOR(T v, int lanes, int width = 32, "
    "unsigned mask = 0xffffffffu) { return __shfl_xor_sync(mask, v, lanes, width); }",
    "WARP_SHFL_UP": "template <class T> static __device__ __forceinline__ T WARP_SHFL_UP(T v, unsigned d, int width = 32, "
    "unsigned mask = 0xffffffffu) { return __shfl_up_sync(mask, v, d, width); }",
    "WARP_SHFL_DOWN": "template <class T> static __device__ __forceinline__ T WARP_SHFL_DOWN(T v, unsigned d, int width = 32, "
    "unsigned mask = 0xffffffffu) { return __shfl_down_sync(mask, v, d, width); }",
    "C10_WARP_SIZE": "#define C10_WARP_SIZE 32",
    "C10_HOST_DEVICE": "#define C10_HOST_DEVICE __host__ __device__",
    "C10_DEVICE": "#define C10_DEVICE __device__",
    "C10_RESTRICT": "#define C10_RESTRICT __restrict__",
    "C10_LAUNCH_BOUNDS_0": "#define C10_LAUNCH_BOUNDS_0 __launch_bounds__(256, 4)",
    "C10_LAUNCH_BOUNDS_1": "#define C10_LAUNCH_BOUNDS_1(threads) __launch_bounds__(threads)",
    "C10_LAUNCH_BOUNDS_2": "#define C10_LAUNCH_BOUNDS_2(threads, blocks) __launch_bounds__(threads, blocks)",
    "CUDA_KERNEL_LOOP": "#define CUDA_KERNEL_LOOP(i, n) for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < (n); "
    "i += blockDim.x * gridDim.x)",
    "CUDA_KERNEL_ASSERT": "#define CUDA_KERNEL_ASSERT(cond)",
}
# The names of `at` and `c10` that have a meaning here. Sums of half types are made in float, as theirs are on CUDA.
_TORCH_TYPES = {
    "Half": "using Half = __half;",
    "BFloat16": "using BFloat16 = __nv_bfloat16;",
    "opmath_type": "template <class T> using opmath_type = typename ::optiml_opmath<T>::type;",
    "acc_type": "template <class T, bool> using acc_type = typename ::optiml_opmath<T>::type;",
}
_OPMATH = (
    "template <class T> struct optiml_opmath { using type = T; };",
    "template <> struct optiml_opmath<__half> { using type = float; };",
    "template <> struct optiml_opmath<__nv_bfloat16> { using type = float; };",
)
# What theirs compute with fractions of another type, which CUDA's half types leave ambiguous: in that type.
_MIXED = (
    "#define OPTIML_MIXED(H, N, R, O) static __host__ __device__ __forceinline__ R operator O(H a, N b)"
    " { return R(float(a)) O R(b); } static __host__ __device__ __forceinline__ R operator O(N a, H b) { return R(a) O R(float(b)); }",
    "#define OPTIML_MIXED_ALL(H, N, R) OPTIML_MIXED(H, N, R, +) OPTIML_MIXED(H, N, R, -) OPTIML_MIXED(H, N, R, *) OPTIML_MIXED(H, N, R, /)",
    *(
        f"OPTIML_MIXED_ALL({h}, {n}, {r})"
        for h in ("__half", "__nv_bfloat16")
        for n, r in (("float", "float"), ("double", "double"))
    ),
)
# Of the device runtime, which NVRTC has not: in PTX, as its header has them.
_DEVICE_RUNTIME = {
    "cudaGridDependencySynchronize": "griddepcontrol.wait;",
    "cudaTriggerProgrammaticLaunchCompletion": "griddepcontrol.launch_dependents;",
}
_BUILT_IN = _words("move forward nullptr_t initializer_list nothrow")

STD_NAMES = frozenset({*_FUNCTIONS, *_TRAITS, *_HEADED, *_OWN, *_BUILT_IN, *_INTEGERS})


def torch_type(namespace: str, name: str) -> bool:
    """Whether `namespace::name` is a type of PyTorch that has a meaning without its headers."""
    return namespace in ("at", "c10") and name in _TORCH_TYPES


def torch_prelude(needed: Collection[str], own: Collection[str]) -> str:
    """Lines for what the code takes from PyTorch's headers; "" where that is nothing. Arguments as of `prelude`."""
    used = [name for name in needed if name not in own]
    types = sorted(name for name in _TORCH_TYPES if name in used and ({"at", "c10"} & set(used)))
    lines = [_TORCH[name] for name in sorted(_TORCH) if name in used]
    if types:
        within = " ".join(_TORCH_TYPES[name] for name in types)
        heads = ["#include <cuda_fp16.h>", "#include <cuda_bf16.h>", *_OPMATH, *_MIXED]
        lines = [*heads, f"namespace at {{ {within} }}", f"namespace c10 {{ {within} }}", *lines]
    return "".join(f"{line}\n" for line in lines)


def kept_header(name: str, needed: Collection[str]) -> bool:
    """Whether the line `#include <name>` stays: a device compiler takes it and the kernels need it."""
    for pattern, trigger in _KEPT:
        if re.fullmatch(pattern, name):
            return not trigger or any(re.fullmatch(trigger, each) for each in needed)
    return False


def header_of(name: str, namespace: str) -> bool:
    """Whether the header defines a namespace of CUDA's."""
    return any(
        trigger and re.fullmatch(pattern, name) and re.fullmatch(trigger, namespace) for pattern, trigger in _KEPT
    )


def constant(name: str) -> bool:
    """Whether the C library's headers define it."""
    return name in _CONSTANTS


def prelude(needed: Collection[str], qualified: Collection[str], headers: Collection[str], own: Collection[str]) -> str:
    """Lines that give a compiler what the code takes from headers that were left out; "" where that is nothing.

    `needed` are the names used, `qualified` those used as `std::name`, `headers` the headers that the text includes, `own`
    the names that it defines itself. NVRTC has no standard library: it gets CUDA's; other compilers get the host's.
    """
    used = [name for name in needed if name not in own]
    both = [f"#include <{h}>" for h, names in _HALF.items() if h not in headers and any(name in names for name in used)]
    defines = [name for name in sorted(_CONSTANTS) if name in used]
    others = [name for name in sorted(_OTHER_TYPES) if name in used]
    taken: list[str] = []
    inside: list[str] = []
    if any(name in _INTEGERS for name in (*used, *qualified)):
        taken.append("cstdint")
    for name in sorted(qualified):
        if name in _OWN:
            inside.append(_OWN[name])
        elif name in _HEADED or name in _TRAITS:
            taken.append(_HEADED.get(name, "type_traits"))
            inside.append(f"using ::cuda::std::{name};")
        elif name in _INTEGERS or name in _FUNCTIONS:
            inside.append(f"using ::{name};")
    runtime = [name for name in sorted(_DEVICE_RUNTIME) if name in used]
    if not (both or defines or others or taken or inside or runtime):
        return ""
    host = {"algorithm", "cfloat", "climits", "cmath", "cstdint", "cstdlib", "cstring", *taken}
    lines = [*both, "#ifdef __CUDACC_RTC__"]
    lines += [f"#include <cuda/std/{header}>" for header in sorted(set(taken))]
    for name in defines:
        lines += [f"#ifndef {name}", f"#define {name} {_CONSTANTS[name]}", "#endif"]
    lines += [f"typedef {_OTHER_TYPES[name]} {name};" for name in others]
    lines += [
        f'static __device__ __forceinline__ void {n}() {{ asm volatile("{_DEVICE_RUNTIME[n]}" ::: "memory"); }}'
        for n in runtime
    ]
    lines += ["namespace std {", *inside, "}"] if inside else []
    lines += ["#else", *(f"#include <{header}>" for header in sorted(host))]
    lines += [f"typedef {_OTHER_TYPES[name]} {name};" for name in others]
    return "\n".join([*lines, "#endif"]) + "\n"
