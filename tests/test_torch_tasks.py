"""Tasks written in PyTorch: references made from a checkout, questions and answers as files, and the tasks' own tests as judge."""

from __future__ import annotations

import contextlib
import json
import runpy
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("jinja2")

from benchmarks import torch_judge, torch_tasks
from benchmarks.pareval import Place
from benchmarks.torch_judge import Judged
from benchmarks.torch_reference import (
    ReferenceTextError,
    drawn,
    kernelbench_reference,
    kernelbench_tasks,
    leetgpu_reference,
    leetgpu_tasks,
)
from engine.generate.task import Task, read_task
from engine.process.sandbox import available
from tests.engine.generate.test_oracle import TORCH

FOLDERS = sorted(path.parent for path in torch_tasks.FOLDER.glob("*/*/sentence.txt"))
needs_sandbox = pytest.mark.skipif(not available()[0], reason="untrusted code runs in a sandbox only")

# A challenge in the form of leetgpu-challenges'; all text is ours.
CHALLENGE = '''
import ctypes
from typing import Any

import torch
from core.challenge_base import ChallengeBase

FACTOR = 3
UNUSED = 4


def _grown(x):
    return x * FACTOR


class Challenge(ChallengeBase):
    name = "Grow"
    atol = rtol = 1e-5

    def reference_impl(self, x: torch.Tensor, y: torch.Tensor, N: int):
        """Prose of others."""
        assert x.dtype == torch.float32
        if N > 0:
            assert y.shape == (N,)
        y[:] = self._added(_grown(x).float(), torch.full((N,), 2.0, dtype=torch.float32))

    def _added(self, x, more):
        return x + more

    def generate_functional_test(self):
        return []

    def get_solve_signature(self):
        return {SIGNATURE}
'''
GOOD = """{
            "x": (ctypes.POINTER(ctypes.c_float), "in"),
            "y": (ctypes.POINTER(ctypes.c_float), "out"),
            "N": (ctypes.c_int, "in"),
        }"""
TASK = json.dumps(
    {
        "kernel": "grow",
        "sizes": [{"name": "N", "values": [4096]}],
        "arguments": [
            {"name": "x", "type": "float", "role": "in", "shape": ["N"], "fill": "normal"},
            {"name": "y", "type": "float", "role": "out", "shape": ["N"]},
            {"name": "N", "type": "int32", "role": "scalar", "shape": []},
        ],
    }
)
MODEL = '''
import torch
import torch.nn as nn

class Model(nn.Module):
    """Prose of others."""
    def __init__(self, slope):
        super().__init__()
        self.slope = slope

    def forward(self, x):
        assert x.dim() == 1
        return x * self.slope

size = 4096

def get_inputs():
    return [torch.rand(size)]

def get_init_inputs():
    return [2.0]
'''
KERNEL = """Idea: One thread for each element
Grid: (N + 255) / 256
Block: 256

```cuda
__global__ void grow_kernel(const float* x, float* y, int N) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < N) y[i] = 3.0f * x[i] + 2.0f;
}
```
"""


def task() -> Task:
    return read_task(TASK, cpu=True)


@pytest.fixture
def leetgpu(tmp_path: Path) -> Path:
    root = tmp_path / "leetgpu"
    two = GOOD.replace('c_float), "in"', 'c_float), "out"')
    strange = GOOD.replace('ctypes.c_int, "in"', 'torch.Tensor, "in"')
    for name, signature in (("1_grow", GOOD), ("2_two", two), ("3_strange", strange), ("4_again", GOOD)):
        folder = root / "challenges" / "easy" / name
        folder.mkdir(parents=True)
        (folder / "challenge.py").write_text(CHALLENGE.replace("{SIGNATURE}", signature))
    git = ["git", "-C", str(root), "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "one"], check=True)
    return root


@pytest.fixture
def kernelbench(tmp_path: Path) -> Path:
    for level in (1, 2, 3):
        folder = tmp_path / "KernelBench" / f"level{level}"
        folder.mkdir(parents=True)
        (folder / "1_Scale.py").write_text(MODEL)
    return tmp_path


class _Array(np.ndarray):
    """What the references here use of a tensor."""

    def to(self, dtype: Any) -> Any:
        return self.astype(dtype)


def stand_in() -> types.ModuleType:
    """In the place of PyTorch, which is no dependency of the tests."""
    torch: Any = types.ModuleType("torch")
    torch.Tensor, torch.float32 = _Array, np.float32
    torch.full = lambda shape, value, dtype: np.full(shape, value, dtype).view(_Array)
    torch.zeros = lambda shape, dtype: np.zeros(shape, dtype).view(_Array)
    torch.set_default_dtype = lambda dtype: None
    torch.no_grad = contextlib.nullcontext
    return torch  # type: ignore[no-any-return]


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda p: p.name[:40])
def test_a_task_can_be_read_and_its_sentence_names_the_parameters_in_order(folder: Path) -> None:
    task = read_task((folder / "task.md").read_text(), cpu=True)
    sentence = (folder / "sentence.txt").read_text()
    assert sentence.strip().endswith(f"Parameters in this order: {', '.join(a.name for a in task.arguments)}")
    assert len(task.check) >= 3
    extra = folder / "parameters.json"
    if extra.is_file():
        assert set(json.loads(extra.read_text())) <= {a.name for a in task.inputs}


