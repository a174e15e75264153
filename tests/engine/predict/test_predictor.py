"""Machine code is disassembled once, in this process and after it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from engine.predict import predictor
from engine.predict.predictor import Predictor

BINARY: Any = SimpleNamespace(code_hash="a", entries=("k",), cubin=b"machine code")


def test_a_disassembly_outlives_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each command ran nvdisasm anew, 0.4 s of a core, for code that is compiled and kept."""
    asked: list[bytes] = []

    def disassemble(cubin: bytes, **_: object) -> str:
        asked.append(cubin)
        return ""

    monkeypatch.setattr(predictor, "disassemble", disassemble)
    for folder in (tmp_path / "a", tmp_path / "a", tmp_path / "b", None, None):
        made = Predictor("sm_90", sandbox=SimpleNamespace(), cache=folder)  # type: ignore[arg-type]
        assert made.code(BINARY) is made.code(BINARY)
    assert len(asked) == 4
