"""`optimize --cluster --per-device`: a search on each kind of device, and a table of what each came to."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.report_size import synthesise
from engine import cli
from engine.campaign.cluster_task import Order
from engine.campaign.kernel_search import KernelEnd
from engine.cluster.connection import Cluster
from engine.cluster.identity import Gpu
from engine.commands import all_on_cluster, on_cluster, one_kernel
from engine.commands.one_kernel import KernelRun
from engine.errors import SourceError
from engine.process.wire import pack
from engine.run import device_dispatch_check
from engine.spec.find import find_spec
from tests.bot.make import result
from tests.engine.campaign.test_cluster_executor import GpuClient
from tests.engine.cluster.scripted import KERNEL, repository
from tests.engine.cluster.workers import H200, Client, worker
from tests.runtime import with_runtime

L4 = replace(H200, name="NVIDIA L4", uuid="GPU-b", arch="sm_89")
SLOW, FAST, BLOCKS = "2.0f * x[i]", "x[i] + x[i]", "(n + 255) / 256, 256"
COMMAND = ["--cluster", "tls://scheduler:8786", "--per-device"]


@dataclass
class Kinds:
    """Two workers with different GPUs, whose searches come to these replacements in the kernel's file; None: to nothing."""

    root: Path
    edits: dict[str, tuple[str, str] | None] = field(default_factory=lambda: {"sm_90": (SLOW, FAST), "sm_89": None})
    other: Gpu = L4

    @property
    def command(self) -> list[str]:
        return ["optimize", str(self.root / "k0.cu"), *COMMAND]

    @property
    def patch(self) -> Path:
        return self.root / ".optiml" / "k0-k0" / "device-dispatch.patch"

    def search(self, run: KernelRun, target: Any) -> Any:
        """As the search's, with a run's folder as it is left by one."""
        edit = self.edits[run._machine.arch]
        out = self.root / ".optiml" / f"k0-k0@{run._device}"
        out.mkdir(parents=True, exist_ok=True)
        before = (self.root / "k0.cu").read_bytes()
        after = before.replace(edit[0].encode(), edit[1].encode()) if edit else before
        found = result(2.0 if edit else None, kernel="k0", file="k0.cu")
        (out / "journal.sqlite").unlink(missing_ok=True)
        synthesise(out, 3, result=found, texts={"k0.cu": (before, after)})
        run.spec = find_spec(self.root, self.root / "k0.cu", "k0")
        return found, out, self.root


@pytest.fixture
def kinds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kinds:
    """A repository, and two workers with different GPUs; searches are scripted."""
    made = Kinds(repository(tmp_path / "r", 1))
    monkeypatch.setenv("OPTIML_CACHE", str(with_runtime(tmp_path / "cache")))
    monkeypatch.setattr(device_dispatch_check, "find_nvcc", lambda: None)

    @contextmanager
    def connect(request: object) -> Iterator[Cluster]:
        found = Cluster(Client(worker("0"), worker("1", made.other)), "tls://scheduler:8786", "auto")
        found.examine()
        yield found

    def make_machine(**given: Any) -> SimpleNamespace:
        return SimpleNamespace(arch=given["arch"], close=lambda: None)

    monkeypatch.setattr(on_cluster, "connect", connect)
    monkeypatch.setattr(on_cluster, "make_machine", make_machine)
    monkeypatch.setattr(KernelRun, "search", lambda run, target: made.search(run, target))
    return made


@pytest.fixture
def root(kinds: Kinds) -> Path:
    return kinds.root


def test_each_kind_of_device_has_its_best(kinds: Kinds, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*kinds.command, "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(row["device"], row["speedup"]) for row in found["best_per_device"]] == [
        ("nvidia-h200-580-1", 2.0), ("nvidia-l4-580-1", None),
    ]  # fmt: skip
    assert len(found["results"]) == 2
    assert cli.main(kinds.command) == 0
    out = capsys.readouterr().out
    table = out[out.index("best per device") :]
    assert "2.00×" in table
    assert "k0-k0@nvidia-h200-580-1/best.patch" in table
    assert "l4-580-1/" not in table


def test_one_patch_selects_by_device(kinds: Kinds, capsys: pytest.CaptureFixture[str]) -> None:
    kinds.edits = {"sm_90": (SLOW, FAST), "sm_89": (BLOCKS, "(n + 127) / 128, 128")}
    assert cli.main(kinds.command) == 0
    assert (
        f"{kinds.patch} selects by compute capability at run time: k0_sm90 on nvidia-h200-580-1, k0_sm89 on nvidia-l4-580-1, "
        "the original on other devices; not checked: patched files build with nvcc (nvcc is not installed)."
    ) in capsys.readouterr().out
    subprocess.run(["git", "init", "-q"], cwd=kinds.root, check=True)
    subprocess.run(["git", "apply", str(kinds.patch)], cwd=kinds.root, check=True)
    text = (kinds.root / "k0.cu").read_text()
    assert "if (optiml_capability() == 90) {\n" in text
    assert "k0_sm89<<<(n + 127) / 128, 128>>>(x, y, n);" in text


