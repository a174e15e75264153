"""The installed commands. Each enters here, so that it runs this installation's packages and no others of their names."""

from __future__ import annotations

from optiml_cuda.claim import claim


def optiml() -> int:
    """The command `optiml`."""
    claim()
    from engine.cli import main

    return main()


def optiml_check() -> int:
    """The command `optiml-check`."""
    claim()
    from hooks.check import main

    return main()


def optiml_quick() -> int:
    """The command `optiml-quick`."""
    claim()
    from hooks.quick import main

    return main()


def optiml_action() -> int:
    """The command `optiml-action`."""
    claim()
    from action.main import main

    return main()
