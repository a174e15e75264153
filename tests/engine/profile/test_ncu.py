import contextlib
import threading
import time

import pytest

from engine.model import Binary, LaunchConfig
from engine.process.sandbox import NoSandbox, available, sandbox
from engine.profile import ncu, output
from engine.profile.counters import CHEAP, Profile, ProfileFailure, ProfileRequest
from engine.profile.ncu import Profiler
from tests.engine.profile.fake_ncu import install, profiler, spec, starts


def request(key: str, cubin: bytes = b"xx", entry: str = "_Z1kPf", blocks: int = 4) -> ProfileRequest:
    return ProfileRequest(
        key, Binary(cubin, "sm_90", (entry,), (), key), (LaunchConfig((blocks, 1, 1), (32, 1, 1)),), 1
    )


@pytest.fixture(autouse=True)
def _no_driver(monkeypatch, tmp_path):
    monkeypatch.setattr(ncu, "_PARAMETERS", tmp_path / "params")


def run(made, batch, metrics=CHEAP):
    try:
        return made.profile(batch, metrics)
    finally:
        made.close()


def test_each_candidate_gets_its_own_figures(tmp_path):
    made = profiler(tmp_path)
    answers = run(made, [request("a", b"x"), request("b", b"xxx"), request("c", b"xx", "_Z1jPf")])
    assert [a.key for a in answers] == ["a", "b", "c"]
    assert all(isinstance(a, Profile) for a in answers)
    assert [a.duration_us for a in answers] == [1.0, 3.0, 2.0]
    assert answers[0].dram_bytes == 1 << 20
    assert answers[0].steps[0].passes == 2
    assert made.version == "2031.2.0.0"  # a version of the future does no harm
    assert made.costs[0].profiled == 3


def test_the_profiler_is_asked_as_it_must_be(tmp_path):
    run(profiler(tmp_path), [request("a")])
    line = starts(tmp_path)[0]
    for option in (
        "--profile-from-start off",
        "--clock-control none",
        "--csv",
        "--print-units base",
        "--config-file off",
    ):
        assert option in line


def test_the_gpu_is_held_for_the_batch_alone(tmp_path):
    made = profiler(tmp_path)
    held = []

    @contextlib.contextmanager
    def gpu():
        held.append(len(made.costs))
        yield
        held.append(len(made.costs))

    try:
        made.profile([request("a")], CHEAP, gpu())
    finally:
        made.close()
    assert held == [0, 0]  # given back before the report was waited for


def test_spares_wait_for_the_next_batch(tmp_path):
    made = profiler(tmp_path, spares=2)
    try:
        made.warm_up(CHEAP)
        made.warm_up(CHEAP)
        made.profile([request("a")], CHEAP)
        made.profile([request("b")], CHEAP)
    finally:
        made.close()
    assert len(starts(tmp_path)) <= 4  # two that served, two that waited


def test_a_fault_costs_its_candidate_alone(tmp_path):
    answers = run(profiler(tmp_path), [request("a"), request("b", b"faults"), request("c"), request("d", b"xxxx")])
    assert [type(a) for a in answers] == [Profile, ProfileFailure, Profile, Profile]
    assert answers[1].kind == "launch"
    assert "IllegalAddress" in answers[1].reason
    assert answers[3].duration_us == 4.0


def test_a_candidate_that_takes_the_profiler_down_costs_itself_alone(tmp_path):
    answers = run(profiler(tmp_path), [request("a"), request("b", b"kills"), request("c", b"xxx")])
    assert [type(a) for a in answers] == [Profile, ProfileFailure, Profile]
    assert answers[1].kind == "launch"
    assert answers[2].duration_us == 3.0


def test_a_candidate_that_never_ends_costs_itself_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(ncu, "_KERNEL_S", 2.0)
    answers = run(profiler(tmp_path), [request("a"), request("b", b"hangs"), request("c")])
    assert [type(a) for a in answers] == [Profile, ProfileFailure, Profile]
    assert answers[1].kind == "timeout"


def test_refused_permission_ends_profiling_and_nothing_else(tmp_path):
    made = profiler(tmp_path, "permission")
    (answer,) = run(made, [request("a")])
    assert answer.kind == "permission"
    assert "NVreg_RestrictProfilingToAdminUsers" in answer.reason
    assert made.unusable == answer.reason
    before = len(starts(tmp_path))
    (again,) = run(made, [request("b")])
    assert again.reason == made.unusable
    assert len(starts(tmp_path)) == before  # not tried again


def test_the_drivers_own_word_saves_the_try(tmp_path, monkeypatch):
    (tmp_path / "params").write_text("RmProfilingAdminOnly: 1\n")
    monkeypatch.setattr(ncu.os, "geteuid", lambda: 1000)
    made = profiler(tmp_path)
    (answer,) = run(made, [request("a")])
    assert "ERR_NVGPUCTRPERM" in answer.reason
    assert starts(tmp_path) == []


def test_a_metric_that_this_profiler_does_not_know_is_left_out(tmp_path):
    made = profiler(tmp_path, unknown=("dram__bytes.sum",))
    (answer,) = run(made, [request("a", b"xx")])
    assert answer.duration_us == 2.0
    assert answer.dram_bytes is None
    assert answer.steps[0].missing == ("dram__bytes.sum",)
    assert made.dropped == {"dram__bytes.sum"}


