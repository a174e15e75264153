"""`optiml mcp`: serve the verbs to programs that speak the Model Context Protocol, such as an editor's assistant."""

import argparse
from pathlib import Path

from engine.errors import UsageError


def run(arguments: argparse.Namespace) -> int:
    """Exit code 0 when the client goes away. Raises UsageError without the extra `mcp`."""
    try:
        # An extra, and half a second to load.
        from engine.commands.mcp_server import serve
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("mcp", "mcp_types"):
            raise
        raise UsageError("the package 'mcp' is missing", do="pip install 'optiml-cuda[mcp]'") from None
    serve(Path.cwd(), unsafe=arguments.unsafe_no_sandbox)
    return 0
