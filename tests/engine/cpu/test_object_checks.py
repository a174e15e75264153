"""Code that switches the CPU path's checks off shows in its object, whatever the spelling; code that does not is left alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.cpu import CpuMachine
from engine.cpu.object_checks import ObjectFacts, facts_of, objection
from engine.spec.kernel_spec import KernelSpec, Step
from tests.engine.cpu.kernels import honest

KERNEL = "__global__ void k(const float* x, float* y, int n) {{\n  int t = threadIdx.x;\n{body}\n}}\n"
BODY = "  if (t < n) y[t] = 2.0f * x[t];"
HELPER = "float twice(const float* p) { return 2.0f * *p; }\n"
CALL = "  if (t < n) y[t] = twice(x + t);"
PASTE = "#define PASTE(a, b) a##b\n"
SPELLED = PASTE + "#define QUIET PASTE(no_sani, tize_thread)\n__attribute__((PASTE(no, inline), QUIET)) "

ATTACKS = {
    "attribute": ('__attribute__((noinline, no_sanitize("thread"))) ' + HELPER, CALL, "'_Z5twicePKf'"),
    "old attribute": ("__attribute__((noinline, no_sanitize_thread)) " + HELPER, CALL, "'_Z5twicePKf'"),
    "standard attribute": ("[[gnu::noinline, gnu::no_sanitize_thread]] " + HELPER, CALL, "'_Z5twicePKf'"),
    "underscores": ("[[__gnu__::__noinline__, __gnu__::__no_sanitize_thread__]] " + HELPER, CALL, "'_Z5twicePKf'"),
    "macro": (SPELLED + HELPER, CALL, "'_Z5twicePKf'"),
    "digraphs": ("<:<:gnu::noinline, gnu::no_sanitize_thread:>:> " + HELPER, CALL, "'_Z5twicePKf'"),
    "store": (
        "__attribute__((noinline, no_sanitize_thread)) void put(float* p, float v) { *p = v; }\n", "  put(y + t, 2.0f * x[t]);",
        "'_Z3putPff'",
    ),
    "tail": (
        "__attribute__((noinline, no_sanitize_thread)) float at(const float* p, int i) { float w[4]; w[i & 3] = p[i]; "
        "for (int j = 0; j < 4; ++j) if (j != (i & 3)) w[j] = j; return w[0] + w[1] + w[2] + w[3]; }\n", "  y[t] = at(x, t);",
        "accesses memory without the checks",
    ),
    "hook": ('extern "C" void __tsan_read4(void*) {}\n', BODY, "'__tsan_read4'"),
    "hook by label": (PASTE + 'void quiet(void*) PASTE(as, m)("__tsan_read4");\nvoid quiet(void*) {}\n', BODY, "'__tsan_read4'"),
    "library function": ('extern "C" float expf(float v) { return v; }\n', "  y[t] = expf(x[t]);", "'expf'"),
    "runtime function": ('extern "C" void optiml_pause() {}\n', BODY, "'optiml_pause'"),
    "constructor": ("int armed;\n__attribute__((constructor)) void arm() { armed = 1; }\n", BODY, "runs code when it is loaded"),
    "early constructor": (
        "int armed;\n__attribute__((constructor(99))) void arm() { armed = 1; }\n", BODY, "runs code when it is loaded"
    ),
    "dynamic initialiser": (
        "struct A { A() { v = optiml_dynamic_shared_bytes(); } unsigned v; };\nA a;\n", "  y[t] = a.v;", "runs code when it is loaded"
    ),
    "weak question": (
        'extern "C" __attribute__((weak)) void* __tsan_create_fiber(unsigned);\n',
        "  y[t] = __tsan_create_fiber ? 0.0f : 2.0f * x[t];", "tests whether '__tsan_create_fiber' is defined",
    ),
    "exported": ('__attribute__((visibility("default"))) void shown() {}\n', BODY, "'_Z5shownv'"),
    "system call": ('extern "C" long syscall(long, ...);\n', "  y[t] = syscall(39) > 0 ? 2.0f * x[t] : 0.0f;", "calls 'syscall'"),
}  # fmt: skip


def _facts(machine: CpuMachine, before: str, body: str) -> ObjectFacts:
    spec = KernelSpec("k.cu", (Step("k", "", ("x", "y", "n")),), (), (), ())
    binary = machine.build(before + KERNEL.format(body=body), "k.cu", spec, ["k"])
    return facts_of(binary.object)


@pytest.fixture(scope="module")
def original(machine: CpuMachine) -> ObjectFacts:
    return _facts(machine, "", BODY)


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_on_the_checks_is_refused_by_its_effect(
    machine: CpuMachine, original: ObjectFacts, name: str
) -> None:
    before, body, says = ATTACKS[name]
    reason = objection(original, _facts(machine, before, body))
    assert reason is not None
    assert says in reason


HONEST = {
    "helper": ("__noinline__ " + HELPER, CALL),
    "local array": (
        "__noinline__ float poly(float v, int n) { float c[4] = {1, v, v * v, 3}; float s = 0; for (int i = 0; i < (n & 3); ++i) "
        "s += c[i]; return s; }\n", "  y[t] = poly(x[t], n);",
    ),
    "constant table": (
        "__constant__ const float table[3] = {1, 2, 3};\n__noinline__ float at(int i) { return table[i % 3]; }\n", "  y[t] = at(t);",
    ),
    "mathematics": ("", "  y[t] = expf(x[t]) + sinf(x[t]) + fmaxf(x[t], 1.0f) + rsqrtf(x[t]) + __expf(x[t]);"),
    "atomics": ("", "  atomicAdd(y, x[t]);\n  atomicMax((int*)y + 1, t);"),
    "vectors": ("", "  reinterpret_cast<float4*>(y)[t] = reinterpret_cast<const float4*>(x)[t];"),
    "shared": ("", "  __shared__ float s[64];\n  s[t] = x[t];\n  __syncthreads();\n  y[t] = s[63 - t];"),
    "shuffle": ("", "  y[t] = __shfl_xor_sync(0xffffffffu, x[t], 1);"),
    "built-ins": ("__noinline__ int here() { return blockIdx.x * blockDim.x + threadIdx.x + gridDim.y; }\n", "  y[t] = here();"),
}  # fmt: skip


@pytest.mark.parametrize("name", HONEST)
def test_honest_code_is_left_alone(machine: CpuMachine, original: ObjectFacts, name: str) -> None:
    assert objection(original, _facts(machine, *HONEST[name])) is None


@pytest.mark.parametrize("name", sorted(honest()))
def test_kernels_as_people_write_them_have_no_unseen_access(machine: CpuMachine, name: str) -> None:
    kernel = honest()[name]
    roles = tuple(argument[0] for argument in kernel.arguments)
    spec = KernelSpec("k.cu", (Step(kernel.kernel, "", roles),), (), (), ())
    assert not facts_of(machine.build(kernel.text, "k.cu", spec, [kernel.kernel]).object).unseen


@pytest.mark.parametrize("damage", [b"", b"\x7fELF", b"\x7fELF" + bytes(60)])
def test_what_is_no_object_is_not_trusted(tmp_path: Path, damage: bytes) -> None:
    (tmp_path / "k.so").write_bytes(damage)
    with pytest.raises(ValueError, match=r"cannot be read|no symbols"):
        facts_of(tmp_path / "k.so")
