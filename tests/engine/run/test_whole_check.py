"""What a suggestion's files come to when nvcc builds them whole: attacks that no screening of the text is asked about."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine.compile import kept_whole
from engine.compile.built import Built
from engine.compile.nvcc import find_nvcc
from engine.compile.nvrtc import NvrtcCompiler
from engine.compile.whole import WholeFile
from engine.cuda.load import load_program
from engine.evaluate.build import Builder
from engine.model import Guardrail, Program, Target
from engine.process.sandbox import sandbox
from engine.run import whole_check
from engine.run.whole_check import BUILT, HOST, OTHERS, VERIFIED, WholeCheck, WholeVerdict
from engine.spec.find import find_spec
from engine.verify.whole_build import preprocessed, with_lines_of
from tests.runtime import kept_code

pytestmark = pytest.mark.skipif(find_nvcc() is None, reason="there is no nvcc")

HEADER = """#pragma once
// optiml: args.x = { role = "in", size = "n" }
// optiml: args.y = { role = "out", size = "n" }
// optiml: kernel = "scale<float>"
// optiml: check = [{ n = 903 }]
// optiml: time = [{ n = 1048576 }]
template <typename T> __global__ void scale(const T* x, T* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        y[i] = x[i] * x[i] + x[i];
    }
}
"""
MAIN = """#include <cuda_runtime.h>
#include <math.h>
#include <stdio.h>

#define WHERE() printf("%s:%d\\n", __FILE__, __LINE__)

__device__ float bend(float v) { return v * 0.5f; }

// optiml: args.x = { role = "in", size = "n" }
// optiml: args.y = { role = "out", size = "n" }
// optiml: check = [{ n = 903 }]
// optiml: time = [{ n = 1048576 }]
__global__ void scale(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        y[i] = bend(x[i]) + 1.0f;
    }
}

namespace app {

__global__ void other(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        y[i] = fabsf(x[i]) + sizeof(size_t);
    }
}

double later(double v) { return round(v) + sizeof(size_t); }

void run(const float* x, float* y, int n) {
    int threads = 256;
    scale<<<(n + threads - 1) / threads, threads>>>(x, y, n);
    other<<<(n + 63) / 64, 64>>>(x, y, n);
    WHERE();
}

}  // namespace app
"""


class Place:
    """A repository of one file, whose edits are judged."""

    def __init__(self, folder: Path, **files: str) -> None:
        (folder / ".git").mkdir()
        for name, text in files.items():
            (folder / name.replace("_cuh", ".cuh").replace("_cu", ".cu")).write_text(text)
        self.path = folder / "main.cu"
        spec, _ = find_spec(folder, self.path)
        self.program = load_program(self.path)
        self.builder = Builder(
            spec, folder, NvrtcCompiler("sm_90", cache=kept_code(), sandbox=sandbox(), jobs=1), Target(arch="sm_90")
        )
        self.check = WholeCheck(spec, folder, "sm_90", sandbox())

    def edited(self, *edits: tuple[str, str]) -> Program:
        text = self.program.data.decode()
        for old, new in edits:
            assert text.count(old) == 1, old
            text = text.replace(old, new)
        return self.program.replace({self.program.kernel_file: text.encode()})

    def built(self, program: Program, verified: Program | None = None) -> Built:
        """The program, with machine code and slice of what was verified in its place."""
        text = self.builder.slice(verified or program)
        binary = self.builder._compiler.compile(self.builder.translation(text))
        return Built(program, text, self.builder.expressions, binary, (), {})

    def judge(self, *edits: tuple[str, str], verified: Program | None = None) -> dict[str, Guardrail]:
        return {g.name: g for g in self.whole(*edits, verified=verified).guardrails}

    def whole(self, *edits: tuple[str, str], verified: Program | None = None) -> WholeVerdict:
        return self.check.judge(self.program, self.built(self.edited(*edits), verified))


DEVICE = "static __device__ __noinline__ void put(float* y, int i, float v) { y[i] = v; }\n"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place(tmp_path_factory.mktemp("place"), main_cu=MAIN)


def verdicts(found: dict[str, Guardrail]) -> dict[str, str]:
    return {name: guard.verdict for name, guard in found.items()}


INDEX = "    int i = blockIdx.x * blockDim.x + threadIdx.x;\n    if (i < n) {\n        y[i] = bend"
SPACE = "namespace app {\n"
STORE = ("        y[i] = bend(x[i]) + 1.0f;", "        float v = x[i];\n        y[i] = bend(v) + 1.0f;\n")


def test_an_edit_of_kernel_and_launch_passes_although_it_moves_lines(place: Place) -> None:
    found = place.judge(STORE, ("int threads = 256;", "int threads = 128;"))
    assert verdicts(found) == {HOST: "passed", OTHERS: "passed", VERIFIED: "passed"}, found


def test_what_is_begun_beside_a_confirmation_is_not_done_again(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The builds of the whole file began behind the confirmation: 2.7 s of each search of the suite's record in the mean."""
    built: list[bytes] = []
    build = WholeCheck._build

    def counted(self: WholeCheck, files: Mapping[str, bytes], unit: str, uses: Sequence[str]) -> WholeFile:
        built.append(files[unit])
        return build(self, files, unit, uses)

    monkeypatch.setattr(WholeCheck, "_build", counted)
    first, second = (place.built(place.edited(STORE, ("int threads = 256;", f"int threads = {n};"))) for n in (64, 32))
    place.check.begin(place.program, first)
    passed = {g.name: g for g in place.check.judge(place.program, first).guardrails}
    assert verdicts(passed) == {HOST: "passed", OTHERS: "passed", VERIFIED: "passed"}, passed
    assert sum(b"threads = 64;" in text for text in built) == 1
    # What was refused costs the next one nothing but the wait.
    bad = place.built(place.edited((SPACE, SPACE + "typedef unsigned short size_t;\n")))
    place.check.begin(place.program, bad)
    place.check.begin(place.program, second)
    found = {g.name: g for g in place.check.judge(place.program, second).guardrails}
    assert verdicts(found) == {HOST: "passed", OTHERS: "passed", VERIFIED: "passed"}, found
    place.check.begin(place.program, second)
    assert {g.name: g for g in place.check.judge(place.program, bad).guardrails}[HOST].verdict == "failed"