def test_json_says_what_is_in_it(kinds: Kinds, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*kinds.command, "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)["device_dispatch"]
    assert (found["patch"], found["files"], found["reason"]) == (str(kinds.patch), ["k0.cu"], "")
    assert found["branches"] == [
        {"device": "nvidia-h200-580-1", "arch": "sm_90", "kernel": "k0_sm90"},
        {"device": "nvidia-l4-580-1", "arch": "sm_89", "kernel": "k0"},
    ]
    assert [g["verdict"] for g in found["guardrails"]] == ["not checked"]


def test_a_patch_that_cannot_be_has_a_reason_and_an_older_one_goes(
    kinds: Kinds, capsys: pytest.CaptureFixture[str]
) -> None:
    kinds.patch.parent.mkdir(parents=True)
    cases: list[tuple[str, dict[str, tuple[str, str] | None], Gpu]] = [
        ("no device has a suggestion", {"sm_90": None, "sm_89": None}, kinds.other),
        ("nvidia-h200-580-1 and nvidia-h100-580-1 have the same compute capability (9.0); apply the patch of each device in its own "
         "build", kinds.edits, replace(H200, name="NVIDIA H100", uuid="GPU-b")),
    ]  # fmt: skip
    for reason, kinds.edits, kinds.other in cases:
        kinds.patch.write_text("an older one")
        assert cli.main(kinds.command) == 0
        assert f"No dispatch by device: {reason}." in capsys.readouterr().out
        assert not kinds.patch.exists()


def test_a_kind_whose_search_fails_is_named_and_the_others_are_searched(
    kinds: Kinds, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    scripted, failing = kinds.search, {"sm_90"}

    def search(run: KernelRun, target: Any) -> Any:
        if run._machine.arch in failing:
            raise SourceError("a block of 1024 threads exceeds the limit", "k0.cu")
        return scripted(run, target)

    kinds.edits = {"sm_90": None, "sm_89": (SLOW, FAST)}
    monkeypatch.setattr(KernelRun, "search", search)
    assert cli.main([*kinds.command, "--format", "json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["failed"] == [
        {"file": str(kinds.root / "k0.cu"), "kernel": "", "device": "nvidia-h200-580-1",
         "error": "k0.cu: a block of 1024 threads exceeds the limit"},
    ]  # fmt: skip
    assert [b["kernel"] for b in found["device_dispatch"]["branches"]] == ["k0_sm89"]
    assert cli.main(kinds.command) == 1
    shown = capsys.readouterr()
    assert "optiml: nvidia-h200-580-1: k0.cu: a block of 1024 threads exceeds the limit" in shown.err
    assert f"{kinds.patch} selects by compute capability at run time: k0_sm89 on nvidia-l4-580-1" in shown.out
    failing.add("sm_89")
    assert cli.main(kinds.command) == 2
    assert capsys.readouterr().err.count("exceeds the limit") == 2


def test_a_source_that_changed_between_the_searches_is_a_reason(
    kinds: Kinds, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kinds.edits = {"sm_90": (SLOW, FAST), "sm_89": (SLOW, FAST)}
    first = kinds.search

    def search(run: KernelRun, target: Any) -> Any:
        found = first(run, target)
        (kinds.root / "k0.cu").write_text((kinds.root / "k0.cu").read_text() + "// later\n")
        return found

    monkeypatch.setattr(KernelRun, "search", search)
    assert cli.main(kinds.command) == 0
    assert "No dispatch by device: k0.cu: the source changed between the searches" in capsys.readouterr().out


def test_a_campaign_has_one_patch_of_all_that_selects_by_device(
    kinds: Kinds, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only `optimize` wrote it. Here two kernels of one file have suggestions, the first on one kind of device."""
    root, edits = (
        kinds.root,
        {
            ("k0", "sm_90"): (SLOW, FAST),
            ("k1", "sm_90"): (SLOW, FAST),
            ("k1", "sm_89"): (BLOCKS, "(n + 127) / 128, 128"),
        },
    )
    (root / "k0.cu").write_text(KERNEL.replace("NAME", "k0") + KERNEL.replace("NAME", "k1"))
    subprocess.run(["git", "init", "-q"], cwd=root, check=True)

    def answer(order: Order) -> bytes:
        task = order.task
        edit = edits.get((task.kernel, "sm_89" if "l4" in task.device else "sm_90"))
        out, before = task.folder(root, task.kernel), (root / "k0.cu").read_bytes()
        first, second = before.split(b"__global__ void k1")
        after = before
        if edit is not None:
            old, new = (text.encode() for text in edit)
            after = first.replace(old, new) + b"__global__ void k1" + second
            if task.kernel == "k1":
                after = first + b"__global__ void k1" + second.replace(old, new)
        out.mkdir(parents=True)
        speedup = 2.0 if edit else None
        synthesise(out, 3, result=result(speedup, kernel=task.kernel, file="k0.cu"), texts={"k0.cu": (before, after)})
        return pack({"end": asdict(KernelEnd("done", "said", speedup, str(out), 2))})

    @contextmanager
    def connect(request: object) -> Iterator[Cluster]:
        client = GpuClient(worker("0"), worker("1", kinds.other))
        client.answer = answer
        found = Cluster(client, "tls://scheduler:8786", "auto")
        found.examine()
        yield found

    monkeypatch.setattr(all_on_cluster, "connect", connect)
    command = ["all", str(root), *COMMAND, "--shared", "--least", "0", "--limit", "0.001"]
    assert cli.main([*command, "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])["device_dispatch"]
    patch = root / ".optiml" / "all" / "device-dispatch.patch"
    assert found["patch"] == str(patch)
    branches = {k["kernel"]: [b["kernel"] for b in k["dispatch"]["branches"]] for k in found["kernels"]}
    assert branches == {"k0": ["k0_sm90", "k0"], "k1": ["k1_sm90", "k1_sm89"]}
    assert all((root / ".optiml" / f"k0-{name}" / "device-dispatch.patch").is_file() for name in branches)
    subprocess.run(["git", "apply", str(patch)], cwd=root, check=True)
    text = (root / "k0.cu").read_text()
    for function in ("optiml_capability_k0", "optiml_capability_k1"):
        assert text.count(f"static inline int {function}()") == 1
    assert "if (optiml_capability_k0() == 90) {\n" in text
    assert "} else if (optiml_capability_k1() == 89) {\n" in text
    subprocess.run(["git", "apply", "-R", str(patch)], cwd=root, check=True)
    shutil.rmtree(root / ".optiml")
    edits[("k0", "sm_90")] = ("x[i];\n}", "x[i]; assert(n);\n}")
    assert cli.main(command) == 0
    out = capsys.readouterr().out
    assert "k0.cu:k0: No dispatch by device: " in out
    assert (
        f"k0.cu:k1: {root}/.optiml/k0-k1/device-dispatch.patch selects by compute capability at run time: k1_sm90"
        in out
    )
    assert "All that select by device, each checked separately. Apply " in out


def test_without_it_different_devices_are_refused(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["optimize", str(root / "k0.cu"), "--cluster", "tls://scheduler:8786"]) == 1
    assert "add --per-device for one search per kind" in capsys.readouterr().err
    assert cli.main(["tune", str(root / "k0.cu"), "--cluster", "tls://scheduler:8786"]) == 1
    assert "so their times cannot be compared; exclude some" in (said := capsys.readouterr().err)
    assert "--per-device" not in said  # it has no such option


def test_it_needs_a_cluster_and_one_kernel(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["optimize", str(root / "k0.cu"), "--per-device"]) == 2
    assert "requires --cluster" in capsys.readouterr().err
    (root / "k1.cu").write_text((root / "k0.cu").read_text().replace("k0", "k1"))
    files = [str(root / "k0.cu"), str(root / "k1.cu")]
    assert cli.main(["optimize", *files, "--cluster", "tls://scheduler:8786", "--per-device"]) == 2
    assert "searches one kernel" in capsys.readouterr().err


def test_results_of_a_kind_have_a_folder_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outs: list[Path] = []

    def settle(options: Any, out: Path, machine: Any, *, fresh: bool) -> Any:
        outs.append(options.out)
        raise KeyboardInterrupt

    monkeypatch.setattr(one_kernel, "settle", settle)
    root = repository(tmp_path / "r", 1)
    arguments = SimpleNamespace(
        format="json", out=None, write_spec=False, seed=0, resume=False, search="mcts", profile="none", no_proxies=False,
        memory=False, memory_file=None, memory_across=False, fresh=False,
    )  # fmt: skip
    machine: Any = SimpleNamespace(box=None)
    run = KernelRun(arguments, machine, one_kernel.Budget(candidates=1), ("rules",), None, device="h200")  # type: ignore[arg-type]
    with pytest.raises(KeyboardInterrupt):
        run.search(one_kernel.KernelTarget(root / "k0.cu", "k0", "k0.cu"))
    assert [out.name for out in outs] == ["k0-k0@h200"]
