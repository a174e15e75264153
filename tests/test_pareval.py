"""ParEval's problems: questions go out as files, answers come back as files, and somebody else's driver has the last word."""

from __future__ import annotations

import json
import runpy
import subprocess
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("jinja2")

from benchmarks import pareval
from benchmarks.pareval_driver import DriverError, judge, with_host_function
from engine.generate.oracle import read_reference
from engine.generate.task import read_task
from engine.process.sandbox import available

NAMES = sorted(path.parent.name for path in pareval.TASKS.glob("*/sentence.txt"))
needs_sandbox = pytest.mark.skipif(not available()[0], reason="untrusted code runs in a sandbox only")

# A driver in the form of ParEval's, for the running minimum; all text is ours.
MAIN = """
#include <cstdio>
class Context;
bool validate(Context *);
int main() { std::printf("Validation: %s\\n", validate(nullptr) ? "PASS" : "FAIL"); }
"""
DRIVER = """
// partialMinimums<<<1, 1>>>(x, n) in a comment
#include <cuda_runtime.h>
#include <vector>
#include "generated-code.cuh"
class Context;
bool validate(Context *) {
    std::vector<float> x(DRIVER_PROBLEM_SIZE), got(x.size());
    for (size_t i = 0; i < x.size(); i += 1) x[i] = float((i * 37 + 11) % 64);
    float *d;
    cudaMalloc(&d, x.size() * sizeof(float));
    cudaMemcpy(d, x.data(), x.size() * sizeof(float), cudaMemcpyHostToDevice);
    dim3 gridSize(1), blockSize(64);
    partialMinimums<<<gridSize, blockSize>>>(d, x.size());
    cudaDeviceSynchronize();
    cudaMemcpy(got.data(), d, x.size() * sizeof(float), cudaMemcpyDeviceToHost);
    for (size_t i = 0; i < x.size(); i += 1) {
        if (i && x[i - 1] < x[i]) x[i] = x[i - 1];
        if (got[i] != x[i]) return false;
    }
    return true;
}
"""
RIGHT = """Idea: One thread for the whole vector
Grid: 1
Block: 1

```cuda
__global__ void partialMinimums_kernel(float* x, long long n) {
    float least = x[0];
    for (long long i = 1; i < n; ++i) {
        least = fminf(least, x[i]);
        x[i] = least;
    }
}
```
"""
WRONG = RIGHT.replace("fminf", "fmaxf")
PROGRAM = """#include <cuda_runtime.h>
{kernel}
void partialMinimums(float* x, long long n, cudaStream_t stream) {{ partialMinimums_kernel<<<1, 1, 0, stream>>>(x, n); }}
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    root = tmp_path / "ParEval"
    problem = root / "drivers/cpp/benchmarks/scan/31_scan_scan_with_min_function"
    problem.mkdir(parents=True)
    (root / "drivers/cpp/models").mkdir()
    (root / "drivers/cpp/models/cuda-driver.cu").write_text(MAIN)
    (problem / "gpu.cu").write_text(DRIVER)
    git = ["git", "-C", str(root), "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "one"], check=True)
    return root


def kernel_of(answer: str) -> str:
    return answer.partition("```cuda\n")[2].partition("```")[0]


@pytest.mark.parametrize("name", NAMES)
def test_a_task_reads_its_sentence_as_arguments_that_its_reference_takes(name: str) -> None:
    folder = pareval.TASKS / name
    reference = read_reference(f"{folder / 'ref.py'}:{name}")
    task = read_task((folder / "task.md").read_text(), cpu=True)
    assert task.wrapper == name == reference.function
    assert all(f" {a.name}" in (folder / "sentence.txt").read_text() for a in task.arguments if a.name != "n")
    space = runpy.run_path(str(folder / "ref.py"))
    chance, sizes = np.random.default_rng(0), dict.fromkeys(task.time[0].sizes, 7)
    inputs = {
        a.name: chance.integers(0, 2, [7] * len(a.shape)).astype(a.type.replace("float", "f4")) for a in task.inputs
    }
    function = space[name]
    assert callable(function)
    given = {**sizes, **inputs}
    got = function(**{k: given[k] for k in function.__code__.co_varnames[: function.__code__.co_argcount]})
    (out,) = task.outputs
    assert got.shape == tuple(7 if extent != "1" else 1 for extent in out.shape)
    assert got.dtype == np.dtype(out.type.replace("float", "f4"))


def test_there_are_enough_tasks() -> None:
    assert len(NAMES) >= 10
    assert sum(map(len, pareval.DRAWS.values())) == 5


def test_a_launch_becomes_a_call_and_nothing_else_changes() -> None:
    text = "// f<<<1, 1>>>(x)\nf<<<ctx->grid, ctx->block>>>(ctx->x, v.size());\n"
    assert with_host_function(text, "f") == "// f<<<1, 1>>>(x)\nf(ctx->x, v.size(), 0);\n"
    with pytest.raises(DriverError, match="not understood"):
        with_host_function("g<<<1, 1>>>(x);\n", "f")
    with pytest.raises(DriverError, match="not understood"):
        with_host_function("f<<<1, 1>>>(x);\ng<<<1, 1>>>(x);\n", "f")


@pytest.mark.slow
@needs_sandbox
def test_a_driver_tells_a_wrong_program_from_a_right_one(checkout: Path, tmp_path: Path) -> None:
    verdicts = []
    for kernel in (kernel_of(RIGHT), kernel_of(WRONG), kernel_of(RIGHT) + "}"):
        program = tmp_path / "program.cu"
        program.write_text(PROGRAM.format(kernel=kernel))
        verdicts.append(judge(checkout, "31_scan_scan_with_min_function", "partialMinimums", program).verdict)
    assert verdicts == ["pass", "fail", "not built"]
    with pytest.raises(DriverError, match="no driver of 99"):
        judge(checkout, "99_none", "f", program)


def test_an_answer_file_becomes_a_response_and_what_has_none_becomes_a_question(tmp_path: Path) -> None:
    batch, answers, questions = tmp_path / "batch", tmp_path / "answers", tmp_path / "questions"
    for folder in (batch, answers, questions):
        folder.mkdir()
    place = pareval.Place(pareval.TASKS, questions, answers, tmp_path, tmp_path)
    for number, about in enumerate(("the task", "plan: Algorithm", "Algorithm", "Algorithm, repair 1")):
        name = f"optiml-{number}"
        body = {"messages": [{"role": "system", "content": "Plan.\n"}, {"role": "user", "content": about}]}
        with (batch / "requests.jsonl").open("a") as requests, (batch / "index.jsonl").open("a") as index:
            requests.write(json.dumps({"custom_id": name, "body": body}) + "\n")
            index.write(json.dumps({"custom_id": name, "about": about}) + "\n")
    (answers / "gemv__second-algorithm-plan.txt").write_text("One warp for each row.\n")
    (answers / "gemv__second-algorithm.txt").write_text("\n")
    assert not pareval.answer(batch, "gemv", "second-", place)
    (asked,) = questions.iterdir()
    assert asked.name == "gemv__second-algorithm-repair-1.txt"
    assert asked.read_text() == "[system]\nPlan.\n\n[user]\nAlgorithm, repair 1\n"
    given = [json.loads(line) for line in (batch / "responses.jsonl").read_text().splitlines()]
    messages = [line["response"]["body"]["choices"][0]["message"] for line in given]
    assert [line["custom_id"] for line in given] == ["optiml-0", "optiml-1", "optiml-2"]
    assert json.loads(messages[0]["content"])["kernel"] == "gemv"
    assert messages[1]["content"] == "One warp for each row.\n"
    assert messages[2]["content"] is None
    assert messages[2]["refusal"]  # an empty answer


@pytest.mark.slow
@needs_sandbox
def test_questions_go_out_and_answers_come_back_until_a_driver_judges(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One strategy of one task, with a wrong kernel and with a right one."""
    monkeypatch.setattr(pareval, "DRAWS", {"": ("parallel",)})
    questions, answers = tmp_path / "questions", tmp_path / "answers"
    questions.mkdir()
    answers.mkdir()
    place = pareval.Place(pareval.TASKS, questions, answers, tmp_path / "work", checkout, "cpu")
    for name, text in (("parallel-plan", "One thread."), ("parallel", WRONG)):
        assert pareval.samples("partialMinimums", place) == []
        (asked,) = questions.iterdir()
        assert asked.name == f"partialMinimums__{name}.txt"
        told = asked.read_text()
        assert told.startswith("[system]\n")
        assert "\n[user]\n## What to compute\n" in told
        assert "running minimum in place" in told
        (answers / asked.name).write_text(text)
        asked.unlink()
    (sample,) = pareval.samples("partialMinimums", place)
    assert (sample["correct"], sample["ending"], sample["tests"]) == (False, "wrong_result", "fail")
    (answers / "partialMinimums__parallel.txt").write_text(RIGHT)
    (sample,) = pareval.samples("partialMinimums", place)
    assert (sample["sample"], sample["correct"], sample["tests"], sample["mode"]) == (
        "parallel",
        True,
        "pass",
        "predicted",
    )
    assert not list(questions.iterdir())
    assert str(tmp_path) not in json.dumps(sample)
