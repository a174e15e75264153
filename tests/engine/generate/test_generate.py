from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("openai")
pytest.importorskip("jinja2")

from engine import cli
from engine.cuda.load import load_program
from engine.cuda.patch import make_patch
from engine.errors import NotPredictedError
from engine.evaluate.speeds import Speeds
from engine.generate.contest import _mark
from engine.generate.generation import UNCONFIRMED
from engine.generate.generation_result import SCHEMA, GenerationResult, StrategyResult
from engine.generate.strategies import STRATEGIES
from engine.llm.batch import custom_id
from engine.llm.lesson_store import Lesson, Memory
from engine.llm.openai_client import OpenAIClient  # noqa: F401 - the real client is what the tests run
from engine.model import Outcome, Program
from engine.report.generation_report import print_generation
from engine.spec.find import find_spec
from tests.engine.llm.conftest import serve  # noqa: F401 - a fixture
from tests.engine.llm.server import completion, ok, status

from .scripts import RECORDED, as_json, asked, told_to

ROOT = Path(__file__).resolve().parents[3]


def test_a_marked_patch_still_applies(tmp_path: Path) -> None:
    before, after = Program({"k.cu": b"int a;\n"}, "k.cu"), Program({"k.cu": b"int b;\n"}, "k.cu")
    (tmp_path / "k.cu").write_bytes(before.data)
    patch = tmp_path / "best.patch"
    patch.write_bytes(make_patch(before, after))
    _mark(patch, UNCONFIRMED)
    assert patch.read_text().startswith("UNCONFIRMED: The reference was drafted by a model")
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    subprocess.run(["git", "apply", "best.patch"], cwd=tmp_path, check=True)
    assert (tmp_path / "k.cu").read_bytes() == after.data


def test_blocks_add_to_a_zeroed_output(run: Any, tmp_path: Path) -> None:
    """One that loses what other blocks added is incorrect, though it is a kernel for an output without zeros."""
    folder = RECORDED / "column_sum"
    task = json.loads((folder / "task.md").read_text())
    task["arguments"][1]["role"] = "zeroed"
    added = """__global__ void column_sum_kernel(const float* x, float* sums, int rows, int cols) {
    const int col = blockIdx.x * blockDim.x + threadIdx.x;
    float sum = 0.0f;
    for (int r = blockIdx.y; r < rows && col < cols; r += gridDim.y) {
        sum += x[(size_t)r * cols + col];
    }
    if (col < cols) {
        %s;
    }
}"""
    launch = ["(cols + 127) / 128", "(rows + 63) / 64"]
    code, result, _, server = run(
        "column_sum", "--generate-only", "--strategies", "parallel,memory", "--repairs", "0", "--out", "k.cu",
        instead={
            "task": json.dumps(task),
            "parallel": as_json(added % "atomicAdd(&sums[col], sum)", launch, ["128"]),
            "memory": as_json(added % "sums[col] = sum", launch, ["128"]),
        },
    )  # fmt: skip
    by = {s["name"]: s for s in result["strategies"]}
    assert code == 0, result
    assert by["parallel"]["right"]
    assert not by["memory"]["right"]
    assert '"zeroed" array holds zeros' in told_to(server)
    text = (tmp_path / "k.cu").read_text()
    assert "cudaMemsetAsync(sums, 0, sizeof(float) * (((long long)cols)), stream);" in text
    # The written file's own spec is one that optimize accepts.
    spec, _ = find_spec(tmp_path, tmp_path / "k.cu")
    assert not spec.deterministic


