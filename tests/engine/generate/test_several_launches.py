"""Tasks of several launches: kernels of one result that hand on scratch."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from engine.cuda.load import load_program
from engine.llm.openai_client import OpenAIClient  # noqa: F401 - the real client is what the tests run

from .scripts import RECORDED, told_to

PARTS = """__global__ void parts(const float* x, float* part, int rows, int cols) {
    const int col = blockIdx.x * blockDim.x + threadIdx.x;
    float sum = 0.0f;
    for (int r = blockIdx.y * 64; col < cols && r < min(rows, (int)(blockIdx.y + 1) * 64); r++) {
        sum += x[(size_t)r * cols + col];
    }
    if (col < cols) part[(size_t)blockIdx.y * cols + col] = SCALE * sum;
}
"""
WHOLE = """__global__ void whole(const float* part, float* sums, int rows, int cols) {
    const int col = blockIdx.x * blockDim.x + threadIdx.x;
    float sum = 0.0f;
    for (int b = 0; col < cols && b < (rows + 63) / 64; b++) sum += part[(size_t)b * cols + col];
    if (col < cols) sums[col] = sum / SCALE;
}
"""


def _of_two_launches(parts: str, whole: str, scale: str) -> str:
    launches = [
        {"kernel": "parts", "grid": ["(cols + 127) / 128", "(rows + 63) / 64"], "block": ["128"], "shared": "0"},
        {"kernel": "whole", "grid": ["(cols + 127) / 128"], "block": ["128"], "shared": "0"},
    ]
    one = {
        "idea": "Sum in two steps",
        "edits": [],
        "kernel": (parts + whole).replace("SCALE", scale),
        "launch": launches,
    }
    return json.dumps({"proposals": [one]})


def test_two_launches_hand_on_scratch(run: Any, tmp_path: Path) -> None:
    """What they hand on is each strategy's own; a strategy without one of the kernels is told so."""
    task = json.loads((RECORDED / "column_sum" / "task.md").read_text())
    x, sums, *scalars = task["arguments"]
    part = {**sums, "name": "part", "role": "scratch", "shape": ["(rows + 63) / 64", "cols"]}
    task["arguments"] = [x, part, sums, *scalars]
    task["launches"] = [
        {"kernel": "parts", "arguments": ["x", "part", "rows", "cols"]},
        {"kernel": "whole", "arguments": ["part", "sums", "rows", "cols"]},
    ]
    code, result, _, server = run(
        "column_sum", "--generate-only", "--strategies", "parallel,memory,algorithm", "--repairs", "0", "--out", "k.cu",
        instead={
            "task": json.dumps(task),
            "parallel": _of_two_launches(PARTS, WHOLE, "1.0f"),
            "memory": _of_two_launches(PARTS, WHOLE, "4.0f"),
            "algorithm": _of_two_launches(PARTS, "", "1.0f"),
        },
    )  # fmt: skip
    assert code == 0
    assert [(s["name"], s["right"]) for s in result["strategies"]] == [
        ("parallel", True), ("memory", True), ("algorithm", False),
    ]  # fmt: skip
    assert result["strategies"][2]["reason"] == "the answer lacks the kernel 'whole'"
    text = (tmp_path / "k.cu").read_text()
    assert "// optiml: chain = [" in text
    assert 'role = "scratch"' in text
    assert re.search(r"parts<<<.*stream>>>\(x, part, rows, cols\);\n\s+whole<<<", text)
    assert load_program(tmp_path / "k.cu").data == text.encode()
    told = told_to(server)
    assert "__global__ void parts(const float* x, float* part, int rows, int cols)\n__global__ void whole(" in told
