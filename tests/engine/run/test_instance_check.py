"""Edits of a template that other code instantiates too: each instance that changes is verified, or the edit is refused."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from engine.compile.built import Built
from engine.compile.nvcc import find_nvcc
from engine.cuda.load import load_program
from engine.evaluate.build import Builder
from engine.evaluate.guardrails import LIMITS
from engine.model import Evaluation, Guardrail, Measurement, Outcome, Program
from engine.run import whole_check
from engine.run.instance_check import INSTANCES
from engine.run.machine import Machine, make_machine
from engine.run.suggestion_gate import Gate, SuggestionConditions
from engine.run.whole_check import OTHERS, VERIFIED
from engine.spec.find import find_spec
from tests.runtime import with_runtime
from tests.support.confirmation import confirm_lightly

pytestmark = pytest.mark.skipif(find_nvcc() is None, reason="there is no nvcc")

CONFIRMED = Evaluation(Outcome.SCREENED, Measurement((), 2.0, 2.0, 2.0, predicted=True))

SPEC = """#include <cuda_fp16.h>
struct Pair { float a; int b; };
// optiml: kernel = "scale<float>"
// optiml: args.x = { role = "in", size = "n", fill = "normal" }
// optiml: args.y = { role = "out", size = "n" }
// optiml: check = [{ n = 1 }, { n = 903 }]
// optiml: time = [{ n = 4194304 }]
"""
KERNEL = """template <typename T> __device__ float half_of(T v) { return (float)v / 2.0f; }
template <typename T> __global__ void scale(const T* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = half_of(x[i]) + 1.0f;
}
"""
RUN = """template <typename T> void run(const T* x, float* y, int n) {
    scale<T><<<(n + 255) / 256, 256>>>(x, y, n);
}
"""
MAIN = "int main() { run<float>(0, 0, 1); run<half>(0, 0, 1); }\n"
BODY = "    if (i < n) y[i] = half_of(x[i]) + 1.0f;\n"
RIGHT = "    if (i < n) { T v = x[i]; y[i] = __fadd_rn(half_of(v), 0.25f) + 0.75f; }\n"
WRONG_FOR_HALF = "    if (i < n) y[i] = half_of(x[i]) + (sizeof(T) == 2 ? 1.5f : 1.0f);\n"

SUMS = """// optiml: kernel = "sums<256>"
// optiml: launch = { grid = "n / 256", block = "256" }
// optiml: args.x = { role = "in", size = "n", fill = "normal" }
// optiml: args.y = { role = "out", size = "n/256" }
// optiml: check = [{ n = 256 }, { n = 2560 }]
// optiml: time = [{ n = 4194304 }]
template <int BLOCK> __global__ void sums(float* y, const float* x) {
    __shared__ float s[BLOCK];
    int t = threadIdx.x;
    s[t] = x[blockIdx.x * BLOCK + t];
    for (int d = BLOCK / 2; d > 0; d /= 2) {
        __syncthreads();
        if (t < d) s[t] += s[t + d];
    }
    if (t == 0) y[blockIdx.x] = s[0];
}
void run(float* y, const float* x, int n, bool small) {
    if (small) sums<128><<<n / 128, 128>>>(y, x);
    else sums<256><<<n / 256, 256>>>(y, x);
}
"""
LAST = "    if (t == 0) y[blockIdx.x] = s[0];\n"
LAST_TWO = "    __syncthreads();\n    if (t == 0) y[blockIdx.x] = s[0] + s[1];\n"


@dataclass(frozen=True)
class Place:
    """A repository whose edits come before the gate."""

    root: Path
    machine: Machine
    gate: Gate
    original: Program
    builder: Builder

    def built(self, *edits: tuple[str, str]) -> Built:
        text = self.original.data.decode()
        for old, new in edits:
            assert text.count(old) == 1, old
            text = text.replace(old, new)
        return self.builder.candidate(self.original.replace({"main.cu": text.encode()}), by_rules=True)

    def judge(self, *edits: tuple[str, str]) -> Evaluation:
        return self.gate.judge(CONFIRMED, self.original, self.built(*edits))


def verdict(evaluation: Evaluation, name: str = INSTANCES) -> Guardrail:
    (found,) = [g for g in evaluation.guardrails if g.name == name]
    return found


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPTIML_CACHE", str(with_runtime(tmp_path_factory.mktemp("cache"))))
        made = make_machine(device="cpu")
    yield made
    made.close()


@pytest.fixture
def place(tmp_path: Path, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> Place:
    return make_place(tmp_path, machine, monkeypatch, SPEC + KERNEL + RUN + MAIN)


def make_place(root: Path, machine: Machine, patch: pytest.MonkeyPatch, text: str, **others: str) -> Place:
    nvcc = whole_check.find_nvcc
    confirm_lightly(patch)
    patch.setattr(whole_check, "find_nvcc", nvcc)  # the build is what finds the instances
    (root / ".git").mkdir()
    (root / "main.cu").write_text(text)
    for name, data in others.items():
        (root / f"{name}.cu").write_text(data)
    spec, spec_path = find_spec(root, root / "main.cu")
    original = load_program(root / "main.cu", spec_file=spec_path, kernels=[spec.kernel])
    builder = Builder(spec, root, machine.compiler, machine.target, spec_path)
    builder.original(original)
    gate = Gate(machine, spec, root, spec_path, SuggestionConditions(LIMITS))
    return Place(root, machine, gate, original, builder)


def test_an_edit_that_is_right_for_all_is_suggested_and_names_them(place: Place) -> None:
    """A verified 1.21× of llm.c's global_norm was refused, as the file launches the kernel for bfloat16 too."""
    found = place.judge((BODY, RIGHT))
    assert found.outcome is Outcome.SCREENED, found.failure
    assert [instance.name for instance in found.instances] == ["scale<__half>"]
    assert found.instances[0].measurement.predicted
    guard = verdict(found)
    assert guard.verdict == "passed"
    assert guard.detail.startswith("also verified: scale<__half> (predicted ~")
    assert (verdict(found, OTHERS).verdict, verdict(found, VERIFIED).verdict) == ("passed", "passed")


