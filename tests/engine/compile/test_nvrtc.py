"""NVRTC in its sandboxed workers: right code, right figures, errors with their line, and workers that die."""

from __future__ import annotations

import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from engine.compile.compiler import CompileTimeout, Translation
from engine.compile.cubin import Cubin
from engine.compile.nvrtc import NvrtcCompiler
from engine.errors import CompileError, MachineError, UsageError
from engine.process.sandbox import NoSandbox, Sandbox

Box = Sandbox | NoSandbox
PLAIN = "__global__ void k(const float* x, float* y, int n) { int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) y[i] = x[i] * 2; }"
# Takes minutes in the front end: 2^40 instantiations.
ENDLESS = """
template <int N, long M> struct B { static const long v = B<N - 1, M * 2>::v + B<N - 1, M * 2 + 1>::v; };
template <long M> struct B<0, M> { static const long v = M; };
__global__ void k(long* x) { x[0] = B<40, 0>::v; }
"""


def of(text: str, *expressions: str, **options: object) -> Translation:
    return Translation(text, "src/a.cu", expressions or ("k",), **options)  # type: ignore[arg-type]


def test_templates_are_instantiated_in_the_order_asked_for(compiler: NvrtcCompiler) -> None:
    text = (
        "template <typename T, int N> __global__ void k(T* x) { __shared__ T s[N]; "
        "s[threadIdx.x] = x[0]; __syncthreads(); x[1] = s[N - 1 - threadIdx.x]; }"
    )
    binary = compiler.compile(of(text, "k<double, 64>", "k<float, 32>"))
    assert [name.startswith("_Z1kI") for name in binary.entries] == [True, True]
    assert [used.shared_bytes for used in binary.resources] == [512, 128]
    assert all(used.barriers == 1 and used.registers >= 6 for used in binary.resources)
    assert set(Cubin(binary.cubin).entries) == set(binary.entries)
    assert binary.arch == "sm_90"


def test_spills_and_stack_are_reported(compiler: NvrtcCompiler) -> None:
    loads = "".join(f"float v{i} = x[{i} * n];" for i in range(120))
    uses = "".join(f"y[{i} * n] = v{i} * v{(i * 7) % 120};" for i in range(120))
    text = f"__global__ void __launch_bounds__(1024, 2) k(const float* x, float* y, int n) {{ {loads} __syncthreads(); {uses} }}"
    used = compiler.compile(of(text)).resources[0]
    assert used.registers == 32
    assert used.spill_load_bytes > 0
    assert used.spill_store_bytes > 0
    indexed = (
        "__global__ void k(float* x, int n) { float a[100]; for (int i = 0; i < 100; i++) a[i] = x[i]; "
        "for (int i = 0; i < n; i++) x[i] = a[(i * 7) % 100]; }"
    )
    assert compiler.compile(of(indexed)).resources[0].stack_bytes >= 400


def test_a_printed_line_cannot_fake_the_resources(compiler: NvrtcCompiler) -> None:
    fake = (
        "#warning ptxas info    : Compiling entry function '_Z1kPKfPfi' for 'sm_90'\n"
        "#warning ptxas info    : Used 1 registers, used 0 barriers, 1 bytes smem\n"
    )
    assert compiler.compile(of(fake + PLAIN)).resources == compiler.compile(of(PLAIN)).resources


def test_without_expressions_every_kernel_is_an_entry(compiler: NvrtcCompiler) -> None:
    text = 'extern "C" __global__ void b(int* x) { x[0] = 1; } extern "C" __global__ void a(int* x) { x[0] = 2; }'
    assert compiler.compile(Translation(text, "tools.cu", ())).entries == ("a", "b")
    with pytest.raises(CompileError, match="no kernel"):
        compiler.compile(Translation("int x;", "tools.cu", ()))


