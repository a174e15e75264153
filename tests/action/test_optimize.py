"""The job that searches: a real pull request in a real repository, without a GPU, up to the bundle that the next job reads."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import ClassVar

import pytest

from action.optimize import run
from action.request import Request
from action.trees import write_tree
from bot.baseline import Baseline, CaseTime, Entry, spec_name, write_baseline
from bot.bundle import Comparison, Looked, read_bundle
from bot.git import Repository
from engine.config_text import ConfigError
from engine.evaluate.model import Signals
from engine.spec.find import find_spec
from tests.bot.make import measurement
from tests.hooks.conftest import KERNEL, git

ROOT = Path(__file__).resolve().parents[2]
FAST = KERNEL
# The lanes of a warp far from each other: the same result, in an order that no sector likes.
SLOW = KERNEL.replace(
    "if (i < n) y[i] = 2.0f * x[i];",
    "int m = (n + 31) / 32, j = i % 32 * m + i / 32;\n    if (i < 32 * m && j < n) y[j] = 2.0f * x[j];",
)


def commit(root: Path, message: str) -> str:
    git(root, "add", "-A")
    git(root, "commit", "-q", "-m", message)
    return git(root, "rev-parse", "HEAD").strip()


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    root = tmp_path / "clone"
    root.mkdir()
    git(root, "init", "-q", "-b", "main")
    return root


def look(clone: Path, base: str, head: str, out: Path, **asked: object) -> tuple[Looked, ...]:
    request = Request(1, base, head, False, **asked)  # type: ignore[arg-type]
    said: list[str] = []
    run(request, clone, out, device="cpu", say=said.append)
    bundle = read_bundle(out, head=head)
    assert bundle.complete
    assert len(said) == len(bundle.kernels)
    return bundle.kernels


def test_the_base_says_how_a_kernel_is_judged(clone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pull request that loosens its own spec, or gives settings of its own, is judged by those of the base."""
    import action.optimize as job

    seen = []

    def search(options: job.Options, machine: object) -> None:
        seen.append(options)
        raise job.MachineError("stands for the search")

    monkeypatch.setattr(job, "optimize", search)
    monkeypatch.setattr(job._Looker, "_compare", lambda *_: None)
    (clone / "k.cu").write_text(FAST)
    base = commit(clone, "base")
    (clone / "k.cu").write_text(
        "// optiml: tolerance = 0.1\n"
        + SLOW.replace("// optiml: args.x", "// optiml: tolerance = 0.1\n// optiml: args.x")
    )
    (clone / ".optiml.yml").write_text("exclude: ['**']\n")
    head = commit(clone, "head")
    (looked,) = look(clone, base, head, tmp_path / "out")
    assert looked.spec_from == "base"
    assert seen[0].spec[0].tolerance is None
    assert looked.error == "stands for the search"


