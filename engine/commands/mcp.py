"""`optiml mcp`: serve the verbs to programs that speak the Model Context Protocol, such as an editor's assistant."""

from __future__ import annotations

import argparse
from pathlib import Path

from engine.errors import UsageError


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add this verb to the command line."""
    parser = verbs.add_parser(
        "mcp",
        help="serve this repository to an editor's assistant over the Model Context Protocol",
        description="Serve the tools optimize, profile_diagnose, explain and apply on standard input and output for this repository.",
    )
    parser.add_argument(
        "--unsafe-no-sandbox",
        action="store_true",
        help="run without a sandbox where none is available; only for trusted code",
    )


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
