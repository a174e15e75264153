"""Writes a drafted spec: as lines above its kernel, or as a table of the optiml.toml beside the file."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from engine.cuda.edit import apply
from engine.cuda.kernel import Edit
from engine.cuda.parse import parse
from engine.settings.folders import replace_file
from engine.spec.tables import SPEC_NAME

Form = Literal["comments", "toml"]


def with_lines(data: bytes, path: str, kernel: str, text: str) -> bytes:
    """A file's bytes with spec lines above one of its kernels; everything else stays byte for byte. Raises SourceError, KeyError."""
    unit = parse(data, path)
    start = data.rfind(b"\n", 0, unit.kernel(kernel).span.start) + 1
    if start == 0 and unit.bom:
        start = 3
    return apply(data, [Edit.insert(start, text)])


def write_spec(file: Path, kernel: str, text: str, form: Form) -> Path:
    """Put a draft's text into `file` above the kernel, or at the end of the optiml.toml beside it; the path that was written.

    Raises MachineError where it cannot be written, SourceError for a file that is no text.
    """
    if form == "toml":
        path = file.with_name(SPEC_NAME)
        before = path.read_bytes() if path.exists() else b""
        gap = b"" if not before else b"\n" if before.endswith(b"\n") else b"\n\n"
        after = before + gap + text.encode()
    else:
        path = file
        after = with_lines(file.read_bytes(), file.name, kernel, text)
    replace_file(path, after, "check its permissions", 0o644)
    return path
