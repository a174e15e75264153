"""The baseline: what is kept of the default branch's history, and when a kernel is said to be slower than it once was."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from bot.baseline import FILE, Baseline, CaseTime, Entry, device_name, read_baseline, spec_name, write_baseline
from bot.bundle import History
from bot.errors import BundleError
from bot.render import status_body, summary_body
from bot.review import Settings, make_review
from engine.model import CaseTiming
from engine.spec.kernel_spec import KernelSpec
from tests.bot.make import bundle, looked

GPU = "NVIDIA H200 measured"


def entry(number: int, us: float, *, device: str = GPU, path: str = "src/a.cu") -> Entry:
    return Entry(path, "scale", device, "spec", f"{number:040x}", False, (CaseTime("n=4096", 1.0, us),))


def cases(us: float) -> tuple[CaseTiming, ...]:
    return (CaseTiming("n=4096", 1.0, 999.0, us, 1.0, 1.0, 1.0, 40),)


def past(*times: float) -> Baseline:
    found = Baseline()
    for number, us in enumerate(times):
        found = found.with_entry(entry(number, us))
    return found


def test_small_steps_back_show_together() -> None:
    creeping = past(*(100.0 * 1.015**i for i in range(9)))
    assert creeping.history("src/a.cu", "scale", GPU, "spec", cases(113.0)) == History(f"{0:040x}", 1.13, False)


@pytest.mark.parametrize(
    ("path", "kernel", "device", "spec", "us"),
    [
        ("src/a.cu", "scale", GPU, "spec", 104.0),  # no more than runs differ by
        ("src/b.cu", "scale", GPU, "spec", 200.0),
        ("src/a.cu", "other", GPU, "spec", 200.0),
        ("src/a.cu", "scale", "NVIDIA A100 measured", "spec", 200.0),
        ("src/a.cu", "scale", "sm_90 predicted by 1", "spec", 200.0),
        ("src/a.cu", "scale", GPU, "another spec", 200.0),
    ],
)
def test_what_cannot_be_compared_says_nothing(path: str, kernel: str, device: str, spec: str, us: float) -> None:
    assert past(100.0).history(path, kernel, device, spec, cases(us)) is None


def test_other_cases_are_not_compared() -> None:
    assert (
        past(100.0).history("src/a.cu", "scale", GPU, "spec", (*cases(200.0), replace(cases(1.0)[0], case="m"))) is None
    )


def test_the_fastest_stays_however_many_come_after_it() -> None:
    found = past(120.0, 100.0, *(130.0 for _ in range(40)))
    assert len(found.entries) <= 11
    history = found.history("src/a.cu", "scale", GPU, "spec", cases(130.0))
    assert history is not None
    assert history.commit == f"{1:040x}"
    again = found.with_entry(entry(41, 90.0))
    assert [e.commit for e in again.entries].count(f"{41:040x}") == 1


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    assert read_baseline(tmp_path) == Baseline()
    write_baseline(past(100.0, 90.0), tmp_path)
    assert read_baseline(tmp_path) == past(100.0, 90.0)
    assert os.listdir(tmp_path) == [FILE]


@pytest.mark.parametrize(
    "change",
    [
        {"schema": "x"},
        {"more": 1},
        {"entries": [{}]},
        {"entries": [asdict(entry(1, 0.0))]},
        {"entries": [asdict(entry(1, -1.0))]},
    ],
)
def test_what_is_no_baseline_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    (tmp_path / FILE).write_text(json.dumps(asdict(past(1.0)) | change))
    with pytest.raises(BundleError):
        read_baseline(tmp_path)
    (tmp_path / FILE).unlink()
    (tmp_path / FILE).symlink_to("/etc/hostname")
    with pytest.raises(BundleError):
        read_baseline(tmp_path)


def test_names_tell_apart_what_cannot_be_compared() -> None:
    spec = KernelSpec("a.cu", (), (), (), ())
    assert spec_name(spec) == spec_name(replace(spec, file="b.cu", origin="b.cu:3"))
    assert spec_name(spec) != spec_name(replace(spec, tolerance=0.1))
    device = {"name": "NVIDIA H200", "arch": "sm_90"}
    assert (
        len(
            {
                device_name("measured", device, "1"),
                device_name("predicted", device, "1"),
                device_name("predicted", device, "2"),
            }
        )
        == 3
    )


def test_the_status_names_what_drifted_and_does_not_call_it_a_regression() -> None:
    drifted = replace(looked(None, against=0.99), history=History("d" * 40, 1.13, False))
    review = make_review(bundle(drifted), (), Settings())
    assert not review.worth_posting
    text = status_body(review.headline, review.head, review=review)
    assert "`scale` in `src/a.cu`: 1.13× the time measured at dddddddddddd, in another run" in text
    assert "Slower than the base" not in summary_body(review)
    slower = replace(looked(None, against=0.5), history=History("d" * 40, 2.0, True))
    assert "an earlier commit" not in summary_body(make_review(bundle(slower), (), Settings()))


def test_the_threshold_says_what_a_regression_is() -> None:
    what = bundle(looked(None, against=0.96))  # 0.94 to 0.98
    assert make_review(what, (), Settings(regression=0.98)).regressions
    assert not make_review(what, (), Settings(regression=0.90)).regressions
    assert "slower" in summary_body(make_review(what, (), Settings(regression=0.90)))