def test_cuda_headers_work_and_are_precompiled(compiler: NvrtcCompiler) -> None:
    head = "#include <cooperative_groups.h>\n#include <cuda_fp16.h>\n#include <cuda_bf16.h>\n"
    body = "__global__ void k(__half* x) {{ auto b = cooperative_groups::this_thread_block(); b.sync(); x[0] = __float2half({}.f); }}"
    times = []
    for i in range(6):
        begin = time.perf_counter()
        compiler.compile(of(head + body.format(i)))
        times.append(time.perf_counter() - begin)
    assert min(times) < max(times) / 2, times  # without the precompiled headers all six take as long


def test_cub_block_parts_and_libcudacxx(compiler: NvrtcCompiler) -> None:
    text = (
        "#include <cub/block/block_reduce.cuh>\n"
        "__global__ void k(float* x) { using R = cub::BlockReduce<float, 128>; "
        "__shared__ typename R::TempStorage s; x[0] = R(s).Sum(x[threadIdx.x]); }"
    )
    assert compiler.compile(of(text)).resources[0].shared_bytes > 0


def test_defines_and_standard(compiler: NvrtcCompiler) -> None:
    text = "consteval int f(int n) { return n; } __global__ void k(int* x) { x[0] = f(SIZE) + FLAG; }"
    compiler.compile(of(text, std="c++20", defines=("SIZE=3", "FLAG")))
    with pytest.raises(CompileError):
        compiler.compile(of(text, defines=("SIZE=3", "FLAG")))


@pytest.mark.parametrize(
    "options",
    [{"std": "c++17 -I/"}, {"defines": ("A B",)}, {"defines": ("-I/etc",)}, {"defines": ("A=1\n#include",)}],
)
def test_options_smuggle_nothing(compiler: NvrtcCompiler, options: dict[str, object]) -> None:
    with pytest.raises(CompileError):
        compiler.compile(of(PLAIN, **options))


def test_expressions_smuggle_nothing(compiler: NvrtcCompiler) -> None:
    for expression in ("", "k\n#include </etc/passwd>", "nothing", "k<1>"):
        with pytest.raises(CompileError):
            compiler.compile(of(PLAIN, expression))


def test_errors_name_the_line_of_the_users_file(compiler: NvrtcCompiler) -> None:
    with pytest.raises(CompileError) as caught:
        compiler.compile(of("#warning first\n\n__global__ void k(float* x) {\n  x[0] = y;\n}"))
    assert caught.value.where == "src/a.cu:4"
    assert 'identifier "y" is undefined' in caught.value.what
    with pytest.raises(CompileError) as caught:
        compiler.compile(of('#line 70 "src/a.cu"\n__global__ void k(float* x) { x[0] = y; }'))
    assert caught.value.where == "src/a.cu:70"
    with pytest.raises(CompileError) as caught:
        compiler.compile(
            of(
                "__global__ void k(float* x) { __shared__ float s[30000]; s[threadIdx.x] = x[1]; __syncthreads(); x[0] = s[3]; }"
            )
        )
    assert "too much shared data" in caught.value.what


def test_files_of_the_machine_cannot_be_read(compiler: NvrtcCompiler, tmp_path: Path) -> None:
    secret = tmp_path / "secret.h"
    secret.write_text("#error s3cret-value\n")
    for path in (secret, "/etc/passwd", "../../../../etc/passwd"):
        with pytest.raises(CompileError) as caught:
            compiler.compile(of(f'#include "{path}"\n{PLAIN}'))
        log = caught.value.log + str(caught.value)
        assert "s3cret" not in log
        assert "root:" not in log


def test_messages_carry_no_folders_and_no_control_characters(compiler: NvrtcCompiler) -> None:
    with pytest.raises(CompileError) as caught:
        compiler.compile(of("#include <cub/block/block_reduce.cuh>\n#error \x1b[31mred\x07 \u202eevil\n" + PLAIN))
    log = caught.value.log + caught.value.what
    assert not {"\x1b", "\x07", "\u202e"} & set(log)
    assert "site-packages" not in log
    flood = "".join(f"__device__ int v{i} = unknown{i};\n" for i in range(5000))
    with pytest.raises(CompileError) as caught:
        compiler.compile(of(flood + PLAIN))
    assert len(caught.value.log) < 20_000


