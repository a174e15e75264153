"""GitHub's own expression evaluator, from npm."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from engine.folders import cache_folder

PACKAGE = "@actions/expressions@0.3.61"
_EXPRESSION = re.compile(r"\$\{\{(.*?)\}\}", re.S)
Evaluate = Callable[[str, Mapping[str, Any]], str]


@pytest.fixture(scope="session")
def evaluate() -> Evaluate:
    """The text with its `${{ … }}` replaced by their values, as the runner does."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        pytest.skip("npm is missing: expressions cannot be evaluated as GitHub does")
    folder = cache_folder() / "test-npm" / PACKAGE.rpartition("@")[2]
    entry = folder / "node_modules" / "@actions" / "expressions" / "dist" / "index.js"
    if not entry.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        command = [
            npm,
            "install",
            "--silent",
            "--no-audit",
            "--no-fund",
            "--ignore-scripts",
            "--prefix",
            str(folder),
            PACKAGE,
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=200)
        if done.returncode != 0 or not entry.is_file():
            pytest.skip(f"npm cannot fetch {PACKAGE}: {done.stderr[-200:]}")
    script = Path(__file__).with_name("evaluate.mjs")

    def run(text: str, contexts: Mapping[str, Any]) -> str:
        expressions = [match[1].strip() for match in _EXPRESSION.finditer(text)]
        request = json.dumps({"contexts": contexts, "expressions": expressions})
        done = subprocess.run(
            [node, str(script), str(entry)], input=request, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
        values = iter(json.loads(done.stdout))
        return _EXPRESSION.sub(lambda _: next(values), text)

    return run
