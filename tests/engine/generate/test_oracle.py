from __future__ import annotations

import dataclasses
import os
import random
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.errors import RefusedError, UsageError
from engine.generate.oracle import (
    Oracle,
    Reference,
    ReferenceCheck,
    ReferenceError_,
    compare,
    prepare,
    read_reference,
    repeats,
)
from engine.generate.task import Task, read_task
from engine.model import Program
from engine.process.sandbox import sandbox
from engine.spec.kernel_spec import KernelSpec
from engine.spec.reader import specs_in
from engine.verify.plan import Check, plan

from .scripts import RECORDED

RIGHT = """import numpy as np

def softmax(x):
    e = np.exp(x - x.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)
"""


def made(name: str = "softmax") -> tuple[Task, KernelSpec]:
    task = read_task((RECORDED / name / "task.md").read_text(), cpu=True)
    return task, specs_in(Program({"k.cu": task.file(("",)).encode()}, "k.cu"), None)[0]


@pytest.fixture
def ask() -> Iterator[Any]:
    started: list[Oracle] = []

    def start(source: str, function: str = "softmax", name: str = "ref.py", **more: Any) -> Oracle:
        oracle = Oracle(Reference(textwrap.dedent(source).encode(), function, name, **more), sandbox())
        started.append(oracle)
        return oracle

    yield start
    for oracle in started:
        oracle.close()


def test_a_reference_answers_every_check_and_sets_the_tolerance_by_its_own_rounding(ask: Any) -> None:
    task, spec = made()
    oracle = ask(RIGHT)
    assert (oracle.required, oracle.optional) == (("x",), ())
    known = prepare(spec, task, [oracle], plan(spec, random.Random(1)))
    assert len(known) == 5 * len(spec.check)
    repeats(spec, task, oracle, known[0])
    one = next(k for k in known if k.case.sizes == {"rows": 7, "cols": 129})
    x = one.buffers["x"].astype(np.float64).reshape(7, 129)
    e = np.exp(x - x.max(axis=1, keepdims=True))
    assert np.allclose(one.wide["y"], (e / e.sum(axis=1, keepdims=True)).ravel(), rtol=1e-12)
    assert compare(spec, task, one, one.narrow) is None
    off = one.narrow["y"].copy()
    off[200] *= np.float32(1.001)
    failure = compare(spec, task, one, {"y": off})
    assert failure is not None
    assert (failure.argument, failure.index) == ("y", 200)
    for control in (np.zeros_like(off), one.buffers["y"], one.buffers["x"]):
        assert compare(spec, task, one, {"y": control}) is not None


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("def other(x):\n    return x\n", "has no function 'softmax'; it has other"),
        ("def softmax(x:\n    return x\n", r"cannot be imported: SyntaxError.*line 1"),
        ("import nowhere_to_be_found\n", "cannot be imported: ModuleNotFoundError.*line 1"),
        ("raise SystemExit(0)\n", "cannot be imported: SystemExit"),
        ("def softmax(*x):\n    return x\n", "must take its arguments by name"),
        ("softmax = 3\n", "has no function"),
        ("import os\nos._exit(0)\n", "ended its process"),
    ],
)
def test_a_reference_that_cannot_be_asked_is_refused_with_one_sentence(ask: Any, source: str, says: str) -> None:
    with pytest.raises(ReferenceError_, match=says) as error:
        ask(source)
    assert error.value.where == "ref.py"


def test_an_answer_that_does_not_fit_is_refused_with_one_sentence(ask: Any) -> None:
    """One reference that answers each call in another wrong way; the last one ends its process."""
    task, spec = made()
    bad = {
        "x.undefined": r"raises AttributeError.*line 7",
        "x[0]": r"returns 'y' with the shape .129. where .7, 129. is expected .case rows=7,cols=129",
        "None": "returns nothing",
        "{'z': x}": "the outputs are",
        "np.array(['a'])": "is not numeric",
        "x.astype(complex)": "is not numeric",
        "np.zeros((1 << 40,))": "raises .*Memory",
        "(_ for _ in ()).throw(KeyboardInterrupt)": "raises KeyboardInterrupt",
        "os._exit(3)": "ended its process",
    }
    lines = "".join(f"    if calls[0] == {i}: return {text}\n" for i, text in enumerate(bad, 1))
    oracle = ask("import os\nimport numpy as np\ncalls = [0]\n\ndef softmax(x):\n    calls[0] += 1\n" + lines)
    for says in bad.values():
        with pytest.raises(ReferenceError_, match=says):
            prepare(spec, task, [oracle], [Check(1, "declared", 3)])


