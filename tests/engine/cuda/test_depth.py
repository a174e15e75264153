"""Nested code ends in a sentence, and what is below the limit in a result: never in Python's RecursionError."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.cuda.parse import parse
from engine.errors import SourceError
from engine.model import Program
from engine.spec.draft import DraftForm, draft


def _kernel(body: str) -> bytes:
    return (
        "__global__ void k(const float* x, float* y, int n) {\n  int i = blockIdx.x * blockDim.x + threadIdx.x;\n"
        f"  if (i < n) {{\n{body}\n  }}\n}}\n"
        "void run(const float* x, float* y, int n) { k<<<(n + 255) / 256, 256>>>(x, y, n); }\n"
    ).encode()


def _terms(count: int) -> str:
    return "    y[i] = x[i]" + "".join(f" + {k}.0f" for k in range(count)) + ";"


def _chain(count: int) -> str:
    return "    if (n == 0) y[i] = 0;\n" + "".join(f"    else if (n == {k}) y[i] = {k};\n" for k in range(1, count))


def _parentheses(count: int) -> str:
    return "    y[i] = " + "(" * count + "x[i]" + ")" * count + ";"


def _braces(count: int) -> str:
    return "{" * count + "y[i] = x[i];" + "}" * count


@pytest.mark.parametrize("shape", [_terms, _chain, _parentheses, _braces])
def test_depth(shape: object, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="nested more than") as caught:
        parse(_kernel(shape(1100)), "k.cu")  # type: ignore[operator]
    assert caught.value.where.startswith("k.cu:")
    few = 110 if shape is _chain else 220  # an `else if` is two nodes
    data = _kernel(shape(few))  # type: ignore[operator]
    assert draft(Program({"k.cu": data}, "k.cu"), "k", written=DraftForm(form="comment", toml_file=None)).spec.check
