"""Whole builds between runs: the same text is built once, another is not taken for it, and what was forgotten is built anew."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.compile import kept_whole
from engine.compile.kept_whole import WholeBuilds
from engine.compile.whole import WholeFile, WholeOptions
from engine.process.sandbox import NoSandbox

OPTIONS = WholeOptions((), "c++17", (), "sm_90")


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The texts that were built."""
    texts: list[bytes] = []

    def build(files: Any, unit: str, *_: Any) -> WholeFile:
        texts.append(files[unit])
        return WholeFile(f"# 1 é {files[unit]!r}", b"cubin\0" + files[unit], b"object", "stubs", ".version 9.0")

    monkeypatch.setattr(kept_whole, "build_whole", build)
    return texts


def test_the_next_run_takes_what_was_built(built: list[bytes], tmp_path: Path) -> None:
    first = WholeBuilds(NoSandbox(), tmp_path)
    whole = first.build({"a.cu": b"1"}, "a.cu", OPTIONS)
    assert not first.taken
    again = WholeBuilds(NoSandbox(), tmp_path)
    assert again.build({"a.cu": b"1"}, "a.cu", OPTIONS) == whole
    assert again.taken
    assert built == [b"1"]


def test_other_text_options_instances_and_headers_are_built(built: list[bytes], tmp_path: Path) -> None:
    builds = WholeBuilds(NoSandbox(), tmp_path)
    builds.build({"a.cu": b"1"}, "a.cu", OPTIONS)
    builds.build({"a.cu": b"2"}, "a.cu", OPTIONS)
    builds.build({"a.cu": b"1", "b.cuh": b""}, "a.cu", OPTIONS)
    builds.build({"a.cu": b"1"}, "a.cu", WholeOptions(("N=1",), "c++17", (), "sm_90"))
    builds.build({"a.cu": b"1"}, "a.cu", OPTIONS, ("k<1>",))
    assert len(built) == 5
    assert not builds.taken


def test_what_is_forgotten_is_built_anew(built: list[bytes], tmp_path: Path) -> None:
    builds = WholeBuilds(NoSandbox(), tmp_path)
    builds.build({"a.cu": b"1"}, "a.cu", OPTIONS)
    builds.build({"a.cu": b"1"}, "a.cu", OPTIONS)
    builds.forget()
    builds.build({"a.cu": b"1"}, "a.cu", OPTIONS)
    assert len(built) == 2
    assert not builds.taken