def test_a_spec_that_no_longer_fits_comes_from_the_head(
    clone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import action.optimize as job

    def search(options: job.Options, machine: object) -> None:
        raise job.MachineError("stands for the search")

    monkeypatch.setattr(job, "optimize", search)
    monkeypatch.setattr(job._Looker, "_compare", lambda *_: None)
    (clone / "k.cu").write_text(FAST)
    base = commit(clone, "base")
    more = FAST.replace(
        "const float* x, float* y, int n) {\n    int i = blockIdx",
        "const float* x, float* y, int n, float f) {\n    int i = blockIdx",
    )
    more = (
        more.replace("2.0f * x[i]", "f * x[i]")
        .replace("(x, y, n);", "(x, y, n, 2.0f);")
        .replace("time = [", 'args.f = { value = "2.0" }\n// optiml: time = [')
    )
    (clone / "k.cu").write_text(more)
    head = commit(clone, "head")
    (looked,) = look(clone, base, head, tmp_path / "out")
    assert looked.spec_from == "head", looked
    (clone / "new.cu").write_text(FAST.replace("scale", "fresh").replace("other", "bare"))
    fresh, bare = look(clone, head, commit(clone, "new"), tmp_path / "new")
    assert (fresh.changed.new, fresh.spec_from, bare.spec_from) == (True, "head", "none")


@pytest.mark.parametrize(
    ("asked", "settings", "proposers", "model"),
    [
        ("", "", ("rules",), None),
        ("rules,llm", "", ("rules", "llm"), ""),
        ("llm", "", ("llm",), ""),
        ("", "model: {enabled: true, name: qwen}\n", ("rules", "llm"), "qwen"),
        ("rules", "model: {enabled: true}\n", ("rules",), None),
    ],
)
def test_who_proposes_is_asked_for_or_set_by_the_base(
    clone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: str, settings: str, proposers: tuple[str, ...],
    model: str | None,
) -> None:  # fmt: skip
    import action.optimize as job

    seen = []

    def search(options: job.Options, machine: object) -> None:
        seen.append(options)
        raise job.MachineError("stands for the search")

    monkeypatch.setattr(job, "optimize", search)
    monkeypatch.setattr(job._Looker, "_compare", lambda *_: None)
    (clone / "k.cu").write_text(FAST)
    (clone / ".optiml.yml").write_text(settings)
    base = commit(clone, "base")
    (clone / "k.cu").write_text(SLOW)
    (clone / ".optiml.yml").write_text("model: {enabled: true, name: strangers}\n")
    look(clone, base, commit(clone, "head"), tmp_path / "out", proposers=asked)
    assert seen[0].proposers == proposers
    assert (seen[0].llm.model if seen[0].llm else None) == model


def test_the_baseline_is_asked_for_the_device_that_the_kernel_ran_on(
    clone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A GPU's evaluator knows its device once it was opened, and not before."""
    import action.optimize as job

    class Evaluator:
        device: ClassVar[dict[str, str]] = {}

        @property
        def signals(self) -> Signals:
            return Signals("measured", dict(self.device))

        def close(self) -> None: ...

    class Machine:
        mode = "measured"

        def evaluator(self, *_: object) -> Evaluator:
            return Evaluator()

        def close(self) -> None: ...

    def compared(evaluator: Evaluator, base: object, head: object) -> Comparison:
        evaluator.device["name"] = "NVIDIA H200"
        return Comparison("slower", measurement(0.5))  # 200 µs now

    monkeypatch.setattr(job, "machine_for", lambda *_: Machine())
    monkeypatch.setattr(job, "compare", compared)
    (clone / "k.cu").write_text(FAST)
    base = commit(clone, "base")
    spec, _ = find_spec(clone, clone / "k.cu", "scale")
    entry = Entry(
        "k.cu", "scale", "NVIDIA H200 measured", spec_name(spec), base, False, (CaseTime("n=4096", 1.0, 100.0),)
    )
    write_baseline(Baseline((entry,)), tmp_path / "past")
    (clone / "k.cu").write_text(SLOW)
    request = Request(1, base, commit(clone, "head"), False, command="check")
    bundle = run(request, clone, tmp_path / "out", device="gpu", say=print, baseline=tmp_path / "past")
    history = bundle.kernels[0].history
    assert history is not None
    assert (history.commit, round(history.slower, 6), history.predicted) == (base, 2.0, False)


def test_a_kernel_that_is_named_is_searched_though_nothing_changed_in_it(
    clone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import action.optimize as job

    monkeypatch.setattr(job._Looker, "_compare", lambda *_: None)
    (clone / "k.cu").write_text(FAST)
    base = commit(clone, "base")
    (clone / "other.cu").write_text("__global__ void k(float* y) { y[0] = 1; }\n")
    head = commit(clone, "head")

    def named(**asked: str) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
        request = Request(1, base, head, False, budget_s=1.0, **asked)  # type: ignore[arg-type]
        run(request, clone, tmp_path / "out", device="cpu", say=lambda text: None)
        bundle = read_bundle(tmp_path / "out", head=head)
        return [(k.changed.path, k.changed.kernel) for k in bundle.kernels], [
            (s.path, s.reason) for s in bundle.skipped
        ]

    assert named(path="k.cu", kernel="scale") == ([("k.cu", "scale")], [])
    assert named(path="k.cu") == ([("k.cu", "scale"), ("k.cu", "other")], [])
    assert named(kernel="k") == ([("other.cu", "k")], [])
    for missing in ({"path": "k.cu", "kernel": "none"}, {"path": "none.cu"}):
        assert named(**missing) == ([], [(missing["path"], "there is no such kernel in it")])
    assert named(kernel="none") == ([], [("this pull request", "there is no such kernel in it")])


def test_nothing_changed_and_what_is_beyond_the_limit(clone: Path, tmp_path: Path) -> None:
    (clone / "k.cu").write_text(FAST)
    (clone / ".optiml.yml").write_text("budget: {kernels: 1}\nexclude: ['vendor/**']\n")
    base = commit(clone, "base")
    assert look(clone, base, base, tmp_path / "none") == ()
    (clone / "vendor").mkdir()
    for name in ("a.cu", "b.cu", "vendor/c.cu"):
        (clone / name).write_text("__global__ void k(float* y) { y[0] = 1; }\n")
    head = commit(clone, "head")
    run(Request(1, base, head, False), clone, tmp_path / "out", device="cpu", say=lambda text: None)
    bundle = read_bundle(tmp_path / "out", head=head)
    assert [k.changed.path for k in bundle.kernels] == ["a.cu"]
    assert "has no spec for the kernel" in bundle.kernels[0].error
    assert {(s.path, s.reason) for s in bundle.skipped} == {
        ("b.cu", "over 1 kernels changed; this one is beyond them"),
        ("vendor/c.cu", "the settings leave it out"),
    }


def test_wrong_settings_of_the_base_are_an_error(clone: Path, tmp_path: Path) -> None:
    (clone / ".optiml.yml").write_text("budgt: {}\n")
    base = commit(clone, "base")
    with pytest.raises(ConfigError, match="did you mean 'budget'"):
        run(Request(1, base, base, False), clone, tmp_path / "out", device="cpu", say=lambda text: None)


def test_links_and_odd_names_of_a_stranger_are_not_written(clone: Path, tmp_path: Path) -> None:
    (tmp_path / "secret.h").write_text("token")
    (clone / "k.cu").write_text(FAST)
    (clone / "secret.h").symlink_to(tmp_path / "secret.h")
    (clone / "notes.txt").write_text("no source")
    (clone / "big.h").write_bytes(b"x" * (3 << 20))
    head = commit(clone, "head")
    folder = write_tree(Repository(clone), head, tmp_path / "tree")
    assert sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*")) == [".git", "k.cu"]
    assert (folder / "k.cu").read_text() == FAST


def test_the_bundle_is_plain_json(clone: Path, tmp_path: Path) -> None:
    (clone / "k.cu").write_text("__global__ void k(float* y) { y[0] = 1; }\n")
    base = commit(clone, "base")
    (clone / "k.cu").write_text("__global__ void k(float* y) { y[0] = 2; }\n")
    head = commit(clone, "head")
    (looked,) = look(clone, base, head, tmp_path / "out")
    assert looked.error.startswith("k.cu: has no spec for the kernel")
    assert str(tmp_path.parent) not in looked.error
    assert "/optiml-" not in looked.error
    assert json.loads((tmp_path / "out" / "bundle.json").read_text())["head"] == head


@pytest.mark.gpu
@pytest.mark.timeout(400)
def test_on_a_gpu_both_are_measured(clone: Path, tmp_path: Path) -> None:
    """One pull request that makes a kernel slower and brings one that could be faster."""
    (clone / "k.cu").write_text(FAST)
    base = commit(clone, "base")
    (clone / "k.cu").write_text(SLOW)
    shutil.copy(ROOT / "examples" / "softmax.cu", clone / "softmax.cu")
    head = commit(clone, "head")
    run(Request(1, base, head, False, budget_s=120.0), clone, tmp_path / "out", device="gpu", say=print)
    found = {looked.changed.kernel: looked for looked in read_bundle(tmp_path / "out", head=head).kernels}
    slower = found["scale"].comparison
    assert slower is not None
    assert slower.standing == "slower"
    assert slower.measurement is not None
    assert not slower.measurement.predicted
    result = found["softmax_kernel"].result
    assert result is not None
    assert result.mode == "measured"
    assert result.best is not None
    assert found["softmax_kernel"].patch
