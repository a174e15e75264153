"""Caches that are cut off, scribbled over or on a full disk: built anew, or passed over; never trusted, never the end of a run."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

import engine.cpu.toolchain as toolchain_module
from engine.compile.cache import DiskCache
from engine.cpu.cpu_machine import CpuMachine
from engine.cpu.toolchain import Toolchain, prepare
from engine.process.sandbox import Sandbox
from engine.run.optimization import optimize
from engine.settings.folders import cache_folder
from engine.spec.find import find_spec

from .scripted import ScriptedEvaluator, kernel, options, scripted

GCC = Toolchain("gcc", ("/usr/bin/g++",), "g++ 99")


@pytest.fixture
def builds(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    made: list[Path] = []

    def build(toolchain: Toolchain, folder: Path, std: str) -> None:
        made.append(folder)
        (folder / "header").mkdir()
        (folder / "header" / "optiml_cuda.h.gch").write_bytes(b"precompiled" * 100)
        for name in ("screen", "supervise", "race"):
            (folder / name).write_text(name)

    monkeypatch.setattr(toolchain_module, "_build", build)
    return made


def test_the_runtime_is_built_once(builds: list[Path], tmp_path: Path) -> None:
    assert prepare(GCC, tmp_path, "c++17") == prepare(GCC, tmp_path, "c++17")
    assert len(builds) == 1


@pytest.mark.parametrize("name", ["screen", "race", "supervise", "header/optiml_cuda.h.gch", "done"])
@pytest.mark.parametrize("damage", ["cut", "flip", "gone"])
def test_a_damaged_runtime_is_built_anew(builds: list[Path], tmp_path: Path, name: str, damage: str) -> None:
    folder = prepare(GCC, tmp_path, "c++17").folder
    path = folder / name
    data = path.read_bytes()
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(data[:-3] if damage == "cut" else bytes([data[0] ^ 1]) + data[1:])
    assert prepare(GCC, tmp_path, "c++17").folder == folder
    assert len(builds) == 2
    assert prepare(GCC, tmp_path, "c++17").folder == folder
    assert len(builds) == 2
    assert [p for p in tmp_path.iterdir() if p != folder] == []


def test_compiled_code_that_was_scribbled_over_is_compiled_anew(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path)
    cache.put("key", {"entries": ["k"]}, b"code" * 50)
    (path,) = [p for p in tmp_path.rglob("*") if p.is_file()]
    data = path.read_bytes()
    chance = random.Random(0)
    for _ in range(200):
        damaged = bytearray(data)
        for _ in range(chance.randint(1, 3)):
            damaged[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        path.write_bytes(damaged[: chance.choice((len(data), chance.randrange(len(data))))])
        assert path.read_bytes() == data or cache.get("key") is None
    cache.put("key", {"entries": ["k"]}, b"code" * 50)
    assert cache.get("key") == ({"entries": ["k"]}, b"code" * 50)


def test_a_full_disk_turns_the_cache_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real answer of a full disk: what would be written goes to /dev/full."""
    import os

    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full here")
    cache = DiskCache(tmp_path)
    cache.put("before", {}, b"1")
    monkeypatch.setattr(
        "tempfile.mkstemp", lambda dir, prefix: (os.open("/dev/full", os.O_WRONLY), str(tmp_path / "new"))
    )
    cache.put("key", {}, b"2" * 100_000)
    assert "No space left on device" in cache.problem
    cache.put("later", {}, b"3")  # does not even try
    assert cache.get("before") == ({}, b"1")
    assert cache.get("key") is None


def test_the_result_says_what_the_machine_lacks(tmp_path: Path) -> None:
    """No sandbox, less of one, a cache that is not kept: none of it is silent."""
    with scripted(ScriptedEvaluator()) as machine:
        result, _ = optimize(options(kernel(tmp_path), tmp_path / "out", candidates=3), machine)
        assert "no sandbox (--unsafe-no-sandbox): compiled code ran with the user's permissions" in result.notes
        machine.box = Sandbox(Path("/usr/bin/bwrap"), nested=False, filtered=False)
        machine.compiler.cache_problem = "compiled code is not cached: No space left on device"  # type: ignore[misc]
        result, _ = optimize(options(tmp_path / "k.cu", tmp_path / "out", candidates=3), machine)
    assert not [note for note in result.notes if "--unsafe-no-sandbox" in note]
    for said in ("does not filter system calls", "user namespaces", "No space left on device"):
        assert [note for note in result.notes if said in note], said


@pytest.mark.skipif(toolchain_module.find_toolchain() is None, reason="no C++ compiler here")
def test_an_object_for_the_cpu_is_kept_and_compiled_anew_once_it_is_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, _ = find_spec(tmp_path, kernel(tmp_path))
    text = (
        "__global__ void k(const float* x, float* y, int n) { if (threadIdx.x < n) y[threadIdx.x] = x[threadIdx.x]; }"
    )
    machine = CpuMachine(cache_folder() / "cpu", sandbox=None, scratch=tmp_path / "scratch")
    monkeypatch.setattr(machine, "_objects", DiskCache(tmp_path / "objects"))
    starts = []
    real = machine._start

    def start(*arguments: Any, **named: Any) -> Any:
        starts.append(arguments)
        return real(*arguments, **named)

    monkeypatch.setattr(machine, "_start", start)
    first = machine.build(text, "k.cu", spec, ["k"]).object.read_bytes()
    assert machine.build(text, "k.cu", spec, ["k"]).object.read_bytes() == first
    assert len(starts) == 1
    machine.build(text.replace("x[threadIdx.x];", "2 * x[threadIdx.x];"), "k.cu", spec, ["k"])
    assert len(starts) == 2
    for path in (tmp_path / "objects").rglob("*"):
        if path.is_file():
            path.write_bytes(path.read_bytes()[:-100])
    machine.build(text, "k.cu", spec, ["k"])
    assert len(starts) == 3
