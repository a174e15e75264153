"""How `optiml list` shows what it found, and of which folder."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from engine.campaign.survey import NOT_RUN, Survey, SurveyedKernel, Surveyor
from engine.commands.list import print_survey

KERNEL = "__global__ void k(float* x) { x[threadIdx.x] = 1; }\n"


def kernel(name: str, state: str, missing: str = "", headroom: float | None = None) -> SurveyedKernel:
    return SurveyedKernel(f"src/deep/folder/{name}.cu", name, 7, state, headroom=headroom, missing=missing)  # type: ignore[arg-type]


def test_what_is_missing_does_not_squeeze_the_table(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stood in a column: 80 characters left it 13, and a repository of 131 kernels took 900 lines."""
    monkeypatch.setenv("COLUMNS", "80")
    why = "the size of 'out': no expression of the sizes explains what the kernel writes; add args.out.size"
    kernels = (
        kernel("softmax_backward", "drafted", headroom=3.1),
        kernel("scale", "drafted", missing=NOT_RUN),
        kernel("mix", "open", missing=why),
        kernel("later", "unknown", missing="not run yet, and much more"),
    )
    print_survey(Survey(kernels, recorded=False, complete=True, arch="sm_90"))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].strip() == "2 of 4 kernels can be searched"
    assert any("softmax_backward" in line and "3.1" in line for line in lines)
    assert not any(NOT_RUN in line for line in lines)
    at = lines.index("src/deep/folder/mix.cu:7 mix (open)")
    assert " ".join(line.strip() for line in lines[at + 1 : at + 3]) == why
    assert "src/deep/folder/later.cu: later" in " ".join(lines)
    assert "much more" not in " ".join(lines)
    assert max(map(len, lines)) <= 80


def test_a_folder_of_a_repository_is_listed_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of llm.c was listed for its folder of examples."""
    monkeypatch.setenv("OPTIML_CACHE", str(tmp_path / "cache"))
    root = tmp_path / "root"
    for place in ("a/k.cu", "a/b/k.h", "ab/k.cu"):
        (root / place).parent.mkdir(parents=True, exist_ok=True)
        (root / place).write_text(KERNEL)
    (root / "a" / "plain.h").write_text("int f();\n")
    machine = SimpleNamespace(arch="sm_90", jobs=1)
    for below, found in ((None, {"a/k.cu", "a/b/k.h", "ab/k.cu"}), (root / "a", {"a/k.cu", "a/b/k.h"})):
        survey = Surveyor(root, machine, below).survey(0.0)  # type: ignore[arg-type]
        assert {each.file for each in survey.kernels} == found