def test_an_instance_that_is_predicted_to_be_slower_is_a_cost_that_the_suggestion_names(place: Place) -> None:
    """A tile that was right for float and double was refused, as the prediction for double had 1.3 times the time."""
    slower = "    float w = 0.0f;\n    if (sizeof(T) == 2) for (int k = 1; k < 32; k++) {\n"
    slower += "        int j = i ^ (k << 5);\n        if (j < n) w = fmaxf(w, -fabsf((float)x[j]));\n    }\n"
    slower += "    if (i < n) { T v = x[i]; y[i] = __fadd_rn(half_of(v), 0.25f) + 0.75f + w; }\n"
    found = place.judge((BODY, slower))
    assert found.outcome is Outcome.SCREENED, found.failure
    assert [instance.name for instance in found.instances] == ["scale<__half>"]
    assert found.instances[0].measurement.ratio < 1 / LIMITS.case
    guard = verdict(found)
    assert guard.verdict == "passed"
    assert "; at a cost: case n=4194304 takes ~" in guard.detail


def test_an_edit_that_is_wrong_for_another_type_is_refused(place: Place) -> None:
    found = place.judge((BODY, WRONG_FOR_HALF))
    assert found.outcome is Outcome.GUARDRAIL
    assert found.failure is not None
    assert "changes scale<__half>, which is incorrect: 'y' differs" in found.failure.reason


