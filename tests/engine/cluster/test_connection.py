"""What `--cluster` names, and what is refused before work starts; the live part starts two workers once."""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine.cluster import connection, scheduler
from engine.cluster.connection import (
    check_alike,
    check_shared,
    connect,
    problems,
)
from engine.cluster.identity import describe, read_identity, visible_gpus
from engine.cluster.scheduler import ClusterRequest, parse_address
from engine.errors import MachineError, OptimlError, UsageError
from tests.engine.cluster.workers import H200, Client, cluster, identity, worker

GPU = {"GPU": 1}


@pytest.mark.parametrize("text", ["local", "tcp://scheduler:8786", "tls://10.0.0.1:1", "tcp://[::1]:8786", " local "])
def test_addresses_that_name_a_cluster(text: str) -> None:
    assert parse_address(text) == text.strip()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "locally",
        "scheduler:8786",
        "http://a:1",
        "tcp://a",
        "tcp://a:0",
        "tcp://a:70000",
        "tcp://u:p@a:1",
        "inproc://x",
    ],
)
def test_other_addresses_are_wrong_use(text: str) -> None:
    with pytest.raises(UsageError, match="invalid cluster"):
        parse_address(text)


def test_a_scheduler_that_is_not_there_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "_CONNECT_S", 0.3)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, and nobody listens
        address = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        with (
            pytest.raises(MachineError, match=r"no scheduler answers: (Connection refused|nothing)") as caught,
            connect(ClusterRequest(address)),
        ):
            pass
    assert caught.value.where == address
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("greeting", "said"),
    [
        (
            None,
            "no scheduler answers: nothing within 1 s",
        ),  # a port of HTTP, or of a scheduler with TLS, waits for its client
        (b"", "no scheduler answers: "),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "something other than a Dask scheduler answers"),
        (b"220 mail.example.org ESMTP\r\n", "something other than a Dask scheduler answers"),
        (bytes(range(8)) * 8, "something other than a Dask scheduler answers"),
    ],
)
def test_a_port_of_something_else_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, greeting: bytes | None, said: str
) -> None:
    """It was an internal error after 24 s, or no end at all."""
    monkeypatch.setattr(scheduler, "_CONNECT_S", 1.0)

    def greet(listening: socket.socket) -> None:
        with suppress(OSError):
            while True:
                other, _ = listening.accept()
                held.callback(other.close)
                if greeting is not None:
                    other.sendall(greeting)
                if not greeting and greeting is not None:
                    other.close()

    with ExitStack() as held:
        listening = held.enter_context(socket.create_server(("127.0.0.1", 0)))
        threading.Thread(target=greet, args=(listening,), daemon=True).start()
        address = f"tcp://127.0.0.1:{listening.getsockname()[1]}"
        with pytest.raises(MachineError, match=said) as caught, connect(ClusterRequest(address)):
            pass
        listening.shutdown(socket.SHUT_RDWR)
    assert caught.value.where == address
    assert "\n" not in str(caught.value)


def test_tls_needs_certificates_that_can_be_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import dask

    with (
        pytest.raises(UsageError, match=r"tls:// needs distributed\.comm\.tls\.ca-file"),
        connect(ClusterRequest("tls://a:1")),
    ):
        pass
    with dask.config.set({"distributed.comm.tls.ca-file": str(tmp_path / "ca.pem")}):
        with pytest.raises(UsageError, match="cannot be read") as caught, connect(ClusterRequest("tls://a:1")):
            pass
        assert "ca.pem" in str(caught.value)
        (tmp_path / "ca.pem").write_text("x")
        with (
            pytest.raises(UsageError, match=r"needs distributed\.comm\.tls\.client\.cert"),
            connect(ClusterRequest("tls://a:1")),
        ):
            pass
        client = {f"distributed.comm.tls.client.{part}": str(tmp_path / "ca.pem") for part in ("cert", "key")}
        with (
            dask.config.set(client),
            pytest.raises(UsageError, match="invalid certificate files: "),
            connect(ClusterRequest("tls://a:1")),
        ):
            pass


