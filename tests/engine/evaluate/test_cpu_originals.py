"""Originals on the CPU path: a racy one is refused at the start, with its lines, and excuses no candidate."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from engine.cpu import CpuFinding, CpuMachine
from engine.cpu.jobs import CpuBinary
from engine.cuda.load import load_program
from engine.errors import RefusedError
from engine.evaluate import cpu_screen
from engine.evaluate.evaluator import Evaluator
from engine.model import Outcome, Program
from engine.run.machine import Machine
from engine.spec.find import find_spec
from tests.adversarial.conftest import cpu as cpu

TEXT = """\
// optiml: args.g = {{ role = "in", size = "n", fill = {{ kind = "integers", low = 0, high = 1000 }} }}
// optiml: args.m = {{ role = "inout", size = "16", fill = {{ kind = "constant", low = 0 }} }}
// optiml: deterministic = false
// optiml: check = [{{ n = 1 }}, {{ n = 333 }}, {{ n = 700 }}]
// optiml: time = [{{ n = 1000000 }}]
__global__ void count(const int* g, int* m, int n) {{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {{
        {update}
    }}
}}

void launch(const int* g, int* m, int n) {{
    count<<<(n + 255) / 256, 256>>>(g, m, n);
}}
"""
RACY, ATOMIC = (TEXT.format(update=u) for u in ("m[g[i] & 15] = m[g[i] & 15] + 1;", "atomicAdd(&m[g[i] & 15], 1);"))


def _evaluator(machine: Machine, folder: Path, text: str) -> tuple[Evaluator, Program]:
    (folder / ".git").mkdir()
    path = folder / "k.cu"
    path.write_text(text)
    spec, spec_path = find_spec(folder, path)
    return machine.evaluator(spec, folder, spec_path), load_program(path, spec_file=spec_path)


def test_a_racy_original_is_refused_with_its_lines(cpu: Machine, tmp_path: Path) -> None:
    """Its races excused those of its candidates: a suggestion said "passed: races"."""
    evaluator, program = _evaluator(cpu, tmp_path, RACY)
    with (
        closing(evaluator),
        pytest.raises(RefusedError, match=r"the kernel 'count' has data races: race on 'm'.*line 9"),
    ):
        evaluator.open(program)


def test_an_original_with_atomics_is_not(cpu: Machine, tmp_path: Path) -> None:
    evaluator, program = _evaluator(cpu, tmp_path, ATOMIC)
    with closing(evaluator):
        evaluator.open(program)


PARTIAL = """\
// optiml: args.x = { role = "in", size = "n", fill = "normal" }
// optiml: args.out = { role = "out", size = "SIZE" }
// optiml: check = [{ n = 1900 }, { n = 2000 }]
// optiml: time = [{ n = 1000000 }]
__global__ void first(const float* x, float* out, int n) {
    int i = blockIdx.x * blockDim.x;
    if (threadIdx.x == 0 && i < n) out[blockIdx.x] = x[i];
}

void launch(const float* x, float* out, int n) {
    first<<<(n + 255) / 256, 256>>>(x, out, n);
}
"""


def test_a_buffer_that_is_too_small_at_a_timing_case_is_refused(cpu: Machine, tmp_path: Path) -> None:
    """A drafted spec held on its check cases, and the timed launch wrote a thousand elements into eight."""
    evaluator, program = _evaluator(cpu, tmp_path, PARTIAL.replace("SIZE", "8"))
    with (
        closing(evaluator),
        pytest.raises(RefusedError, match=r"timing case n=1000000: .*writes out\[\d+\], which has 8 e"),
    ):
        evaluator.open(program)


def test_one_that_is_large_enough_is_not(cpu: Machine, tmp_path: Path) -> None:
    evaluator, program = _evaluator(cpu, tmp_path, PARTIAL.replace("SIZE", "(n + 255) / 256"))
    with closing(evaluator):
        evaluator.open(program)


@pytest.mark.parametrize(("size", "accepted"), [("64", False), ("(n + 255) / 256", True)])
def test_so_is_one_beside_contents_that_are_no_independent_numbers(
    cpu: Machine, tmp_path: Path, size: str, accepted: bool
) -> None:
    """Timing cases of kernels with permutations, offsets or sorted inputs were not run at all."""
    text = (
        PARTIAL.replace("SIZE", size)
        .replace("x[i]", "x[p[i]]")
        .replace("const float* x,", "const float* x, const int* p,")
    )
    text = text.replace("(x, out", "(x, p, out").replace(
        "// optiml: args.out",
        '// optiml: args.p = { role = "in", size = "n", fill = "permutation" }\n// optiml: args.out',
    )
    text = text.replace("check = [{ n = 1900 }, { n = 2000 }]", "check = [{ n = 16384 }, { n = 16129 }]")
    evaluator, program = _evaluator(cpu, tmp_path, text)
    with closing(evaluator):
        if accepted:
            evaluator.open(program)
        else:
            with pytest.raises(RefusedError, match=r"timing case n=1000000: .*writes out\[\d+\], which has 64 e"):
                evaluator.open(program)


SUM = """\
// optiml: args.g = { role = "in", size = "n", fill = { kind = "uniform", low = 1, high = 1.9 } }
// optiml: args.s = { role = "inout", size = "1", fill = { kind = "constant", low = 0 } }
// optiml: deterministic = DETERMINISTIC
// optiml: check = [{ n = 333 }, { n = 700 }]
// optiml: time = [{ n = 1000000 }]
__global__ void sum(const float* g, float* s, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) atomicAdd(s, i == n - 1 ? g[i] : g[i] * SMALL);
}

