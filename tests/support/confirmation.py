"""Confirmations without their costliest parts, for tests of what comes before and after them."""

from __future__ import annotations

import pytest

from engine.evaluate.sampled_sizes import SampledSizes


def confirm_lightly(patch: pytest.MonkeyPatch) -> None:
    """No whole builds by nvcc and no sampled sizes: seconds of each suggestion, with tests of their own."""
    patch.setattr("engine.run.whole_check.find_nvcc", lambda: None)
    for method in ("draw", "outside"):
        patch.setattr(SampledSizes, method, lambda samples: None)