def test_a_static_device_function_of_the_edit_is_no_host_code(place: Place) -> None:
    kernel = "__global__ void scale(const float* x, float* y, int n) {"
    found = place.judge((kernel, DEVICE + kernel), ("y[i] = bend(x[i]) + 1.0f;", "put(y, i, bend(x[i]) + 1.0f);"))
    assert found[HOST].verdict == "passed", found


def test_a_static_function_that_a_launching_one_prefers_is_host_code(tmp_path: Path) -> None:
    text = MAIN.replace(SPACE, "long blocks(long n) { return n / 256 + 1; }\n" + SPACE)
    place = Place(tmp_path, main_cu=text.replace("scale<<<(n + threads - 1) / threads,", "scale<<<blocks(n),"))
    other = "static __host__ __device__ __attribute__((noinline)) int blocks(int v) { return 1; }\n"
    found = place.judge((SPACE, SPACE + other))
    assert found[HOST].verdict == "failed", found


@pytest.mark.parametrize(
    ("old", "new", "which"),
    [
        # A macro of a name that host code uses, as a digraph or a splice may hide it.
        (INDEX, "%:define round floor\n" + INDEX, HOST),
        # A type that shadows the global one for all that follows.
        (SPACE, SPACE + "typedef unsigned short size_t;\n", HOST),
        # An overload that host code prefers.
        (SPACE, SPACE + "__host__ __device__ inline double round(double v) { return v; }\n", HOST),
        # An overload that the other kernel prefers.
        (SPACE, SPACE + "__device__ float fabsf(float v) { return v; }\n", OTHERS),
        # Code that runs before main.
        (SPACE, SPACE + "struct Early { Early(); }; inline Early::Early() {} static Early early;\n", HOST),
    ],
)
def test_what_changes_beside_the_kernel_is_found(place: Place, old: str, new: str, which: str) -> None:
    found = place.judge((old, new))
    assert found[which].verdict == "failed", found


def test_a_macro_defined_before_an_include_is_found(tmp_path: Path) -> None:
    half = MAIN.replace("#include <math.h>", "#include <cuda_fp16.h>\n#include <math.h>")
    half = half.replace("fabsf(x[i]) +", "fabsf(x[i]) + __half2float(__float2half(x[i])) +")
    found = Place(tmp_path, main_cu=half).judge(
        ("#include <cuda_fp16.h>", "#define __CUDA_NO_HALF_OPERATORS__\n#include <cuda_fp16.h>")
    )
    assert found[HOST].verdict == "failed", found
    assert "header" in found[HOST].detail


def test_machine_code_that_was_not_verified_is_found(place: Place) -> None:
    found = place.judge(("bend(x[i]) + 1.0f", "bend(x[i]) + 2.0f"), verified=place.program)
    assert found[VERIFIED].verdict == "failed", found


def test_a_file_that_does_not_build_is_refused_and_one_that_never_did_is_named(place: Place, tmp_path: Path) -> None:
    broken = place.judge(("round(v) +", "round(v) + missing +"), verified=place.program)
    assert broken[BUILT].verdict == "failed"
    assert "missing" in broken[BUILT].detail
    strange = Place(
        tmp_path, main_cu=MAIN.replace("#include <stdio.h>", "#include <stdio.h>\n#include <torch/extension.h>")
    )
    found = strange.judge(STORE)
    assert verdicts(found) == {BUILT: "not checked"}
    assert "torch/extension.h" in found[BUILT].detail