def test_a_kernel_with_a_race_goes_back_to_the_model(run: Any) -> None:
    """It gives what the reference gives, as no thread stores another value."""
    right = json.loads(as_json((RECORDED / "column_sum" / "parallel-repair-1.md").read_text(), [], []))
    text = re.search(r"__global__.*?\n}", right["proposals"][0]["kernel"], re.S)
    assert text
    racy = text[0].replace(
        "sums[col] = sum;",
        "sums[col] = sum;\n    if (threadIdx.x == 0 && blockIdx.x == 0) { sums[cols - 1] = last(x, rows, cols); }",
    )
    racy = (
        """__device__ float last(const float* x, int rows, int cols) {
    float sum = 0.0f;
    for (int r = 0; r < rows; ++r) {
        sum += x[(size_t)r * cols + cols - 1];
    }
    return sum;
}
"""
        + racy
    )
    launch = ["(cols + 127) / 128"]
    code, result, _, server = run(
        "column_sum", "--generate-only", "--strategies", "parallel",
        instead={"parallel": as_json(racy, launch, ["128"]), "parallel-repair-1": as_json(text[0], launch, ["128"])},
    )  # fmt: skip
    assert code == 0, result
    (strategy,) = result["strategies"]
    assert (strategy["right"], strategy["repairs"], strategy["role"]) == (True, 1, "best")
    assert "it has a race" in server.requests[-1]["messages"][-1]["content"]


