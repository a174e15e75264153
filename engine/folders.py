"""Where things are kept between runs. Apart from the machine, so that asking for it loads nothing heavy."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from engine.errors import MachineError, OptimlError


def cache_folder() -> Path:
    """Where compiled things are kept between runs: `$OPTIML_CACHE`, else the user's cache folder."""
    given = os.environ.get("OPTIML_CACHE")
    if given:
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "optiml"


def ignore_folder(out: Path) -> None:
    """Keep a default output folder out of git, as the tools of Python do with their caches."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        if out.parent.name == ".optiml":
            marker = out.parent / ".gitignore"
            if not marker.exists():
                marker.write_text("*\n")
    except NotADirectoryError:
        raise MachineError("is not a folder", str(out), "choose another --out") from None
    except OSError as error:
        raise MachineError(f"cannot be written: {error.strerror}", str(out), "choose a writable --out") from None


@contextmanager
def results_folder(out: Path) -> Iterator[None]:
    """`ignore_folder`, and where a run is refused (raises OptimlError) and left nothing there, what was made for it goes again."""
    made = [folder for folder in (out, *out.parents) if not folder.exists()]
    ignore_folder(out)
    try:
        yield
    except OptimlError:
        for folder in made:  # the innermost first
            with suppress(OSError):
                if [p.name for p in folder.iterdir()] == [".gitignore"]:
                    (folder / ".gitignore").unlink()
                folder.rmdir()
        raise