def test_bad_news_of_kept_builds_is_asked_for_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A header of the system or the host's compiler may have changed since the original was kept."""
    (tmp_path / "place").mkdir()
    place = Place(tmp_path / "place", main_cu=MAIN)
    spec, _ = find_spec(tmp_path / "place", place.path)

    def judged() -> dict[str, str]:
        place.check = WholeCheck(spec, tmp_path / "place", "sm_90", sandbox(), tmp_path / "kept")
        return verdicts(place.judge(STORE))

    good = judged()
    assert good == {HOST: "passed", OTHERS: "passed", VERIFIED: "passed"}
    unpacked = kept_whole._unpacked

    one: list[bytes] = []  # of the two builds, the one that comes of another compiler

    def other(header: Any, blob: bytes) -> WholeFile:
        whole = unpacked(header, blob)
        one[:] = one or [blob]
        return replace(whole, host=whole.host + "int more;") if one == [blob] else whole

    monkeypatch.setattr(kept_whole, "_unpacked", other)
    assert judged() == good


def test_without_nvcc_the_result_says_so(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whole_check, "find_nvcc", lambda: None)
    assert verdicts(place.judge(STORE)) == {BUILT: "not checked"}


def test_other_instances_in_files_that_include_the_kernel_are_compared(tmp_path: Path) -> None:
    text = HEADER + "\nvoid run(const float* x, float* y, int n) { scale<float><<<(n + 255) / 256, 256>>>(x, y, n); }\n"
    user = '#include "main.cu"\nvoid also(const double* x, double* y, int n) { scale<double><<<(n + 255) / 256, 256>>>(x, y, n); }\n'
    place = Place(tmp_path, main_cu=text.replace("#pragma once\n", ""), user_cu=user)
    found = place.whole(("x[i] * x[i] + x[i]", "x[i] * (x[i] + T(1))"))
    assert [(i.name, i.new.unit) for i in found.instances] == [("scale<double>", "user.cu")]
    assert verdicts({g.name: g for g in found.guardrails}) == {HOST: "passed", OTHERS: "passed", VERIFIED: "passed"}
    same = place.judge(("y[i] = x[i] * x[i] + x[i];", "T v = x[i];\n        y[i] = v * v + v;"))
    assert verdicts(same) == {HOST: "passed", OTHERS: "passed", VERIFIED: "passed"}, same


def test_the_kernel_itself_may_be_other_code_in_a_file_that_includes_it(tmp_path: Path) -> None:
    """An edit that is correct with the macros of its own file was not looked at where another file sets others."""
    text = HEADER.replace("#pragma once\n", "#ifndef FACTOR\n#define FACTOR 2\n#endif\n").replace(
        "x[i] * x[i] + x[i]", "x[i] * FACTOR"
    )
    text += "\nstatic void run(const float* x, float* y, int n) { scale<float><<<(n + 255) / 256, 256>>>(x, y, n); }\n"
    user = '#define FACTOR 3\n#include "main.cu"\nvoid also(const float* x, float* y, int n) { run(x, y, n); }\n'
    same = '#include "main.cu"\nvoid more(const float* x, float* y, int n) { run(x, y, n); }\n'
    place = Place(
        tmp_path,
        main_cu=text + "void first(const float* x, float* y, int n) { run(x, y, n); }\n",
        user_cu=user,
        same_cu=same,
    )
    found = place.judge(("x[i] * FACTOR", "x[i] + x[i]"))
    assert found[VERIFIED].verdict == "failed", found
    assert found[VERIFIED].detail.startswith("user.cu: ")
    reordered = place.judge(("y[i] = x[i] * FACTOR;", "T v = x[i];\n        y[i] = v * FACTOR;"))
    assert verdicts(reordered) == {HOST: "passed", OTHERS: "passed", VERIFIED: "passed"}, reordered


def test_lines_of_headers_are_told_apart() -> None:
    text = '# 1 "./a.cu"\n# 1 "/usr/include/x.h" 1 3\nint  hidden;\n# 2 "./a.cu" 2\nint own = 2;\n__attribute__((device)) int f();\n'
    found = preprocessed(text, ["a.cu"])
    assert found.own == "int own = __LINE__;\n__device__ int f();"
    assert found.headers == {"/usr/include/x.h": "int  hidden;"}


def test_lines_are_those_of_the_original() -> None:
    before = b"int a() { return 1; }\nint b() { return __LINE__; }\n"
    after = b"int a() {\n    return 1;\n}\nint b() { return __LINE__; }\n"
    assert with_lines_of(before, after).endswith(b"\n#line 2\nint b() { return __LINE__; }\n")
