"""The comparison of predicted with measured speedups: its arithmetic, its sample, and that the page says what the record says."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from benchmarks import predict_constants, predict_correlation
from engine.errors import UsageError
from engine.model import CaseTiming, Evaluation, LaunchConfig, Measurement, Outcome, Program
from engine.search.journal import Entry, Journal

ROOT = Path(__file__).resolve().parent.parent
RECORD = ROOT / "benchmarks" / "results" / "predict-correlation-h200.json"


def test_ranks_share_the_mean_of_equal_values() -> None:
    assert predict_correlation.ranks([30.0, 10.0, 20.0, 20.0]) == [3.0, 0.0, 1.5, 1.5]


def test_rank_correlation_is_spearmans() -> None:
    # The textbook's example of ten pupils: IQ against hours of television, -29/165.
    iq = [106, 86, 100, 101, 99, 103, 97, 113, 112, 110]
    hours = [7, 0, 27, 50, 28, 29, 20, 12, 6, 17]
    assert predict_correlation.spearman(iq, hours) == pytest.approx(-29 / 165)
    chance = random.Random(1)
    values = [chance.random() for _ in range(50)]
    assert predict_correlation.spearman(values, [v**3 for v in values]) == pytest.approx(1.0)
    assert predict_correlation.spearman(values, [1.0] * 50) is None


def test_errors_are_medians_of_factors() -> None:
    points = [
        {"measured": 1.0, "predicted": p, "measured_us": [8.0], "predicted_us": [t]}
        for p, t in ((2.0, 8.0), (0.5, 4.0), (1.0, 32.0))
    ]
    found = predict_correlation.figures(points)
    assert (found["count"], found["speedup_error"], found["time_error"]) == (3, 1.0, 1.0)
    assert predict_correlation.figures(points[:2])["spearman"] is None


def _entry(number: int, outcome: Outcome, code: str, ratio: float | None = 2.0, threads: int = 32) -> Entry:
    measurement = None
    if ratio is not None:
        case = CaseTiming("n=1", 1.0, 10.0, 10.0 / ratio, ratio, ratio, ratio, 5)
        measurement = Measurement((case,), ratio, ratio, ratio)
    evaluation = Evaluation(outcome, measurement, code_hash=code)
    launches = ((LaunchConfig((1, 1, 1), (threads, 1, 1)),),)
    parent = None if number == 0 else 0
    return Entry(number, parent, "rules", "unroll", {}, "Unroll", "", launches, evaluation, {"k.cu": b"x"}, 0.0)


def test_the_sample_is_of_what_was_timed_each_code_and_launch_once(tmp_path: Path) -> None:
    program = Program({"k.cu": b"__global__ void k() {}"}, "k.cu")
    path = tmp_path / "journal.sqlite"
    journal = Journal(path, program, {"kernel": "k", "mode": "measured", "arch": "sm_90"}, resume=False)
    given = [
        _entry(0, Outcome.ACCEPTED, "original"),
        _entry(1, Outcome.ACCEPTED, "a"),
        _entry(2, Outcome.ACCEPTED, "a"),
        _entry(3, Outcome.ACCEPTED, "a", threads=64),
        _entry(4, Outcome.SLOWER, "b", 0.5),
        _entry(5, Outcome.WRONG_RESULT, "c", None),
        _entry(6, Outcome.NO_DIFFERENCE, "d", 1.0),
        _entry(7, Outcome.DUPLICATE, "e"),
    ]
    for entry in given:
        journal.book(entry)
    # The journal is still open and locked here: reading works on a copy.
    before = path.read_bytes()
    found = predict_correlation.measured(path, program, "k")
    assert [entry.id for entry in found] == [1, 3, 4, 6]
    assert path.read_bytes() == before
    with pytest.raises(UsageError, match="source has changed"):
        predict_correlation.measured(path, program.replace({"k.cu": b"other"}), "k")
    journal.close()


def test_the_sample_is_the_same_for_the_same_seed() -> None:
    entries = [_entry(i, Outcome.ACCEPTED, str(i)) for i in range(1, 30)]
    first = predict_correlation.sample(entries, 10, 3)
    assert first == predict_correlation.sample(entries, 10, 3)
    assert first != predict_correlation.sample(entries, 10, 4)
    assert len(predict_correlation.sample(entries, 100, 0)) == 29


def test_a_kernel_left_out_has_no_part_in_its_constants(monkeypatch: pytest.MonkeyPatch) -> None:
    def error(samples: list[float], fitted: object) -> float:
        # Each kernel wants its own value of one constant; the others do not matter.
        return sum(abs(getattr(fitted, "warp_start_s") * 1e6 - wanted) for wanted in samples)  # noqa: B009

    monkeypatch.setattr(predict_constants, "error", error)
    kernels = {"small": [0.225], "also small": [0.225], "large": [0.9]}
    found = predict_constants.leave_one_out(kernels)  # type: ignore[arg-type]
    assert found["large"]["factors"] == {"warp_start_s": 0.5}
    assert found["large"]["error_left_out"] > found["large"]["error"]


def test_the_page_shows_the_record() -> None:
    record = json.loads(RECORD.read_text(encoding="utf-8"))
    page = predict_correlation.DOCS.read_text(encoding="utf-8")
    assert predict_correlation.table(record) in page
    assert predict_correlation.with_table(page, record) == page
    with pytest.raises(ValueError, match="has no"):
        predict_correlation.with_table("a page without marks", record)


def test_the_record_says_where_it_comes_from_and_its_figures_follow_from_its_points() -> None:
    record = json.loads(RECORD.read_text(encoding="utf-8"))
    assert record["schema"] == predict_correlation.SCHEMA
    assert record["command"][:2] == ["python", "benchmarks/predict_correlation.py"]
    assert len(record["kernels"]) == 10
    for kernel in record["kernels"]:
        assert kernel["error"] is None
        assert kernel["measured"]["device"]["name"] == "NVIDIA H200"
        assert {key: kernel[key] for key in ("count", "spearman", "speedup_error", "time_error")} == pytest.approx(
            predict_correlation.figures(kernel["points"])
        )
        assert kernel["kernel"] in record["leave_one_kernel_out"]
    assert record["summary"] == predict_correlation.summary(record["kernels"])


def test_a_folder_without_runs_is_wrong_use(tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as stopped:
        predict_correlation.main(["--runs", str(tmp_path), "--record", str(tmp_path / "r.json")])
    assert stopped.value.code == 2
