"""GitHub's own expression evaluator, from npm."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.npm import package

_EXPRESSION = re.compile(r"\$\{\{(.*?)\}\}", re.S)
Evaluate = Callable[[str, Mapping[str, Any]], str]


@pytest.fixture(scope="session")
def evaluate() -> Iterator[Evaluate]:
    """The text with its `${{ … }}` replaced by their values, as the runner does. One process answers all tests."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("there is no node: expressions cannot be evaluated as GitHub does")
    entry = package("@actions/expressions", "0.3.61") / "dist" / "index.js"
    script = Path(__file__).with_name("evaluate.mjs")
    with subprocess.Popen(
        [node, str(script), str(entry)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        asked, answered = process.stdin, process.stdout

        def run(text: str, contexts: Mapping[str, Any]) -> str:
            expressions = [match[1].strip() for match in _EXPRESSION.finditer(text)]
            asked.write(json.dumps({"contexts": contexts, "expressions": expressions}) + "\n")
            asked.flush()
            found = json.loads(answered.readline())
            assert isinstance(found, list), found
            values = iter(found)
            return _EXPRESSION.sub(lambda _: next(values), text)

        yield run
        asked.close()
