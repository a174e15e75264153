"""The job that searches: a real pull request in a real repository, without a GPU, up to the bundle that the next job reads."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, ClassVar

import pytest

from action import kept_reviews, kernel_review
from action.kept_reviews import ANSWERED
from action.looker import Looker
from action.request import Request
from action.search_job import JobInputs, run, wanted
from action.trees import write_tree
from bot.baseline import Baseline, CaseTime, Entry, spec_name, write_baseline
from bot.bundle import Comparison, Looked, read_bundle
from bot.changed import ChangedKernel
from bot.clone import Repository
from engine.capture.manifest import VERSION, Manifest, RecordedKernel, save_manifest
from engine.errors import UsageError
from engine.evaluate.evaluator import Signals
from engine.run.result import OptimizationResult
from engine.settings.config import Config
from engine.settings.config_text import ConfigError
from engine.spec.find import find_spec
from tests.bot.make import measurement, result
from tests.hooks.conftest import KERNEL, git

ROOT = Path(__file__).resolve().parents[2]
CPU = JobInputs("cpu")
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


@pytest.fixture(autouse=True)
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What reviews keep for later ones, of this test alone."""
    folder = tmp_path / "reviews"
    monkeypatch.setattr(kept_reviews, "folder", lambda: folder)
    return folder


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    root = tmp_path / "clone"
    root.mkdir()
    git(root, "init", "-q", "-b", "main")
    return root


def look(clone: Path, base: str, head: str, out: Path, **asked: object) -> tuple[Looked, ...]:
    request = Request(1, base, head, False, **asked)  # type: ignore[arg-type]
    said: list[str] = []
    run(request, clone, out, CPU, said.append)
    bundle = read_bundle(out, head=head)
    assert bundle.complete
    assert len(said) == len(bundle.kernels)
    return bundle.kernels


def instead_of_a_search(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Searches end before they begin; with which options each was asked for."""
    import action.search_job as job

    seen: list[Any] = []

    def search(options: job.Options, machine: object) -> None:
        seen.append(options)
        raise job.MachineError("stands for the search")

    monkeypatch.setattr(job, "optimize", search)
    monkeypatch.setattr(job, "compared", lambda *_: (None, {}))
    return seen


def test_the_base_says_how_a_kernel_is_judged(clone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pull request that loosens its own spec, or gives settings of its own, is judged by those of the base."""
    seen = instead_of_a_search(monkeypatch)
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
    instead_of_a_search(monkeypatch)
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
        ("rules,tuner", "", ("rules", "tuner"), None),
        ("tuner,rules,llm", "", ("tuner", "rules", "llm"), ""),
        ("", "search: {tuner: true}\n", ("rules", "tuner"), None),
        ("", "search: {tuner: true}\nmodel: {enabled: true, name: qwen}\n", ("rules", "tuner", "llm"), "qwen"),
    ],
)
def test_who_proposes_is_asked_for_or_set_by_the_base(
    clone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: str, settings: str, proposers: tuple[str, ...],
    model: str | None,
) -> None:  # fmt: skip
    seen = instead_of_a_search(monkeypatch)
    (clone / "k.cu").write_text(FAST)
    (clone / ".optiml.yml").write_text(settings)
    base = commit(clone, "base")
    (clone / "k.cu").write_text(SLOW)
    (clone / ".optiml.yml").write_text("model: {enabled: true, name: strangers}\n")
    look(clone, base, commit(clone, "head"), tmp_path / "out", proposers=asked)
    assert seen[0].proposers == proposers
    assert (seen[0].llm.model if seen[0].llm else None) == model


@pytest.mark.parametrize(
    ("settings", "fork", "kept"),
    [("", False, False), ("search: {memory: true}\n", False, True), ("search: {memory: true}\n", True, False)],
)
def test_lessons_are_kept_where_the_base_says_so_and_never_of_a_fork(
    clone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: str, fork: bool, kept: bool
) -> None:
    seen = instead_of_a_search(monkeypatch)
    monkeypatch.setenv("OPTIML_CACHE", str(tmp_path / "cache"))
    (clone / "k.cu").write_text(FAST)
    (clone / ".optiml.yml").write_text(settings)
    base = commit(clone, "base")
    (clone / "k.cu").write_text(SLOW)
    run(Request(1, base, commit(clone, "head"), fork), clone, tmp_path / "out", CPU, lambda line: None)
    memory = seen[0].memory
    assert (memory is not None) is kept
    if memory is not None:
        assert memory.repository == str(clone.resolve())  # not the folder of this run's trees
        assert memory.path.parent == tmp_path / "cache"


