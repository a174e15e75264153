"""Where things are kept between runs. Apart from the machine, so that asking for it loads nothing heavy."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """Where compiled things are kept between runs: `$OPTIML_CACHE`, else the user's cache folder."""
    given = os.environ.get("OPTIML_CACHE")
    if given:
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "optiml"