def test_workers_that_fit_are_taken_with_what_they_measure_on() -> None:
    gpus = cluster(worker("0"), worker("1", replace(H200, uuid="GPU-b")))
    assert [w.name for w in gpus.examine()] == ["0", "1"]
    assert (gpus.resource, gpus.measures) == (GPU, True)
    assert not problems(gpus.workers, gpus.resource)
    cpus = cluster(worker("0", None))
    cpus.examine()
    assert (cpus.resource, cpus.measures) == ({"CPU_SLOT": 1}, False)
    assert not problems(cpus.workers, cpus.resource)


@pytest.mark.parametrize(
    ("workers", "said"),
    [
        ([worker("0", None)], "worker 0 on node: does not offer the resource GPU; start it with: dask worker"),
        ([replace(worker("0", None), resources={"GPU": 1.0})], "worker 0 on node: has no GPU: NVML finds no GPU"),
        ([worker("0", replace(H200, foreign=(41, 42)))], r"another process uses its GPU \(process 41, 42\)"),
        ([worker("0", replace(H200, mig=True))], "part of a GPU"),
        ([worker("0"), worker("1")], "worker 1 on node: uses the same GPU as worker 0"),
    ],
)  # fmt: skip
def test_workers_that_do_not_fit_are_one_sentence(workers: list[connection.ClusterWorker], said: str) -> None:
    found = problems(workers, GPU)
    assert len(found) == 1
    with pytest.raises(MachineError, match=said):
        raise found[0]


def test_the_same_uuid_on_another_machine_is_another_gpu() -> None:
    assert not problems([worker("0"), worker("1", boot="c")], GPU)


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (replace(H200, name="NVIDIA H100"), "NVIDIA H100"),
        (replace(H200, driver="590.2"), "driver 590.2"),
        (replace(H200, mig=True), "MIG"),
    ],
)
def test_devices_that_cannot_be_compared_are_named(other: object, said: str) -> None:
    check_alike([worker("0"), worker("1")], "do")
    with pytest.raises(MachineError, match=said) as caught:
        check_alike([worker("0"), worker("1", other)], "use --per-device")  # type: ignore[arg-type]
    assert str(caught.value).endswith("use --per-device")


@pytest.mark.parametrize(
    ("package", "there", "said"),
    [
        ("optiml-cuda", "0.0.9", r"worker 0 on node: optiml-cuda is 0\.0\.9 there and 0\.1\.0 here; install the same"),
        ("distributed", "2020.1", r"worker 0 on node: distributed is 2020\.1 there and "),
        ("python", "3.9", r"worker 0 on node: python is 3\.9 there and "),
        (
            "CUDA",
            "nvidia-cuda-nvrtc-cu12 12.9.86",
            r"CUDA is nvidia-cuda-nvrtc-cu12 12\.9\.86 there and .*OPTIML_CUDA=12",
        ),
        ("CUDA", None, "does not report its version of CUDA"),
    ],
)
def test_versions_that_differ_are_named(package: str, there: str | None, said: str) -> None:
    others = tuple(v for v in identity().versions if v[0] != package)
    found = cluster(worker("0", versions=others if there is None else (*others, (package, there))))
    found.examine()
    (problem,) = found.problems()
    assert re.search(said, str(problem))


