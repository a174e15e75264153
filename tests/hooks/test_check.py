"""optiml-check over real git repositories and the real compiler."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from engine.model import LaunchConfig, Resources
from engine.predict.counts import SiteCounts
from engine.predict.targets import figures_for
from hooks import check, compilers, examine, quick
from hooks.examine import access_finding, occupancy_finding
from tests.hooks.conftest import KERNEL, git
from tests.spent import slowdown

ROOT = Path(__file__).resolve().parents[2]
Edit = Callable[[str, str], None]
Output = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _no_runtime(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """No build of the CPU runtime behind a test's back."""
    if "runtime" not in request.fixturenames:
        monkeypatch.setattr(examine, "prepare_later", lambda std: None)


@pytest.fixture
def runtime(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU runtime, built once and kept between test runs."""
    from engine.cpu.toolchain import find_toolchain, prepare
    from engine.settings.folders import cache_folder

    toolchain = find_toolchain()
    if toolchain is None:
        pytest.skip("no C++ compiler")
    with monkeypatch.context() as plain:
        plain.delenv("OPTIML_CACHE")
        kept = cache_folder() / "cpu"
    prepare(toolchain, kept, "c++17")
    (cache_folder()).mkdir(parents=True, exist_ok=True)
    (cache_folder() / "cpu").symlink_to(kept)


def test_nothing_to_say(repository: Path, capsys: Output, runtime: None) -> None:
    assert check.main(["k.cu"]) == 0
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("hook", [check, quick])
def test_a_name_that_is_no_file_here_is_said(hook: ModuleType, repository: Path, capsys: Output) -> None:
    """It was passed over in silence, as if there were nothing to say of the file."""
    for name, says in (("missing.cu", "missing.cu: no such file"), ("..", "..: is not in"), (".", ".: is a folder")):
        assert hook.main([name]) == 2
        out, err = capsys.readouterr()
        assert (out, err.count("\n")) == ("", 1)
        assert f"{hook.__name__.replace('hooks.', 'optiml-')}: {says}" in err


@pytest.mark.parametrize("hook", [check, quick])
def test_a_call_without_files_says_what_to_give(hook: ModuleType, repository: Path, capsys: Output) -> None:
    assert hook.main([]) == 0
    out = capsys.readouterr().out
    assert out.startswith("note: no CUDA file differs from commit ")
    assert out.endswith("; give files, or --all for the whole repository\n")


def test_a_call_without_files_takes_those_that_differ(repository: Path, capsys: Output) -> None:
    """It looked at nothing."""
    (repository / "below").mkdir()
    for name in ("below/broken.cu", "ignored.cu", "new.cu"):
        (repository / name).write_text("__global__ void k() { wrong(); }\n")
    (repository / ".gitignore").write_text("ignored.cu\n")
    git(repository, "add", "below")
    git(repository, "commit", "-q", "-m", "broken elsewhere")
    assert check.main([]) == 1
    out = capsys.readouterr().out
    assert "new.cu:1: k: error" in out
    assert "below" not in out
    assert "ignored" not in out
    assert check.main(["--base", "HEAD~1"]) == 1
    assert "below/broken.cu:1: k: error" in capsys.readouterr().out
    (repository / "new.cu").unlink()
    assert check.main([]) == 0
    capsys.readouterr()
    assert check.main(["--all"]) == 1
    out = capsys.readouterr().out
    assert "below/broken.cu:1: k: error" in out
    assert "ignored" not in out


def test_a_header_that_differs_is_looked_at_through_the_file_that_includes_it(repository: Path, capsys: Output) -> None:
    (repository / "twice.h").write_text("__device__ float twice(float v) { return 2.0f * v; }\n")
    (repository / "user.cu").write_text('#include "twice.h"\n__global__ void k(float* x) { *x = twice(*x); }\n')
    git(repository, "add", ".")
    git(repository, "commit", "-q", "-m", "two")
    (repository / "twice.h").write_text("__device__ float twice(float v) { return two * v; }\n")
    assert check.main([]) == 1
    assert "user.cu:2: k: error" in capsys.readouterr().out


def test_a_named_file_without_changes_is_looked_at_whole(
    repository: Path, edit: Edit, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As pre-commit run --all-files names it in CI: nothing differed from HEAD, so nothing was compiled, and it passed."""
    edit("+= 1.0f", "+= z")
    git(repository, "commit", "-q", "-m", "broken")
    assert check.main(["k.cu"]) == 1
    assert "k.cu:13: other: error: " in capsys.readouterr().out
    monkeypatch.setenv("PRE_COMMIT_FROM_REF", "HEAD")
    assert check.main(["k.cu"]) == 0


def test_the_budget_of_a_commit_is_each_files_where_all_is_wanted(
    repository: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    (repository / "l.cu").write_text("__global__ void k() {}\n")
    seen: list[float] = []

    def look(*given: Any) -> dict[str, Any]:
        seen.append(given[-1] - time.monotonic())
        return {}

    monkeypatch.setattr(examine, "look", look)
    (repository / ".optiml.yml").write_text("check: {budget: 100s}\n")
    check.main(["l.cu"])
    check.main(["--all", "k.cu", "l.cu"])
    assert seen[0] <= 100 < seen[1] <= 200


@pytest.mark.parametrize("hook", [check, quick])
def test_a_file_of_host_code_alone_needs_no_word(hook: ModuleType, repository: Path, capsys: Output) -> None:
    """It was named at each commit as not looked at."""
    (repository / "host.cu").write_text("void run() {}\n")
    assert hook.main(["host.cu"]) == 0
    assert capsys.readouterr().out == ""


@pytest.mark.usefixtures("runtime")
def test_an_error_of_the_compiler_is_said_once(repository: Path, edit: Edit, capsys: Output) -> None:
    """The C++ compiler of the small run refused the kernel as well, and its log was nowhere to be seen."""
    edit("2.0f * x[i]", "2.0f * z[i]")
    assert check.main(["k.cu"]) == 1
    out = capsys.readouterr().out
    assert out.count("error") == 1
    assert "see the log" not in out


def test_an_error_of_the_compiler_fails_at_its_line(repository: Path, edit: Edit, capsys: Output) -> None:
    edit("2.0f * x[i]", "2.0f * z[i]")
    assert check.main(["k.cu"]) == 1
    (line,) = [line for line in capsys.readouterr().out.splitlines() if not line.startswith("note")]
    assert line.startswith("k.cu:8: scale: error: ")
    assert '"z"' in line
    assert line.endswith("[compile]")


def test_only_changed_kernels_are_compiled(repository: Path, edit: Edit, capsys: Output) -> None:
    edit("+= 1.0f", "+= z")
    git(repository, "commit", "-q", "-m", "broken elsewhere")
    edit("2.0f * x[i]", "3.0f * x[i]")
    assert check.main(["k.cu"]) == 0
    assert "other" not in capsys.readouterr().out
    assert check.main(["--all", "k.cu"]) == 1
    assert "k.cu:13: other: error: " in capsys.readouterr().out


def test_a_wrong_spec_fails_at_its_line(repository: Path, edit: Edit, capsys: Output) -> None:
    edit('size = "n" }\n// optiml: time', 'sice = "n" }\n// optiml: time')
    assert check.main(["k.cu"]) == 1
    out = capsys.readouterr().out
    assert "k.cu:4: scale: error: unknown key 'sice'; did you mean 'size'? [spec]" in out


def test_settings_say_what_fails(repository: Path, edit: Edit, capsys: Output) -> None:
    edit("2.0f * x[i]", "2.0f * z[i]")
    (repository / ".optiml.yml").write_text("check: {fail: [spills]}\n")
    assert check.main(["k.cu"]) == 0
    assert "k.cu:8: scale: warning: " in capsys.readouterr().out
    (repository / ".optiml.yml").write_text("check: {ignore: [compile]}\n")
    assert check.main(["k.cu"]) == 0
    assert "scale" not in capsys.readouterr().out.replace("note: k.cu: accesses", "")
    (repository / ".optiml.yml").write_text("exclude: ['k.*']\n")
    assert check.main(["k.cu"]) == 0
    (repository / ".optiml.yml").write_text("chek: {}\n")
    assert check.main(["k.cu"]) == 2
    assert ".optiml.yml:1: unknown key 'chek'; did you mean 'check'?" in capsys.readouterr().err


def test_spills_and_few_warps_are_warned_of(repository: Path, edit: Edit, capsys: Output) -> None:
    edit(
        "__global__ void scale(const float* x, float* y, int n) {\n    int i = blockIdx.x * blockDim.x + threadIdx.x;\n",
        "__global__ void __launch_bounds__(1024, 2) scale(const float* x, float* y, int n) {\n"
        "    int i = blockIdx.x * blockDim.x + threadIdx.x;\n    float v[64];\n"
        "#pragma unroll\n    for (int k = 0; k < 64; ++k) v[k] = x[(i * 64 + k) % n];\n    __syncthreads();\n    float s = 0;\n"
        "#pragma unroll\n    for (int k = 0; k < 64; ++k) s = s * v[k] + v[63 - k];\n    if (i < n) y[i] = s;\n",
    )
    assert check.main(["k.cu"]) == 0
    out = capsys.readouterr().out
    assert "k.cu:6: scale: warning: " in out
    assert "bytes of registers spilled on sm_90" in out


def test_a_template_is_compiled_as_it_is_launched(repository: Path, capsys: Output) -> None:
    text = "template <typename T, int N> __global__ void t(T* y) { y[threadIdx.x] = N + missing; }\n"
    (repository / "t.cu").write_text(text + "void go(float* y) { t<float, 4><<<1, 32>>>(y); }\n")
    assert check.main(["t.cu"]) == 1
    assert "t.cu:1: t: error: " in capsys.readouterr().out
    (repository / "t.cu").write_text(text)
    assert check.main(["t.cu"]) == 0
    assert "note: t.cu:1: t: not compiled: a template" in capsys.readouterr().out


def test_the_same_text_costs_nothing(
    repository: Path, edit: Edit, capsys: Output, monkeypatch: pytest.MonkeyPatch, runtime: None
) -> None:
    edit("2.0f * x[i]", "2.0f * z[i]")
    assert check.main(["k.cu"]) == 1
    first = capsys.readouterr().out

    def never(*_: object) -> None:
        raise AssertionError("looked again")

    with monkeypatch.context() as patched:
        patched.setattr(examine, "look", never)
        assert check.main(["k.cu"]) == 1
    assert capsys.readouterr().out == first
    edit("2.0f * z[i]", "2.5f * x[i]")
    assert check.main(["k.cu"]) == 0
    assert "error" not in capsys.readouterr().out


def test_uncoalesced_access_is_found_by_a_small_run(
    repository: Path, edit: Edit, capsys: Output, runtime: None
) -> None:
    edit("y[i] = 2.0f * x[i]", "y[i] = 2.0f * x[(i * 32) % n]")
    assert check.main(["k.cu"]) == 0
    out = capsys.readouterr().out
    assert "k.cu:8: scale: warning: uncoalesced load of 'x': 32.0 sectors per request (ideal: 4.0, predicted)" in out
    assert "'y'" not in out


BORDER = """\
// optiml: args.x = { role = "in", size = "h * w" }
// optiml: args.y = { role = "out", size = "h * w" }
// optiml: time = [{ w = 16384, h = 4096 }]
__global__ void blur(const float* x, float* y, int w, int h) {
    int c = blockIdx.x * blockDim.x + threadIdx.x, r = blockIdx.y * blockDim.y + threadIdx.y;
    if (c >= w || r >= h) return;
    if (WHERE)
        y[r * w + c] = x[(r * 32 + c * w) % (w * h)];
    else
        y[r * w + c] = x[r * w + c];
}
void run(const float* x, float* y, int w, int h) {
    dim3 block(32, 8), grid((w + 31) / 32, (h + 7) / 8);
    blur<<<grid, block>>>(x, y, w, h);
}
"""


def test_a_borders_accesses_are_weighed_by_how_often_they_run(repository: Path, capsys: Output, runtime: None) -> None:
    """Of the small grid only blocks of the left column were counted, so that its border was as loud as a whole kernel."""
    for where, loud in (("c < 32", False), ("r < 8 || r >= h - 8", False), ("c < w / 4", True)):
        (repository / "b.cu").write_text(BORDER.replace("WHERE", where))
        assert check.main(["b.cu"]) == 0
        assert ("uncoalesced load of 'x'" in capsys.readouterr().out) == loud, where


def test_a_compiler_that_does_not_finish_is_a_note(
    repository: Path, edit: Edit, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine it failed the commit."""
    from engine.compile.compiler import CompileTimeout

    def late(*_: object) -> None:
        raise CompileTimeout("the compiler did not finish within 30 s", "k.cu")

    monkeypatch.setattr(examine.Inspector, "_build", late)
    edit("2.0f * x[i]", "3.0f * x[i]")
    assert check.main(["k.cu"]) == 0
    assert "note: k.cu:6: scale: not compiled: the compiler did not finish within 30 s\n" in capsys.readouterr().out


def test_out_of_time_passes_with_a_note(
    repository: Path, edit: Edit, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    edit("2.0f * x[i]", "2.0f * z[i]")
    over = threading.Event()
    monkeypatch.setattr(examine.Inspector, "_build", lambda *_: over.wait(60))
    (repository / ".optiml.yml").write_text("check: {budget: 0.5s}\n")
    begin = time.monotonic()
    assert check.main(["k.cu"]) == 0
    assert time.monotonic() - begin < 30
    over.set()
    assert "out of time" in capsys.readouterr().out


def test_a_machine_without_a_sandbox_does_not_hold_up_a_commit(
    repository: Path, edit: Edit, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    from engine.errors import MachineError

    def none(unsafe: bool) -> None:
        raise MachineError("no sandbox here")

    monkeypatch.setattr(compilers, "sandbox", none)
    edit("2.0f * x[i]", "3.0f * x[i]")
    assert check.main(["k.cu"]) == 0
    assert "note: not analysed: no sandbox here" in capsys.readouterr().out


def test_names_cannot_move_the_cursor(repository: Path, capsys: Output) -> None:
    (repository / "a\x1b[2Jb.cu").write_text("__global__ void k() { wrong(); }\n")
    assert check.main(["a\x1b[2Jb.cu"]) == 1
    assert "\x1b" not in capsys.readouterr().out


def test_outside_of_a_repository_is_wrong_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Output) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert check.main(["k.cu"]) == 2
    said = f"optiml-check: {tmp_path}: is not in a git repository; run this in the repository of the files, or "
    assert capsys.readouterr().err.startswith(said)


def test_nobody_who_reads_is_no_internal_error(repository: Path) -> None:
    """`optiml-check | head` ended with 3 and "internal error: BrokenPipeError"."""
    command = [sys.executable, "-c", "import sys; from hooks.check import main; sys.exit(main())"]
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        command,
        stdout=write,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONPATH": str(ROOT)},
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_file_that_is_not_understood_is_named_as_the_repository_names_it(repository: Path, capsys: Output) -> None:
    """The note told the machine's own path."""
    (repository / "odd.cu").write_text("__global__ $$$ (((\n")
    assert check.main(["odd.cu"]) == 0
    assert capsys.readouterr().out.startswith("note: not analysed: odd.cu: contains no kernel; ")


def test_a_base_is_honoured(repository: Path, edit: Edit, capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    edit("2.0f * x[i]", "2.0f * z[i]")
    git(repository, "commit", "-q", "-m", "two")
    assert check.main(["--base", "HEAD", "k.cu"]) == 0
    assert check.main(["--base", "HEAD~1", "k.cu"]) == 1
    monkeypatch.setenv("PRE_COMMIT_FROM_REF", "HEAD~1")
    assert check.main(["k.cu"]) == 1
    assert check.main(["--base", "nowhere", "k.cu"]) == 2
    capsys.readouterr()


# ---- what counts as a finding


def _site(space: str, passes: float, width: int = 4, kind: str = "load") -> SiteCounts:
    return SiteCounts(7, space, kind, width, 10.0, 320.0, 10.0 * passes, "a")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("site", "kind"),
    [
        (_site("global", 4), None),
        (_site("global", 5.9), None),
        (_site("global", 6.1), "coalescing"),
        (_site("global", 32, kind="store"), "coalescing"),
        (_site("global", 16, width=16), None),
        (_site("global", 32, kind="atomic"), None),
        (_site("shared", 1), None),
        (_site("shared", 2), "bank-conflicts"),
        (_site("shared", 4, width=16), None),
        (replace(_site("shared", 8), requests=0.0), None),
    ],
)
def test_accesses(site: SiteCounts, kind: str | None) -> None:
    found = access_finding(site)
    assert (found[0] if found else None) == kind


@pytest.mark.parametrize(
    ("registers", "shared", "threads", "least", "says"),
    [
        (32, 0, 256, 0.5, ""),
        (255, 0, 256, 0.5, "occupancy 12% on sm_90, limited by registers"),
        (80, 0, 256, 0.2, ""),
        (72, 0, 256, 0.2, "with 64 registers instead of 72 50%"),
        (44, 0, 768, 0.2, "with 40 registers instead of 44"),
        (32, 120_000, 256, 0.2, "of shared memory instead of 120000"),
        (32, 200_000, 256, 0.5, "limited by shared memory"),
        (255, 0, 1024, 0.0, "no block of 1024 threads fits sm_90"),
    ],
)
def test_occupancy(registers: int, shared: int, threads: int, least: float, says: str) -> None:
    launch = LaunchConfig((1, 1, 1), (threads, 1, 1), shared)
    text = occupancy_finding(Resources(registers, 0, 0, 0, 0), launch, figures_for("sm_90"), least)
    assert says in text
    assert bool(says) == bool(text)


# ---- time


def _timed(root: Path, *arguments: str) -> float:
    begin = time.monotonic()
    done = subprocess.run(
        [Path(sys.executable).parent / "optiml-check", *arguments], cwd=root, capture_output=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return (time.monotonic() - begin) / slowdown()


def test_two_files_take_a_second_and_a_half_cold_and_less_than_half_a_second_cached(
    repository: Path, runtime: None
) -> None:
    padding = "".join(f"// line {n} of a longer file\n" for n in range(185))

    def write(factor: int) -> None:
        for name in ("k", "l"):
            text = KERNEL.replace("2.0f", f"{factor}.0f").replace("scale", f"scale_{name}")
            (repository / f"{name}.cu").write_text(padding + text)

    write(2)
    git(repository, "add", ".")
    git(repository, "commit", "-q", "-m", "two")
    cold = []
    for round_ in range(3):
        write(3 + round_)
        cold.append(_timed(repository, "k.cu", "l.cu"))
    assert min(cold) < 1.5, cold
    cached = [_timed(repository, "k.cu", "l.cu") for _ in range(3)]
    assert min(cached) < 0.4, cached
