"""The foreign set's harness, with the command replaced by one whose answers are known."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks import foreign, foreign_draw
from benchmarks.foreign import Foreign, examine, page

SOURCE = "template <int N>\n__global__ void k(float* x) { x[threadIdx.x] = N; }\n"
ANSWER = 'kernel = "k<8>"'


def _examined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: Sequence[str], answer: str = ANSWER, ends: int = 0
) -> tuple[foreign.Row, list[str]]:
    """The row, and the texts that `optimize` found."""
    (tmp_path / "a__b").mkdir()
    file = tmp_path / "a__b" / "k.cu"
    file.write_text(SOURCE)
    seen: list[str] = []

    def optiml(arguments: Sequence[str], limit_s: float) -> tuple[int, str, str]:
        if arguments[0] == "init":
            return 1, "draft\n", "".join(f"missing: {each}\n" for each in missing)
        seen.append(file.read_text())
        return ends, "", "optiml: refused for a reason\n" if ends else ""

    monkeypatch.setattr(foreign, "_optiml", optiml)
    row = examine(Foreign("a/b", "0" * 40, "k.cu", "k", False, answer), tmp_path)
    assert file.read_text() == SOURCE  # the checkout is as it was
    return row, seen


def test_a_kernel_that_asks_for_one_thing_counts_with_its_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row, seen = _examined(tmp_path, monkeypatch, ["the template argument for 'int N'"])
    assert (row.state, row.reason) == ("one answer", "")
    assert seen == [f"// optiml: {ANSWER}\n{SOURCE}"]


def test_one_answer_is_no_help_where_two_things_are_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row, seen = _examined(tmp_path, monkeypatch, ["the template argument for 'int N'", "the launch"])
    assert (row.state, row.reason) == ("asks", "the template argument for 'int N'; the launch")
    assert not seen


def test_a_kernel_without_an_answer_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert _examined(tmp_path, monkeypatch, ["the launch"], answer="")[0].state == "asks"


def test_the_line_that_a_message_proposes_is_pasted_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = 'launch = { grid = "blocks", block = "256" }'
    row, seen = _examined(tmp_path, monkeypatch, [f"the launch: unseen; write: {line}"], answer="")
    assert (row.state, row.answer, row.asked) == ("as proposed", line, 1)
    assert seen == [f"// optiml: {line}\n{SOURCE}"]


def test_a_proposed_line_that_is_refused_leaves_a_question(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = 'the launch: unseen; write: launch = { grid = "1", block = "1" }'
    row, _ = _examined(tmp_path, monkeypatch, [asked], answer="", ends=1)
    assert (row.state, row.reason) == ("asks", f"{asked}; with that line: optiml: refused for a reason")


def test_a_proposed_line_with_an_open_place_is_not_pasted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row, seen = _examined(tmp_path, monkeypatch, ["the argument for 'T'; write: kernel = \"k<?>\""], answer="")
    assert (row.state, seen) == ("asks", [])


def test_an_answer_that_is_refused_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row, _ = _examined(tmp_path, monkeypatch, ["the launch"], ends=1)
    assert (row.state, row.reason) == ("refused", "optiml: refused for a reason")


def test_the_page_shows_answers_apart() -> None:
    kernels = [
        {"repository": "a/b", "file": "k.cu", "kernel": name, "held_out": False, "answer": answer, "state": state, "reason": ""}
        for name, state, answer in (("k", "as drafted", ""), ("m", "one answer", ANSWER), ("n", "asks", ""))
    ]  # fmt: skip
    text = page(kernels)
    assert "## Open: 2 of 3 reach a validated spec (1 of them with one answer)" in text
    assert '| a/b | `k.cu` `m` | one answer | `kernel = "k<8>"` |' in text


def test_the_page_counts_what_the_record_holds() -> None:
    rows = [
        {
            "repository": "a/b",
            "file": "k.cu",
            "kernel": f"k{i}",
            "held_out": i > 2,
            "answer": "",
            "state": state,
            "reason": reason,
        }
        for i, (state, reason) in enumerate(
            (
                ("as drafted", ""),
                (
                    "asks",
                    "the size of 'x': why; write: args.x = 1; the size of 'y': why; write: args.y = 1; the launch: unseen",
                ),
                ("refused", "the kernel 'k' has data races: race on 'y'"),
                ("asks", "an output: the kernel writes to no buffer that it is given, so nothing can be compared"),
            )
        )
    ]
    text = page(rows)
    assert "Missed: 1 of 4 (25 %)" in text
    assert "Of the 3 others (one may have several reasons) 1 write to no buffer, 1 race." in text
    assert "the sizes of 'x', 'y': why; the launch: unseen" in text
    assert "## Open: 1 of 3" in text


def test_rows_of_other_kernels_stay_in_a_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "list.toml").write_text(
        '[[repository]]\nname = "a/b"\ncommit = ""\nkernels = [\n'
        '    { file = "k.cu", kernel = "one", held_out = false },\n    { file = "k.cu", kernel = "two", held_out = false },\n]\n'
    )
    states = iter(("asks", "asks", "as drafted"))
    monkeypatch.setattr(foreign, "examine", lambda kernel, checkouts: foreign.Row(kernel, next(states), "", "", 1.0))
    record = tmp_path / "record.json"
    arguments = ["--checkouts", str(tmp_path), "--list", str(tmp_path / "list.toml"), "--record", str(record)]
    assert foreign.main(arguments) == 0
    assert foreign.main([*arguments, "--only", "one$"]) == 0
    rows = json.loads(record.read_text())["kernels"]
    assert [(row["kernel"], row["state"]) for row in rows] == [("one", "as drafted"), ("two", "asks")]
    assert all("measured" in row for row in rows)


def test_a_limit_is_of_cpu_time_and_counts_the_processes_below(monkeypatch: pytest.MonkeyPatch) -> None:
    burning = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'while True: pass'])"
    with subprocess.Popen([sys.executable, "-c", burning], start_new_session=True) as running:
        try:
            end = time.monotonic() + 60
            while foreign.cpu_s(running.pid) < 0.5 and time.monotonic() < end:
                time.sleep(0.05)
            assert foreign.cpu_s(running.pid) >= 0.5
        finally:
            os.killpg(running.pid, signal.SIGKILL)


def test_a_fresh_draw_has_nothing_of_another_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "a__b"
    root.mkdir()
    (root / "k.cu").write_text("".join(f"__global__ void k{i}(float* x) {{ *x = {i}; }}\n" for i in range(6)))
    subprocess.run(["git", "init", "-q", str(root)], check=True)
    who = ["-c", "user.name=t", "-c", "user.email=t@example.com"]
    subprocess.run(["git", "-C", str(root), *who, "commit", "-q", "--allow-empty", "-m", "one"], check=True)
    monkeypatch.setattr(foreign_draw, "REPOSITORIES", {"a/b": (".",)})
    monkeypatch.setattr(foreign_draw, "OTHERS", {})
    arguments = ["--checkouts", str(tmp_path), "--each", "3", "--write"]
    first, second = tmp_path / "first.toml", tmp_path / "second.toml"
    foreign_draw.main([*arguments, str(first)])
    foreign_draw.main([*arguments, str(second), "--seed", "5", "--besides", str(first)])
    names = [{kernel.kernel for kernel in foreign.listed(path)} for path in (first, second)]
    assert names[0] | names[1] == {f"k{i}" for i in range(6)}
    assert [kernel.held_out for kernel in foreign.listed(second)] == [False] * 3
    assert sum(kernel.held_out for kernel in foreign.listed(first)) == 1