def test_a_reference_that_disagrees_with_itself_is_refused(ask: Any) -> None:
    task, spec = made()
    oracle = ask("import numpy as np\ndef softmax(x):\n    return np.random.default_rng().random(x.shape)\n")
    known = prepare(spec, task, [oracle], [Check(1, "declared", 3)])
    with pytest.raises(ReferenceError_, match=r"is not deterministic: 'y'\[0\] was"):
        repeats(spec, task, oracle, known[0])


def test_what_a_reference_prints_and_reads_from_its_input_disturbs_nothing(ask: Any) -> None:
    task, spec = made()
    loud = "import os, sys\nos.write(1, b'OML1' * 50)\nprint('hello')\nsys.stdin.read()\n" + RIGHT
    assert prepare(spec, task, [ask(loud)], [Check(0, "declared", 3)])[0].wide["y"] == pytest.approx([1.0])


def test_a_hostile_reference_reaches_no_file_no_network_and_no_secret(ask: Any, tmp_path: Path) -> None:
    """What it can see is told through the numbers that it returns: all of them say 0."""
    task, spec = made()
    secret, there = tmp_path / "secret.txt", tmp_path / "written"
    secret.write_text("a secret")
    os.environ["OPTIML_TEST_SECRET"] = "a secret"
    try:
        oracle = ask(f"""
            import os, socket, subprocess
            import numpy as np

            def tried(what):
                try:
                    what()
                    return 1.0
                except BaseException:
                    return 0.0

            def network():
                socket.create_connection(("1.1.1.1", 53), timeout=0.5)

            def softmax(x):
                y = np.zeros_like(x)
                seen = [
                    tried(lambda: open({str(secret)!r}).read()),
                    tried(lambda: open({str(there)!r}, "w").write("x")),
                    tried(lambda: open("/etc/passwd").read()),
                    tried(lambda: os.listdir("/home") and os.listdir("/root")),
                    tried(network),
                    tried(lambda: os.environ["OPTIML_TEST_SECRET"]),
                    tried(lambda: open("/proc/1/environ").read().index("OPTIML_TEST_SECRET")),
                    tried(lambda: os.kill({os.getpid()}, 9) if {os.getpid()} > 50 else 1 / 0),
                    tried(lambda: open(np.__file__, "a").write("#")),
                ]
                y[0, : len(seen)] = seen
                y[1, 0] = len(seen)
                return y
        """)
        known = prepare(spec, task, [oracle], [Check(1, "declared", 3)])[0]
    finally:
        del os.environ["OPTIML_TEST_SECRET"]
    told = known.wide["y"].reshape(7, 129)
    assert told[1, 0] == 9
    assert told[0, :9].tolist() == [0.0] * 9
    assert not there.exists()