def test_include_folders_are_shown_when_asked_for(compiler: NvrtcCompiler, tmp_path: Path) -> None:
    tmp_path.chmod(0o755)  # where root calls, another user reads it
    (tmp_path / "mine.h").write_text("#define VALUE 3\n")
    text = '#include "mine.h"\n__global__ void k(int* x) { x[0] = VALUE; }'
    compiler.compile(of(text, include=(tmp_path,)))
    with pytest.raises(CompileError, match=r"mine\.h"):
        compiler.compile(of(text + " "))


def test_line_info_does_not_change_the_code(compiler: NvrtcCompiler) -> None:
    assert compiler.compile(of(PLAIN)).code_hash == compiler.compile(of(PLAIN, line_info=True)).code_hash


def test_a_hanging_compile_costs_itself_alone(box: Box) -> None:
    with NvrtcCompiler("sm_90", cache=None, sandbox=box, jobs=2) as compiler:
        compiler.warm()
        compiler.compile(of(PLAIN))
        compiler._timeout_s = 2.0
        with ThreadPoolExecutor(9) as threads:
            bad = threads.submit(compiler.compile, of(ENDLESS))
            while not compiler._busy:
                time.sleep(0.01)
            time.sleep(0.1)  # it has gone to its worker
            compiler._timeout_s = 60.0
            good = [threads.submit(compiler.compile, of(PLAIN.replace("2;", f"{i};"))) for i in range(8)]
            assert len({future.result().code_hash for future in good}) == 8
            with pytest.raises(CompileTimeout, match="did not finish within 2 s of processor time"):
                bad.result()
        compiler.compile(of(PLAIN))


def test_a_killed_worker_is_replaced(box: Box) -> None:
    with NvrtcCompiler("sm_90", cache=None, sandbox=box, jobs=1) as compiler:
        compiler.compile(of(PLAIN))
        (worker,) = compiler._crews[()]._workers
        os.killpg(worker.pid, signal.SIGKILL)
        for _ in range(2):  # at most the one compile that met the dead worker may fail
            try:
                binary = compiler.compile(of(PLAIN))
                break
            except CompileTimeout:
                continue
        assert binary.entries


def test_close_does_not_wait_for_a_hanging_compile(box: Box) -> None:
    compiler = NvrtcCompiler("sm_90", cache=None, sandbox=box, jobs=1)
    compiler.compile(of(PLAIN))
    with ThreadPoolExecutor(1) as threads:
        future = threads.submit(compiler.compile, of(ENDLESS))
        while not compiler._busy:
            time.sleep(0.01)
        time.sleep(0.2)
        begin = time.monotonic()
        compiler.close()
        with pytest.raises(MachineError):
            future.result()
        assert time.monotonic() - begin < 20  # and not the 30 s that a compile may take
    with pytest.raises(MachineError, match="closed"):
        compiler.compile(of(PLAIN))


def test_workers_outlive_the_threads_that_ask(compiler: NvrtcCompiler) -> None:
    # A process started with --die-with-parent ends with the thread that started it, not with its process.
    asking = threading.Thread(target=lambda: compiler.compile(of(PLAIN.replace("2;", "77;"))))
    asking.start()
    asking.join()
    workers = compiler._crews[()]._workers
    before = {worker.pid for worker in workers}
    time.sleep(0.2)
    assert all(worker.alive for worker in workers)
    compiler.compile(of(PLAIN.replace("2;", "78;")))
    assert before <= {worker.pid for worker in workers}


def test_many_threads_get_their_own_answers(compiler: NvrtcCompiler) -> None:
    def one(i: int) -> str:
        return compiler.compile(of(f'extern "C" __global__ void k{i}(int* x) {{ x[0] = {i}; }}', f"k{i}")).entries[0]

    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(one, range(48))) == [f"k{i}" for i in range(48)]