void launch(const float* g, float* s, int n) {
    sum<<<(n + 255) / 256, 256>>>(g, s, n);
}
"""
LOST = "0x1p-26f"  # behind the last, large term each of the others is rounded away: 90 units in the last place together


@pytest.mark.parametrize(
    ("small", "deterministic", "accepted"), [(LOST, "false", True), (LOST, "true", False), ("0x1p-12f", "false", True)]
)
def test_a_float_sum_that_one_order_makes_exact_by_luck(
    cpu: Machine, tmp_path: Path, small: str, deterministic: str, accepted: bool
) -> None:
    """The tolerance was ten times the error of one order."""
    evaluator, program = _evaluator(cpu, tmp_path, SUM.replace("DETERMINISTIC", deterministic).replace("SMALL", small))
    with closing(evaluator):
        if accepted:
            evaluator.open(program)
        else:
            with pytest.raises(RefusedError, match="with another order of threads"):
                evaluator.open(program)


def test_a_result_that_another_order_changes_by_more_than_rounding_is_refused(cpu: Machine, tmp_path: Path) -> None:
    last = SUM.replace("DETERMINISTIC", "false").replace(
        "atomicAdd(s, i == n - 1 ? g[i] : g[i] * SMALL)", "atomicExch(s, g[i])"
    )
    evaluator, program = _evaluator(cpu, tmp_path, last)
    with closing(evaluator), pytest.raises(RefusedError, match="with another order of threads"):
        evaluator.open(program)


def test_an_original_that_does_not_end_is_refused(
    cpu: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu_screen, "_ORIGINAL_DEADLINE_S", 0.3)
    endless = SUM.replace("DETERMINISTIC", "false").replace("if (i < n)", "while (true)").replace("SMALL", "1.0f")
    evaluator, program = _evaluator(cpu, tmp_path, endless)
    with closing(evaluator), pytest.raises(RefusedError, match=r"did not end in 0\.3 s; use smaller check shapes"):
        evaluator.open(program)


def test_a_detector_that_did_not_see_the_original_to_its_end_gives_no_verdict(
    cpu: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluator, program = _evaluator(cpu, tmp_path, ATOMIC)
    with closing(evaluator):
        ended = (CpuFinding("timeout", "did not end in 20 s"),)
        monkeypatch.setattr(evaluator._screen._machine, "races", lambda *arguments: ended)  # type: ignore[attr-defined]
        built, _ = evaluator.open(program)
        assert "ThreadSanitizer gave no verdict on the original: did not end in 20 s" in evaluator.signals.missing
        verdicts = {g.name: (g.verdict, g.detail) for g in evaluator.confirm(built).guardrails}
        assert verdicts["races"][0] == "not checked"


def test_of_an_original_whose_behaviour_is_undefined_no_edit_is_asked_for_more(cpu: Machine, tmp_path: Path) -> None:
    far = ATOMIC.replace("& 15]", "& 15 & (1 << n | 15)]")
    evaluator, program = _evaluator(cpu, tmp_path, far)
    with closing(evaluator):
        evaluator.open(program)
        missing = [m for m in evaluator.signals.missing if m.startswith("undefined behaviour is not detected")]
        assert len(missing) == 1
        assert "shifts by the width of a type" in missing[0]


def test_a_candidate_of_known_machine_code_is_not_compiled_for_the_cpu_again(
    cpu: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A quarter of a search's candidates is: each took half a second of the C++ compiler."""
    evaluator, program = _evaluator(cpu, tmp_path, ATOMIC)
    compiled = []
    build = CpuMachine.build

    def counted(self: CpuMachine, text: str, *arguments: Any, **options: Any) -> CpuBinary:
        compiled.append(text)
        return build(self, text, *arguments, **options)

    with closing(evaluator):
        evaluator.open(program)
        monkeypatch.setattr(CpuMachine, "build", counted)
        smaller = ATOMIC.replace("(n + 255) / 256, 256", "(n + 127) / 128, 128")
        texts = (smaller, smaller.replace("if (i < n) {", "if (i < n) {  // inside"))
        first, second = (evaluator.build(Program({"k.cu": text.encode()}, "k.cu"), by_rules=True) for text in texts)
    assert first.identity == second.identity
    assert first.program.digest != second.program.digest
    assert len(compiled) == 1
    assert second.extra is first.extra


