"""The rules' own edits before the verifier: what a run keeps, and how several processes share the files."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import honest_rules
from benchmarks.honest_rules import Edit, State, own_arguments

EDIT = Edit("softmax", "unroll", "Unroll", "screened", "", refused=False)


def test_a_state_is_read_again_and_states_are_taken_together(tmp_path: Path) -> None:
    for name in ("a", "b"):
        state = State(tmp_path / name, "c1")
        state.add(EDIT)
        state.end(name)
    whole = State(None, "c1")
    for name in ("a", "b"):
        whole.take(State(tmp_path / name, "c1"))
    assert (len(whole.edits), whole.files) == (2, {"a", "b"})
    with pytest.raises(SystemExit, match="of the commit c1"):
        State(tmp_path / "a", "c2")


def test_a_process_with_a_share_gets_the_other_arguments() -> None:
    given = ["--device", "gpu", "--parallel", "8", "--most", "2", "--state", "s", "--record=r.json", "--seconds", "90"]
    assert own_arguments(given) == ["--device", "gpu", "--most", "2", "--seconds", "90"]


def test_shares_are_merged_into_one_record(tmp_path: Path) -> None:
    """Two real processes share two files, of which every edit is judged already."""
    state = tmp_path / "state"
    parts = [tmp_path / f"state.{number}" for number in range(2)]
    for number, part in enumerate(parts):
        kept = State(part, honest_rules.commit())
        kept.add(EDIT)
        kept.end(["dot", "softmax"][number])
    record = tmp_path / "record.json"
    arguments = ["--only", "dot", "softmax", "--parallel", "2", "--state", str(state), "--record", str(record)]
    assert honest_rules.main(arguments) == 0
    assert record.exists()
