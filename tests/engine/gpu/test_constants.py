"""Constants on the device, with a stand-in for CuPy: their contents are copied before each launch, outside of what is timed."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from engine.model import LaunchConfig

STREAM = SimpleNamespace(ptr=7)
LAUNCHES = [LaunchConfig((1, 1, 1), (32, 1, 1), 0)]


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module with a CuPy that writes down what it is asked for in `done`."""
    for name in [name for name in sys.modules if name.startswith("engine.gpu.")]:
        monkeypatch.delitem(sys.modules, name)
    cupy = MagicMock()
    done: list[Any] = []
    cupy.cuda.function.Module.return_value.get_global_var = {"taps": 4096, "shape": 8192}.__getitem__
    cupy.cuda.runtime.memcpyAsync = lambda *a: done.append(("copy", *a))
    cupy.cuda.driver.launchKernel = lambda *a: done.append("launch")
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setitem(sys.modules, "cupy.cuda", cupy.cuda)
    found = importlib.import_module("engine.gpu.device")
    monkeypatch.setattr(found, "done", done, raising=False)
    yield found
    for name in [name for name in sys.modules if name.startswith("engine.gpu.")]:
        monkeypatch.delitem(sys.modules, name)  # they hold the stand-in


def test_each_launch_finds_its_own_contents(device: Any) -> None:
    loaded = device.Loaded(b"", ["k"], [("taps", 12), ("shape", 16)])
    one = device.Call(loaded, LAUNCHES, device.Given([[b"12345678"]], [(100, 12), (200, 16)]))
    other = device.Call(loaded, LAUNCHES, device.Given([[b"12345678"]], [(300, 12), (400, 16)]))
    for call in (one, other, one):
        call(STREAM)
    first = [("copy", 4096, 100, 12, 3, 7), ("copy", 8192, 200, 16, 3, 7), "launch"]
    second = [("copy", 4096, 300, 12, 3, 7), ("copy", 8192, 400, 16, 3, 7), "launch"]
    assert device.done == [*first, *second, *first]


def test_a_launch_alone_copies_nothing(device: Any) -> None:
    loaded = device.Loaded(b"", ["k"], [("taps", 12)])
    call = device.Call(loaded, LAUNCHES, device.Given([[]], [(100, 12)]))
    call.fill_constants(STREAM)
    device.done.clear()
    call.launch(STREAM)
    assert device.done == ["launch"]


def test_contents_of_another_size_are_refused(device: Any) -> None:
    loaded = device.Loaded(b"", ["k"], [("taps", 12)])
    with pytest.raises(ValueError, match="24 bytes for a constant of 12"):
        device.Call(loaded, LAUNCHES, device.Given([[]], [(100, 24)]))
