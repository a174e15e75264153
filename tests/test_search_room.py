"""What of the best known each arm of an ablation reached."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import search_room


def run(arm: str, best: float, after: dict[str, float]) -> dict[str, object]:
    return {"arm": arm, "best": best, "after": after, "candidates": 100}


def record() -> dict[str, object]:
    runs = [
        run("mcts", 2.0, {"10": 1.0, "25": 1.99, "100": 2.0}),
        run("mcts", 2.0, {"10": 1.0, "25": 2.0, "100": 2.0}),
        run("random", 4.0, {"10": 4.0, "25": 4.0, "100": 4.0}),
        run("random", 1.0, {"10": 1.0, "25": 1.0, "100": 1.0}),
    ]
    return {"rows": {"k": {"runs": runs, "measured": 100, "answered": 200}, "learn:k": {"runs": []}}}


def test_shares_are_of_the_best_that_any_arm_knew() -> None:
    found = search_room.room(record()["rows"]["k"])  # type: ignore[index]
    assert found["known"] == 4.0
    assert found["shares"] == pytest.approx({"mcts": 0.5, "random": 0.5})
    assert (found["settled"], found["ends"], found["unmeasured"]) == (25, 1, 0.25)


def test_the_command_prints_a_row_a_kernel_and_refuses_what_is_no_record(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "ablation-search.json"
    path.write_text(json.dumps(record()))
    assert search_room.main([str(path)]) == 0
    assert "| k | 4.00 | 50.0 % | 50.0 % | 25 | 1 | 25 % |" in capsys.readouterr().out
    for text in ("[]", "{", '{"rows": {}}', '{"rows": {"k": {"runs": [1]}}}'):
        path.write_text(text)
        with pytest.raises(SystemExit) as raised:
            search_room.main([str(path)])
        assert raised.value.code == 2
