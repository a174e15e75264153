"""Rules and drafts do what they did: a change of these files is a change of behaviour, and its commit says why it is better."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.golden.behaviour import HERE, drafts, kernel_files, proposal_lines


@pytest.mark.parametrize("file", list(kernel_files()), ids=lambda file: file.stem)
def test_the_rules_propose_what_they_did(file: Path) -> None:
    golden = (HERE / "proposals.txt").read_text().splitlines()
    assert proposal_lines(file) == [line for line in golden if line.split()[0] == file.stem], (
        "accept it with 'make golden'"
    )


def test_drafts_are_what_they_were() -> None:
    golden = (HERE / "drafts.txt").read_text()
    assert drafts(kernel_files()) == golden, "accept it with 'make golden'"
