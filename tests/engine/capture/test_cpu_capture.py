"""`optiml nvcc` and `optiml capture --cpu`: programs of ours, compiled and run as a user does."""

from __future__ import annotations

import string
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.capture.cpu_nvcc import main
from engine.capture.cpu_recording import record_on_cpu
from engine.capture.cpu_source import to_host_source
from engine.capture.manifest import BLOBS, Manifest, RecordedKernel, read_blob
from engine.capture.recorded_spec import recorded_spec
from engine.capture.recording import CaptureRequest
from engine.cuda.compile_command import compile_command
from engine.errors import RefusedError
from engine.process.sandbox import sandbox
from engine.run.ready_spec import SpecMaker
from tests.runtime import with_program_runtime

_SUM = """
#include <cassert>
#include <cstdio>
#include <vector>
#define CHECK(x) do { cudaError_t e = (x); if (e != cudaSuccess) { printf("%s\\n", cudaGetErrorString(e)); return 1; } } while (0)
#define LAUNCH(k, n, ...) k<<<((n) + 255) / 256, 256>>>(__VA_ARGS__)
template <typename T>
__global__ void scale(const T* x, T* y, int n, T f) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    assert(n > 0);
    if (i >= n) return;
    y[i] = f * x[i];
}
__constant__ float weights[4];
__global__ void block_sum(const float* x, float* sums, int n) {
    __shared__ float part[128];
    int i = blockIdx.x * 128 + threadIdx.x;
    part[threadIdx.x] = i < n ? x[i] * weights[i % 4] : 0;
    __syncthreads();
    for (int s = 64; s > 0; s /= 2) {
        if (threadIdx.x < s) part[threadIdx.x] += part[threadIdx.x + s];
        __syncthreads();
    }
    if (threadIdx.x == 0) sums[blockIdx.x] = part[0];
}
int main(int argc, char** argv) {
    int n = 1000, extra = argc > 1;
    std::vector<float> h(n, 1.0f);
    float *x, *y, *s;
    CHECK(cudaMalloc(&x, n * 4));
    CHECK(cudaMalloc(&y, n * 4));
    CHECK(cudaMalloc(&s, 8 * 4));
    CHECK(cudaMemcpy(x, h.data(), n * 4, cudaMemcpyHostToDevice));
    float w[4] = {1, 2, 3, 4};
    CHECK(cudaMemcpyToSymbol(weights, w, sizeof w));
    for (int k = 0; k < 5000; k++) LAUNCH(scale, n, x, y, n + extra, 2.0f);
    block_sum<<<8, 128>>>(y, s, n);
    CHECK(cudaGetLastError());
    float out[8];
    CHECK(cudaMemcpy(out, s, 32, cudaMemcpyDeviceToHost));
    printf("%g %g\\n", out[0], out[7]);
    return 0;
}
"""

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return with_program_runtime(tmp_path_factory.mktemp("cache"))


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / ".git").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def run(repository: Path, cache: Path, capfd: pytest.CaptureFixture[str]) -> Run:
    """Compile a text and run the program."""

    def made(text: str, *options: str) -> subprocess.CompletedProcess[str]:
        (repository / "k.cu").write_text(text)
        assert main(["k.cu", "-o", "k", "-O3", "-arch=sm_90", *options], cache) == 0, capfd.readouterr().err
        return subprocess.run(["./k"], capture_output=True, text=True, timeout=60)

    return made


def _record(repository: Path, cache: Path, *command: str, **options: object) -> tuple[Manifest, int | None]:
    folder = repository / ".optiml" / "capture"
    done = record_on_cpu(CaptureRequest(command, repository, folder, cache, **options))  # type: ignore[arg-type]
    return done.manifest, done.ends[0].exit_code


def _kernel(manifest: Manifest, name: str) -> RecordedKernel:
    return next(k for k in manifest.kernels if k.kernel == name)