def test_a_reference_that_never_ends_is_stopped(ask: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    task, spec = made()
    monkeypatch.setattr("engine.generate.oracle._CALL_S", 0.3)
    oracle = ask("def softmax(x):\n    while True:\n        pass\n")
    with pytest.raises(ReferenceError_, match="did not answer in 0 s"):
        prepare(spec, task, [oracle], [Check(0, "declared", 3)])


def test_drafts_that_disagree_are_refused_with_the_element_that_differs(ask: Any) -> None:
    task, spec = made()
    other = RIGHT.replace("return e / e.sum(axis=1, keepdims=True)", "return e / e.sum()")
    drafts = [ask(s, name=f"draft {i}", origin="drafted") for i, s in enumerate((RIGHT, RIGHT, other), 1)]
    checks = [Check(0, "declared", 3), Check(1, "declared", 3)]
    said = r"'draft 1' and 'draft 3' disagree: 'y'\[0\] is 0\.\d+ in one and 0\.\d+ in the other \(case rows=7,cols=129"
    with pytest.raises(RefusedError, match=said):
        prepare(spec, task, drafts, checks)
    assert not drafts[0].reference.confirmed


def test_no_draft_widens_the_tolerance(ask: Any) -> None:
    """A draft that is inaccurate in single precision counts no more than the most accurate one."""
    task, spec = made()
    rough = RIGHT.replace("return ", "r = ").rstrip() + "\n    return r + (x.dtype == np.float32) * r.max() * 1e-5\n"
    checks = [Check(1, "declared", 3)]
    alone = prepare(spec, task, [ask(rough)], checks)[0].noise["y"].error
    both = prepare(spec, task, [ask(rough), ask(RIGHT)], checks)[0].noise["y"].error
    exact = prepare(spec, task, [ask(RIGHT)], checks)[0].noise["y"].error
    assert both == exact < alone


def test_inputs_come_as_the_kernel_gets_them(ask: Any) -> None:
    """Shapes, types, scalars rounded to their type; integers stay integers, an inout is both."""
    task, spec = made("saxpy")
    oracle = ask(
        "def saxpy(a, x, y, n):\n    assert x.shape == (n,) and isinstance(a, float)\n    return a * x + y\n", "saxpy"
    )
    known = prepare(spec, task, [oracle], [Check(1, "declared", 3)])[0]
    a = known.case.sizes["a"]
    want = a * known.buffers["x"].astype(float) + known.buffers["y"].astype(float)
    assert np.array_equal(known.wide["y"], want)


def test_whole_outputs_are_held_to_whole_numbers(ask: Any) -> None:
    task, spec = made()
    whole = dataclasses.replace(
        task, arguments=(task.arguments[0], dataclasses.replace(task.arguments[1], type="int8"), *task.arguments[2:])
    )
    spec = specs_in(Program({"k.cu": whole.file(("",)).encode()}, "k.cu"), None)[0]
    checks = [Check(1, "declared", 3)]
    with pytest.raises(ReferenceError_, match="not whole"):
        prepare(spec, whole, [ask(RIGHT)], checks)
    with pytest.raises(ReferenceError_, match="int8 cannot hold"):
        prepare(spec, whole, [ask("def softmax(x):\n    return (x * 0 + 300)\n")], checks)
    known: ReferenceCheck = prepare(spec, whole, [ask("def softmax(x):\n    return (x > 0)\n")], checks)[0]
    assert known.wide["y"].dtype == np.int8
    assert set(known.wide["y"].tolist()) == {0, 1}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("ref.py", "expected e.g. ref.py:softmax"),
        (":softmax", "expected e.g."),
        ("ref.py:soft max", "expected e.g."),
        ("nowhere.py:softmax", "cannot be read"),
        (".:softmax", "is a folder"),
    ],
)
def test_a_reference_that_is_not_there_is_refused(text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        read_reference(text)


def test_a_giant_reference_is_refused(tmp_path: Path) -> None:
    (tmp_path / "big.py").write_bytes(b"#" * (300 << 10))
    with pytest.raises(UsageError, match="exceeds 256 KiB"):
        read_reference(f"{tmp_path / 'big.py'}:f")


# PyTorch is no dependency of the tests: this stands in for it with what a reference and the worker use of a tensor.
TORCH = """
import sys, types
import numpy as np

class Tensor:
    def __init__(self, array, gradient=False):
        self.array, self.gradient = array, gradient

    def __array__(self, dtype=None, copy=None):
        raise RuntimeError("cannot call numpy() on a tensor that requires a gradient")

    def detach(self):
        return Tensor(self.array)

    def is_floating_point(self):
        return self.array.dtype.kind == "f"

    def double(self):
        return Tensor(self.array.astype(np.float64))

    def numpy(self):
        return self.array

    @property
    def dtype(self):
        return self.array.dtype

class Module:
    def named_parameters(self):
        return [(name, value) for name, value in vars(self).items() if isinstance(value, Tensor)]

def functional_call(module, parameters, args, kwargs):
    for name, value in parameters.items():
        setattr(module, name, value)
    return module.forward(*args, **kwargs)

torch = types.ModuleType("torch")
torch.Tensor, torch.from_numpy = Tensor, Tensor
torch.nn, torch.func = types.SimpleNamespace(Module=Module), types.SimpleNamespace(functional_call=functional_call)
torch.manual_seed = torch.set_default_dtype = lambda value: None
torch.no_grad = __import__("contextlib").nullcontext
sys.modules["torch"] = torch
"""


def test_a_reference_in_pytorch_gets_tensors_and_returns_them(ask: Any) -> None:
    task, spec = made()
    body = """
def softmax(x):
    assert type(x) is torch.Tensor
    e = np.exp(x.array - x.array.max(axis=1, keepdims=True))
    return Tensor(e / e.sum(axis=1, keepdims=True), gradient=True)
"""
    check = [Check(1, "declared", 3)]
    known = prepare(spec, task, [ask(TORCH + body)], check)[0]
    expected = prepare(spec, task, [ask(RIGHT)], check)[0]
    assert np.array_equal(known.wide["y"], expected.wide["y"])
    assert np.array_equal(known.narrow["y"], expected.narrow["y"])


MODEL = """
class Model(torch.nn.Module):
    def __init__(self, times):
        self.times, self.y = times, Tensor(np.zeros(3))

    def forward(self, x, n, a=1.0):
        return Tensor(self.times * a * x.array + self.y.array)

def get_inputs():
    return [Tensor(np.zeros(3))]

def get_init_inputs():
    return [2]
"""


def test_a_module_is_a_reference_with_its_parameters_as_inputs(ask: Any) -> None:
    """The form of KernelBench's tasks; it had to be written as a function first."""
    task, spec = made("saxpy")
    check = [Check(1, "declared", 3)]
    oracle = ask(TORCH + MODEL, "Model")
    assert (oracle.required, oracle.optional) == (("x", "n", "y"), ("a",))
    known = prepare(spec, task, [oracle], check)[0]
    expected = prepare(spec, task, [ask("def saxpy(x, y, a):\n    return 2 * a * x + y\n", "saxpy")], check)[0]
    assert np.array_equal(known.wide["y"], expected.wide["y"])
    assert np.array_equal(known.narrow["y"], expected.narrow["y"])


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        ("return [2]", "return []", "cannot be made: TypeError.*missing 1 required positional argument: 'times'"),
        ("def get_init_inputs", "def other", "cannot be made: TypeError"),
        ("def forward", "def run", "cannot be made: AttributeError.*forward"),
        (
            "self.times, self.y",
            "self.times, self.x",
            "cannot be made: ValueError: 'x' is an argument of forward and a parameter",
        ),
        ("class Model", "class Other", "has no function 'Model'"),
    ],
)
def test_a_module_with_missing_parts_is_refused_with_one_sentence(ask: Any, before: str, after: str, says: str) -> None:
    assert before in MODEL
    with pytest.raises(ReferenceError_, match=says):
        ask(TORCH + MODEL.replace(before, after), "Model")