@pytest.mark.slow
def test_without_nvcc_the_instances_that_the_text_shows_are_verified_and_the_result_says_so(
    tmp_path: Path, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where nothing could be built the guardrail said `passed`."""
    plain = "void also(const double* x, float* y, int n) { scale<double><<<(n + 255) / 256, 256>>>(x, y, n); }\n"
    place = make_place(tmp_path, machine, monkeypatch, SPEC + KERNEL + RUN + plain + MAIN)
    monkeypatch.setattr(whole_check, "find_nvcc", lambda: None)
    for size, name in ((8, "scale<double>"), (2, "scale<half>")):  # named at a launch, and by a host template
        wrong = WRONG_FOR_HALF.replace("== 2", f"== {size}")
        assert f"changes {name}, which is incorrect" in verdict(place.judge((BODY, wrong))).detail
    right = place.judge((BODY, RIGHT))
    assert sorted(instance.name for instance in right.instances) == ["scale<double>", "scale<half>"]
    assert verdict(right).verdict == "not checked"
    assert verdict(right).detail.endswith(
        "; others than the text names are not known without a build of the whole file"
    )


@pytest.mark.slow
def test_an_instance_of_another_number_is_verified_with_its_own_launch_and_sizes(
    tmp_path: Path, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = make_place(tmp_path, machine, monkeypatch, SUMS)
    right = place.judge(("d > 0; d /= 2", "d > 1; d /= 2"), (LAST, LAST_TWO))
    assert [instance.name for instance in right.instances] == ["sums<128>"], right.failure
    # The block of 128 threads adds what the block of 256 has.
    wrong = place.judge(("int d = BLOCK / 2; d > 0", "int d = BLOCK / 2; d > (BLOCK == 128 ? 2 : 1)"), (LAST, LAST_TWO))
    assert wrong.outcome is Outcome.GUARDRAIL
    assert "changes sums<128>, which is incorrect" in verdict(wrong).detail


@pytest.mark.slow
def test_an_instance_whose_launch_alone_changes_is_verified_with_it(
    tmp_path: Path, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its machine code stays, and it is correct for the blocks that it had."""
    own = "template <> __global__ void scale<half>(const half* x, float* y, int n) {\n"
    own += "    int i = blockIdx.x * 256 + threadIdx.x;\n    if (i < n) y[i] = half_of(x[i]) - 1.0f;\n}\n"
    for folder, text, threads, verified in (("own", KERNEL + own, 128, []), ("alike", KERNEL, 512, ["scale<__half>"])):
        (tmp_path / folder).mkdir()
        place = make_place(tmp_path / folder, machine, monkeypatch, SPEC + text + RUN + MAIN)
        launch = f"scale<T><<<(n + {threads - 1}) / {threads}, {threads}>>>"
        found = place.judge(("scale<T><<<(n + 255) / 256, 256>>>", launch))
        assert [instance.name for instance in found.instances] == verified, found.failure
        assert ("changes scale<__half>, which is" in verdict(found).detail) is (not verified)


def test_an_instance_that_only_an_including_file_makes_counts(
    tmp_path: Path, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    main = MAIN.replace("run<half>(0, 0, 1); ", "")
    user = '#include "main.cu"\nvoid also(const double* x, float* y, int n) { run<double>(x, y, n); }\n'
    place = make_place(
        tmp_path, machine, monkeypatch, SPEC + KERNEL + RUN + main.replace("main()", "more()"), user=user
    )
    wrong = WRONG_FOR_HALF.replace("== 2", "== 8")
    assert "changes scale<double>, which is incorrect" in verdict(place.judge((BODY, wrong))).detail
    right = place.judge((BODY, RIGHT))
    assert [instance.name for instance in right.instances] == ["scale<double>"], right.failure


def test_an_instance_that_is_other_code_where_it_is_made_is_refused(
    tmp_path: Path, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is verified is the instance as the kernel's own file has it: an including file may set other macros."""
    kernel = "#ifndef PARTS\n#define PARTS 2\n#endif\n" + KERNEL.replace("(float)v / 2.0f", "(float)v * PARTS")
    user = (
        '#define PARTS 3\n#include "main.cu"\nvoid also(const double* x, float* y, int n) { run<double>(x, y, n); }\n'
    )
    main = MAIN.replace("run<half>(0, 0, 1); ", "").replace("main()", "more()")
    place = make_place(tmp_path, machine, monkeypatch, SPEC + kernel + RUN + main, user=user)
    found = place.judge(("return (float)v * PARTS;", "return (float)v + (float)v;"))
    assert found.outcome is Outcome.GUARDRAIL
    assert verdict(found, VERIFIED).verdict == "failed"
    assert verdict(found, VERIFIED).detail.startswith("user.cu: ")


def test_a_specialisation_counts_where_the_edit_reaches_it(
    tmp_path: Path, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = "template <> __global__ void scale<half>(const half* x, float* y, int n) {\n"
    own += "    for (int j = threadIdx.x; j < n && blockIdx.x == 0; j += blockDim.x) y[j] = half_of(x[j]) - 1.0f;\n}\n"
    place = make_place(tmp_path, machine, monkeypatch, SPEC + KERNEL + own + RUN + MAIN)
    primary = place.judge((BODY, WRONG_FOR_HALF))  # which half does not use
    assert (primary.outcome, primary.instances) == (Outcome.SCREENED, ())
    helper = ("return (float)v / 2.0f;", "return sizeof(T) == 2 ? (float)v : __fmul_rn((float)v, 0.5f);")
    assert "changes scale<__half>, which is incorrect" in verdict(place.judge(helper, (BODY, RIGHT))).detail


@pytest.mark.slow
def test_an_instance_that_is_never_launched_is_verified_as_the_spec_s_own_is_launched(
    tmp_path: Path, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = "template __global__ void scale<double>(const double*, float*, int);\n"
    text = SPEC + KERNEL + RUN + made + MAIN.replace("run<half>(0, 0, 1); ", "")
    place = make_place(tmp_path, machine, monkeypatch, text)
    assert "changes scale<double>, which is incorrect" in verdict(
        place.judge((BODY, WRONG_FOR_HALF.replace("== 2", "== 8")))
    ).detail  # fmt: skip
    assert [instance.name for instance in place.judge((BODY, RIGHT)).instances] == ["scale<double>"]


@pytest.mark.parametrize(
    ("other", "name", "why"),
    [
        ("Pair", "scale<Pair>", "the type of 'x' in scale<Pair> is not known"),
        ("half", "scale<__half>", "the original kernel fails: reads x[1], which has 1 element"),
    ],
)
def test_an_instance_that_cannot_be_verified_refuses_the_edit_with_the_reason(
    other: str, name: str, why: str, tmp_path: Path, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    beyond = "if (i < n || (sizeof(T) == 2 && i == n)) y[i]"
    kernel = KERNEL.replace("if (i < n) y[i]", beyond).replace(
        "(float)v", "*(float*)&v" if other == "Pair" else "(float)v"
    )
    place = make_place(tmp_path, machine, monkeypatch, SPEC + kernel + RUN + MAIN.replace("half", other))
    said: list[str] = []
    place.gate._look_ahead(place.builder.original(place.original), said.append)
    assert [sentence.startswith(f"the instance {name} ") for sentence in said] == [True]
    assert ("cannot be verified" in said[0]) is (other == "Pair")  # of the other, running it shows that
    edit = ("half_of(x[i]) + 1.0f", "__fadd_rn(half_of(x[i]), 0.25f) + 0.75f")
    found = place.judge(edit)
    assert found.outcome is Outcome.GUARDRAIL
    assert f"changes {name}, which cannot be verified: " in verdict(found).detail
    assert why in verdict(found).detail
    # The next candidate that changes it is refused before its confirmation, any other is not.
    assert place.gate.known(place.original, place.built(edit)) == verdict(found)
    assert place.gate.known(place.original, place.built(("int i = ", "const int i = "))) is None
    assert place.gate.notes == (
        f"the instance {name} cannot be verified, so no edit that changes it is suggested: {why}",
    ) or (other == "half" and why in place.gate.notes[0])
