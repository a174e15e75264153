from __future__ import annotations

import os
from pathlib import Path

import pytest

from engine.compile.cache import DiskCache


def test_round_trip_and_miss(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path / "deep" / "folder")
    assert cache.get("a") is None
    cache.put("a", {"n": 1}, b"\0blob")
    assert cache.get("a") == ({"n": 1}, b"\0blob")
    assert cache.get("b") is None
    assert not list(tmp_path.rglob(".new-*"))


def test_every_damage_reads_as_missing(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path)
    cache.put("a", {"n": 1}, b"blob" * 10)
    (path,) = tmp_path.glob("??/*")
    good = path.read_bytes()
    for bad in (b"", good[:3], good[:20], good[:-1], good + b"x", b"X" + good[1:], good[:40] + b"\xff" + good[41:]):
        path.write_bytes(bad)
        assert cache.get("a") is None
    cache.put("a", {"n": 2}, b"new")
    assert cache.get("a") == ({"n": 2}, b"new")


def test_an_entry_under_another_key_is_not_taken(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path)
    cache.put("a", {}, b"of a")
    cache.put("b", {}, b"of b")
    cache._path("b").write_bytes(cache._path("a").read_bytes())
    assert cache.get("b") is None


def test_a_disk_that_refuses_turns_the_cache_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = DiskCache(tmp_path)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    cache.put("a", {}, b"x")
    assert "No space left" in cache.problem
    assert not list(tmp_path.rglob(".new-*"))
    monkeypatch.undo()
    cache.put("a", {}, b"x")
    assert cache.get("a") is None
    (tmp_path / "file").write_text("")
    blocked = DiskCache(tmp_path / "file" / "cache")
    blocked.put("a", {}, b"x")
    assert blocked.problem
    assert blocked.get("a") is None


def test_without_a_folder_nothing_is_kept() -> None:
    cache = DiskCache(None)
    cache.put("a", {}, b"x")
    assert cache.get("a") is None


def test_the_oldest_entries_go_when_it_grows_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.compile.cache._LIMIT_BYTES", 5000)
    monkeypatch.setattr("engine.compile.cache._PRUNE_EVERY", 10)
    cache = DiskCache(tmp_path)
    for i in range(10):
        cache.put(str(i), {}, b"x" * 1000)
        if i < 9:
            os.utime(cache._path(str(i)), (i, i))
    kept = [i for i in range(10) if cache.get(str(i))]
    assert kept == [6, 7, 8, 9]
