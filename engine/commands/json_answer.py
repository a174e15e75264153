"""What a verb prints with `--format json`."""

import json
import sys
from typing import Any


def print_json(schema: str, **fields: Any) -> None:
    """Print one object with its schema."""
    sys.stdout.write(json.dumps({"schema": schema, **fields}, indent=2, default=str) + "\n")
