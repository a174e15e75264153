"""`optiml init FILE`: draft the kernel spec from the source."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from engine.errors import MachineError, OptimlError, UsageError

if TYPE_CHECKING:
    from engine.model import Program
    from engine.spec.draft import Draft


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add this verb to the command line."""
    parser = subparsers.add_parser(
        "init",
        help="draft the kernel spec of a file",
        description="Draft the spec of one kernel, say what was assumed, and print it or write it.",
    )
    parser.add_argument("file", type=Path, metavar="FILE", help="the .cu file")
    parser.add_argument("--kernel", metavar="NAME", help="which kernel, where the file has several")
    parser.add_argument(
        "--write",
        action="store_true",
        help="write the draft instead of printing it; a spec that is there is never overwritten",
    )
    parser.add_argument(
        "--format",
        choices=("comments", "toml"),
        default="comments",
        help="lines above the kernel, or an optiml.toml beside the file (default: comments)",
    )
    parser.add_argument(
        "--static",
        action="store_true",
        help="read the text only; do not run the kernel on the CPU to find the arrays' sizes",
    )


def run(arguments: argparse.Namespace) -> int:
    """Exit code 0 for a complete draft, 1 where something is missing. Raises UsageError, SourceError, SpecError."""
    if arguments.file.is_dir():
        raise UsageError("is a folder", str(arguments.file), "name one .cu file")
    if not arguments.file.is_file():
        raise UsageError("no such file", str(arguments.file), "check the path")

    from engine.source.load import load_program, repository_root
    from engine.spec.draft import draft
    from engine.spec.find import described

    file = arguments.file.resolve()
    root = repository_root(file)
    program = load_program(file)
    name = _kernel(program, arguments.kernel, str(arguments.file))
    if arguments.write:
        there = described(root, file).get(name.partition("<")[0].strip())
        if there:
            raise UsageError(f"'{name}' has a spec already", there, "edit that one, or delete it first")
    form = {"form": arguments.format, "toml_file": file.name}
    made = draft(program, name, **form)
    if not arguments.static and all(a.type != "struct:1" for a in made.spec.arguments):
        probed = _probed(program, made, root, name, form)
        made = probed or made
    if arguments.write:
        path = _write(file, program, made, arguments.format)
        print(f"wrote {path}", file=sys.stderr)
    else:
        sys.stdout.write(made.text)
    for what in made.missing:
        print(f"missing: {what}", file=sys.stderr)
    if not made.missing:
        print(f"check what is marked as assumed, then run 'optiml optimize {arguments.file}'", file=sys.stderr)
    return 1 if made.missing else 0


def _kernel(program: Program, wanted: str | None, file: str) -> str:
    from engine.source.parse import parse

    names = [k.qualified for k in parse(program.data, program.kernel_file).kernels]
    if wanted is not None:
        return wanted
    if len(names) == 1:
        return names[0]
    if not names:
        raise UsageError("holds no kernel (no __global__ function)", file, "name a file with a kernel")
    raise UsageError(f"has several kernels: {', '.join(names)}", file, "name one with --kernel")


def _probed(program: Program, made: Draft, root: Path, name: str, form: dict[str, str]) -> Draft | None:
    """The draft with extents measured on the CPU; None, with the reason on stderr, where the kernel cannot run here."""
    import tempfile

    from engine.cpu import CpuMachine
    from engine.folders import cache_folder
    from engine.sandbox import sandbox
    from engine.spec.draft import draft
    from engine.spec.probe import CpuProbe

    with tempfile.TemporaryDirectory(prefix="optiml-") as scratch:
        try:
            machine = CpuMachine(cache_folder() / "cpu", sandbox=sandbox(False), scratch=Path(scratch))
            probe = CpuProbe(program, made.spec, machine, root)
            return draft(program, name, probe=probe.touched, moved=probe.moved, roles=probe.roles, **form)
        except OptimlError as error:
            print(f"sizes are read from the text alone: {error}", file=sys.stderr)
            return None


def _write(file: Path, program: Program, made: Draft, form: str) -> Path:
    """Puts the draft above the kernel, or at the end of the optiml.toml beside the file. Raises MachineError."""
    from engine.source.edit import apply
    from engine.source.model import Edit, Span
    from engine.source.parse import parse
    from engine.spec.tables import SPEC_NAME

    if form == "toml":
        path = file.with_name(SPEC_NAME)
        before = path.read_bytes() if path.exists() else b""
        gap = b"" if not before else b"\n" if before.endswith(b"\n") else b"\n\n"
        after = before + gap + made.text.encode()
    else:
        path, before = file, program.data
        unit = parse(program.data, program.kernel_file)
        start = before.rfind(b"\n", 0, unit.kernel(made.spec.kernel).span.start) + 1
        if start == 0 and unit.bom:
            start = 3
        after = apply(before, [Edit(Span(start, start), made.text)])
    _replace(path, after)
    return path


def _replace(path: Path, data: bytes) -> None:
    """Replaces a file's contents at once: a full disk leaves the old ones."""
    import os
    import shutil
    import tempfile

    temporary = ""
    try:
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
        if path.exists():
            shutil.copymode(path, temporary)
        else:
            os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except OSError as error:
        if temporary:
            Path(temporary).unlink(missing_ok=True)
        raise MachineError(f"cannot be written ({error.strerror})", str(path), "check its permissions") from None