def test_a_program_gives_its_output_and_its_recording(
    repository: Path, cache: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (repository / "sum.cu").write_text(_SUM)
    manifest, code = _record(repository, cache, "sum.cu")
    assert code == 0
    assert capfd.readouterr().out == "640 520\n"
    scale, total = _kernel(manifest, "scale"), _kernel(manifest, "block_sum")
    assert (scale.count, scale.file, scale.shapes[0].grid) == (5000, "sum.cu", (4, 1, 1))
    (launch,) = total.launches
    assert struct.unpack("<i", bytes.fromhex(launch.arguments[2].data)) == (1000,)
    sums = launch.arguments[1].buffers[0]
    blobs = repository / ".optiml" / "capture" / BLOBS
    assert struct.unpack("<8f", read_blob(blobs, sums.after))[0] == 640
    made = recorded_spec(repository, "block_sum")
    assert made is not None
    assert (made.spec.argument("sums").size, dict(made.spec.time[0].sizes)) == ("cdiv(n, 128)", {"n": 1000})
    assert (made.spec.argument("weights").symbol, made.spec.argument("weights").size) == ("weights", "4")
    assert 'args.weights = { fill = "normal" }  # assumed: constant memory is not recorded' in made.text


def test_an_instance_is_known_whoever_chose_it(repository: Path, cache: Path) -> None:
    """Deduced arguments and static functions had no template arguments: buffers of floats were taken for doubles."""
    (repository / "k.cu").write_text("""
        template <typename T> struct Pair { T a, b; };
        template <typename T> __global__ void copy(const T* x, T* y) { y[blockIdx.x] = x[blockIdx.x]; }
        template <int N, typename T, int M = 2> static __global__ void part(T* x, Pair<T> v) { x[N * M] = v.a; }
        namespace { template <bool B> __global__ void hidden(float* x) { x[B] = 1; } }
        template <typename T> void run(const T* x, T* y) { copy<<<4, 1>>>(x, y); }
        int main() {
            float* f; double* d;
            cudaMalloc(&f, 64); cudaMalloc(&d, 64);
            run(f, f); run(d, d);
            part<3><<<1, 1>>>(d, Pair<double>{1, 2});
            hidden<true><<<1, 1>>>(f);
        }
    """)
    manifest, code = _record(repository, cache, "k.cu")
    assert code == 0
    assert {(k.kernel, k.template_args) for k in manifest.kernels} == {
        ("copy", "float"), ("copy", "double"), ("part", "3, double, 2"), ("hidden", "true"),
    }  # fmt: skip


def test_arguments_are_recorded_as_the_kernel_takes_them(repository: Path, cache: Path) -> None:
    """A literal that is passed to a template's `size_t` was 4 bytes, one for a `float` the bits of a whole number."""
    (repository / "k.cu").write_text("""
        struct Half { int a; Half(int a) : a(a / 2) {} };
        template <typename T> __global__ void fill(const size_t n, T *__restrict__ x, float f, Half h, const double g = 0.5) {
            if (threadIdx.x < n) x[threadIdx.x] = f * h.a * g;
        }
        template <typename... T> __global__ void pack(float *x, T... n) { x[0] = sizeof...(n); }
        int main() { float* x; cudaMalloc(&x, 64); fill<<<1, 32>>>(3 * 2, x, 2, 8, 1); pack<<<1, 1>>>(x, 1, 2); }
    """)
    manifest, code = _record(repository, cache, "k.cu")
    assert code == 0
    (launch,) = _kernel(manifest, "fill").launches
    (other,) = next(k for k in manifest.kernels if k.name.startswith("pack")).launches
    n, _, f, h, g = (bytes.fromhex(a.data) for a in launch.arguments)
    assert (struct.unpack("<Q", n), struct.unpack("<f", f), h, struct.unpack("<d", g)) == (
        (6,), (2.0,), b"\4\0\0\0", (1.0,),
    )  # fmt: skip
    assert [a.size for a in other.arguments] == [8, 4, 4]
    assert launch.arguments[1].buffers[0].room == 64


def test_a_makefile_of_its_own(repository: Path, cache: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (repository / "sum.cu").write_text(_SUM)
    manifest, code = _record(
        repository, cache, "sh", "-c", "nvcc -c sum.cu -o sum.o && nvcc sum.o -o sum && ./sum && exit 7"
    )
    assert code == 7
    assert capfd.readouterr().out == "640 520\n"
    assert _kernel(manifest, "scale").count == 5000


def test_the_recording_knows_how_the_program_is_compiled(repository: Path, cache: Path) -> None:
    """A kernel with a type that only the Makefile defines "is defined in no file": nothing else says how it is compiled."""
    (repository / "include").mkdir()
    (repository / "include" / "k.h").write_text(
        "__global__ void k(real* x, int n) { int i = blockIdx.x * WIDTH + threadIdx.x; if (i < n) x[i] *= 2; }\n"
    )
    (repository / "main.cu").write_text(
        '#include "k.h"\nint main() { real* x; cudaMalloc(&x, 4000); k<<<16, WIDTH>>>(x, 1000); }\n'
    )
    (repository / "Makefile").write_text(
        "run: main\n\t./main\nmain: main.cu\n\tnvcc -O3 -Iinclude -Dreal=float -D WIDTH=64 main.cu -o main\n"
    )
    _, code = _record(repository, cache, "make", "run")
    assert code == 0
    found = compile_command(repository, "include/k.h")
    assert (found.unit, found.include, set(found.defines)) == ("main.cu", ("include",), {"real=float", "WIDTH=64"})
    assert found.origin == ".optiml/capture/compile_commands.json"
    made = SpecMaker(repository, sandbox(False), recorded=recorded_spec).ready(repository / "include" / "k.h", "k")
    assert (made.source, made.spec.argument("x").type, made.spec.argument("x").size) == ("recorded", "float", "n")


def test_an_access_outside_of_an_allocation_fails_the_launch(
    repository: Path, cache: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (repository / "sum.cu").write_text(_SUM)
    manifest, code = _record(repository, cache, "sum.cu", "beyond")
    out, err = capfd.readouterr()
    assert (code, out) == (1, "an illegal memory access was encountered\n")
    assert "kernel scale<float>: out_of_bounds, read of 4 bytes at byte 4000 of an allocation of 4000 bytes" in err
    assert _kernel(manifest, "scale").launches[0].contents == "failed"


def test_launches_that_change_something_are_all_run(run: Run) -> None:
    done = run("""
        #include <cstdio>
        __device__ int counter;
        __managed__ int step;
        __global__ void add(int* x) { x[0] += 1; }
        __global__ void count() { counter += 1; }
        __global__ void stepped(int* x) { x[0] = step; }
        __global__ void print() { printf("p"); }
        int main() {
            int *x, h = 0, c = 0, s = 0;
            cudaMalloc(&x, 4), cudaMemset(x, 0, 4);
            for (int i = 0; i < 5; i++) add<<<1, 1>>>(x), count<<<1, 1>>>(), print<<<1, 1>>>();
            cudaMemcpy(&h, x, 4, cudaMemcpyDeviceToHost), cudaMemcpyFromSymbol(&c, counter, 4);
            for (step = 1; step < 5; step++) stepped<<<1, 1>>>(x), cudaMemcpy(&s, x, 4, cudaMemcpyDeviceToHost), printf("%d", s);
            return printf(" %d %d\\n", h, c), 0;
        }
    """)
    assert done.stdout == "ppppp1234 5 5\n"


def test_a_repeated_launch_is_run_again_after_a_copy(run: Run) -> None:
    done = run("""
        #include <cstdio>
        __global__ void copy(const int* x, int* y) { y[threadIdx.x] = x[threadIdx.x]; }
        int main() {
            int *x, *y, h[32] = {};
            cudaMalloc(&x, 128), cudaMalloc(&y, 128);
            for (int v = 0; v < 3; v++) {
                for (int& e : h) e = v;
                cudaMemcpy(x, h, 128, cudaMemcpyHostToDevice);
                for (int i = 0; i < 4; i++) copy<<<1, 32>>>(x, y);
                cudaMemset(y, 0, 128);
                copy<<<1, 32>>>(x, y);
                cudaMemcpy(h, y, 128, cudaMemcpyDeviceToHost);
                printf("%d", h[31]);
            }
        }
    """)
    assert done.stdout == "012"


def test_launches_as_people_write_them(run: Run) -> None:
    done = run("""
        #include <cstdio>
        #include <functional>
        namespace a { template <typename T, int N> __global__ void set(T* x, T v) { x[threadIdx.x % N] = v; } }
        template <int N, typename T> __global__ void partial(T* x, T v) { x[N] = v; }
        __global__ void plain(float* x, float v) { x[5] = v; }
        __global__ void nothing() {}
        __global__ void same(float* x) { if (std::isfinite(x[4]) && isfinite(1.0f)) x[4] = 6; }
        void same(float* x, int threads) { same<<<1, threads>>>(x); }
        template <typename F> void with(F kernel, float* x) { kernel<<<1, 1>>>(x, 4); }
        int main() {
            float *x, h[6];
            cudaMalloc(&x, sizeof h);
            dim3 grid = {1}, block(2, 1);
            a::set<float, 2><<<grid, block>>>(x, 1);
            partial<3><<<dim3(1), dim3(1), 0, nullptr>>>(x, 2.0f);
            void (*chosen)(float*, float) = plain;
            (*chosen)<<<1, 1>>>(x, 3);
            with(plain, x + 0);
            nothing<<<1, 1>>>();
            same(x, 1);
            cudaMemcpy(h, x, sizeof h, cudaMemcpyDeviceToHost);
            printf("%g %g %g %g %g\\n", h[0], h[1], h[3], h[5], h[4]);
            plain(x, 7);
            printf("%s\\n", cudaGetErrorName(cudaGetLastError()));
            plain<<<1, 2048>>>(x, 1);
            printf("%s\\n", cudaGetErrorName(cudaGetLastError()));
        }
    """)
    assert done.stdout == "1 1 2 4 6\ncudaErrorMissingConfiguration\ncudaErrorInvalidConfiguration\n"


def test_floats_of_a_byte_beside_the_runtimes_types(run: Run) -> None:
    done = run("""
        #include <cstdio>
        #include <cuda_fp8.h>
        __global__ void k(float* x) { x[0] = float(__nv_fp8_e4m3(x[0])); }
        int main() {
            float *x, h = 1.3f;
            cudaMalloc(&x, 4), cudaMemcpy(x, &h, 4, cudaMemcpyHostToDevice);
            k<<<1, 1>>>(x);
            cudaMemcpy(&h, x, 4, cudaMemcpyDeviceToHost), printf("%g\\n", h);
        }
    """)
    assert done.stdout == "1.25\n", done.stderr


def test_thrust_runs_on_the_host_beside_the_kernels(run: Run) -> None:
    """A fifth of the programs of a large collection includes Thrust: its header "was not found"."""
    done = run("""
        #include <cstdio>
        #include <thrust/device_vector.h>
        #include <thrust/execution_policy.h>
        #include <thrust/reduce.h>
        #include <thrust/sort.h>
        #include <thrust/transform.h>
        struct Square { __host__ __device__ float operator()(float v) const { return v * v; } };
        __global__ void twice(float* x, int n) { int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) x[i] *= 2; }
        __global__ void first(const float* x, float* y) { y[threadIdx.x] = x[threadIdx.x]; }
        int main() {
            thrust::device_vector<float> v(100);
            for (int i = 0; i < 100; i++) v[i] = 100 - i;
            thrust::sort(thrust::device, v.begin(), v.end());
            twice<<<1, 128>>>(thrust::raw_pointer_cast(v.data()), 100);
            float sum = thrust::reduce(v.begin(), v.end());
            float *own, h[4][2];
            cudaMalloc(&own, 8);
            thrust::device_ptr<float> p(thrust::raw_pointer_cast(v.data()));
            for (auto& row : h) {  // a launch that repeats itself but for what Thrust writes
                first<<<1, 2>>>(thrust::raw_pointer_cast(v.data()), own);
                cudaMemcpy(row, own, 8, cudaMemcpyDeviceToHost);
                thrust::transform(thrust::cuda::par.on(0), p, p + 100, p, Square());
            }
            printf("%g %g %g %g %g\\n", sum, h[0][0], h[1][0], h[2][0], h[3][1]);
            twice<<<1, 128>>>(thrust::raw_pointer_cast(v.data()), 101);
            printf("%s\\n", cudaGetErrorString(cudaDeviceSynchronize()));
        }
    """)
    assert done.stdout == "10100 2 4 16 65536\nan illegal memory access was encountered\n", done.stderr


@pytest.mark.parametrize(
    ("text", "options", "said"),
    [
        (
            "int main() { cudaGraph_t g; cudaGraphCreate(&g, 0); }",
            [],
            "the CPU runtime does not implement cudaGraphCreate",
        ),
        ("#include <cudnn.h>\nint main() {}", [], "the header 'cudnn.h' was not found"),
        ("int main() {}", ["-lcufft"], "the library 'cufft' has no CPU version"),
        (
            '#include <cublas_v2.h>\nextern "C" int cublasDgemv(); int main() { cublasHandle_t h; cublasCreate(&h); cublasDgemv(); }',
            ["-lcublas", "-l", "cublasLt"],
            "the CPU runtime does not implement cublasDgemv",
        ),
        ("int main() { return x; }", [], "k.cu:1:21: error"),
        ("int main() { <<<1, 1>>>(); }", [], "unsupported launch"),
    ],
)
def test_what_is_missing_is_named(
    text: str, options: list[str], said: str, repository: Path, cache: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (repository / "k.cu").write_text(text)
    assert main(["k.cu", "-o", "k", *options], cache) == 1
    assert said in capfd.readouterr().err
    with (
        pytest.raises(RefusedError, match="does not compile for the CPU")
        if not options
        else pytest.raises(RefusedError)
    ):
        _record(repository, cache, "k.cu" if not options else "true")


def test_a_program_that_launches_nothing_is_not_told_to_be_built_again(repository: Path, cache: Path) -> None:
    """It was built for the CPU, and its input file is missing."""
    (repository / "k.cu").write_text('int main() { return fopen("input.txt", "r") ? 0 : 3; }\n')
    (repository / "Makefile").write_text("run:\n\tnvcc k.cu -o k\n\t./k\n")
    with pytest.raises(RefusedError) as refused:
        _record(repository, cache, "make", "run")
    assert refused.value.do == "its output says why; it may need arguments or input files"
    with pytest.raises(RefusedError) as refused:
        _record(repository, cache, "true")
    assert refused.value.do == "build it with 'optiml nvcc', or name its .cu file"


def test_options_of_nvcc(repository: Path, cache: Path) -> None:
    (repository / "my include").mkdir()
    (repository / "my include" / "n.h").write_text("#define M 3\n")
    (repository / "k.cu").write_text(
        '#include "n.h"\n__global__ void k() {}\nint main() { k<<<1, 1>>>(); return N + M - T; }\n'
    )
    letters = " ".join(f"-D{letter}=0" for letter in string.ascii_uppercase if letter not in "MN")
    options = f"{letters} -gencode arch=compute_90,code=sm_90 -Xptxas -v --expt-relaxed-constexpr -lineinfo -lcudart -DN=4 -t4"
    options += " -Xcompiler -Wall,-fopenmp --default-stream per-thread"
    assert main([*options.split(), "-I", "my include", "-std=c++20", "k.cu", "-o", "a.out"], cache) == 0
    assert subprocess.run(["./a.out"]).returncode == 7


def test_host_files_and_ptx(run: Run, repository: Path) -> None:
    # A host file names its functions as it likes: it includes no header of CUDA.
    (repository / "host.cpp").write_text(
        "static int umin(int a, int b) { return a < b ? a : b; } int least() { return umin(4, 3); }"
    )
    done = run(
        """
        #include <cstdio>
        int least();
        __global__ void lanes(unsigned* x) { unsigned lane; asm("mov.u32 %0, %%laneid;" : "=r"(lane)); x[threadIdx.x] = lane; }
        int main() {
            unsigned *x, h[40];
            cudaMemPool_t pool;
            size_t most = 0;
            cudaDeviceGetDefaultMemPool(&pool, 0), cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &most);
            cudaMalloc(&x, sizeof h);
            lanes<<<1, 40>>>(x);
            cudaMemcpy(h, x, sizeof h, cudaMemcpyDeviceToHost);
            asm volatile("nop");
            printf("%d %u %u\\n", least(), h[31], h[33]);
        }
    """,
        "host.cpp",
    )
    assert done.stdout == "3 31 1\n"


def test_host_threads_beside_a_kernel(run: Run) -> None:
    """What another thread of the host does while a kernel runs is no access of the kernel."""
    done = run(
        """
        #include <cstdio>
        #include <thread>
        __global__ void add(int* x, int rounds) { for (int i = 0; i < rounds; i++) x[threadIdx.x] += 1; }
        int main() {
            int *x, h[32], *own = new int[1000]();
            cudaMalloc(&x, sizeof h), cudaMemset(x, 0, sizeof h);
            bool stop = false;
            std::thread other([&] { for (int i = 0; !stop; i++) own[i % 1000] += i; });
            for (int k = 0; k < 20; k++) add<<<1, 32>>>(x, 2000);
            stop = true;
            other.join();
            cudaMemcpy(h, x, sizeof h, cudaMemcpyDeviceToHost);
            printf("%d %s\\n", h[5], cudaGetErrorString(cudaGetLastError()));
        }
    """,
        "-O1",
    )
    assert done.stdout == "40000 no error\n", done.stderr


@pytest.mark.slow
def test_a_launch_that_does_not_end_leaves_its_arguments(repository: Path, cache: Path) -> None:
    (repository / "k.cu").write_text(
        "__global__ void first(int* x) { x[threadIdx.x] = 1; }\n"
        "__global__ void k(int* x, volatile int n) { while (n) x[threadIdx.x] += n; }\n"
        "int main() { int* x; cudaMalloc(&x, 128); first<<<1, 32>>>(x); k<<<1, 32>>>(x, 7); }\n"
    )
    manifest, code = _record(repository, cache, "k.cu", limit_s=15.0)
    assert code is None
    (launch,) = _kernel(manifest, "k").launches
    assert (launch.contents, launch.count, launch.arguments[0].buffers[0].allocation) == ("unfinished", 1, 128)
    assert struct.unpack("<i", bytes.fromhex(launch.arguments[1].data)) == (7,)
    (ended,) = _kernel(manifest, "first").launches
    assert (ended.contents, bool(ended.arguments[0].buffers[0].after)) == ("", True)
    assert recorded_spec(repository, "k") is not None


@pytest.mark.slow
def test_a_program_that_hangs_leaves_its_launches(repository: Path, cache: Path) -> None:
    (repository / "k.cu").write_text(
        "#include <unistd.h>\n__global__ void k() {}\nint main() { k<<<1, 1>>>(); sleep(600); }\n"
    )
    manifest, code = _record(repository, cache, "k.cu", limit_s=15.0)
    assert code is None
    assert _kernel(manifest, "k").count == 1


def test_the_hosts_own_accesses_are_not_checked() -> None:
    """Programs that fill large inputs took ten times as long, and launched nothing in the time that they had."""
    text = (
        '# 1 "k.cu"\n'
        "struct Pair { int a; int sum() const { return a; } __device__ int twice() const { return 2 * a; } };\n"
        "template <class T> static T filled(T* x, int n) { for (int i = 0; i < n; ++i) x[i] = i; return x[0]; }\n"
        "constexpr int side(int x) { return x / 2; }\n"
        "__host__ __device__ float both(float* x) { return x[0]; }\n"
        "__global__ void k(float* x) { x[side(4)] = both(x); }\n"
        'extern "C" int main() { float* x = 0; k<<<1, 32>>>(x); auto f = [=] { return x[0]; }; return 0; }\n'
    )
    lines = to_host_source(text, "k.cu").splitlines()
    after = [
        lines[at + 2].strip() for at, line in enumerate(lines) if line.endswith("__attribute__((no_sanitize_thread))")
    ]
    assert [line.split("(")[0] for line in after] == ["int sum", "static T filled", "int main"]
    assert not any("__device__" in line for line in lines)


def test_what_kernels_call_is_checked(run: Run) -> None:
    done = run("""
        #include <cstdio>
        __host__ __device__ float both(const float* x, int i) { return x[i]; }
        struct View { float* x; __device__ float operator[](int i) const { return both(x, i); } };
        __global__ void k(float* x) { x[0] = View{x}[32]; }
        int main() {
            float* x;
            cudaMalloc(&x, 128);
            k<<<1, 1>>>(x);
            return printf("%d\\n", cudaDeviceSynchronize() == cudaSuccess), 0;
        }
    """)
    assert done.stdout == "0\n"
