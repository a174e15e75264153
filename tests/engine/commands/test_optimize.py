"""The installed command on real files, without a GPU: what a person sees, what is on disk, what bad input gives."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from engine.cli import main
from tests.runtime import with_runtime
from tests.spent import spent

ROW_SUM = """\
// optiml: args.x = { role = "in", size = "rows*cols", fill = "normal" }
// optiml: args.sums = { role = "inout", size = "rows", fill = "normal" }
// optiml: check = [{ rows = 1, cols = 1 }, { rows = 7, cols = 129 }]
// optiml: time = [{ rows = 8192, cols = 4096 }]
__global__ void row_sum(const float* x, float* sums, int rows, int cols) {
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row < rows) {
        float sum = 0.0f;
        for (int c = 0; c < cols; ++c) sum += x[row * cols + c];
        sums[row] += sum;
    }
}

void launch(const float* x, float* sums, int rows, int cols) {
    row_sum<<<(rows + 255) / 256, 256>>>(x, sums, rows, cols);
}
"""


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return with_runtime(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="module")
def optiml(cache):
    def run(*arguments, cwd=None, timeout=120, **options):
        return subprocess.run(
            [sys.executable, "-m", "engine.cli", *map(str, arguments)],
            capture_output=True, text=True, timeout=timeout, cwd=cwd, env={**os.environ, "OPTIML_CACHE": str(cache)}, **options,
        )  # fmt: skip

    return run


def committed(root):
    (root / "src").mkdir(parents=True)
    (root / "src" / "row_sum.cu").write_text(ROW_SUM)
    subprocess.run(["git", "init", "-q", str(root)], check=True)
    return root


@pytest.fixture
def repository(tmp_path):
    return committed(tmp_path / "work")


@pytest.fixture
def refusal(repository, cache, monkeypatch, capsys):
    """The command in this process, for what it refuses: its exit code and what it said."""
    monkeypatch.chdir(repository)
    monkeypatch.setenv("OPTIML_CACHE", str(cache))

    def run(*arguments):
        return main([*map(str, arguments)]), capsys.readouterr().err

    return run


@pytest.fixture(scope="module")
def finished(optiml, tmp_path_factory):
    """A repository with a run of eight candidates, and what it printed; not to be changed."""
    root = committed(tmp_path_factory.mktemp("finished") / "work")
    return root, optiml("optimize", root / "src" / "row_sum.cu", "--budget", "8", "--device", "cpu", cwd=root)


def rows(out):
    with closing(sqlite3.connect(f"file:{out / 'journal.sqlite'}?mode=ro", uri=True)) as db:
        return list(db.execute("SELECT id, parent, digest, outcome FROM candidates ORDER BY id"))


def test_a_run_leaves_result_journal_and_a_patch_that_applies(finished):
    repository, done = finished
    assert done.returncode == 0, done.stderr
    out = repository / ".optiml" / "row_sum-row_sum"
    result = json.loads((out / "result.json").read_text())
    assert result["schema"] == "optiml.result/1"
    assert result["mode"] == "predicted"
    assert result["file"] == "src/row_sum.cu"
    assert result["counts"]["candidates"] == 8
    assert len(rows(out)) == 9
    assert result["proxies"] is True
    assert set(result["constants"]) == {"reward", "search"}
    assert all(constant["reason"] for table in result["constants"].values() for constant in table.values())
    with closing(sqlite3.connect(f"file:{out / 'journal.sqlite'}?mode=ro", uri=True)) as db:
        counted = [
            row[0] for row in db.execute("SELECT candidate FROM profiles WHERE metrics = 'predicted' ORDER BY 1")
        ]
    assert counted == [row[0] for row in rows(out) if row[3] == "screened"]  # the original's outcome is that too
    assert all(step["diagnosis"] for step in result["trajectory"])
    assert "predicted for sm_90, not measured" in " ".join(done.stdout.split())
    assert result["best"] is not None, (result["verdict"], result["refused"])
    subprocess.run(["git", "apply", "--check", str(out / "best.patch")], cwd=repository, check=True)
    assert "src/row_sum.cu" in (out / "best.patch").read_text()
    assert not subprocess.run(
        ["git", "status", "--porcelain"], cwd=repository, capture_output=True, text=True
    ).stdout.count(".optiml")


@pytest.mark.slow
def test_json_prints_the_result_and_nothing_else(optiml, repository):
    done = optiml("optimize", repository / "src" / "row_sum.cu", "--budget", "3", "--device", "cpu", "--format", "json")
    assert json.loads(done.stdout)["counts"]["candidates"] == 3
    assert done.stderr == ""


def test_show_prints_a_run_again_with_its_tree(optiml, finished):
    done = optiml("show", finished[0] / ".optiml" / "row_sum-row_sum", "--tree")
    assert done.returncode == 0
    assert "the original" in done.stdout
    assert done.stdout.count("screened") + done.stdout.count("duplicate") >= 6


@pytest.mark.slow
def test_a_killed_run_goes_on_with_every_candidate(optiml, repository, cache):
    file, out = repository / "src" / "row_sum.cu", repository / "out"
    arguments = ["optimize", str(file), "--budget", "12", "--device", "cpu", "--out", str(out)]
    process = subprocess.Popen(
        [sys.executable, "-m", "engine.cli", *arguments], env={**os.environ, "OPTIML_CACHE": str(cache)},
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        time.sleep(0.05)
        try:
            if len(rows(out)) >= 4:
                break
        except sqlite3.OperationalError:
            continue
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    before = rows(out)
    assert 4 <= len(before) < 13
    done = optiml(*arguments, "--resume")
    assert done.returncode == 0, done.stderr
    after = rows(out)
    assert after[: len(before)] == before
    assert len(after) == 13
    assert len({digest for _, _, digest, _ in after}) == 13


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["missing.cu"], 2, "no such file"),
        (["tests"], 2, "contains no kernel"),
        (["src/row_sum.cu", "src/row_sum.cu", "--kernel", "row_sum"], 2, "FILE:KERNEL"),
        (["src/row_sum.cu:col_sum"], 2, "row_sum"),
        (["src/row_sum.cu", "--kernel", "col_sum"], 2, "row_sum"),
        (["src/row_sum.cu", "--budget", "soon"], 2, "invalid budget"),
        (["src/row_sum.cu", "--arch", "volta"], 2, "invalid architecture"),
        (["src/row_sum.cu", "--resume"], 2, "no run to resume"),
        (["src/row_sum.cu", "--device", "gpu"], 1, "no NVIDIA GPU"),
        (["src/empty.cu"], 2, "no kernel"),
        (["src/latin.cu"], 2, "src/latin.cu:2"),
    ],
)
def test_bad_input_gets_one_clear_sentence(refusal, repository, arguments, code, message):
    (repository / "tests").mkdir()
    (repository / "src" / "empty.cu").write_text("int main() { return 0; }\n")
    (repository / "src" / "latin.cu").write_bytes(b"// caf\n// caf\xe9\n__global__ void k(float* x) { x[0] = 1; }\n")
    if arguments[-1] == "gpu" and shutil.which("nvidia-smi"):
        pytest.skip("there is a GPU here")
    if arguments[-1] != "gpu":
        arguments = [*arguments, "--device", "cpu"]
    ended, said = refusal("optimize", *arguments)
    assert ended == code, said
    assert message in said
    # A busy machine takes longer to be looked at, and that is said.
    assert len([line for line in said.strip().splitlines() if not line.startswith("checking this machine")]) == 1


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('role = "in"', 'rolle = "in"', "'role'"),
        ('size = "rows"', 'size = "rows/7.5"', "whole number"),
        ("rows = 8192", "rows = 10**30", "row_sum.cu:4"),
        ("rows = 8192", "rows = 1099511627776", "the limit is"),
        ("c < cols", "c <= cols", r"the original kernel fails: reads x\["),
        ("sum += x[row * cols + c]", "sum += 1.0f", "depends on the input 'x'"),
        ("sums[row] += sum;", "sums[row] += undefined_name;", "row_sum.cu:10.*undefined_name"),
    ],
)
def test_a_spec_or_kernel_that_proves_nothing_is_refused(refusal, repository, old, new, message):
    file = repository / "src" / "row_sum.cu"
    assert old in ROW_SUM
    file.write_text(ROW_SUM.replace(old, new, 1))
    code, said = refusal("optimize", file, "--budget", "3", "--device", "cpu")
    assert code in (1, 2), said
    assert re.search(message, said), said
    assert not (repository / ".optiml").exists()  # an empty journal passed for a run that was killed


def test_an_output_that_the_kernel_leaves_in_part_is_told(optiml, repository):
    """What stood there before counted for the tolerance, and it was said that no output depends on the input."""
    code = ROW_SUM.replace('"inout", size = "rows", fill = "normal"', '"out", size = "rows + 1"').replace(
        "+= sum;", "= sum;"
    )
    file = repository / "src" / "row_sum.cu"
    file.write_text(code)
    done = optiml("optimize", file, "--budget", "3", "--device", "cpu", cwd=repository)
    assert done.returncode == 1, done.stdout
    assert (
        "case rows=1,cols=1: the kernel leaves 1 of 2 elements of the output 'sums' unwritten, first at index 1"
        in done.stderr
    )
    assert "declare it as inout, or give its true size" in done.stderr


@pytest.mark.slow
def test_a_launch_that_nobody_sees_is_said_to_be_kept(optiml, repository):
    file = repository / "src" / "row_sum.cu"
    launch = '// optiml: launch = { grid = "cdiv(rows, 256)", block = "256" }\n'
    file.write_text(launch + ROW_SUM.split("void launch")[0])
    done = optiml("optimize", file, "--budget", "1", "--device", "cpu", cwd=repository)
    assert done.returncode == 0, done.stderr
    said = " ".join(done.stdout.split())
    assert "Note: no launch of 'row_sum' was found: edits that change the launch or block were left out" in said
    file.write_text(ROW_SUM)
    done = optiml("optimize", file, "--budget", "1", "--device", "cpu", cwd=repository)
    assert "were left out" not in " ".join(done.stdout.split())


def test_an_output_folder_that_cannot_be_written_is_said_at_once(optiml, repository):
    blocked = repository / "blocked"
    blocked.write_text("a file")
    done = optiml("optimize", repository / "src" / "row_sum.cu", "--budget", "3", "--device", "cpu", "--out", blocked)
    assert done.returncode == 1
    assert "blocked" in done.stderr
    assert "--out" in done.stderr


def test_help_is_quick():
    times = []
    for _ in range(3):
        with spent() as cost:
            subprocess.run([Path(sys.executable).parent / "optiml", "--help"], check=True, capture_output=True)
        times.append(cost.seconds)
    assert min(times) < 0.2
