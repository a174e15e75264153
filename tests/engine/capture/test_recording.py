"""The injection library as it is compiled for users, driven by a stub driver; the two runs; programs that misbehave."""

from __future__ import annotations

import os
import re
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from engine.capture.manifest import BLOBS, RecordedKernel, load_manifest, read_blob
from engine.capture.recording import CaptureRequest, record
from engine.errors import MachineError, RefusedError, UsageError
from engine.report.times_table import times_table
from tests.engine.capture.conftest import Recorder


def _kernel(kernels: tuple[RecordedKernel, ...], name: str) -> RecordedKernel:
    return next(k for k in kernels if k.kernel == name)


def test_times_arguments_and_buffers_of_a_program(recorder: Recorder, repository: Path) -> None:
    done = recorder()
    manifest = load_manifest(repository / ".optiml" / "capture")
    assert manifest == done.manifest
    assert [end.exit_code for end in done.ends] == [0, 0]
    scale = _kernel(manifest.kernels, "scale")
    assert (scale.count, scale.file, scale.line, scale.total_us) == (24, "scale.cu", 2, 1.6)
    assert scale.share == pytest.approx(1600 / 1620)
    assert [(s.grid, s.count) for s in scale.shapes] == [((4, 1, 1), 20), ((20, 1, 1), 4)]
    blobs = repository / ".optiml" / "capture" / BLOBS
    for launch, n in zip(sorted(scale.launches, key=lambda r: r.grid), (1000, 5000), strict=True):
        x, y, count, factor = launch.arguments
        assert struct.unpack("<i", bytes.fromhex(count.data)) == (n,)
        assert struct.unpack("<f", bytes.fromhex(factor.data)) == (3.0,)
        assert [b.room for b in (*x.buffers, *y.buffers)] == [4 * n, 4 * n]
        read = np.frombuffer(read_blob(blobs, x.buffers[0].before), np.float32)
        written = np.frombuffer(read_blob(blobs, y.buffers[0].after), np.float32)
        assert np.array_equal(read, 0.5 * (np.arange(n) % 7).astype(np.float32) - 1)
        assert np.array_equal(written, 3 * read)
        assert x.buffers[0].before == x.buffers[0].after


def test_every_phase_is_named(stub: Path, build_cache: Path, repository: Path, stub_cupti: None) -> None:
    """Nothing was said while a program ran twice."""
    said: list[str] = []
    folder = repository / ".optiml" / "capture"
    record(CaptureRequest((str(stub / "program"),), repository, folder, build_cache, limit_s=60.0), said.append)
    assert said[0] == "building the recording library"
    assert said[1] == "run 1 of 2: times, for 60 s at most"
    assert any(
        re.fullmatch(r"run 2 of 2: arguments of \d+ launches of \d+ kernels; the first run took \d+ s", p) for p in said
    )
    assert said[-1] == "storing what was recorded"


def test_a_struct_of_pointers_and_pointers_in_a_buffer_are_seen(recorder: Recorder) -> None:
    kernels = recorder(kernels=("clear", "gather")).manifest.kernels
    (pair,) = _kernel(kernels, "clear").launches[0].arguments
    assert (pair.size, [b.at for b in pair.buffers]) == (16, [0])
    rows = _kernel(kernels, "gather").launches[0].arguments[0].buffers[0]
    assert rows.addresses == 2
    assert _kernel(kernels, "gather").launches[0].call == "cuLaunchCooperativeKernel"


def test_arguments_in_one_packed_buffer(recorder: Recorder) -> None:
    scale = _kernel(recorder("packed").manifest.kernels, "scale")
    launch = next(r for r in scale.launches if r.grid == (20, 1, 1))
    assert [a.size for a in launch.arguments] == [8, 8, 4, 4]
    assert struct.unpack("<i", bytes.fromhex(launch.arguments[2].data)) == (5000,)


def test_buffers_are_capped(recorder: Recorder, repository: Path) -> None:
    scale = _kernel(recorder(buffer_bytes=4096).manifest.kernels, "scale")
    buffers = [b for r in scale.launches for a in r.arguments for b in a.buffers]
    assert {b.recorded for b in buffers} == {4000, 4096}
    scale = _kernel(recorder(total_bytes=20_000).manifest.kernels, "scale")
    assert sum(b.recorded for r in scale.launches for a in r.arguments for b in a.buffers) <= 10_000


def test_a_second_recording_deletes_the_buffers_of_the_first(recorder: Recorder, repository: Path) -> None:
    recorder()
    blobs = repository / ".optiml" / "capture" / BLOBS
    first = {p.name for p in blobs.iterdir()}
    recorder(buffer_bytes=512)
    assert first
    assert not first & {p.name for p in blobs.iterdir()}


def test_the_recording_is_not_in_git(recorder: Recorder, repository: Path) -> None:
    recorder()
    assert (repository / ".optiml" / ".gitignore").read_text() == "*\n"
    assert [p.name for p in (repository / ".optiml" / "capture").iterdir() if p.name.startswith(".run-")] == []


def test_launches_while_a_graph_is_built_have_arguments_and_no_contents(recorder: Recorder) -> None:
    scale = _kernel(recorder("graph").manifest.kernels, "scale")
    assert {r.contents for r in scale.launches} == {"graph"}
    assert {b.before for r in scale.launches for a in r.arguments for b in a.buffers} == {""}
    assert len(scale.launches[0].arguments) == 4


