"""A recording on disk: `manifest.json` and compressed buffer contents, each named after its SHA-256.

The captured program may have written there, so both are read as hostile data: bounded, checked, never executed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import re
import tempfile
import zlib
from dataclasses import dataclass
from pathlib import Path

from engine.capture.raw_records import Triple, open_regular
from engine.errors import MachineError, UsageError
from engine.process.decode import NotThis, decode, load
from engine.settings.folders import replace_file

VERSION = 1
FOLDER = Path(".optiml") / "capture"
BLOBS = "blobs"
MANIFEST = "manifest.json"
_MAX_MANIFEST = 32 << 20
CPU_CALL = "cudaLaunchKernel"  # how the CPU runtime names a launch; on a GPU the driver's functions are recorded
MAX_BLOB = 256 << 20  # of one buffer, decompressed
_PIECE = 4 << 20
_NAME = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Buffer:
    """GPU memory that an argument points to: `at` is the byte of the argument that the address stands at.

    The pointer is `offset` bytes into an allocation of `allocation` bytes; `recorded` bytes from there are in the blobs
    `before` and `after` the launch ("": not recorded). `addresses` counts words in it that are addresses themselves.
    """

    at: int
    memory: str  # "device", "managed" or "host"
    address: int
    allocation: int
    offset: int
    recorded: int
    addresses: int
    before: str
    after: str

    @property
    def room(self) -> int:
        """Bytes from the pointer to the end of its allocation."""
        return self.allocation - self.offset


@dataclass(frozen=True)
class RecordedArgument:
    """One argument in the order of the kernel's parameters; `data` are its bytes in hexadecimal."""

    size: int
    data: str
    buffers: tuple[Buffer, ...]


@dataclass(frozen=True)
class RecordedLaunch:
    """One launch with its arguments. `contents` is "" where its buffers were copied, else why not.

    `count` and `total_us` are those of all launches with the same grid, block and shared memory.
    """

    call: str
    grid: Triple
    block: Triple
    cluster: Triple  # zeros: none
    shared: int
    contents: str
    count: int
    total_us: float
    arguments: tuple[RecordedArgument, ...]


@dataclass(frozen=True)
class LaunchTimes:
    """Launches with the same grid, block and dynamic shared memory: how many, and their times in microseconds."""

    grid: Triple
    block: Triple
    shared: int
    count: int
    total_us: float
    min_us: float
    max_us: float
    in_graphs: int


@dataclass(frozen=True)
class RecordedKernel:
    """One kernel of the program. `file`, `kernel` and `template_args` are its source; `problem` says why there is none.

    `share` is its part of the time of all kernels, from 0 to 1.
    """

    name: str
    demangled: str
    file: str
    line: int
    kernel: str
    template_args: str
    problem: str
    share: float
    count: int
    total_us: float
    registers: int
    shapes: tuple[LaunchTimes, ...]
    launches: tuple[RecordedLaunch, ...]


@dataclass(frozen=True)
class Manifest:
    """One recording: the command, how it ended, its kernels by time, and what could not be recorded."""

    version: int
    command: tuple[str, ...]
    exit_code: int | None  # None: it was ended by us
    seconds: float
    kernels: tuple[RecordedKernel, ...]
    notes: tuple[str, ...]


def share_of(manifest: Manifest, file: str, kernel: str) -> float:
    """The part of the recorded time that a kernel of the source has, all its instances together."""
    base = kernel.rpartition("::")[2]
    return sum(k.share for k in manifest.kernels if k.file == file and k.kernel.rpartition("::")[2] == base)


def recording_folder(root: Path) -> Path:
    """Where the recording of a repository is."""
    return root / FOLDER


def hide_from_git(folder: Path) -> None:
    """Keep a recording elsewhere than in `.optiml` out of git as well: it is private."""
    if folder.parent.name != ".optiml":
        with contextlib.suppress(OSError), open(folder / ".gitignore", "x") as file:
            file.write("*\n")


def save_manifest(folder: Path, manifest: Manifest) -> None:
    """Write the manifest at once: a full disk leaves the old one. Raises MachineError."""
    text = json.dumps(dataclasses.asdict(manifest), indent=1)
    replace_file(folder / MANIFEST, text.encode(), "free some space")


def load_manifest(folder: Path) -> Manifest | None:
    """The recording of a folder; None where there is none. Raises UsageError for one that cannot be read."""
    path = folder / MANIFEST
    if not path.exists():
        return None
    try:
        with os.fdopen(open_regular(path, _MAX_MANIFEST), "rb") as file:
            data = file.read(_MAX_MANIFEST + 1)
    except NotThis as error:
        raise UsageError(f"the recording cannot be read: {error}", str(path), "run 'optiml capture' again") from None
    return parse_manifest(data, str(path))


