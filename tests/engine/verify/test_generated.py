"""Generated attacks on the screening of texts, and honest edits that look alike. Each defence is needed."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from engine.cuda.load import load_program
from engine.selftest.cases import SelfCase, original_text
from engine.selftest.generators import attributes, digraphs, line_ends, splices, unseen
from engine.spec.find import find_spec
from engine.verify.defences import ALL, Defences
from engine.verify.screen import screen

Generate = Callable[[random.Random], Iterator[SelfCase]]
SCREENED: dict[str, Generate] = {
    module.__name__.rpartition(".")[2]: module.generate for module in (digraphs, splices, line_ends, unseen, attributes)
}
# Classes that plain text shows as well: the names and brackets of attributes stand there.
SHOWN = {"attributes"}
SEEDS = range(8)


def screened(case: SelfCase, folder: Path, defences: Defences = ALL) -> str | None:
    (folder / ".git").mkdir(exist_ok=True)
    path = folder / f"{case.original}.cu"
    path.write_bytes(original_text(case.original))
    spec, _ = find_spec(folder, path)
    program = load_program(path)
    return screen(program, program.replace({program.kernel_file: case.text()}), spec, defences)


@pytest.mark.parametrize("name", sorted(SCREENED))
@pytest.mark.parametrize("seed", SEEDS)
def test_attacks_are_refused_for_their_reason_and_honest_edits_are_not(name: str, seed: int, tmp_path: Path) -> None:
    for case in SCREENED[name](random.Random(seed)):
        reason = screened(case, tmp_path)
        if case.suite == "honest":
            assert reason is None, case
        else:
            assert reason is not None, case
            assert case.reason in reason, (case.name, reason)


@pytest.mark.parametrize("name", sorted(SCREENED))
def test_other_seeds_give_other_texts(name: str) -> None:
    texts = [{case.text() for case in SCREENED[name](random.Random(seed))} for seed in (1, 2)]
    assert not texts[0] & texts[1]


@pytest.mark.parametrize("name", sorted(set(SCREENED) - SHOWN))
def test_what_reads_the_plain_text_lets_some_through(name: str, tmp_path: Path) -> None:
    off = replace(ALL, forms=False)
    cases = [case for seed in SEEDS for case in SCREENED[name](random.Random(seed)) if case.suite == "attacks"]
    assert any(screened(case, tmp_path, off) is None for case in cases)