def test_a_program_that_fails_leaves_what_it_recorded(recorder: Recorder) -> None:
    done = recorder("fail")
    assert [end.exit_code for end in done.ends] == [3, 3]
    assert len(_kernel(done.manifest.kernels, "scale").launches) == 2


def test_a_program_that_aborts_leaves_its_launches(recorder: Recorder, repository: Path) -> None:
    with pytest.raises(RefusedError, match="ended with exit code -6 and launched no kernel that was recorded"):
        recorder("segfault")  # within the two seconds before the first flush
    assert load_manifest(repository / ".optiml" / "capture") is None


@pytest.mark.slow
def test_a_program_that_hangs_is_ended_and_leaves_its_launches(recorder: Recorder) -> None:
    begin = time.monotonic()
    done = recorder("hang", limit_s=5.0)
    assert time.monotonic() - begin < 60
    assert [end.exit_code for end in done.ends] == [None, None]
    assert len(_kernel(done.manifest.kernels, "scale").launches) == 2
    assert any("the program was ended" in note for note in done.manifest.notes)


def test_a_forked_child_does_not_write_into_its_parents_recording(recorder: Recorder) -> None:
    scale = _kernel(recorder("fork").manifest.kernels, "scale")
    assert scale.count == 24
    assert (36, 1, 1) not in [s.grid for s in scale.shapes]


def test_a_program_that_writes_into_its_recording(recorder: Recorder) -> None:
    done = recorder("overwrite")
    assert len(_kernel(done.manifest.kernels, "scale").launches) == 2
    assert any(note.startswith("the second run: launches-") for note in done.manifest.notes)
    assert any(note.startswith("the first run: times-7.jsonl") for note in done.manifest.notes)


def test_another_subscriber_is_named(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STUB_SUBSCRIBED", "1")
    done = recorder()
    assert any("another subscriber uses CUPTI" in note for note in done.manifest.notes)
    assert _kernel(done.manifest.kernels, "scale").launches == ()


def test_a_driver_that_forbids_profiling(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STUB_FORBIDDEN", "1")
    with pytest.raises(MachineError, match="administrators only"):
        recorder()


def test_another_injected_tool_is_refused(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_INJECTION64_PATH", "/opt/nsys.so")
    with pytest.raises(UsageError, match="another tool already records this program"):
        recorder()


def test_a_broken_context_ends_the_recording_of_buffers(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STUB_BROKEN", "1")
    scale = _kernel(recorder().manifest.kernels, "scale")
    assert [r.contents for r in scale.launches] == ["failed"]


def test_two_kernels_of_one_name(recorder: Recorder, repository: Path) -> None:
    (repository / "other.cu").write_text("__global__ void scale(float* a, float* b, int c, float d) {}\n")
    scale = recorder().manifest.kernels[0]
    assert scale.problem == "several kernels of this name: other.cu:1, scale.cu:2"
    assert len(scale.launches) == 2  # the times and launches are stored all the same


def test_an_unknown_kernel(recorder: Recorder, repository: Path) -> None:
    with pytest.raises(UsageError, match="launched no kernel 'softmax'"):
        recorder(kernels=("softmax",))
    assert load_manifest(repository / ".optiml" / "capture") is not None


def test_a_program_without_cuda(repository: Path, build_cache: Path, stub_cupti: None) -> None:

    with pytest.raises(RefusedError, match="never initialised CUDA"):
        record(CaptureRequest((sys.executable, "-c", ""), repository, repository / "out", build_cache))


def test_the_table(recorder: Recorder) -> None:
    table = times_table(recorder().manifest).splitlines()
    assert table[0].split() == [
        "share",
        "time",
        "launches",
        "mean",
        "grid",
        "x",
        "block",
        "recorded",
        "kernel",
        "source",
    ]
    assert table[1].split() == [
        "98.8%",
        "1.6",
        "µs",
        "24",
        "0.1",
        "µs",
        "4",
        "x",
        "256",
        "+1",
        "2",
        "scale",
        "scale.cu:2",
    ]


def test_ctrl_c_ends_the_program_and_leaves_its_times(stub: Path, build_cache: Path, repository: Path) -> None:
    """In a process of its own: the signal is for it."""
    code = (
        # Where the tests run in a shell's background it is ignored.
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "import sys; from dataclasses import replace; from pathlib import Path; from engine.capture import recording as r\n"
        "found = r.require_cupti(); r.require_cupti = lambda: replace(found, library=Path(sys.argv[1], 'libcuda.so.1'))\n"
        "root = Path(sys.argv[2])\n"
        "done = r.record(r.CaptureRequest((sys.argv[1] + '/program', 'hang'), root, root / '.optiml/capture', Path(sys.argv[3])))\n"
        "print(done.ends[0].interrupted, len(done.ends))\n"
    )
    argv = [sys.executable, "-c", code, str(stub), str(repository), str(build_cache)]
    child = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not list(repository.glob(".optiml/capture/.run-*/times/times-*.jsonl")):
        time.sleep(0.2)
    time.sleep(4)
    os.kill(child.pid, signal.SIGINT)
    out, _ = child.communicate(timeout=60)
    assert out.split() == ["True", "1"]
    manifest = load_manifest(repository / ".optiml" / "capture")
    assert manifest is not None
    assert manifest.kernels[0].count == 24
