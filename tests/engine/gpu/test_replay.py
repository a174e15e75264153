"""Work that is recorded once and launched from then on, with a stand-in for CuPy that counts."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest


class Board:
    """Places, as `engine.gpu.device.Board` gives them."""

    used = 0

    def take(self, words: int) -> slice:
        self.used += words
        return slice(self.used - words, self.used)


class Device:
    """Streams and graphs; `launched` are the graphs that ran, by what was recorded in them."""

    def __init__(self) -> None:
        self.launched: list[list[str]] = []
        self.recording: list[str] | None = None
        self.ran: list[str] = []

    def enqueue(self, what: str) -> None:
        (self.ran if self.recording is None else self.recording).append(what)

    def stream(self, **named: Any) -> Any:
        return _Stream(self)


class _Stream(nullcontext[None]):
    def __init__(self, device: Device) -> None:
        super().__init__()
        self._device = device

    def begin_capture(self) -> None:
        self._device.recording = []

    def end_capture(self) -> Any:
        recorded, self._device.recording = self._device.recording, None
        return SimpleNamespace(launch=lambda stream: self._device.launched.append(recorded or []))


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[Device]:
    made = Device()
    cuda = SimpleNamespace(Stream=made.stream, get_current_stream=lambda: None)
    for name in ("cupy", "cupy.cuda", "cupyx", "engine.gpu.device", "engine.gpu.replay"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setattr(sys.modules["cupy"], "cuda", cuda, raising=False)
    monkeypatch.setattr(sys.modules["engine.gpu.device"], "Board", Board, raising=False)
    monkeypatch.delitem(sys.modules, "engine.gpu.replay")
    yield made
    sys.modules.pop("engine.gpu.replay", None)  # it holds the stand-in


def replays(board: Board) -> Any:
    return importlib.import_module("engine.gpu.replay").Replays(board)


def test_work_runs_the_first_time_and_is_a_graph_from_then_on(device: Device) -> None:
    board = Board()
    known, asked = replays(board), []

    def work() -> slice:
        asked.append(1)
        device.enqueue("hash")
        return board.take(3)

    for _ in range(4):
        board.used = 0
        assert known.run(("hash", 1), work) == slice(0, 3)
        assert board.used == 3  # the next one does not write over it
    assert device.ran == ["hash"]  # kernels that never ran cannot be recorded
    assert device.launched == [["hash"]] * 3
    assert len(asked) == 2


def test_other_work_and_another_place_are_recorded_anew(device: Device) -> None:
    board = Board()
    known = replays(board)

    def work(name: str) -> slice:
        device.enqueue(f"{name} at {board.used}")
        return board.take(2)

    for start in (0, 0, 5, 5, 5):
        board.used = start
        assert known.run(("a",), lambda: work("a")) == slice(start, start + 2)
    assert device.ran == ["a at 0"]
    assert device.launched == [["a at 0"], ["a at 5"], ["a at 5"], ["a at 5"]]
    board.used = 0
    known.run(("b",), lambda: work("b"))
    assert device.ran[-1] == "b at 0"


def test_what_needs_no_place_is_recorded_once_wherever_others_stand(device: Device) -> None:
    board = Board()
    known = replays(board)
    for start in (0, 3, 9, 1):
        board.used = start
        known.run(("fill",), lambda: device.enqueue("fill"))
        assert board.used == start
    assert device.ran == ["fill"]
    assert device.launched == [["fill"]] * 3


def test_what_was_forgotten_runs_anew(device: Device) -> None:
    known = replays(Board())
    for _ in range(2):
        known.run(("fill",), lambda: device.enqueue("fill"))
    known.forget()
    known.run(("fill",), lambda: device.enqueue("other"))
    assert device.ran == ["fill", "other"]
    assert len(device.launched) == 1


def test_recording_ends_where_the_work_fails(device: Device) -> None:
    known = replays(Board())

    def work() -> None:
        raise RuntimeError("no slot is left")

    with pytest.raises(RuntimeError, match="slot"):
        known.record(work)
    assert device.recording is None