def parse_manifest(data: bytes, where: str) -> Manifest:
    """The recording in a manifest's bytes. Raises UsageError for what is none."""
    try:
        found = decode(Manifest, load(data), "manifest")
        if found.version != VERSION:
            raise NotThis(f"has version {found.version}, not {VERSION}")
        _check(found)
    except NotThis as error:
        raise UsageError(f"the recording cannot be read: {error}", where, "run 'optiml capture' again") from None
    return found


def _check(manifest: Manifest) -> None:
    for kernel in manifest.kernels:
        for launch in kernel.launches:
            if min(*launch.grid, *launch.block) < 1 or max(*launch.grid, *launch.block) > 2**31:
                raise NotThis("has a launch without blocks or threads")
            for argument in launch.arguments:
                try:
                    whole = len(bytes.fromhex(argument.data)) == argument.size
                except ValueError:
                    whole = False
                if not whole or any(not b.offset <= b.allocation or b.recorded > MAX_BLOB for b in argument.buffers):
                    raise NotThis("has an invalid argument")


def store_blob(folder: Path, source: Path, most: int) -> str:
    """Keep the contents of a file, up to `most` bytes of it, under their hash; "" where the file cannot be read."""
    digest, pressed = hashlib.sha256(), zlib.compressobj(1)
    folder.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=folder, prefix=".new-")
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as out, os.fdopen(open_regular(source, MAX_BLOB), "rb") as file:
            left = most
            while left > 0 and (piece := file.read(min(_PIECE, left))):
                left -= len(piece)
                digest.update(piece)
                out.write(pressed.compress(piece))
            out.write(pressed.flush())
        os.replace(temporary, _blob(folder, digest.hexdigest()))
        return digest.hexdigest()
    except NotThis:
        return ""
    except OSError as error:
        do = "free some space, or record less with --max-buffer"
        raise MachineError(f"cannot be written: {error.strerror}", str(folder), do) from None
    finally:
        temporary.unlink(missing_ok=True)


def read_blob(folder: Path, name: str, most: int = MAX_BLOB) -> bytes:
    """The first `most` bytes of recorded contents. Raises UsageError where they are missing or not what was recorded."""
    wrong = UsageError("recorded data are damaged", f"{folder}/{name[:64]}", "run 'optiml capture' again")
    if not _NAME.fullmatch(name):
        raise wrong
    digest, found, total = hashlib.sha256(), bytearray(), 0
    try:
        opened = zlib.decompressobj()
        with os.fdopen(open_regular(_blob(folder, name), MAX_BLOB + (1 << 20)), "rb") as file:
            data = file.read(_PIECE)
            while data and not opened.eof:
                piece = opened.decompress(data, _PIECE)  # bounded: a few bytes may stand for a terabyte
                total += len(piece)
                if total > MAX_BLOB:
                    raise wrong
                digest.update(piece)
                found += piece[: max(0, most - len(found))]
                data = opened.unconsumed_tail or file.read(_PIECE)
    except (NotThis, OSError, zlib.error):
        raise wrong from None
    if digest.hexdigest() != name:
        raise wrong
    return bytes(found)


def _blob(folder: Path, name: str) -> Path:
    return folder / f"{name}.z"


def find_recorded(manifest: Manifest, kernel: str) -> RecordedKernel | None:
    """The recorded kernel of that name: `NAME`, `NAME<ARGUMENTS>` or `FILE:NAME`; of several instances the longest-running one.

    Raises UsageError where kernels of several files have the name.
    """
    file, colon, name = kernel.rpartition(":") if not kernel.partition("<")[0].count("::") else _split_qualified(kernel)
    base, _, wanted = name.partition("<")
    plain = "".join(wanted.removesuffix(">").split())
    found = [
        k
        for k in manifest.kernels
        if k.file
        and k.launches
        and base.strip() in (k.kernel, k.kernel.rpartition("::")[2])
        and (not colon or k.file == file)
        and (not plain or plain == "".join(k.template_args.split()))
    ]
    files = sorted({k.file for k in found})
    if len(files) > 1:
        raise UsageError(f"'{base}' was recorded from several files: {', '.join(files[:4])}", do="write FILE:KERNEL")
    return max(found, key=lambda k: k.total_us, default=None)


def _split_qualified(kernel: str) -> tuple[str, str, str]:
    """The file before a single colon, where there is one, and the qualified name."""
    head = kernel.partition("<")[0].replace("::", "\0\0")
    at = head.rfind(":")
    return (kernel[:at], ":", kernel[at + 1 :]) if at >= 0 else ("", "", kernel)