def test_a_task_takes_the_names_of_the_modules_parameters(tmp_path: Path) -> None:
    folder = torch_tasks.FOLDER / "kernelbench" / "level2_12_Gemm_Multiply_LeakyReLU"
    task = read_task(torch_tasks.named_as_module(folder), required=("x", "gemm_weight", "gemm_bias"), cpu=True)
    assert [a.name for a in task.inputs] == ["x", "gemm_weight", "gemm_bias"]
    found = torch_tasks.read_one(tmp_path / "nowhere.py", folder)
    assert found["checks"] == 0
    assert "cannot be read" in found["error"]


@needs_sandbox
def test_every_check_of_a_task_is_asked_of_the_problems_own_file(tmp_path: Path) -> None:
    model = "class Model(torch.nn.Module):\n    def forward(self, x):\n        return Tensor(np.maximum(x.array, 0))\n"
    (tmp_path / "relu.py").write_text(TORCH + model)
    folder = torch_tasks.FOLDER / "kernelbench" / "level1_19_ReLU"
    found = torch_tasks.read_one(tmp_path / "relu.py", folder)
    assert (found["takes"], found["error"]) == (["x"], "")
    assert found["checks"] > 4


def test_there_are_twenty_tasks_of_each_set() -> None:
    for which in torch_tasks.SETS:
        folders = [p for p in (torch_tasks.FOLDER / which).iterdir() if p.is_dir() and p.name != "answers"]
        assert len(folders) == torch_tasks.COUNT
        assert all((p / "task.md").is_file() != (p / "impossible.txt").is_file() for p in folders)


def test_the_draw_takes_what_the_rule_admits_by_its_seed(leetgpu: Path, kernelbench: Path) -> None:
    assert leetgpu_tasks(leetgpu) == ["1_grow", "4_again"]
    assert kernelbench_tasks(kernelbench, (1, 2)) == ["level1/1_Scale", "level2/1_Scale"]
    many = [f"{i:03}" for i in range(100)]
    assert drawn(reversed(many), 20, 0) == drawn(many, 20, 0) == sorted(drawn(many, 20, 0))
    assert drawn(many, 20, 1) != drawn(many, 20, 0)
    assert torch_tasks.main(["draw", "leetgpu", "--checkout", str(leetgpu)]) == 0