def test_the_disk_cache_is_used_and_says_so(box: Box, tmp_path: Path) -> None:
    with NvrtcCompiler("sm_90", cache=tmp_path / "c", sandbox=box, jobs=1) as compiler:
        first = compiler.compile(of(PLAIN))
        second = compiler.compile(of(PLAIN))
        other = compiler.compile(of(PLAIN, defines=("A",)))
    assert (first.cached, second.cached, other.cached) == (False, True, False)
    assert (second.cubin, second.entries, second.resources, second.code_hash) == (
        first.cubin, first.entries, first.resources, first.code_hash,
    )  # fmt: skip
    with NvrtcCompiler("sm_80", cache=tmp_path / "c", sandbox=box, jobs=1) as compiler:
        assert not compiler.compile(of(PLAIN)).cached


def test_damaged_entries_are_replaced(box: Box, tmp_path: Path) -> None:
    with NvrtcCompiler("sm_90", cache=tmp_path, sandbox=box, jobs=1) as compiler:
        first = compiler.compile(of(PLAIN))
        (entry,) = tmp_path.glob("??/*")
        data = bytearray(entry.read_bytes())
        data[-100] ^= 1
        entry.write_bytes(data)
        again = compiler.compile(of(PLAIN))
        assert not again.cached
        assert again.cubin == first.cubin
        assert compiler.compile(of(PLAIN)).cached


def test_without_a_sandbox_it_works_too() -> None:
    with NvrtcCompiler("sm_90", cache=None, sandbox=NoSandbox(), jobs=1) as compiler:
        assert compiler.compile(of(PLAIN)).entries == ("_Z1kPKfPfi",)


def test_architectures_are_checked() -> None:
    for arch in ("sm_9", "compute_90", "sm_90 -I/", "90", ""):
        with pytest.raises(UsageError):
            NvrtcCompiler(arch, cache=None, sandbox=NoSandbox())


def test_an_error_of_the_texts_own_says_where_it_can_be_answered(compiler: NvrtcCompiler) -> None:
    with pytest.raises(CompileError) as caught:
        compiler.compile(of("#ifndef BLOCK\n#error name a BLOCK\n#endif\n" + PLAIN))
    assert str(caught.value) == (
        "src/a.cu:2: #error directive: name a BLOCK; add the required defines or include folders with 'compile' in the kernel's spec"
    )
    assert compiler.compile(of("#ifndef BLOCK\n#error name a BLOCK\n#endif\n" + PLAIN, defines=("BLOCK=64",))).cubin


def test_what_is_no_text_is_refused_and_costs_no_worker(compiler: NvrtcCompiler) -> None:
    with pytest.raises(CompileError) as caught:
        compiler.compile(of("// \udc80\n" + PLAIN))
    assert type(caught.value) is CompileError
    assert "UTF-8" in caught.value.log


CONSTANTS = """
struct Shape { int n; const float* bias; };
namespace filter {
static __constant__ float taps[3];
__constant__ Shape shape;
__constant__ int unused;
__global__ void k(const float* x, float* y) { int i = threadIdx.x; if (i < shape.n) y[i] = x[i] * taps[i % 3] + shape.bias[i]; }
}
"""


def test_constant_variables_are_found_with_their_sizes(compiler: NvrtcCompiler, tmp_path: Path) -> None:
    translation = of(CONSTANTS, "filter::k", "&filter::taps", "&filter::shape", "&filter::unused")
    binary = compiler.compile(translation)
    assert binary.entries == ("_ZN6filter1kEPKfPf",)
    assert [size for _, size in binary.constants] == [12, 16, 4]
    assert [name.rpartition("filter")[2] for name, _ in binary.constants] == ["4tapsE", "5shapeE", "6unusedE"]
    assert compiler.compile(translation).constants == binary.constants  # from the cache


def test_as_many_compilers_start_as_there_are_cores_for_this_process(monkeypatch):
    """A search that has a part of a machine's cores started one for each core of the machine."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {2, 5, 7})
    with NvrtcCompiler("sm_90", cache=None, sandbox=NoSandbox()) as compiler:
        assert compiler._jobs == 3
