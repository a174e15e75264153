"""`optimize --cluster --per-device`: a search on each kind of device, and a table of what each came to."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from engine import cli
from engine.cluster.connection import Cluster
from engine.commands import on_cluster, one_kernel
from engine.commands.one_kernel import KernelRun
from tests.bot.make import result
from tests.engine.cluster.scripted import repository
from tests.engine.cluster.workers import H200, Client, worker


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository, and two workers with different GPUs; searches are scripted."""
    other = replace(H200, name="NVIDIA L4", uuid="GPU-b", arch="sm_89")
    found = Cluster(Client(worker("0"), worker("1", other)), "tls://scheduler:8786", "auto")

    @contextmanager
    def connect(request: object) -> Iterator[Cluster]:
        found.examine()
        yield found

    def make_machine(**given: Any) -> SimpleNamespace:
        return SimpleNamespace(arch=given["arch"], close=lambda: None)

    def search(run: KernelRun, target: Any) -> Any:
        ratio = {"sm_90": 2.0, "sm_89": None}[run._machine.arch]
        return result(ratio, kernel="k0", file="k0.cu"), tmp_path / f"out@{run._device}", tmp_path

    monkeypatch.setattr(on_cluster, "connect", connect)
    monkeypatch.setattr(on_cluster, "make_machine", make_machine)
    monkeypatch.setattr(KernelRun, "search", search)
    return repository(tmp_path / "r", 1)


def test_each_kind_of_device_has_its_best(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["optimize", str(root / "k0.cu"), "--cluster", "tls://scheduler:8786", "--per-device"]
    assert cli.main([*command, "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(row["device"], row["speedup"]) for row in found["best_per_device"]] == [
        ("nvidia-h200-580-1", 2.0), ("nvidia-l4-580-1", None),
    ]  # fmt: skip
    assert len(found["results"]) == 2
    assert cli.main(command) == 0
    out = capsys.readouterr().out
    table = out[out.index("best per device") :]
    assert "2.00×" in table
    assert "out@nvidia-h200-580-1/best.patch" in table
    assert "l4-580-1/" not in table


def test_without_it_different_devices_are_refused(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["optimize", str(root / "k0.cu"), "--cluster", "tls://scheduler:8786"]) == 1
    assert "add --per-device for one search per kind" in capsys.readouterr().err


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
        memory=False, fresh=False,
    )  # fmt: skip
    machine: Any = SimpleNamespace(box=None)
    run = KernelRun(arguments, machine, one_kernel.Budget(candidates=1), ("rules",), None, device="h200")  # type: ignore[arg-type]
    with pytest.raises(KeyboardInterrupt):
        run.search(one_kernel.Target(root / "k0.cu", "k0", "k0.cu"))
    assert [out.name for out in outs] == ["k0-k0@h200"]