BORDER = """\
// optiml: args.x = { role = "in", size = "n", fill = "normal" }
// optiml: args.y = { role = "out", size = "n" }
// optiml: check = [{ n = 1 }, { n = 333 }, { n = 700 }]
// optiml: time = [{ n = 1000000 }]
__global__ void pairs(const float* x, float* y, int n) {
    __shared__ float s[257];
    int i = blockIdx.x * 256 + threadIdx.x;
    if (i < n) s[threadIdx.x] = x[i];
    __syncthreads();
    float next = s[threadIdx.x + 1];  // of the last one nobody has written it
    if (i < n) y[i] = s[threadIdx.x] + (USED ? next : 0.0f);
}

void launch(const float* x, float* y, int n) {
    pairs<<<(n + 255) / 256, 256>>>(x, y, n);
}
"""


def test_an_original_may_read_shared_memory_that_it_does_not_use(cpu: Machine, tmp_path: Path) -> None:
    """Two of twenty programs of a large collection read beyond what their blocks have loaded, and use none of it."""
    evaluator, program = _evaluator(cpu, tmp_path, BORDER.replace("USED", "threadIdx.x < 255 && i + 1 < n"))
    with closing(evaluator):
        evaluator.open(program)
        (said,) = [each for each in evaluator.signals.missing if "shared memory" in each]
        assert said.startswith("the original reads s[")
        # What is used counts for a candidate as it did.
        outcomes = []
        for old, new in ((b" : 0.0f", b" : 0.0f * i"), (b"threadIdx.x < 255 && ", b"")):
            text = program.data.replace(old, new)
            built = evaluator.build(program.replace({"k.cu": text}), by_rules=False)
            outcomes.append(evaluator.evaluate(built, None)[0].outcome)
        assert outcomes[1] is Outcome.WRONG_RESULT
        assert outcomes[0] not in (Outcome.WRONG_RESULT, Outcome.MEMORY_ERROR)


def test_its_results_may_not_depend_on_it(cpu: Machine, tmp_path: Path) -> None:
    evaluator, program = _evaluator(cpu, tmp_path, BORDER.replace("USED", "true"))
    with closing(evaluator), pytest.raises(RefusedError, match=r"another order of threads.*'y' differs"):
        evaluator.open(program)


def test_an_original_is_not_counted_at_sizes_for_which_nothing_is_launched(cpu: Machine, tmp_path: Path) -> None:
    """Tiles of the host's choice: at the small sizes that predict the large one the grid had no block."""
    text = (
        '// optiml: args.x = { role = "inout", size = "262144" }\n'
        "// optiml: check = [{ width = 96, tile = 32 }, { width = 192, tile = 32 }]\n"
        "// optiml: time = [{ width = 512, tile = 32 }]\n"
        "__global__ void twice(float* x, int width, int tile) {\n"
        "    for (int i = threadIdx.x; i < tile * tile; i += 64)\n"
        "        x[(blockIdx.y * tile + i / tile) * width + blockIdx.x * tile + i % tile] *= 2.0f;\n}\n"
        "void run(float* x, int width, int tile) {\n"
        "    twice<<<dim3(width / tile, width / tile), 64>>>(x, width, tile);\n}\n"
    )
    evaluator, program = _evaluator(cpu, tmp_path, text)
    with closing(evaluator):
        _, evaluation = evaluator.open(program)
    assert evaluation.measurement is not None


RESIDUES = """\
// optiml: args.x = { role = "in", size = "rows", fill = { kind = "integers", low = 0, high = 1000 } }
// optiml: args.y = { role = "out", size = "rows*points" }
// optiml: check = [{ rows = 1, points = 1 }, { rows = 3, points = 17 }]
// optiml: time = [{ rows = 1024, points = 1024 }]
__global__ void residues(const int* x, int* y, int rows, int points) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < rows * points) y[i] = x[i / points] % (i + 1000);
}

void launch(const int* x, int* y, int rows, int points) {
    residues<<<(rows * points + 255) / 256, 256>>>(x, y, rows, points);
}
"""


def test_a_copy_that_only_fits_where_all_is_one_element_is_no_control(cpu: Machine, tmp_path: Path) -> None:
    """ "a copy of an input would be accepted": in every other case no input has room for one, and who copies it fails."""
    evaluator, program = _evaluator(cpu, tmp_path, RESIDUES)
    with closing(evaluator):
        evaluator.open(program)
