"""Scratch: memory that launches hand on to each other, and whose contents are no result."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from engine.cuda.load import load_program
from engine.errors import RefusedError, SpecError
from engine.evaluate.samples import moved_bytes
from engine.model import Evaluation, Outcome
from engine.run.machine import Machine
from engine.spec.find import find_spec
from tests.adversarial.conftest import cpu as cpu

TEXT = """\
// optiml: chain = [{ kernel = "parts", args = ["x", "part", "n"] }, { kernel = "whole", args = ["part", "sum", "n"] }]
// optiml: args.x = { role = "in", size = "n", fill = "normal" }
// optiml: args.part = { role = "scratch", size = "(n + 255) / 256" }
// optiml: args.sum = { role = "out", size = "1" }
// optiml: check = [{ n = 1 }, { n = 333 }, { n = 700 }]
// optiml: time = [{ n = 1000000 }]
__global__ void parts(const float* x, float* part, int n) {
    if (threadIdx.x != 0) return;
    float s = 0.0f;
    for (int i = blockIdx.x * 256; i < min(n, (blockIdx.x + 1) * 256); i++) s += x[i];
    part[blockIdx.x] = s;
}

__global__ void whole(const float* part, float* sum, int n) {
    if (threadIdx.x != 0) return;
    float s = 0.0f;
    for (int b = 0; b < (n + 255) / 256; b++) s += part[b];
    *sum = s;
}

void launch(const float* x, float* part, float* sum, int n) {
    parts<<<(n + 255) / 256, 32>>>(x, part, n);
    whole<<<1, 32>>>(part, sum, n);
}
"""
STORED, READ = "part[blockIdx.x] = s;", "s += part[b];"
Change = Callable[[str], str]


@contextmanager
def _opened(machine: Machine, folder: Path, text: str = TEXT) -> Iterator[Callable[[Change], Evaluation]]:
    """Evaluates edits of a text, whose original it has seen."""
    (folder / ".git").mkdir()
    path = folder / "k.cu"
    path.write_text(text)
    spec, spec_path = find_spec(folder, path)
    with closing(machine.evaluator(spec, folder, spec_path)) as evaluator:
        program = load_program(path, spec_file=spec_path)
        evaluator.open(program)

        def tried(change: Change) -> Evaluation:
            assert change(text) != text
            edited = program.replace({"k.cu": change(text).encode()})
            return evaluator.evaluate(evaluator.build(edited, by_rules=False), None)[0]

        yield tried


def _doubled(text: str) -> str:
    return text.replace(STORED, "part[blockIdx.x] = 2.0f * s;").replace(READ, "s += 0.5f * part[b];")


def test_other_contents_are_no_other_result_and_excuse_nothing_else(cpu: Machine, tmp_path: Path) -> None:
    with _opened(cpu, tmp_path) as tried:
        assert tried(_doubled).outcome is Outcome.SCREENED
        for instead, outcome in (
            ("part[blockIdx.x] += s;", Outcome.MEMORY_ERROR),  # read before it is written
            ("if (n != 333) part[blockIdx.x] = s;", Outcome.MEMORY_ERROR),
            ("part[blockIdx.x + 1] = s;", Outcome.MEMORY_ERROR),
            ("part[blockIdx.x] = blockIdx.x ? 0.0f : s;", Outcome.WRONG_RESULT),
        ):
            assert tried(lambda text, i=instead: text.replace(STORED, i)).outcome is outcome  # type: ignore[misc]


def test_contents_of_a_result_are(cpu: Machine, tmp_path: Path) -> None:
    with _opened(cpu, tmp_path, TEXT.replace('"scratch"', '"out"')) as tried:
        failure = tried(_doubled).failure
    assert failure is not None
    assert failure.argument == "part"


def test_elements_that_are_not_needed_may_stay_unwritten(cpu: Machine, tmp_path: Path) -> None:
    with _opened(cpu, tmp_path, TEXT.replace('"(n + 255) / 256"', '"n"')) as tried:
        assert tried(_doubled).outcome is Outcome.SCREENED


def test_an_original_that_reads_scratch_first_is_refused(cpu: Machine, tmp_path: Path) -> None:
    text = TEXT.replace(STORED, "part[blockIdx.x] += s;")
    with pytest.raises(RefusedError, match=r"reads part\[0\] before it is written"), _opened(cpu, tmp_path, text):
        pass


def test_scratch_is_no_traffic_that_a_kernel_must_have(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "k.cu").write_text(TEXT)
    spec, _ = find_spec(tmp_path, tmp_path / "k.cu")
    assert moved_bytes(spec, spec.time[0]) == (4_000_000, 4)


@pytest.mark.parametrize(
    ("line", "instead", "says"),
    [
        ('{ role = "out", size = "1" }', '{ role = "scratch", size = "1" }', "there is no result"),
        ('"scratch", size', '"scratch", tolerance = 0.1, size', "compared with nothing"),
        ('"scratch", size', '"scratch", fill = "normal", size', "its fill has no effect"),
    ],
)
def test_bad_declarations(tmp_path: Path, line: str, instead: str, says: str) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "k.cu").write_text(TEXT.replace(line, instead))
    with pytest.raises(SpecError, match=says):
        find_spec(tmp_path, tmp_path / "k.cu")
