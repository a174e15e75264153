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

from tests.npm import package

_EXPRESSION = re.compile(r"\$\{\{(.*?)\}\}", re.S)
Evaluate = Callable[[str, Mapping[str, Any]], str]


@pytest.fixture(scope="session")
def evaluate() -> Evaluate:
    """The text with its `${{ … }}` replaced by their values, as the runner does."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("there is no node: expressions cannot be evaluated as GitHub does")
    entry = package("@actions/expressions", "0.3.61") / "dist" / "index.js"
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
