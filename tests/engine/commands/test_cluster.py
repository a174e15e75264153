"""`optiml cluster doctor` and the options of clusters; workers are described (tests/engine/cluster/workers.py)."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine import cli
from engine.cluster.connection import Cluster
from engine.cluster.identity import versions
from engine.cluster.scheduler import ClusterRequest
from engine.commands import cluster_doctor
from tests.engine.cluster.workers import H200, cluster, worker


def connected(monkeypatch: pytest.MonkeyPatch, found: Cluster) -> list[ClusterRequest]:
    asked: list[ClusterRequest] = []

    @contextmanager
    def connect(request: ClusterRequest, **more: Any) -> Iterator[Cluster]:
        asked.append(request)
        found.examine()
        yield found

    monkeypatch.setattr(cluster_doctor, "connect", connect)
    return asked


def test_a_cluster_that_can_be_used(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    asked = connected(monkeypatch, cluster(worker("0"), worker("1", replace(H200, uuid="GPU-b"))))
    assert cli.main(["cluster", "doctor", "--cluster", "tcp://a:1", "--format", "json"]) == 0
    assert asked == [ClusterRequest("tcp://a:1")]
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == "optiml.cluster/1"
    assert (found["problems"], found["notes"], found["resource"]) == ([], [], {"GPU": 1})
    first = found["workers"][0]["identity"]["gpu"]
    assert (first["uuid"], first["driver"], first["sm_mhz"], first["temperature_c"]) == ("GPU-a", "580.1", 1980, 34)


def test_what_is_wrong_is_said_and_the_rest_is_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    other = replace(H200, uuid="GPU-b", driver="590.2", foreign=(41,))
    connected(monkeypatch, cluster(worker("0"), worker("1", other)))
    assert cli.main(["cluster", "doctor"]) == 1
    out = " ".join(capsys.readouterr().out.split())
    for said in ("GPU-a", "SM 1980 MHz", "another process uses its GPU (process 41)", "2 kinds of devices"):
        assert said in out


def test_the_table_fits_a_terminal_and_has_the_versions_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    connected(monkeypatch, cluster(worker("0", None), worker("1", None)))
    assert cli.main(["cluster", "doctor"]) == 0
    out = capsys.readouterr().out
    python = f"python {sys.version_info.major}.{sys.version_info.minor}"
    assert out.count(python) == 1
    assert f"every worker has {python}, optiml-cuda " in " ".join(out.split())
    assert len(out.splitlines()) < 16


def test_a_worker_of_another_version_is_shown_with_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first such worker ended the command, and nothing was shown of the others."""
    monkeypatch.setenv("COLUMNS", "200")
    old = (*(v for v in versions() if v[0] != "optiml-cuda"), ("optiml-cuda", "0.0.9"))
    connected(monkeypatch, cluster(worker("0", None), worker("1", None, versions=old), worker("2", None)))
    assert cli.main(["cluster", "doctor"]) == 1
    out = " ".join(capsys.readouterr().out.split())
    assert "3 workers" in out
    assert "worker 0, 2: python" in out
    assert "worker 1: python" in out
    assert "optiml-cuda 0.0.9" in out
    assert "worker 1 on node: optiml-cuda is 0.0.9 there and 0.1.0 here; install the same version on both" in out


def test_an_empty_address_is_not_the_default(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["cluster", "doctor", "--cluster", ""]) == 2
    assert "--cluster: invalid cluster ''" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--workers", "2"], "--workers requires --cluster"),
        (["--shared"], "--shared requires --cluster"),
        (["--per-device"], "--per-device requires --cluster"),
        (["--cluster", "local", "--workers", "0"], "at least 1"),
        (["--cluster", "tcp://a:1", "--workers", "2"], "the number of workers that --cluster local starts"),
        (["--budget-each", "many"], "'many'"),
    ],
)
def test_options_that_make_no_sense_together_are_wrong_use(
    options: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["all", str(tmp_path), *options]) == 2
    assert said in capsys.readouterr().err
