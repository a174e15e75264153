"""The corpus of techniques: every snippet compiles, and what is shown fits the diagnosis and the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import engine.llm
from engine.compile.program import compile_text
from engine.compile.toolkit import include_folders
from engine.llm.approaches import APPROACHES
from engine.llm.edits import Workplace
from engine.llm.techniques import MOST, corpus, fitting, form_of, holds
from engine.rewrite.site import Site
from tests.engine.rules.workbench import make

PROMPTS = Path(engine.llm.__file__).parent / "prompts"
ROW = """
__global__ void softmax(const float* x, float* y, int rows, int cols) {
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    float largest = x[row * cols], sum = 0.0f;
    for (int i = 1; i < cols; ++i) largest = fmaxf(largest, x[row * cols + i]);
    for (int i = 0; i < cols; ++i) sum += expf(x[row * cols + i] - largest);
    for (int i = 0; i < cols; ++i) y[row * cols + i] = expf(x[row * cols + i] - largest) / sum;
}
"""
COPY = """
__global__ void copy(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i];
}
"""


def place(device: str, sizes: dict[str, int]) -> Workplace:
    name = device.split("void ")[1].split("(")[0]
    arguments = "x, y, rows, cols" if "rows" in device else "x, y, n"
    site: Site = make(device, f"{name}<<<64, 256>>>({arguments});", sizes=(sizes,), check=(sizes,),
                      elements=dict.fromkeys("xy", "rows * cols") if "rows" in device else None)  # fmt: skip
    return Workplace((site,), site.program)


def test_every_snippet_compiles() -> None:
    lines = [(one.name, one.code.strip().splitlines(True)) for one in corpus()]
    headers = {line for _, code in lines for line in code if line.startswith("#include")}
    texts = [
        f'#line 1 "{name}"\nnamespace {name} {{\n{"".join(line for line in code if line not in headers)}}}\n'
        for name, code in lines
    ]
    assert len(texts) >= 40
    folders = [f"--include-path={folder}" for folder in include_folders()]
    assert compile_text("\n".join([*headers, *texts]), "corpus.cu", [], ["--gpu-architecture=sm_90", *folders]).code


def test_every_technique_says_what_a_reader_needs() -> None:
    form = form_of(place(COPY, {"n": 1 << 20}).sites[0])
    offered = set(re.findall(r"<[\w/]+\.c?u?h>", (PROMPTS / "system.jinja").read_text(encoding="utf-8")))
    for one in corpus():
        assert one.approach in {approach.name for approach in APPROACHES}, one.name
        assert one.codes, one.name
        assert min(len(one.title), len(one.when), len(one.pitfalls), len(one.source)) > 15, one.name
        for condition in one.form:
            assert holds(condition, form) in (True, False)
        assert "asm" not in one.code, one.name
        headers = re.findall(r"#include (<.*>)", one.code)
        assert set(headers) <= offered, one.name  # those that the prompt offers
    assert len({one.title for one in corpus()}) == len(corpus())


@pytest.mark.parametrize(
    ("device", "sizes", "codes", "wanted", "never"),
    [
        (ROW, {"rows": 4096, "cols": 1024}, ("memory_bound", "uncoalesced_loads"), "warp_per_row", "vector_access"),
        (ROW, {"rows": 4096, "cols": 1024}, ("excess_traffic",), "online_softmax", "private_histogram"),
        (COPY, {"n": 1 << 24}, ("memory_queue_stalls",), "vector_access", "row_in_registers"),
    ],
)
def test_what_is_shown_answers_the_diagnosis_and_fits_the_code(device, sizes, codes, wanted, never) -> None:
    shown = [one.name for one in fitting(place(device, sizes), codes)]
    assert wanted in shown
    assert never not in shown
    assert 0 < len(shown) <= MOST


def test_an_approach_has_its_own_techniques_also_without_a_diagnosis() -> None:
    at = place(ROW, {"rows": 4096, "cols": 1024})
    for approach in ("coalesce", "fuse", "more work per thread", "fewer instructions"):
        shown = fitting(at, (), approach)
        assert shown
        assert {one.approach for one in shown} == {approach}


def test_indirect_indices_count_as_gathers() -> None:
    def gathers(text: str) -> float:
        device = f"__global__ void g(const float* x, const int* p, float* y, int n) {{ {text} }}"
        return form_of(make(device, "g<<<64, 256>>>(x, p, y, n);"))["gathers"]

    assert gathers("y[threadIdx.x] = x[p[threadIdx.x]];") == 1
    assert gathers("int at = p[threadIdx.x]; y[threadIdx.x] = x[at * n];") == 1
    assert gathers("y[threadIdx.x] = x[n];") == 0