def test_an_identity_tells_which_cuda_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Packages of both may be installed; with those of CUDA 12 alone nothing was told."""
    said = {}
    for major in ("12", "13"):
        monkeypatch.setenv("OPTIML_CUDA", major)
        said[major] = dict(identity().versions)["CUDA"]
    assert said["13"].startswith("nvidia-cuda-nvrtc 13.")
    assert said["12"] == "" or said["12"].startswith("nvidia-cuda-nvrtc-cu12 12.")


@pytest.mark.parametrize(
    "said",
    [
        ModuleNotFoundError("No module named 'engine'"),
        Exception("ModuleNotFoundError(\"No module named 'engine'\")"),  # what Dask makes of it
        AttributeError("no describe"),
    ],
)
def test_a_worker_without_optiml_is_told_what_to_install(said: Exception) -> None:
    found = cluster(worker("0"), worker("1"))
    found.client.answers = {"tcp://0": said, "tcp://1": json.dumps(dataclasses.asdict(identity(H200)))}
    assert [w.name for w in found.examine()] == ["1"]
    (problem,) = found.problems()
    assert str(problem).startswith("worker 0: lacks optiml-cuda, or has another version of it (")
    assert str(problem).endswith("; install it there: pip install 'optiml-cuda[cluster]'")


def test_an_answer_that_dask_cannot_read_is_one_sentence() -> None:
    """An exception on a worker whose traceback cannot travel was an internal error."""
    found = cluster(worker("0"))
    found.client.error = AssertionError()
    with pytest.raises(
        MachineError, match=r"tcp://scheduler:8786: Dask failed: AssertionError; install the same versions"
    ):
        found.examine()


def test_workers_that_all_end_before_they_are_asked_are_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    found = cluster(worker("0"))
    found.client.answers = {"tcp://0": OSError("gone")}

    @contextmanager
    def client(request: ClusterRequest) -> Iterator[Client]:
        yield found.client

    monkeypatch.setattr(connection, "dask_client", client)
    with (
        pytest.raises(MachineError, match="the scheduler has no workers left"),
        connect(ClusterRequest("tcp://scheduler:8786")),
    ):
        pass


@pytest.mark.parametrize("said", [None, 5, "", "{", "[]", '{"host": 3}', "x" * (1 << 21), '{"host": "a", "extra": 1}'])
def test_an_identity_is_data(said: object) -> None:
    with pytest.raises(MachineError, match="worker 0: the worker's identity"):
        read_identity(said, "worker 0")


def test_an_identity_survives_the_way() -> None:
    mine = read_identity(describe(), "here")
    assert mine.pid == os.getpid()
    assert set(mine.cores) == os.sched_getaffinity(0)
    assert dict(mine.versions)["optiml-cuda"]
    assert (mine.gpu is None) == bool(mine.problem)


def test_a_scheduler_that_goes_away_is_said() -> None:
    found = cluster(worker("0"))
    found.examine()
    found.client.error = OSError("gone")
    with pytest.raises(MachineError, match="the scheduler no longer answers; restart it, then resume with --resume"):
        found.refresh()


def test_cores_are_divided_once_and_a_restarted_worker_gets_its_own_again() -> None:
    found = cluster(worker("0", None), worker("1", None), worker("far", None, boot="c"))
    assert [w.cores for w in found.examine()] == [(0, 1, 2, 3), (0, 1), (2, 3)]
    assert [w.name for w in found.workers] == ["far", "0", "1"]
    client: Client = found.client
    del client.workers[1]
    found.refresh()
    client.workers.append(replace(worker("1", None), address="tcp://again"))
    assert {w.address: w.cores for w in found.refresh()}["tcp://again"] == (2, 3)
    client.workers[-1] = replace(worker("new", None), address="tcp://new")
    assert {w.name: w.cores for w in found.refresh()}["new"] == (2, 3)


def test_a_worker_that_does_not_fit_is_left_out_when_it_joins() -> None:
    found = cluster(worker("0"))
    found.examine()
    found.client.workers.append(worker("1"))  # the same GPU
    found.client.workers.append(worker("2", replace(H200, uuid="GPU-c"), versions=()))
    assert [w.name for w in found.refresh()] == ["0"]
    assert [w.name for w in found.refresh()] == ["0"]
    found.client.workers.append(worker("3", replace(H200, uuid="GPU-d")))
    assert [w.name for w in found.refresh()] == ["0", "3"]


def test_a_folder_that_is_not_shared_is_named(tmp_path: Path) -> None:
    found = cluster(worker("0"), worker("1", replace(H200, uuid="GPU-b")))
    found.examine()
    check_shared(found, tmp_path)
    assert not list(tmp_path.iterdir())
    found.client.answers = {"tcp://0": ""}
    with pytest.raises(MachineError, match=r"on worker 0 .*: is not a shared folder"):
        check_shared(found, tmp_path)
    assert not list(tmp_path.iterdir())


def test_dask_that_is_not_installed_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with (
        pytest.raises(OptimlError, match=r"Dask is missing .*; pip install 'optiml-cuda\[cluster\]'"),
        connect(ClusterRequest("local")),
    ):
        pass


def test_gpus_follow_the_visible_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = type("N", (), {
        "NVMLError": OSError, "nvmlInit": staticmethod(lambda: None), "nvmlDeviceGetCount": staticmethod(lambda: 3),
        "nvmlDeviceGetHandleByIndex": staticmethod(lambda i: i), "nvmlDeviceGetUUID": staticmethod(lambda h: f"GPU-{h}"),
    })  # fmt: skip
    monkeypatch.setattr("engine.cluster.identity.pynvml", nvml)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert visible_gpus() == ("GPU-0", "GPU-1", "GPU-2")
    for text, found in (("2,0", ("GPU-2", "GPU-0")), ("", ()), ("1,7,0", ("GPU-1",)), ("GPU-x,0", ("GPU-x", "GPU-0"))):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", text)
        assert visible_gpus() == found


def test_more_workers_than_the_cores_can_have_are_wrong_use() -> None:
    """The command never came to an end."""
    with (
        pytest.raises(UsageError, match="99999999 workers requested, but this machine has"),
        connect(ClusterRequest("local", "cpu", 99_999_999)),
    ):
        pass


@contextmanager
def busy(client: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As on a busy machine: before an answer is read, the client's own watch asks the scheduler for its totals, without workers.

    All workers seemed lost then, and the kernels under way were taken from them.
    """
    real = client._update_scheduler_info

    async def update(n_workers: int = 0) -> None:
        await real(n_workers=n_workers)
        await real()

    with monkeypatch.context() as patched:
        patched.setattr(client, "_update_scheduler_info", update)
        yield


