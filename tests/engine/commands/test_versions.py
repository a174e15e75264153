"""`--resume` into a folder whose result is of another version: refused before anything runs, nothing overwritten."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from engine.cli import main

KERNEL = """\
#define ITEMS 1
// optiml: tune ITEMS = 1, 4
// optiml: args.x = { role = "in", size = "n", fill = "normal" }
// optiml: args.y = { role = "out", size = "n" }
// optiml: check = [{ n = 1 }, { n = 129 }]
// optiml: time = [{ n = 4096 }]
__global__ void scale(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = 2 * x[i];
}
void run(const float* x, float* y, int n) { scale<<<(n + 255) / 256, 256>>>(x, y, n); }
"""


@pytest.mark.parametrize("verb", ["optimize", "tune"])
@pytest.mark.parametrize(
    ("held", "says"),
    [
        (b'{"schema": "optiml.result/9"}', "'optiml.result/9'"),
        (b'{"schema": "optiml.tune/0"}', "'optiml.tune/0'"),
        (b"[]", "None"),
        (b"{", "is not valid JSON"),
        (b"\xff", "is not valid JSON"),
        (b"[" * 100_000, "is not valid JSON"),
    ],
    ids=["result", "tune", "list", "half", "bytes", "deep"],
)
def test_a_result_of_another_version_is_refused_and_not_overwritten(
    verb: str, held: bytes, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:  # fmt: skip
    """It became one of this version without a word."""

    def began(*given: object, **more: object) -> None:
        pytest.fail("something ran")

    monkeypatch.setattr("engine.run.machine.Machine.evaluator", began)
    monkeypatch.setattr("engine.run.machine.Machine.front", began)
    monkeypatch.setattr("engine.run.machine.Machine.builder", began)
    (tmp_path / ".git").mkdir()
    (tmp_path / "scale.cu").write_text(KERNEL)
    out = tmp_path / "out"
    out.mkdir()
    (out / "result.json").write_bytes(held)
    with closing(sqlite3.connect(out / "journal.sqlite")) as journal:
        journal.execute("CREATE TABLE candidates (id INTEGER PRIMARY KEY)")
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    arguments = [verb, str(tmp_path / "scale.cu"), "--out", str(out), "--device", "cpu", "--jobs", "1", "--resume"]
    assert main(arguments) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith(f"optiml: {out / 'result.json'}: is ")
    assert says in said
    assert "nothing was overwritten" in said
    assert "--out" in said
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