def test_a_metric_that_this_chip_does_not_have_is_named_missing(tmp_path):
    (answer,) = run(profiler(tmp_path, "not on this chip"), [request("a")])
    assert answer.duration_us == 2.0
    assert answer.steps[0].missing == ("dram__bytes.sum",)


def test_a_report_without_the_kernel(tmp_path):
    (answer,) = run(profiler(tmp_path, "another kernel"), [request("a")])
    assert (answer.kind, answer.reason) == ("missing", "the profiler's report does not contain this kernel")


def test_a_profiler_killed_midway(tmp_path):
    made = profiler(tmp_path, "dies before its report")
    first, second = run(made, [request("a"), request("b")])
    assert (first.kind, first.reason) == ("lost", "the profiler ended without a report")
    assert second.kind == "lost"
    assert made.unusable == ""
    run(made, [request("a")])
    assert made.unusable == "the profiler ended without a report"  # twice in a row: given up


def test_counters_that_another_holds_for_a_moment_are_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr(ncu, "_PAUSE_S", 0.01)
    made = profiler(tmp_path, "busy once")
    (answer,) = run(made, [request("a")])
    assert isinstance(answer, Profile)
    assert made.unusable == ""


def test_counters_that_another_keeps_end_profiling(tmp_path, monkeypatch):
    monkeypatch.setattr(ncu, "_PAUSE_S", 0.01)
    made = profiler(tmp_path, "busy")
    (answer,) = run(made, [request("a")])
    assert answer.kind in ("busy", "no profiler")
    assert "another tool uses the performance counters" in made.unusable


def test_a_batch_may_begin_before_the_last_one_has_ended(tmp_path):
    made = profiler(tmp_path)
    try:
        first = made.begin([request("a", b"x"), request("b", b"faults"), request("c", b"xx")], CHEAP)
        second = made.begin([request("d", b"xxx")], CHEAP)
        answers = made.finish(first)  # what the fault cost is asked for again now
        assert [getattr(a, "duration_us", None) for a in answers] == [1.0, None, 2.0]
        assert [a.duration_us for a in made.finish(second)] == [3.0]
    finally:
        made.close()


@pytest.mark.parametrize("prime", [True, False])
def test_what_the_profiler_sets_up_first_counts_for_nobody(tmp_path, prime):
    (answer,) = run(profiler(tmp_path, prime=prime), [request("a", b"xx")])
    assert answer.duration_us == 2.0


def test_a_worker_that_cannot_start(tmp_path):
    made = profiler(tmp_path, "cannot start")
    (answer,) = run(made, [request("a")])
    assert answer.kind == "no profiler"
    assert "libcuda.so.1 is missing" in answer.reason


def test_no_profiler_here(tmp_path):
    made = ncu.Profiler(NoSandbox(), None, b"tools", tmp_path / "scratch", spec())
    (answer,) = run(made, [request("a")])
    assert answer.kind == "no profiler"
    assert "not installed" in answer.reason


def test_launches_that_look_alike_are_never_mixed_up(tmp_path):
    batch = [request("a", b"x"), request("b", b"xx")]
    rows = [ncu.output.Row(0, "_Z1kPf", (4, 1, 1), (32, 1, 1))]  # one report for two launches: whose?
    answers = ncu._answers(batch, CHEAP, rows, [None, None], "")
    assert [a.kind for a in answers.values()] == ["missing", "missing"]


@pytest.mark.skipif(not available()[0], reason="no sandbox here")
def test_inside_the_sandbox(tmp_path):
    tmp_path.chmod(0o755)  # where root calls, another user reads the stand-in
    box = sandbox()
    made = ncu.Profiler(box, install(tmp_path), b"tools", tmp_path / "scratch", spec())
    (answer,) = run(made, [request("a", b"xxx")])
    assert isinstance(answer, Profile), answer
    assert answer.duration_us == 3.0
    assert [p.name for p in (tmp_path / "scratch").iterdir()] == ["cupy"]


def test_nothing_is_left_behind(tmp_path):
    run(profiler(tmp_path), [request("a")])
    assert [p.name for p in (tmp_path / "scratch").iterdir()] == ["cupy"]


def test_a_log_that_is_no_file_is_not_read(tmp_path):
    import os

    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "link").symlink_to(tmp_path / "secret")
    assert output.read(tmp_path / "pipe") == output.read(tmp_path / "link") == output.read(tmp_path / "none") == ""


def test_one_that_hangs_can_be_ended_from_another_thread(tmp_path):
    path = tmp_path / "ncu"
    path.write_text('#!/bin/sh\n[ "$1" = --version ] && exit 0\nexec sleep 1000\n')
    path.chmod(0o755)
    made = Profiler(NoSandbox(), path, b"tools", tmp_path / "scratch", spec())
    threading.Timer(0.3, made.interrupt).start()
    begin = time.monotonic()
    (answer,) = made.profile([request("a")], CHEAP)
    assert time.monotonic() - begin < 20
    assert isinstance(answer, ProfileFailure)
    assert answer.reason == "the profiler did not end in time"
    made.close()
    assert not list((tmp_path / "scratch").glob("profile-*"))
