"""Prompts from jinja2 templates."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from engine.errors import MachineError

if TYPE_CHECKING:
    from jinja2 import Environment


@cache
def prompts_in(folder: Path) -> Environment:
    """The templates of a folder. Raises MachineError where jinja2 is missing."""
    try:
        # Longer than all else of a prompt, and only who asks a model writes one.
        from jinja2 import Environment, FileSystemLoader, StrictUndefined
    except ImportError:
        raise MachineError("the package 'jinja2' is missing", do="pip install 'optiml-cuda[llm]'") from None
    # Prompts are plain text: there is nothing to escape into, and what is data is fenced.
    return Environment(
        loader=FileSystemLoader(folder),
        autoescape=False,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
