"""Poison: never the same words, each of its kind in every type that it is read as."""

from __future__ import annotations

import math
import random
import struct

import numpy as np

from engine.selftest.cases import original_text
from engine.spec.data import poisoned
from engine.spec.find import find_spec
from engine.spec.poison import nan_word, plausible_word, unpredictable


def test_the_words_are_of_their_kind_in_both_precisions() -> None:
    rng = random.Random(1)
    for _ in range(1000):
        spoils = struct.pack("<I", nan_word(rng))
        assert math.isnan(struct.unpack("<f", spoils)[0])
        assert math.isnan(struct.unpack("<d", spoils * 2)[0])
        assert 9e4 < abs(struct.unpack("<f", struct.pack("<I", plausible_word(rng)))[0]) < 1.1e7


def test_the_words_differ_from_process_to_process() -> None:
    """A kernel that computes only where it finds the checker's word passed every run, for the word never changed."""
    rngs = [unpredictable() for _ in range(8)]
    assert len({nan_word(rng) for rng in rngs}) > 1
    assert len({plausible_word(rng) for rng in rngs}) > 1


def test_outputs_on_the_host_start_from_other_words_for_each_seed(tmp_path) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / ".git").mkdir()
    (tmp_path / "halves.cu").write_bytes(original_text("halves"))
    spec, _ = find_spec(tmp_path, tmp_path / "halves.cu")
    first, again, other = (poisoned(spec, spec.check[1], seed, "declared")["y"] for seed in (1, 1, 2))
    assert (first == again).all()
    assert not (first == other).any()
    assert first.dtype == np.float16
    assert len(np.unique(first[:-1])) == 2  # one word, two halves
