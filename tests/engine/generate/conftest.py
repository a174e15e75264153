"""The command `optiml generate` on a recorded task, against a scripted server."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine import cli
from tests.engine.llm.conftest import serve  # noqa: F401 - a fixture

from .scripts import RECORDED, recorded


@pytest.fixture
def run(
    serve: Any,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str],
) -> Callable[..., tuple[int, Any, str, Any]]:  # fmt: skip
    """Runs the command on one recorded task: (exit code, result or None, standard error, server)."""
    monkeypatch.chdir(tmp_path)

    def start(
        task: str, *arguments: str, instead: Any = None, own: bool = True, script: Any = None
    ) -> tuple[int, Any, str, Any]:
        server = serve(script or recorded(task, instead))
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        sentence = (RECORDED / task / "sentence.txt").read_text()
        given = [
            "generate",
            sentence,
            "--device",
            "cpu",
            "--llm-concurrency",
            "1",
            "--work",
            "work",
            "--format",
            "json",
        ]
        given += ["--reference", f"{RECORDED / task / 'ref.py'}:{task}"] if own else []
        code = cli.main([*given, *arguments])
        said = capsys.readouterr()
        return code, json.loads(said.out) if said.out.strip() else None, said.err, server

    return start