def test_the_baseline_is_asked_for_the_device_that_the_kernel_ran_on(
    clone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A GPU's evaluator knows its device once it was opened, and not before."""
    import action.search_job as job

    class Evaluator:
        device: ClassVar[dict[str, str]] = {}

        @property
        def signals(self) -> Signals:
            return Signals("measured", dict(self.device))

        def close(self) -> None: ...

    class Machine:
        mode, arch, name = "measured", "sm_90", "NVIDIA H200, driver 580"

        def evaluator(self, *_: object) -> Evaluator:
            return Evaluator()

        def close(self) -> None: ...

    def compared(evaluator: Evaluator, base: object, head: object) -> Comparison:
        evaluator.device["name"] = "NVIDIA H200"
        return Comparison("slower", measurement(0.5))  # 200 µs now

    monkeypatch.setattr(job, "machine_for", lambda *_: Machine())
    monkeypatch.setattr(kernel_review, "compare", compared)
    (clone / "k.cu").write_text(FAST)
    base = commit(clone, "base")
    spec, _ = find_spec(clone, clone / "k.cu", "scale")
    entry = Entry(
        "k.cu", "scale", "NVIDIA H200 measured", spec_name(spec), base, False, (CaseTime("n=4096", 1.0, 100.0),)
    )
    write_baseline(Baseline((entry,)), tmp_path / "past")
    (clone / "k.cu").write_text(SLOW)
    request = Request(1, base, commit(clone, "head"), False, command="check")
    bundle = run(request, clone, tmp_path / "out", JobInputs("gpu", baseline=tmp_path / "past"), print)
    history = bundle.kernels[0].history
    assert history is not None
    assert (history.commit, round(history.slower, 6), history.predicted) == (base, 2.0, False)


def test_a_kernel_that_is_named_is_searched_though_nothing_changed_in_it(
    clone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import action.search_job as job

    monkeypatch.setattr(job, "compared", lambda *_: (None, {}))
    (clone / "k.cu").write_text(FAST)
    base = commit(clone, "base")
    (clone / "other.cu").write_text("__global__ void k(float* y) { y[0] = 1; }\n")
    head = commit(clone, "head")

    def named(**asked: str) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
        request = Request(1, base, head, False, budget_s=1.0, **asked)  # type: ignore[arg-type]
        run(request, clone, tmp_path / "out", CPU, lambda text: None)
        bundle = read_bundle(tmp_path / "out", head=head)
        return [(k.changed.path, k.changed.kernel) for k in bundle.kernels], [
            (s.path, s.reason) for s in bundle.skipped
        ]

    assert named(path="k.cu", kernel="scale") == ([("k.cu", "scale")], [])
    assert named(path="k.cu") == ([("k.cu", "scale"), ("k.cu", "other")], [])
    assert named(kernel="k") == ([("other.cu", "k")], [])
    for missing in ({"path": "k.cu", "kernel": "none"}, {"path": "none.cu"}):
        assert named(**missing) == ([], [(missing["path"], "no such kernel")])
    assert named(kernel="none") == ([], [("this pull request", "no such kernel")])


def test_nothing_changed_and_what_is_beyond_the_limit(clone: Path, tmp_path: Path) -> None:
    (clone / "k.cu").write_text(FAST)
    (clone / ".optiml.yml").write_text("budget: {kernels: 1}\nexclude: ['vendor/**']\n")
    base = commit(clone, "base")
    assert look(clone, base, base, tmp_path / "none") == ()
    (clone / "vendor").mkdir()
    for name in ("a.cu", "b.cu", "vendor/c.cu"):
        (clone / name).write_text("__global__ void k(float* y) { y[0] = 1; }\n")
    head = commit(clone, "head")
    run(Request(1, base, head, False), clone, tmp_path / "out", CPU, lambda text: None)
    bundle = read_bundle(tmp_path / "out", head=head)
    assert [k.changed.path for k in bundle.kernels] == ["a.cu"]
    assert "has no spec for the kernel" in bundle.kernels[0].error
    assert {(s.path, s.reason) for s in bundle.skipped} == {
        ("b.cu", "more than 1 kernels changed; request this one by name"),
        ("vendor/c.cu", "the settings exclude it"),
    }


def test_wrong_settings_of_the_base_are_an_error(clone: Path, tmp_path: Path) -> None:
    (clone / ".optiml.yml").write_text("budgt: {}\n")
    base = commit(clone, "base")
    with pytest.raises(ConfigError, match="did you mean 'budget'"):
        run(Request(1, base, base, False), clone, tmp_path / "out", CPU, lambda text: None)


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


def test_what_changed_most_is_looked_at_first() -> None:
    kernels = [ChangedKernel(f"{i:02}.cu", "k", 1, ("body",), f"{i:02}.cu", size=i) for i in range(20)]
    kernels.append(ChangedKernel("00-new.cu", "k", 1, ("new",), "", size=500))
    chosen, skipped = wanted(Request(1, "a" * 40, "b" * 40, False), Config(), kernels)
    assert [kernel.size for kernel in chosen] == [19, 18, 17, 16, 15, 14, 13, 12]
    assert skipped[-1].path == "00-new.cu"
    assert "request this one by name" in skipped[0].reason


def recorded(name: str, file: str, share: float) -> RecordedKernel:
    return RecordedKernel(name, name, file, 1, name, "", "", share, 1, 1.0, 16, (), ())


def test_of_too_many_kernels_those_with_most_of_the_recorded_time_come_first(
    clone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The recording is the base's: the pull request's own would decide what is searched."""
    monkeypatch.setattr(
        "action.looker.Looker.headroom", lambda looker, changed: 50.0 if changed.path == "a.cu" else 1.5
    )
    (clone / ".optiml.yml").write_text("budget: {kernels: 2}\nrecording: bench/recording\n")
    folder = clone / "bench" / "recording"
    folder.mkdir(parents=True)
    kernels = (recorded("k", "b.cu", 0.7), recorded("k", "c.cu", 0.2), recorded("other", "a.cu", 0.1))
    save_manifest(folder, Manifest(VERSION, ("./p",), 0, 1.0, kernels, ()))
    for name in ("a.cu", "b.cu", "c.cu"):
        (clone / name).write_text("__global__ void k(float* y) { y[0] = 1; }\n")
    base = commit(clone, "base")
    for name, more in (("a.cu", "y[1] = 2; y[2] = 3; y[3] = 4;"), ("b.cu", "y[1] = 2;"), ("c.cu", "y[1] = 2;")):
        (clone / name).write_text(f"__global__ void k(float* y) {{ y[0] = 1; {more} }}\n")
    save_manifest(folder, Manifest(VERSION, ("./p",), 0, 1.0, (recorded("k", "a.cu", 1.0),), ()))
    head = commit(clone, "head")
    run(Request(1, base, head, False), clone, tmp_path / "out", CPU, lambda text: None)
    bundle = read_bundle(tmp_path / "out", head=head)
    assert [k.changed.path for k in bundle.kernels] == ["b.cu", "c.cu"]
    assert [s.path for s in bundle.skipped] == ["a.cu"]


def test_of_too_many_kernels_those_with_predicted_headroom_come_first(
    clone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The order was by the size of the change alone: a long change of a kernel at its roofline took the place."""
    (clone / ".optiml.yml").write_text("budget: {kernels: 1}\n")
    names = {"a.cu": 1.0, "b.cu": 9.0, "c.cu": 0.0}
    for name in names:
        (clone / name).write_text("__global__ void k(float* y) { y[0] = 1; }\n")
    base = commit(clone, "base")
    (clone / "a.cu").write_text("__global__ void k(float* y) { y[0] = 1; y[1] = 2; y[2] = 3; }\n")
    (clone / "b.cu").write_text("__global__ void k(float* y) { y[0] = 1; y[1] = 2; }\n")
    (clone / "c.cu").write_text("__global__ void k(float* y) { y[0] = 1; y[1] = 4; }\n")
    head = commit(clone, "head")

    def headroom(looker: object, changed: ChangedKernel) -> float:
        if not names[changed.path]:
            raise UsageError("has no spec", changed.path)
        return names[changed.path]

    monkeypatch.setattr("action.looker.Looker.headroom", headroom)
    run(Request(1, base, head, False), clone, tmp_path / "out", CPU, lambda text: None)
    bundle = read_bundle(tmp_path / "out", head=head)
    assert [k.changed.path for k in bundle.kernels] == ["b.cu"]
    assert [s.path for s in bundle.skipped] == ["a.cu", "c.cu"]
    run(Request(1, base, head, False, path="a.cu"), clone, tmp_path / "named", CPU, lambda text: None)
    assert [k.changed.path for k in read_bundle(tmp_path / "named", head=head).kernels] == ["a.cu"]


def test_the_headroom_that_orders_kernels_is_predicted_for_the_head(
    clone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (clone / ".optiml.yml").write_text("budget: {kernels: 1}\n")
    base = commit(clone, "base")
    for name in ("k.cu", "l.cu"):
        (clone / name).write_text(FAST)
    head = commit(clone, "head")
    found: list[float] = []
    real = Looker.headroom

    def headroom(looker: Looker, changed: ChangedKernel) -> float:
        found.append(real(looker, changed))
        return found[-1]

    monkeypatch.setattr(Looker, "headroom", headroom)
    run(Request(1, base, head, False, budget_s=1.0), clone, tmp_path / "out", CPU, lambda text: None)
    assert found
    assert found[0] >= 1.0


HEADER = """#pragma once
__device__ inline float weight(const float* x, int i, int n) {
    return 2.0f * x[i];
}
"""
SLOWER_HEADER = """#pragma once
__device__ inline float weight(const float* x, int i, int n) {
    unsigned seen = 0u;
    for (int k = 0; k < 32; ++k) {
        seen |= __float_as_uint(x[(i + k * 4097) % n]);
    }
    return seen == 0xdeadbeefu ? 1.0f : 2.0f * x[i];
}
"""


def git_applied(clone: Path, patch: str) -> str:
    (clone / "p.patch").write_text(patch)
    git(clone, "apply", "p.patch")
    return (clone / "k.cu").read_text()


@pytest.mark.parametrize("how", ["header", "new include"])
def test_a_regression_through_a_header_is_one(clone: Path, tmp_path: Path, how: str) -> None:
    """It was not compared, since no candidate may change a header, and the check was a success."""
    text = FAST.replace("2.0f * x[i]", "weight(x, i, n)")
    (clone / "w.cuh").write_text(HEADER)
    (clone / "slow.cuh").write_text(SLOWER_HEADER)
    (clone / "k.cu").write_text('#include "w.cuh"\n' + text)
    base = commit(clone, "base")
    if how == "header":
        (clone / "w.cuh").write_text(SLOWER_HEADER)
    else:
        (clone / "k.cu").write_text('#include "slow.cuh"\n' + text)
    head = commit(clone, "head")
    run(Request(1, base, head, False, command="check"), clone, tmp_path / "out", CPU, print)
    found = {looked.changed.kernel: looked for looked in read_bundle(tmp_path / "out", head=head).kernels}
    assert found["scale"].comparison is not None
    assert found["scale"].comparison.standing == "slower", found["scale"]
    assert found["scale"].restore == ""


def test_a_regression_of_the_kernel_s_own_text_comes_with_the_base_s(clone: Path, tmp_path: Path) -> None:
    (clone / "k.cu").write_text(FAST)
    base = commit(clone, "base")
    (clone / "k.cu").write_text(SLOW)
    head = commit(clone, "head")
    run(Request(1, base, head, False, command="check"), clone, tmp_path / "out", CPU, print)
    found = {looked.changed.kernel: looked for looked in read_bundle(tmp_path / "out", head=head).kernels}
    assert found["scale"].comparison is not None
    assert found["scale"].comparison.standing == "slower"
    assert git_applied(clone, found["scale"].restore) == FAST


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
    run(Request(1, base, head, False, budget_s=120.0), clone, tmp_path / "out", JobInputs("gpu"), print)
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


@pytest.mark.slow
def test_a_kernel_without_a_spec_comes_with_a_validated_draft(clone: Path, tmp_path: Path) -> None:
    (clone / "host.cpp").write_text("int main() { return 0; }\n")
    base = commit(clone, "base")
    bare = "".join(line for line in FAST.splitlines(keepends=True) if "optiml:" not in line)
    (clone / "k.cu").write_text(bare)
    (clone / "odd.cu").write_text("__global__ void odd(float* y) { y[0] = 1; }\n")
    head = commit(clone, "head")
    found = {looked.changed.kernel: looked for looked in look(clone, base, head, tmp_path / "out")}
    after = git_applied(clone, found["scale"].draft)
    assert 'args.y = { role = "out", size = "n" }' in after
    assert "".join(line for line in after.splitlines(keepends=True) if "optiml:" not in line) == bare
    assert found["scale"].result is None
    assert found["odd"].draft == ""  # an output that no input moves: a search would refuse it
    assert "has no spec" in found["odd"].error


def test_a_second_review_of_the_same_kernel_is_answered_by_the_first(
    clone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asked again for a commit, or after a push of something else, it compared and searched for the whole budget once more."""
    import action.search_job as job

    searched: list[str | None] = []

    def search(options: job.Options, machine: object) -> tuple[OptimizationResult, Path]:
        searched.append(options.kernel)
        (tmp_path / "best.patch").write_bytes(b"--- a/k.cu\n+++ b/k.cu\n")
        return result(2.0, predicted=True), tmp_path

    monkeypatch.setattr(job, "optimize", search)
    compared = Comparison("no difference", measurement(1.0, predicted=True))
    monkeypatch.setattr(job, "compared", lambda *_: (compared, {}))
    (clone / "k.cu").write_text(FAST)
    base = commit(clone, "base")
    (clone / "k.cu").write_text(SLOW)
    head = commit(clone, "head")
    (first,) = look(clone, base, head, tmp_path / "one")
    assert searched == ["scale"]

    def again(head: str, name: str, **asked: object) -> tuple[Looked, list[str]]:
        said: list[str] = []
        request = Request(1, base, head, False, **asked)  # type: ignore[arg-type]
        run(request, clone, tmp_path / name, CPU, said.append)
        (looked,) = read_bundle(tmp_path / name, head=head).kernels
        return looked, said

    second, said = again(head, "two")
    assert searched == ["scale"]
    assert said == [f"k.cu: scale: {ANSWERED}"]
    assert second.result is not None
    assert first.result is not None
    assert second.result.notes == (*first.result.notes, ANSWERED)
    assert (second.comparison, second.patch, second.changed) == (first.comparison, first.patch, first.changed)
    (clone / "README").write_text("words\n")
    pushed = commit(clone, "another file")
    assert again(pushed, "three")[0].patch == first.patch
    assert searched == ["scale"]
    again(pushed, "four", budget_s=77.0)
    assert searched == ["scale"] * 2
    # A fresh runner that has the bundle of an earlier run alone.
    monkeypatch.setattr(kept_reviews, "folder", lambda: tmp_path / "empty")
    said.clear()
    run(
        Request(1, base, pushed, False),
        clone,
        tmp_path / "fresh",
        JobInputs("cpu", earlier=tmp_path / "three"),
        said.append,
    )
    assert said == [f"k.cu: scale: {ANSWERED}"]
    (fresh,) = read_bundle(tmp_path / "fresh", head=pushed).kernels
    assert (fresh.patch, fresh.result) == (first.patch, second.result)
    assert searched == ["scale"] * 2
    (clone / "k.cu").write_text(SLOW.replace("2.0f", "3.0f"))
    again(commit(clone, "the kernel"), "five")
    assert searched == ["scale"] * 3


def test_a_second_comparison_is_answered_by_the_first(
    clone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`/optiml check`, asked for twice, compared twice."""
    import action.search_job as job

    compared: list[int] = []

    def compare(*_: object) -> tuple[Comparison, dict[str, str]]:
        compared.append(1)
        return Comparison("no difference", measurement(1.0, predicted=True)), {}

    monkeypatch.setattr(job, "compared", compare)
    (clone / "k.cu").write_text(FAST)
    base = commit(clone, "base")
    (clone / "k.cu").write_text(SLOW)
    head = commit(clone, "head")
    found = []
    for name in ("one", "two"):
        run(Request(1, base, head, False, command="check"), clone, tmp_path / name, CPU, lambda text: None)
        found.append(read_bundle(tmp_path / name, head=head).kernels)
    assert len(compared) == 1
    assert found[0] == found[1]
    assert found[1][0].error == "compared only, as requested"


def test_what_was_not_searched_to_its_end_is_not_kept(
    clone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: Path
) -> None:
    import action.search_job as job

    def search(options: job.Options, machine: object) -> None:
        raise job.MachineError("the GPU fell off the bus")

    monkeypatch.setattr(job, "optimize", search)
    monkeypatch.setattr(job, "compared", lambda *_: (None, {}))
    (clone / "k.cu").write_text(FAST)
    base = commit(clone, "base")
    (clone / "k.cu").write_text(SLOW)
    look(clone, base, commit(clone, "head"), tmp_path / "out")
    assert not kept.exists()
