"""Records a program's kernel launches without a GPU: the program is compiled by `optiml nvcc` and run once."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from engine.capture.cpu_library import cpu_runtime
from engine.capture.cpu_nvcc import COMMANDS
from engine.capture.launch_choice import different_launches
from engine.capture.manifest import BLOBS, MAX_BLOB, VERSION, Manifest, hide_from_git, save_manifest
from engine.capture.program_run import run_program
from engine.capture.raw_records import open_regular, read_launches, read_times
from engine.capture.recording import (
    BlobStore,
    CaptureEnd,
    CaptureRequest,
    bound_kernels,
    chosen_kernels,
    limited,
    measured_kernels,
    with_launches,
)
from engine.cuda.compile_command import DATABASE
from engine.cuda.compile_options import inside
from engine.errors import RefusedError
from engine.process.decode import NotThis
from engine.settings.folders import replace_file, results_folder

_NOTE = "recorded on the CPU: the times and their shares are CPU times and differ from those of a GPU"
_UNFINISHED = "unfinished"  # as runtime.cpp has it
_MAX_COMMANDS = 8 << 20  # bytes of what the compiler was given


def record_on_cpu(request: CaptureRequest, say: Callable[[str], None] = lambda phase: None) -> CaptureEnd:
    """Run the command once, with `optiml nvcc` as nvcc on PATH, and store what it launched.

    A command that is a .cu file is compiled and run. `say` is called with each phase before it begins. Raises MachineError without
    a compiler, UsageError where the command cannot be started, RefusedError where it launched no kernel.
    """
    say("building the CPU runtime")
    cpu_runtime(request.cache)  # built once, and refused here where it cannot be
    with (
        results_folder(request.folder),
        tempfile.TemporaryDirectory(dir=request.folder, prefix=".run-", ignore_cleanup_errors=True) as scratch,
    ):
        hide_from_git(request.folder)
        return _record(request, Path(scratch), say)


def _record(request: CaptureRequest, scratch: Path, say: Callable[[str], None]) -> CaptureEnd:
    tools, found = scratch / "bin", scratch / "found"
    tools.mkdir()
    found.mkdir()
    _write_tool(tools / "nvcc")
    environment = {
        **os.environ,
        "PATH": os.pathsep.join([str(tools), os.environ.get("PATH", os.defpath)]),
        "OPTIML_CACHE": str(request.cache),
        "OPTIML_CAPTURE_DIR": str(found),
        "OPTIML_CAPTURE_BYTES": str(request.total_bytes),
        "OPTIML_CAPTURE_BUFFER_BYTES": str(min(request.buffer_bytes, MAX_BLOB)),
    }
    command = request.command
    if command[0].endswith(".cu"):
        built = str(scratch / "program")
        say(f"compiling {Path(command[0]).name} for the CPU")
        made = run_program([str(tools / "nvcc"), command[0], "-o", built], environment, request.limit_s)
        if made.exit_code != 0:
            raise RefusedError(
                "does not compile for the CPU",
                command[0],
                "see the line above; recording on a GPU supports all of CUDA",
            )
        command = (built, *command[1:])
    say(f"running the program{limited(request)}")
    end = run_program(command, environment, request.limit_s)
    say("reading and storing what was recorded")
    times, problems = read_times(found)
    launches, more = read_launches(found)
    if not times.rows:
        if end.exit_code is None:
            raise RefusedError(
                f"launched no kernel in the {request.limit_s or 0:.0f} s that it was given",
                request.command[0],
                "give smaller inputs, or a larger --limit",
            )
        how, do = f"ended with exit code {end.exit_code}", "build it with 'optiml nvcc', or name its .cu file"
        if (found / COMMANDS).is_file() or request.command[0].endswith(".cu"):  # it is
            do = "its output says why; it may need arguments or input files" if end.exit_code else "give it work to do"
        raise RefusedError(f"{how} and launched no kernel on the CPU runtime", request.command[0], do)
    notes = [_NOTE, *problems, *more]
    kernels = measured_kernels(request, times)
    stored = BlobStore(request.folder / BLOBS, found, request.buffer_bytes)
    chosen = chosen_kernels(request, kernels, 0.0)
    recorded = []
    for kernel in kernels:
        rows = [r for r in times.rows if r.kernel == kernel.name]
        wanted = {(r.grid, r.block, r.shared) for r in different_launches(rows, request.launches)}
        own = [r for r in launches if r.kernel == kernel.name and (r.grid, r.block, r.shared) in wanted]
        own.sort(key=lambda r: r.contents == _UNFINISHED)  # such a record is one of a launch that did end, too
        recorded.append(with_launches(kernel, own if kernel.name in chosen else [], stored))
    manifest = Manifest(
        VERSION,
        request.command,
        end.exit_code,
        end.seconds,
        bound_kernels(request.root, recorded, request.command),
        tuple(notes),
    )
    save_manifest(request.folder, manifest)
    stored.drop_others(manifest)
    _keep_commands(found, request.folder / DATABASE, request.root)
    return CaptureEnd(manifest, (end,))


def _keep_commands(found: Path, into: Path, root: Path) -> None:
    """Keep how the compiler was called for files of the repository, where it was called."""
    try:
        handle = open_regular(found / COMMANDS, _MAX_COMMANDS)
    except NotThis:
        return
    entries: dict[str, dict[str, object]] = {}
    with os.fdopen(handle, encoding="utf-8", errors="replace") as file:
        for line in file:
            with contextlib.suppress(ValueError, RecursionError):
                entry = json.loads(line)
                if isinstance(entry, dict) and (
                    place := inside(root, str(entry.get("directory")), str(entry.get("file")))
                ):
                    entries[place] = entry
    if entries:
        replace_file(into, json.dumps([*entries.values()], indent=1).encode(), "make room")


def _write_tool(path: Path) -> None:
    code = "import sys; from engine.cli import main; sys.exit(main(['nvcc', *sys.argv[1:]]))"
    path.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -I -c {shlex.quote(code)} "$@"\n')
    path.chmod(0o755)
