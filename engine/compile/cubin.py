"""What a cubin holds: its entries, the hash of their machine code, its disassembly."""

from __future__ import annotations

import functools
import hashlib
import io
import os
import shutil
import struct
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from engine.compile.atomic_scope import block_atomics
from engine.compile.clock_reads import clock_reads
from engine.compile.toolkit import nvidia_folders
from engine.errors import MachineError, OptimlError
from engine.process.bounded_output import BoundedOutput
from engine.process.sandbox import Limits, SandboxAccess

if TYPE_CHECKING:
    from engine.process.sandbox import NoSandbox, Sandbox

P = ParamSpec("P")
T = TypeVar("T")

_MAX_DEPTH = 16  # of calls from section to section
_SHARED_RESERVE, _SHARED_UNIT = 1024, 128  # bytes of each block that the system keeps; bytes that are allocated at once
_MAX_HASHED = 1 << 30  # bytes of one hash: sections that name each other are no way to keep us busy
_FEED_COST = 1024  # what looking at a section counts for beside its bytes
_NVDISASM_S = 30.0
_TEXT_BYTES = 128 << 20  # of disassembly: what is more is cut
_SIZED = 4  # the format of a record of `.nv.info` whose value has a length of its own
_BOUNDS = (0x05, 0x10)  # EIATTR_MAX_THREADS, EIATTR_REQNTID: x, y and z


@dataclass
class CubinError(OptimlError):
    """The bytes are no cubin, or hold no such entry."""


def _reads(method: Callable[P, T]) -> Callable[P, T]:
    """Turn whatever the reader of ELF files meets in damaged or hostile bytes into a CubinError."""

    @functools.wraps(method)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return method(*args, **kwargs)
        except CubinError:
            raise
        except (Exception, MemoryError) as error:
            raise CubinError(f"the compiler's output is not a cubin ({type(error).__name__})") from None

    return guarded


