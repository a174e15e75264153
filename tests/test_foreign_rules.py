"""What the rules propose for kernels of other repositories, counted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import foreign
from benchmarks.foreign_rules import asked, kept_away, main, summary

KERNEL = """__global__ void scaled(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = 2.0f * x[i];
}
void run(const float* x, float* y, int n) { scaled<<<(n + 255) / 256, 256>>>(x, y, n); }
"""


def test_kernels_of_a_checkout_are_asked_and_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "karpathy__llm.c" / "dev" / "cuda"
    folder.mkdir(parents=True)
    (folder / "a.cu").write_text(KERNEL)
    (folder / "b.cu").write_text("__global__ void odd(int (*f)(int), float* y) { y[0] = f(1); }\n")
    record = tmp_path / "record.json"
    assert main(["--checkouts", str(tmp_path), "--record", str(record)]) == 0
    found = json.loads(record.read_text())
    rows = {row["kernel"]: row for row in found["rows"]}
    assert {"vectorize", "block_size", "restrict"} <= rows["scaled"]["rules"].keys()
    assert rows["scaled"]["launch_visible"]
    assert found["summary"]["kernels"] == 2
    assert "1 with more than" in capsys.readouterr().out


def test_only_what_more_than_broad_rules_have_something_for_counts() -> None:
    rows = [{"error": None, "rules": {"restrict": 1}}, {"error": None, "rules": {"vectorize": 2}}, {"error": "no"}]
    told = summary(rows)
    assert (told["kernels"], told["drafted"], told["something"], told["beyond_broad"]) == (3, 2, 2, 1)


def test_what_nobody_looks_at_is_not_drawn() -> None:
    held = {(k.repository, k.file, k.kernel) for k in foreign.listed() if k.held_out}
    assert held
    assert held < kept_away()


def test_a_kernel_without_a_draft_has_a_reason(tmp_path: Path) -> None:
    (tmp_path / "a.cu").write_text(KERNEL)
    assert asked(tmp_path / "a.cu", "missing")["error"]


def test_an_empty_folder_is_wrong_use(tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        main(["--checkouts", str(tmp_path)])