def test_what_a_type_cannot_hold_apart_from_zero_is_no_wrong_result(ask: Any) -> None:
    """A product of the smallest normal numbers is zero in single precision and 1e-76 in double precision: a kernel's zero was refused."""
    task, spec = made()
    source = "import numpy as np\ndef softmax(x):\n    return (x * 0 + x.dtype.type(1e-38)) * (x * 0 + x.dtype.type(1e-38))\n"
    known = prepare(spec, task, [ask(source)], [Check(0, "declared", 3)])[0]
    assert 0 < known.wide["y"][0] < 1e-75
    assert compare(spec, task, known, {"y": np.zeros(1, np.float32)}) is None
    assert compare(spec, task, known, {"y": np.full(1, 1e-12, np.float32)}) is not None


def test_what_the_reference_itself_rounds_away_is_no_wrong_result(ask: Any) -> None:
    """`1 + erf(x)` far on the left is zero in double precision; a kernel that used `erfc` gave 1e-21, and was refused."""
    task, spec = made()
    known = prepare(spec, task, [ask("def softmax(x):\n    return (x * 0 + 1) - 1\n")], [Check(0, "declared", 3)])[0]
    assert compare(spec, task, known, {"y": np.full(1, 1e-21, np.float32)}) is None
    assert compare(spec, task, known, {"y": np.full(1, 1e-12, np.float32)}) is not None


def test_inputs_on_which_single_precision_fails_by_itself_are_left_out(ask: Any) -> None:
    """Attention over scores of 1e8: kernels that the task's own tests passed were refused for the order of their sums."""
    task, spec = made()
    source = "import numpy as np\ndef softmax(x):\n    return np.sin(x.mean() * 0 + x * x.dtype.type({}))\n"
    checks = [Check(1, family, 3) for family in ("declared", "special")]
    steep, flat = (prepare(spec, task, [ask(source.format(by))], checks) for by in ("3e6", "3"))
    assert [known.family for known in flat] == ["declared", "special"]
    assert [known.family for known in steep] == ["declared"]
