"""Makes `engine`, `bot`, `action` and `hooks` mean the packages of this installation.

Their names are common. An `engine.py` in the working folder or on PYTHONPATH would be imported in the place of ours.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

PACKAGES = ("engine", "bot", "action", "hooks")


def claim() -> None:
    """Import the four packages from beside this one, whatever stands before it on the path. Their modules load when they are used.

    Raises ImportError where another module of such a name is imported already, or the installation is not whole.
    """
    root = Path(__file__).resolve().parent.parent
    for name in PACKAGES:
        init = root / name / "__init__.py"
        known = sys.modules.get(name)
        if known is not None:
            if not _same(getattr(known, "__file__", None), init):
                raise ImportError(
                    f"another module named '{name}' is imported already: {getattr(known, '__file__', None)}"
                )
            continue
        spec = importlib.util.spec_from_file_location(name, init, submodule_search_locations=[str(init.parent)])
        if spec is None or spec.loader is None or not init.is_file():
            raise ImportError(
                f"OptiML's package '{name}' is missing beside {Path(__file__).parent}; install optiml-cuda again"
            )
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)


def _same(found: str | None, wanted: Path) -> bool:
    return found is not None and Path(found).resolve() == wanted