@pytest.mark.slow  # fails beside the whole suite on a loaded machine, not alone: the cause is not known
def test_strategies_compete_and_the_fastest_right_kernel_is_written(
    run: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel that reads beyond the last row goes back and is put right; one on CUB's primitives runs too."""
    memory = (RECORDED / "column_sum" / "memory.md").read_text()
    code, result, _, server = run(
        "column_sum", "--generate-only", "--strategies", "parallel,memory,algorithm,library", "--out", "k.cu",
        instead={"algorithm": memory.replace("sum", "total").replace("column_total", "column_sum").replace("totals", "sums")},
    )  # fmt: skip
    assert code == 0
    assert asked(server, "column_sum") == [
        "task", "parallel-plan", "parallel", "parallel-repair-1", "memory-plan", "memory", "algorithm-plan",
        "algorithm", "library-plan", "library",
    ]  # fmt: skip
    by = {s["name"]: s for s in result["strategies"]}
    assert result["schema"] == SCHEMA
    assert result["mode"] == "predicted"
    assert result["reference"]["confirmed"]
    assert (by["parallel"]["role"], by["parallel"]["ratio"], by["parallel"]["repairs"]) == ("yardstick", 1.0, 1), (
        by,
        result["notes"],
    )
    assert by["memory"]["right"]
    assert by["algorithm"]["role"] == "twin"  # other names, the same machine code
    assert by["library"]["ending"] == "screened"
    assert by["library"]["right"]
    assert (result["best"], by["memory"]["role"], result["yardstick"]) == ("memory", "best", "parallel")
    assert result["ratio"] == by["memory"]["ratio"] > 1.2
    assert result["checks"] == {"each": 30, "written": 30}

    text = (tmp_path / "k.cu").read_text()
    assert result["written"] == str(tmp_path / "k.cu")
    assert text.startswith(
        "// Task: the sum of each column of a row-major fp32 matrix with 8192 rows and 4096 columns\n"
    )
    assert "UNCONFIRMED" not in text
    assert "column_sum_kernel<<<(cols + 31) / 32, dim3(32, 8), 0, stream>>>(x, sums, rows, cols);" in text
    spec, _ = find_spec(tmp_path, tmp_path / "k.cu")
    assert spec.kernel == "column_sum_kernel"
    assert isinstance(load_program(tmp_path / "k.cu"), Program)

    monkeypatch.setenv("COLUMNS", "300")
    strategies = tuple(StrategyResult(**s) for s in result["strategies"])
    print_generation(GenerationResult(**{**result, "strategies": strategies}), Path("work"))
    shown = capsys.readouterr().out
    assert result["verdict"] in " ".join(shown.split())
    assert "speed (predicted)" in shown
    assert "correct, same SASS" in " ".join(shown.split())
    assert f"Kernel: {tmp_path / 'k.cu'}" in shown

    # What a model is told: never the shapes that it is checked on.
    told = told_to(server)
    assert "Your answer could not be used: it touches memory outside of its arrays" in told
    assert "129" not in told
    temperatures = [body["temperature"] for body in server.requests]
    assert temperatures[1] > temperatures[2]  # plans are drawn wide, code is not


@pytest.mark.slow
def test_a_search_without_time_leaves_the_fastest_right_kernel(run: Any) -> None:
    """The search tried nothing, and the yardstick was written although another strategy's kernel was twice as fast."""
    code, result, _, _ = run("column_sum", "--strategies", "parallel,memory", "--budget", "1s")
    assert code == 0
    assert (result["best"], result["yardstick"]) == ("memory", "parallel")
    assert result["ratio"] > 1.2


@pytest.mark.slow
def test_a_drafted_reference_is_shown_checked_and_marked_everywhere(run: Any, tmp_path: Path) -> None:
    code, result, _, server = run(
        "saxpy", "--strategies", "parallel,instruction", "--repairs", "1", "--budget", "1", own=False
    )
    assert code == 0
    assert asked(server, "saxpy").count("draft") == 3
    assert result["reference"]["confirmed"] is False
    assert result["reference"]["asked"] == 3
    assert "def reference" in result["reference"]["text"]
    assert (tmp_path / "work" / "reference.py").read_text() == result["reference"]["text"]
    assert "not confirmed by a person" in " ".join(result["notes"])
    assert "a reference that no person confirmed" in result["verdict"]
    text = Path(result["written"]).read_text()
    assert "// Generated by OptiML from this description. UNCONFIRMED" in text
    searched = json.loads((tmp_path / "work" / "optimize" / "result.json").read_text())
    assert "not confirmed by a person" in searched["notes"][0]
    assert searched["proposers"]["generate"]["candidates"] == 1  # the other strategy's kernel, tried first
    assert searched["counts"]["candidates"] == 1
    # The kernel with the factor written into it passed on no other factor.
    instruction = next(s for s in result["strategies"] if s["name"] == "instruction")
    assert instruction["repairs"] == 1


def test_no_right_kernel_is_no_kernel(run: Any, tmp_path: Path) -> None:
    """One leaves the maximum out and overflows; one is hostile in what its text brings in, and never reaches a compiler."""
    kernel = "__global__ void softmax_kernel(const float* x, float* y, int rows, int cols)"
    hostile = [
        kernel + ' { asm("trap;"); }',
        "#include <cstdlib>\n" + kernel + ' {}\nint main() { return system("id"); }',
    ]
    instead = {"memory": as_json(hostile[0], ["1"], ["1"]), "memory-repair-1": as_json(hostile[1], ["1"], ["1"])}
    again = {"instruction-repair-1": (RECORDED / "softmax" / "instruction.md").read_text()}
    code, result, _, server = run(
        "softmax", "--generate-only", "--strategies", "memory,instruction", "--repairs", "1", "--out", "k.cu",
        instead={**instead, **again},
    )  # fmt: skip
    by = {s["name"]: s for s in result["strategies"]}
    assert code == 1
    assert not (tmp_path / "k.cu").exists()
    assert result["written"] == ""
    assert (by["memory"]["ending"], by["memory"]["repairs"]) == ("forbidden", 1)
    assert by["instruction"]["ending"] == "wrong_result"
    assert result["verdict"] == "No strategy produced a correct kernel (memory: forbidden, instruction: wrong result)."
    assert json.loads((tmp_path / "work" / "generate.json").read_text()) == result
    told = told_to(server)
    assert "Your answer could not be used: its result is wrong" in told
    assert re.search(r"first difference: y\[\d+\]", told)
    assert by["instruction"]["reason"] not in told  # what was expected stays here


def test_drafts_that_disagree_end_it_before_a_kernel_is_asked_for(run: Any) -> None:
    other = "```python\nimport numpy as np\ndef reference(x, y, n, a):\n    return a * y + x\n```"
    code, result, err, server = run("saxpy", "--llm-free-form", own=False, instead={"draft-3": other})
    assert (code, result) == (1, None)
    assert "the drafted references 'draft 1' and 'draft 3' disagree: 'y'[0] is" in err
    assert "give your own reference" in err
    assert asked(server, "saxpy") == ["task", "draft", "draft", "draft"]
    assert all("response_format" not in body for body in server.requests)
    # The recording tells the same without a server.
    again = run("saxpy", "--llm-free-form", "--llm", "replay:work/exchanges.jsonl", "--work", "again", own=False)
    assert again[:2] == (1, None)
    assert "the drafted references 'draft 1' and 'draft 3' disagree" in again[2]
    assert again[3].requests == []


def test_too_few_drafts_end_it(run: Any) -> None:
    bad = {"draft-1": "I would rather not.", "draft-2": "```python\ndef reference(x, y, n, a)\n```"}
    code, _, err, _ = run("saxpy", own=False, instead=bad)
    assert code == 1
    assert "1 of 3 drafts of a reference can be run, and two must agree" in err
    assert err.count("\n") == 1
    # One that takes other arguments than the task has is no draft of it either.
    other = {
        "draft-2": "```python\ndef reference(matrix):\n    return matrix\n```",
        "draft-3": "```python\nreference = 1\n```",
    }
    code, _, err, _ = run("saxpy", own=False, instead=other)
    assert code == 1
    assert (
        "1 of 3 drafts of a reference can be run, and two must agree: the reference 'reference' raises TypeError" in err
    )


def test_a_task_that_nobody_can_use_is_asked_for_once_more(run: Any) -> None:
    code, _, err, server = run("saxpy", instead={"task": '{"arguments": []}', "task-repair-1": "sorry"})
    assert code == 1
    assert err == (
        "optiml: the model did not derive a task from the description: the answer holds no JSON object with the task; describe the "
        "computation, its types and sizes\n"
    )
    told = server.requests[1]["messages"][-1]["content"]
    assert "Your answer could not be used" in told


def test_the_batch_door_takes_the_questions_and_the_same_command_goes_on(run: Any, tmp_path: Path) -> None:
    batch = tmp_path / "batch"
    door = ("--llm", f"batch:{batch}", "--llm-model", "m", "--generate-only", "--strategies", "memory")
    code, result, err, server = run("column_sum", *door)
    assert (code, result) == (4, None)
    assert f"put their answers into {batch / 'responses.jsonl'} and run the same command again" in err
    [question] = [json.loads(line) for line in (batch / "index.jsonl").read_text().splitlines()]
    assert question["about"] == "the task"
    assert question["custom_id"] == custom_id(question["label"], "m")
    body = json.loads(completion((RECORDED / "column_sum" / "task.md").read_text()))
    response = {"custom_id": question["custom_id"], "response": {"status_code": 200, "body": body}, "error": None}
    (batch / "responses.jsonl").write_text(json.dumps(response) + "\n")
    code, _, _, _ = run("column_sum", *door)
    assert code == 4
    abouts = [json.loads(line)["about"] for line in (batch / "index.jsonl").read_text().splitlines()]
    assert abouts == ["plan: Memory hierarchy"]
    assert server.requests == []


def test_plans_and_kernels_are_told_lessons_of_earlier_runs(run: Any, tmp_path: Path) -> None:
    path = tmp_path / "lessons.sqlite"
    memory = Memory(path)
    memory.add(
        Lesson(
            "elsewhere", "sm_90", ("memory_bound",), {"loops": 2.0}, "rules", "r", "Pad tiles", Outcome.ACCEPTED, 3.0
        )
    )
    memory.close()
    told = "## What edits of other kernels taught\n- Pad tiles: gave 3x on sm_90\n"
    arguments = (
        "softmax",
        "--generate-only",
        "--strategies",
        "memory",
        "--repairs",
        "0",
        "--memory",
        "--memory-file",
        str(path),
    )
    for more, count in (((), 0), (("--memory-across",), 2)):  # another repository's, unless the user says so
        hostile = {"memory": as_json('__global__ void softmax_kernel() { asm("trap;"); }', ["1"], ["1"])}
        _, result, _, server = run(*arguments, *more, instead=hostile)
        assert result["written"] == ""
        assert told_to(server).count(told) == count
        assert f"the model was told {min(count, 1)} lesson{'s' * (not count)} of earlier runs" in result["notes"]
    path.write_bytes(b"no database" * 100)
    code, result, err, server = run(*arguments)
    assert (code, result, server.requests) == (1, None, [])
    assert err.startswith("optiml: ")
    assert "the memory cannot be opened" in err


def test_a_budget_stops_it_and_says_so(run: Any) -> None:
    code, _, err, server = run("saxpy", "--llm-budget", "1tok", own=False)
    assert code == 1
    assert "the budget for the model is spent" in err
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["  "], 2, "the description is empty"),
        (["!?"], 2, "the description is empty"),
        (["x" * 3000], 2, "has 3000 characters"),
        (["saxpy"], 2, "no model server is configured"),
        (["saxpy", "--reference", "nowhere.py:f"], 2, "cannot be read"),
        (["saxpy", "--strategies", "magic"], 2, "unknown strategy 'magic'"),
        (["saxpy", "--out", "k.txt"], 2, "is not a CUDA file"),
        (["saxpy", "--out", "there.cu"], 2, "already exists"),
        (["saxpy", "--out", "no/where.cu"], 2, "does not exist"),
        (["saxpy", "--budget", "soon"], 2, "invalid budget"),
        (
            ["saxpy", "--work", ".", "--llm", "batch:b", "--llm-model", "m"],
            2,
            "contains files that are not from optiml generate",
        ),
        (["saxpy", "--repairs", "99"], 2, "expected --repairs from 0"),
        (["saxpy", "--llm", "replay:nothing.jsonl"], 2, "cannot be read"),
    ],
)
def test_wrong_use_is_one_sentence(
    arguments: list[str], code: int, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("OPENAI_BASE_URL", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "there.cu").write_text("somebody's work")
    assert cli.main(["generate", *arguments, "--device", "cpu"]) == code
    err = capsys.readouterr().err
    assert says in err
    assert err.count("\n") == 1
    assert (tmp_path / "there.cu").read_text() == "somebody's work"


def test_a_server_that_fails_is_one_sentence(run: Any) -> None:
    code, _, err, _ = run("saxpy", script=status(401))
    assert code == 1
    assert "refuses the request with status 401" in err
    code, _, err, _ = run("saxpy", script=ok(completion(None, refusal="no")))
    assert code == 1
    assert "the model refused" in err


def test_a_reference_that_raises_ends_it_before_the_model_is_asked(run: Any, tmp_path: Path) -> None:
    (tmp_path / "ref.py").write_text("raise RuntimeError('broken')\n")
    code, _, err, server = run("saxpy", "--reference", "ref.py:saxpy", own=False)
    assert code == 1
    assert "ref.py: the reference 'saxpy' cannot be imported: RuntimeError: broken (line 1)" in err
    assert server.requests == []


def test_the_page_names_every_field_and_strategy() -> None:
    import dataclasses

    page = (ROOT / "docs" / "generate.md").read_text()
    for part in (GenerationResult, StrategyResult):
        for field in dataclasses.fields(part):
            assert f"`{field.name}`" in page, field.name
    for strategy in STRATEGIES:
        assert f"`{strategy.name}`" in page


def test_a_correct_kernel_whose_speed_cannot_be_predicted_is_written(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command ended with "no correct kernel can be the baseline" and wrote nothing."""

    def doubt(*_: object) -> None:
        raise NotPredictedError("not predicted: with other inputs it is 3 times as long", do="measure it on a GPU")

    monkeypatch.setattr(Speeds, "_doubt", doubt)
    code, result, _, _ = run("saxpy", "--strategies", "parallel,memory", "--repairs", "0", "--out", "k.cu")
    assert code == 0
    assert (tmp_path / "k.cu").read_bytes() == (tmp_path / "work" / f"{result['best']}.cu").read_bytes()
    assert (result["ratio"], result["optimized"], result["yardstick"]) == (None, None, "")
    assert "speeds cannot be predicted without a GPU; 2 of 2 strategies" in result["verdict"]
    why = "not predicted: with other inputs it is 3 times as long; measure it on a GPU"
    assert f"the kernels are not compared by speed: {why}" in result["notes"]
    assert result["checks"]["written"] > 0
    assert [s["role"] for s in result["strategies"] if s["name"] == result["best"]] == ["best"]
    assert all(s["ratio"] is None and s["right"] for s in result["strategies"])
