"""Checks on module states: half on a module loaded anew, half behind thirty launches in a row."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest


class Launches:
    """A call of a program: it tells which module it is of, and how often it was made."""

    made: list[Launches]

    def __init__(self, module: object, launches: object, arguments: object) -> None:
        self.module, self.count = module, 0
        Launches.made.append(self)

    def __call__(self, stream: object) -> None:
        self.count += 1


@pytest.fixture
def gpu_session(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module, with CuPy there by name alone."""
    for name in [name for name in sys.modules if name.startswith("engine.gpu.")]:
        monkeypatch.delitem(sys.modules, name)
    cupy = MagicMock()
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setitem(sys.modules, "cupy.cuda", cupy.cuda)
    yield importlib.import_module("engine.gpu.gpu_session")
    for name in [name for name in sys.modules if name.startswith("engine.gpu.")]:
        monkeypatch.delitem(sys.modules, name)  # they hold the stand-in


@pytest.fixture
def session(gpu_session: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(gpu_session, "Call", Launches)
    monkeypatch.setattr(gpu_session, "Loaded", lambda cubin, entries: object())
    Launches.made = []
    found = gpu_session.DeviceSession.__new__(gpu_session.DeviceSession)
    buffers = SimpleNamespace(main=None, arguments=lambda main: [], draw=lambda *a, **k: None, reset=lambda *a: None)
    found.checker = SimpleNamespace(buffers=lambda index: buffers, stream=None, check=lambda runs: (runs, len(runs)))
    found.loaded, found.code = {"candidate": ("shared", [[], []])}, {"candidate": (b"", [])}
    return found


PLAN = [(0, "declared", 1), (1, "declared", 2), (0, "special", 3), (1, "special", 4)]


def test_half_of_the_checks_get_a_new_module_and_the_others_follow_many_launches(session: Any) -> None:
    runs = session.verify({"key": "candidate", "plan": PLAN, "states": True})["failure"]
    assert [run.call.module == "shared" for run in runs] == [True, False, True, False]
    assert runs[1].call.module is not runs[3].call.module
    assert [run.call.count for run in runs] == [30, 0, 30, 0]  # the first and the third are one call


def test_other_checks_share_one_module(session: Any) -> None:
    runs = session.verify({"key": "candidate", "plan": PLAN})["failure"]
    assert {run.call.module for run in runs} == {"shared"}
    assert all(call.count == 0 for call in Launches.made)