def test_a_challenge_becomes_one_file_that_computes_in_the_type_of_its_inputs(
    leetgpu: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = leetgpu_reference(leetgpu, "1_grow", task())
    assert not any(word in text for word in ("assert", "Prose", "UNUSED", "generate_functional", "core.", "ctypes"))
    monkeypatch.setitem(sys.modules, "torch", stand_in())
    (tmp_path / "reference.py").write_text(text)
    space = runpy.run_path(str(tmp_path / "reference.py"))
    for dtype in (np.float32, np.float64):
        x = np.linspace(0, 1, 7, dtype=dtype).view(_Array)
        got = space["grow"](x, 7)
        assert got.dtype == dtype
        assert np.array_equal(got, x * 3 + 2)
    with pytest.raises(ReferenceTextError, match="no challenge 9_none"):
        leetgpu_reference(leetgpu, "9_none", task())


def test_a_model_becomes_one_file_that_calls_it_with_the_tasks_inputs(kernelbench: Path) -> None:
    text = kernelbench_reference(kernelbench, "level1/1_Scale", task(), {})
    assert "functional_call(_MODEL, {}, (x,)).reshape((N,))" in text
    assert not any(word in text for word in ("get_inputs", "Prose", "x.dim()"))
    compile(text, "reference.py", "exec")
    with pytest.raises(ReferenceTextError, match="no input weight"):
        kernelbench_reference(kernelbench, "level1/1_Scale", task(), {"weight": "fc.weight"})
    with pytest.raises(ReferenceTextError, match="no problem level1/2_None"):
        kernelbench_reference(kernelbench, "level1/2_None", task(), {})
    other = read_task(TASK.replace('"x"', '"z"'), cpu=True)
    with pytest.raises(ReferenceTextError, match="no input x"):
        kernelbench_reference(kernelbench, "level1/1_Scale", other, {})


@pytest.mark.slow
@needs_sandbox
def test_a_challenges_tests_judge_what_was_generated(
    leetgpu: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a reference in NumPy, as the tests have no PyTorch."""
    folder, questions, answers = tmp_path / "tasks", tmp_path / "questions", tmp_path / "answers"
    for each in (folder / "1_grow", questions, answers):
        each.mkdir(parents=True)
    (folder / "1_grow" / "task.md").write_text(TASK)
    (folder / "1_grow" / "sentence.txt").write_text("three times x and two. Parameters: x, y, N\n")
    monkeypatch.setattr(torch_tasks, "STRATEGIES", {"leetgpu": ("parallel",)})
    monkeypatch.setattr(torch_tasks, "reference_of", lambda *given: "def grow(x):\n    return x * 3 + 2\n")
    judged: list[str] = []

    def judge(checkout: Path, name: str, task: Task, program: Path) -> Judged:
        judged.append(program.read_text())
        return Judged("fail", 1, 0, "test 0: 'y' differs")

    monkeypatch.setattr(torch_tasks, "judge", judge)
    place = Place(folder, questions, answers, tmp_path / "work", leetgpu, "cpu")
    assert torch_tasks.samples("leetgpu", "1_grow", place) == []
    (asked,) = questions.iterdir()
    assert "return x * 3 + 2" in asked.read_text()
    (answers / asked.name).write_text("One thread for each.")
    (answers / "1_grow__parallel.txt").write_text(KERNEL)
    (sample,) = torch_tasks.samples("leetgpu", "1_grow", place)
    assert "3.0f * x[i]" in judged[0]
    assert (sample["correct"], sample["tests"], sample["tests_said"]) == (True, "fail", "test 0: 'y' differs")


@pytest.mark.slow
@needs_sandbox
def test_a_program_is_compiled_with_a_main_that_takes_inputs_and_gives_buffers_back(tmp_path: Path) -> None:
    seen: list[bytes] = []

    def tested(challenge: Path, sources: Path, out: Path) -> Judged:
        x = np.arange(5, dtype=np.float32)
        sent = b"".join((20).to_bytes(8, "little") + a.tobytes() for a in (x, 0 * x)) + (5).to_bytes(8, "little")
        seen.append(subprocess.run([out / "program"], input=sent, capture_output=True, check=True).stdout)
        return Judged("pass", 1)

    (tmp_path / "challenges" / "easy" / "1_grow").mkdir(parents=True)
    (tmp_path / "challenges" / "easy" / "1_grow" / "challenge.py").write_text("")
    program = tmp_path / "grow.cu"
    kernel = KERNEL.partition("```cuda\n")[2].partition("```")[0]
    host = "void grow(const float* x, float* y, int N, cudaStream_t s) { grow_kernel<<<1, 256, 0, s>>>(x, y, N); }\n"
    program.write_text(f"#include <cuda_runtime.h>\n{kernel}{host}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch_judge, "_tested", tested)
        assert torch_judge.judge(tmp_path, "1_grow", task(), program).verdict == "pass"
        program.write_text(f"#include <cuda_runtime.h>\n{kernel}}}{host}")
        assert torch_judge.judge(tmp_path, "1_grow", task(), program).verdict == "not built"
    x, y = np.frombuffer(seen[0], np.float32).reshape(2, 5)
    assert x.tolist() == [0, 1, 2, 3, 4]
    assert y.tolist() == [2, 5, 8, 11, 14]
