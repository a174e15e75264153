"""Parameters of which `make test` takes some, and `make test-slow` the rest."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def first_few(values: Iterable[Any], count: int) -> list[Any]:
    """The values as parameters, those behind the first `count` marked slow."""
    return [value if at < count else pytest.param(value, marks=pytest.mark.slow) for at, value in enumerate(values)]
