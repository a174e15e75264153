"""`optiml optimize` on files without a spec: what it assumes, asks, writes and refuses; and what becomes of earlier runs."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
from pathlib import Path

import pytest

from engine.cli import main
from engine.commands import one_kernel
from engine.errors import UsageError
from engine.report.terminal import Live
from engine.run.optimization import Options
from engine.search.progress import Budget
from tests.runtime import with_runtime
from tests.support.confirmation import confirm_lightly

EXAMPLES = sorted((Path(__file__).resolve().parents[3] / "examples").glob("*.cu"))
SCALE = """\
__global__ void scale(const float *x, float *y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = 2 * x[i];
}
void run(const float *x, float *y, int n) { scale<<<(n + 255) / 256, 256>>>(x, y, n); }
"""
SPEC = """\
// optiml: args.x = { role = "in", size = "n" }
// optiml: args.y = { role = "out", size = "n" }
// optiml: check = [{ n = 1 }, { n = 300 }]
// optiml: time = [{ n = 4194304 }]
"""
UNSEEN = "__global__ void mix(const float *x, float *y, int n) {\n    y[threadIdx.x % n] = x[threadIdx.x % n];\n}\n"
pytestmark = pytest.mark.skipif(not (shutil.which("g++") or shutil.which("clang++")), reason="needs a C++ compiler")


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return with_runtime(tmp_path_factory.mktemp("cache"))


@pytest.fixture
def root(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OPTIML_CACHE", str(cache))
    confirm_lightly(monkeypatch)
    base = tmp_path / "work"
    base.mkdir()
    subprocess.run(["git", "init", "-q", str(base)], check=True)  # without a commit
    monkeypatch.chdir(base)
    return base


def optimize(*arguments: object, budget: int = 2) -> int:
    return main(["optimize", *map(str, arguments), "--budget", str(budget), "--device", "cpu"])


@pytest.mark.slow
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_goes_on_by_itself(root: Path, capsys: pytest.CaptureFixture[str], example: Path) -> None:
    lines = example.read_text().splitlines(keepends=True)
    kept = "".join(line for line in lines if not line.lstrip().startswith("// optiml:"))
    (root / example.name).write_text(kept)
    assert optimize(example.name, budget=1) == 0
    err = capsys.readouterr().err
    assert "was drafted from the source" in err
    assert (root / example.name).read_text() == kept
    (out,) = (p for p in (root / ".optiml").iterdir() if p.is_dir())
    result = json.loads((out / "result.json").read_text())
    assert result["counts"]["candidates"] == 1
    assert any("the spec was drafted" in note for note in result["notes"])


def test_the_examples_are_ten() -> None:
    assert len(EXAMPLES) == 10


@pytest.mark.slow
def test_write_spec_writes_what_counted(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (root / "k.cu").write_text(SCALE)
    assert optimize("k.cu", "--write-spec") == 0
    text = (root / "k.cu").read_text()
    assert '// optiml: args.y = { role = "out", size = "n" }' in text
    assert "".join(line for line in text.splitlines(keepends=True) if "optiml:" not in line) == SCALE
    patch = root / ".optiml" / "k-scale" / "best.patch"
    if patch.exists():
        subprocess.run(["git", "apply", "--check", str(patch)], cwd=root, check=True)
    capsys.readouterr()
    assert optimize("k.cu") == 0
    err = capsys.readouterr().err
    assert "drafted" not in err
    assert "nothing changed since the run" in err


@pytest.mark.slow
def test_a_refused_draft_is_not_left_in_the_file(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = SCALE.replace("y[i] = 2 * x[i]", "y[0] += x[i]")  # a race
    (root / "k.cu").write_text(code)
    assert optimize("k.cu", "--write-spec") == 1
    assert (root / "k.cu").read_text() == code


def test_gaps_are_listed_with_the_lines_to_add(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (root / "k.cu").write_text(UNSEEN)
    assert optimize("k.cu") == 2
    err = capsys.readouterr().err
    assert err.startswith(
        "optiml: k.cu:1: one thing about the kernel 'mix' cannot be determined from the source; put these lines"
    )
    # Only the threads of a block are told apart.
    launch = '// optiml: launch = { grid = "1", block = "256" }'
    assert launch in err
    # The launch alone is enough: with it the kernel can be run, and shows how much of its arrays it touches.
    (root / "k.cu").write_text('// optiml: launch = { grid = "cdiv(n, 64)", block = "64" }\n' + UNSEEN)
    optimize("k.cu")  # the kernel races: what is said of that is another matter
    err = capsys.readouterr().err
    assert "cannot be determined from the source" not in err
    assert "drafted from the source" in err


def test_somebody_at_a_terminal_is_asked_one_line_a_gap(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, str]] = []

    def ask(what: str, line: str) -> str:
        asked.append((what, line))
        return "1, 64"

    monkeypatch.setattr(one_kernel, "terminal_ask", lambda live: ask)
    (root / "k.cu").write_text(UNSEEN.replace("threadIdx.x % n", "threadIdx.x * n"))
    optimize("k.cu")
    launches = [line for _, line in asked if line.startswith("launch")]
    assert launches == ['launch = { grid = "1", block = "256" }']
    assert len({line.partition(" =")[0] for _, line in asked}) == len(asked)


def test_nobody_is_asked_where_no_terminal_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("1, 64\n"))
    assert one_kernel.terminal_ask(Live(Budget())) is None


@pytest.mark.slow
def test_a_second_run_goes_on_or_keeps_the_first(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = root / ".optiml" / "k-scale"
    (root / "k.cu").write_text(SPEC + SCALE)
    assert optimize("k.cu") == 0
    first = json.loads((out / "result.json").read_text())
    capsys.readouterr()
    assert optimize("k.cu", budget=3) == 0
    assert "continues the earlier run" in capsys.readouterr().err
    second = json.loads((out / "result.json").read_text())
    assert second["counts"]["candidates"] >= first["counts"]["candidates"]

    def search(options: Options, *_: object) -> None:
        # What another search would leave is of no matter here.
        shutil.copytree(out.with_name("k-scale.1"), out)
        raise UsageError("searched")

    monkeypatch.setattr(one_kernel, "optimize", search)
    assert optimize("k.cu", "--seed", "7") == 2
    assert f"the earlier run is kept in {out}.1: its program" in capsys.readouterr().err
    assert json.loads((root / ".optiml" / "k-scale.1" / "result.json").read_text()) == second
    (root / "k.cu").write_text(SPEC + SCALE.replace("2 *", "3 *"))
    assert optimize("k.cu") == 2
    assert f"{out}.2: its program" in capsys.readouterr().err
    (root / "k.cu").write_text(SPEC + SCALE)
    assert optimize("k.cu", "--fresh") == 2
    assert f"{out}.3: as requested" in capsys.readouterr().err


@pytest.mark.slow
def test_several_files_and_folders(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (root / "src").mkdir()
    (root / "src" / "a.cu").write_text(SCALE)
    (root / "src" / "b.cu").write_text(SCALE.replace("scale", "other") + UNSEEN)
    (root / "src" / "latin.cu").write_bytes(b"// caf\xe9\n__global__ void k(float* x) { x[0] = 1; }\n")
    assert main(["optimize", "src", "--budget", "1", "--device", "cpu", "--format", "json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == "optiml.results/1"
    assert [r["kernel"] for r in found["results"]] == ["scale", "other"]
    failed = {f["kernel"]: f["error"] for f in found["failed"]}
    assert "launch" in failed["mix"]
    assert "latin.cu:1" in failed[""]
    assert optimize("src/a.cu", "src/b.cu:other", budget=1) == 0


@pytest.mark.slow
def test_a_kernel_in_a_header_goes_through_its_includer(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (root / "lib").mkdir()
    kernel, launch = SCALE.split("void run")
    (root / "lib" / "scale.cuh").write_text(kernel.replace("float", "real").replace("2 *", "FACTOR *"))
    (root / "k.cu").write_text(
        '#define FACTOR 2\ntypedef float real;\n#include "scale.cuh"\nvoid run' + launch.replace("float", "real")
    )
    (root / ".optiml.yml").write_text("compile: {include: [lib]}\n")
    assert optimize("lib/scale.cuh", budget=8) == 0
    out = root / ".optiml" / "scale-scale"
    result = json.loads((out / "result.json").read_text())
    assert result["spec"]["compile"]["unit"] == "k.cu"
    assert result["counts"]["verified"] > 0
    if result["best"]:
        assert "lib/scale.cuh" in result["best"]["files"]


@pytest.mark.slow
def test_the_same_request_is_answered_by_the_run_that_is_there(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every repetition spent the whole budget once more."""
    (root / "k.cu").write_text(SCALE)
    assert optimize("k.cu") == 0
    first = capsys.readouterr()
    searched: list[bool] = []

    def search(options: Options, *_: object) -> None:
        searched.append(options.resume)
        raise UsageError("searched")

    monkeypatch.setattr(one_kernel, "optimize", search)
    assert optimize("k.cu") == 0
    again = capsys.readouterr()
    assert again.out == first.out
    said = [line for line in again.err.splitlines() if "nothing changed since the run" in line]
    assert len(said) == 1
    assert not searched
    for changed in (("--search", "mcts"), ("--no-proxies",), ("--fresh",)):
        assert optimize("k.cu", *changed) == 2
    (root / ".optiml" / "k-scale.1").rename(root / ".optiml" / "k-scale")
    assert optimize("k.cu", budget=3) == 2
    (root / "k.cu").write_text(SCALE.replace("2 *", "3 *"))
    assert optimize("k.cu") == 2
    assert searched == [True, True, False, True, False]