def test_local_workers_live(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start, ask, share, lose and get back a worker; and nothing is left behind."""
    with connect(ClusterRequest("local", "cpu", 2)) as found:
        assert [w.name for w in found.workers] == ["0", "1"]
        assert found.resource == {"CPU_SLOT": 1}
        assert all(w.address.startswith("tls://127.0.0.1:") for w in found.workers)
        check_shared(found, Path.cwd())
        watches = importlib.import_module("dask").config.get
        assert set(found.ask(watches, "distributed.diagnostics.nvml").values()) == {
            False
        }  # nor does the scheduler, here
        assert watches("distributed.diagnostics.nvml") is False
        with busy(found.client, monkeypatch):
            assert set(found.listed()) == {w.address for w in found.workers}
            assert len(found.refresh()) == 2
        first, second = found.workers
        assert found.submit(connection.read_nonce, "/nowhere", second).result(30) == ""
        tls = found.client.security.get_connection_args("client")
        with pytest.raises(MachineError, match=r"is the address of a Dask worker; give the scheduler's"):
            scheduler.check_scheduler(importlib.import_module("distributed"), second.address, tls)
        os.kill(first.identity.pid, signal.SIGKILL)
        until = time.monotonic() + 60
        while time.monotonic() < until and (
            len(found.refresh()) < 2 or first.address in {w.address for w in found.workers}
        ):
            time.sleep(0.1)
        again = next(w for w in found.workers if w.name == first.name)
        assert again.address != first.address
        assert again.cores == first.cores
        pids = [w.identity.pid for w in found.workers]
    assert watches("distributed.diagnostics.nvml") is not False
    until = time.monotonic() + 30
    while time.monotonic() < until and any(Path(f"/proc/{pid}/exe").exists() for pid in pids):
        time.sleep(0.1)
    assert not [pid for pid in pids if Path(f"/proc/{pid}/exe").exists()]