class Cubin:
    """A parsed cubin. Everything raises CubinError where the bytes are none."""

    @_reads
    def __init__(self, data: bytes) -> None:
        # Compilers, who start by the dozen, come past here and read no cubin.
        from elftools.elf.elffile import ELFFile

        elf = ELFFile(io.BytesIO(data))
        self._sections: list[Any] = list(elf.iter_sections())
        symtab: Any = elf.get_section_by_name(".symtab")
        self._symbols: list[Any] = list(symtab.iter_symbols()) if symtab is not None else []
        self._by_name = {section.name: section for section in self._sections}
        self._hashed = 0

    @cached_property
    @_reads
    def entries(self) -> tuple[str, ...]:
        """Symbols of the `__global__` functions, sorted. Each has code, and a constant bank for parameters."""
        prefix = ".nv.constant0."
        names = (name.removeprefix(prefix) for name in self._by_name if name.startswith(prefix))
        return tuple(sorted(name for name in names if f".text.{name}" in self._by_name))

    @_reads
    def variable_bytes(self, name: str) -> int:
        """The size of a variable by its symbol; 0 where there is none."""
        return next(
            (int(s["st_size"]) for s in self._symbols if s.name == name and s["st_info"]["type"] == "STT_OBJECT"), 0
        )

    @cached_property
    @_reads
    def local_static_bytes(self) -> int:
        """Bytes of static variables of functions (mangled `_ZZ…`): memory that outlives a launch, by whatever name declared.

        Variables outside of functions are not counted: the toolkit's own headers have hundreds, all constants.
        """
        total = 0
        for symbol in self._symbols:
            index = symbol["st_shndx"]
            if symbol["st_info"]["type"] != "STT_OBJECT" or not isinstance(index, int) or index >= len(self._sections):
                continue
            lasting = self._sections[index].name in (".nv.global", ".nv.global.init")
            total += int(symbol["st_size"]) if lasting and symbol.name.startswith("_ZZ") else 0
        return total

    @cached_property
    @_reads
    def clock_reads(self) -> int:
        """Instructions in all functions that read a clock or a performance counter, or wait."""
        return sum(clock_reads(section.data()) for name, section in self._by_name.items() if name.startswith(".text."))

    @cached_property
    @_reads
    def block_atomics(self) -> int:
        """Atomics in all functions on memory that blocks may share, which hold within a block alone."""
        return sum(
            block_atomics(section.data()) for name, section in self._by_name.items() if name.startswith(".text.")
        )

    @_reads
    def static_shared_bytes(self, entry: str) -> int:
        """Bytes of static shared memory per block that the entry's own section reserves."""
        section = self._by_name.get(f".nv.shared.{entry}")
        return int(section["sh_size"]) if section is not None else 0

    def _allocated_shared_bytes(self, entry: str) -> int:
        """Static shared memory in units of its allocation, whatever other kernels of the file declare.

        From sm_90 on ptxas adds a reserve of 1024 bytes, and an `extern __shared__` array gives every kernel of its file that
        section, at the array's alignment.
        """
        reserve = _SHARED_RESERVE if ".nv.shared.reserved.0" in self._by_name else 0
        return -(-max(0, self.static_shared_bytes(entry) - reserve) // _SHARED_UNIT) * _SHARED_UNIT

    @_reads
    def most_threads(self, entry: str) -> int | None:
        """The threads of a block that the entry was compiled for at most (`__launch_bounds__`, `__block_size__`); None: no bound.

        Source: the records of `.nv.info.<entry>`: format, attribute, then two bytes, which for format 4 are the value's length.
        """
        section = self._by_name.get(f".nv.info.{entry}")
        data = bytes(section.data()) if section is not None else b""
        at = 0
        while at < len(data):
            form, attribute, length = struct.unpack_from("<BBH", data, at)
            at += 4
            if form == _SIZED and attribute in _BOUNDS:
                x, y, z = struct.unpack_from("<3I", data, at)
                return int(x * y * z)
            at += length if form == _SIZED else 0
        return None

    @_reads
    def code_hash(self, entries: tuple[str, ...], *, module: bool = True) -> str:
        """SHA-256 of what the entries execute and read as constants, in the order given.

        Over: instructions, relocations with what they point at, constant banks, sizes of shared memory. Not over names,
        line numbers or debug information, so a comment or a moved line changes nothing. Without `module` what other
        functions of the file decide is left out: the constant banks that all entries share (a function's linkage shows there),
        and shared memory counts in units of its allocation. Raises CubinError.
        """
        digest = hashlib.sha256()
        self._hashed = 0
        for entry in entries:
            if f".text.{entry}" not in self._by_name:
                raise CubinError(f"the compiler's output contains no entry '{entry[:200]}'")
            self._feed_function(digest, f".text.{entry}", 0)
            self._feed_section(digest, f".nv.constant0.{entry}")
            self._feed_section(digest, f".nv.constant2.{entry}")
            shared = self.static_shared_bytes(entry) if module else self._allocated_shared_bytes(entry)
            digest.update(f"shared {shared}\0".encode())
        # __constant__ variables, and addresses of globals
        for name in (".nv.constant3", ".nv.constant4") if module else ():
            self._feed_section(digest, name)
            self._feed_relocations(digest, name, _MAX_DEPTH)
        return digest.hexdigest()

    def _feed_function(self, digest: Any, section: str, depth: int) -> None:
        self._feed_section(digest, section)
        self._feed_relocations(digest, section, depth)

    def _feed_section(self, digest: Any, name: str) -> None:
        section = self._by_name.get(name)
        if section is None:
            return
        data = b"" if section["sh_type"] == "SHT_NOBITS" else section.data()
        self._spend(len(data))
        digest.update(f"section {section['sh_size']}\0".encode())
        digest.update(data)

    def _feed_relocations(self, digest: Any, section: str, depth: int) -> None:
        for prefix in (".rel", ".rela"):
            table = self._by_name.get(prefix + section)
            if table is None or not hasattr(table, "iter_relocations"):
                continue
            for relocation in sorted(table.iter_relocations(), key=lambda r: int(r["r_offset"])):
                addend = relocation["r_addend"] if relocation.is_RELA() else 0
                digest.update(f"relocation {relocation['r_offset']} {relocation['r_info_type']} {addend}\0".encode())
                index = int(relocation["r_info_sym"])
                if index < len(self._symbols):
                    self._feed_symbol(digest, self._symbols[index], depth)

    def _feed_symbol(self, digest: Any, symbol: Any, depth: int) -> None:
        """What a symbol stands for. Names of a file's own symbols hold a hash of its text, so they say nothing."""
        index = symbol["st_shndx"]
        if not isinstance(index, int) or index >= len(self._sections):
            digest.update(f"outside {symbol.name}\0".encode())
            return
        section = self._sections[index]
        if section.name.startswith(".text."):
            if depth < _MAX_DEPTH:
                self._feed_function(digest, section.name, depth + 1)
            return
        size, start = int(symbol["st_size"]), int(symbol["st_value"])
        kind = section.name.split(".")[2] if section.name.count(".") >= 2 else section.name
        digest.update(f"data {kind} {size}\0".encode())
        if section["sh_type"] != "SHT_NOBITS":
            data = section.data()
            self._spend(len(data))
            digest.update(data[start : start + size] if size else data)

    def _spend(self, count: int) -> None:
        self._hashed += count + _FEED_COST
        if self._hashed > _MAX_HASHED:
            raise CubinError("the compiler's output has circular references")

    @_reads
    def pointed_at(self, prefix: str) -> tuple[str, ...]:
        """Symbols whose addresses the device variables `prefix`0, `prefix`1, … are initialised with."""
        places = {
            int(symbol["st_value"]): int(symbol.name.removeprefix(prefix))
            for symbol in self._symbols
            if symbol.name.startswith(prefix) and symbol.name.removeprefix(prefix).isdigit()
        }
        found: dict[int, str] = {}
        for name in (".rela.nv.global.init", ".rel.nv.global.init"):
            table = self._by_name.get(name)
            if table is None or not hasattr(table, "iter_relocations"):
                continue
            for relocation in table.iter_relocations():
                place = places.get(int(relocation["r_offset"]))
                if place is not None:
                    found[place] = self._symbols[int(relocation["r_info_sym"])].name
        return tuple(found[place] for place in sorted(found))


def find_tool(name: str) -> Path | None:
    """A CUDA tool: from the packages, CUDA_HOME, PATH or /usr/local/cuda, in this order. None where it is missing."""
    for folder in package_folders("bin"):
        if os.access(folder / name, os.X_OK):
            return folder / name
    for root in (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH")):
        if root and os.path.isabs(root) and os.access(Path(root, "bin", name), os.X_OK):
            return Path(root, "bin", name)
    path = ":".join(entry for entry in os.environ.get("PATH", os.defpath).split(":") if entry.startswith("/"))
    found = shutil.which(name, path=path) or shutil.which(name, path="/usr/local/cuda/bin")
    return Path(found) if found else None


def package_folders(name: str) -> tuple[Path, ...]:
    """Folders `name` ("bin", "include", "lib") of the packages of CUDA 13 and later."""
    return nvidia_folders(f"cu[0-9]*/{name}")


def disassemble(cubin: bytes, *, sandbox: Sandbox | NoSandbox, line_info: bool = False) -> str:
    """nvdisasm's text of a cubin (half a second). With `line_info` its `//## File … line` comments, where compiled in.

    Raises MachineError when nvdisasm is missing or fails.
    """
    tool = find_tool("nvdisasm")
    if tool is None:
        raise MachineError(
            "nvdisasm is missing, so machine code cannot be read", "", "pip install nvidia-cuda-nvdisasm"
        )
    # From Volta on labels need no analysis of the data flow; it is a third of the tool's time.
    options = ["--no-dataflow", *(["--print-line-info"] if line_info else [])]
    script = 'f=$(mktemp) && cat >"$f" && "$@" "$f"; s=$?; rm -f "$f"; exit $s'
    argv = sandbox.command(
        ["/bin/sh", "-c", script, "sh", str(tool), "--print-code", *options],
        SandboxAccess(readable=[tool.resolve().parent]),
        Limits(cpu_s=int(_NVDISASM_S), file_bytes=256 << 20),
    )
    with BoundedOutput(_TEXT_BYTES) as out, BoundedOutput(64 << 10) as err:
        try:
            done = subprocess.run(argv, input=cubin, stdout=out.fileno(), stderr=err.fileno(), timeout=_NVDISASM_S)
        except (OSError, subprocess.SubprocessError) as error:
            raise MachineError(f"nvdisasm could not be run ({type(error).__name__})") from None
        if done.returncode:
            said = err.tail(8192).decode("utf-8", "replace").strip().splitlines()
            raise MachineError(f"nvdisasm failed: {said[-1][:200] if said else done.returncode}")
        return out.head(_TEXT_BYTES).decode("utf-8", "replace")
