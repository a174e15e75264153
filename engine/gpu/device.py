"""The worker's hold on the device: modules, launches, guarded memory, its own small kernels. Runs in the worker only."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import cupy as cp
import numpy as np
from cupy.cuda import driver

from engine.model import LaunchConfig
from engine.spec.data import Draw
from engine.spec.poison import nan_word, plausible_word, unpredictable

GUARD_BYTES = 4096
_ALIGN = 256
_FILLS = ("normal", "uniform", "integers")  # numbered as in tools.cu
_MAX_DYNAMIC_SHARED_ATTRIBUTE = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_DEFAULT_DYNAMIC_SHARED = 48 << 10
_DEVICE_TO_DEVICE = 3  # cudaMemcpyDeviceToDevice


@dataclass(frozen=True)
class SparseShape:
    """A sparse matrix: rows, entries in all, columns."""

    rows: int
    entries: int
    width: int


@dataclass(frozen=True)
class Compared:
    """Addresses of arrays to compare: what was got, what the original gave, and the same in doubles (0: none)."""

    kind: str
    got: int
    original: int
    wide: int
    count: int


@dataclass(frozen=True)
class Given:
    """What launches are given: the parameter values of each step, and where the contents of each constant stand on the device.

    Of a constant: address and bytes. `held` keeps alive what stands there.
    """

    steps: Sequence[Sequence[bytes]]
    constants: Sequence[tuple[int, int]] = ()
    held: Sequence[Any] = ()


class Loaded:
    """A cubin on the device with the kernels of each step. `constants` are variables of it, by symbol and size in bytes."""

    def __init__(self, cubin: bytes, entries: Sequence[str], constants: Sequence[tuple[str, int]] = ()) -> None:
        self._module = cp.cuda.function.Module()
        self._module.load(cubin)
        self.constants = [(int(self._module.get_global_var(name)), size) for name, size in constants]
        self._functions = [self._module.get_function(entry) for entry in entries]
        self._raised = [_DEFAULT_DYNAMIC_SHARED] * len(self._functions)

    def prepare(self, launches: Sequence[LaunchConfig]) -> None:
        """Allow the dynamic shared memory that the launches ask for."""
        for i, launch in enumerate(launches):
            if launch.shared_bytes > self._raised[i]:
                driver.funcSetAttribute(self._functions[i].ptr, _MAX_DYNAMIC_SHARED_ATTRIBUTE, launch.shared_bytes)
                self._raised[i] = launch.shared_bytes

    def pointer(self, step: int) -> int:
        return int(self._functions[step].ptr)


class Call:
    """All launches of one program on one set of buffers, ready to go: a call costs a few microseconds.

    Raises ValueError where a constant's contents are not as large as it is.
    """

    def __init__(self, loaded: Loaded, launches: Sequence[LaunchConfig], given: Given) -> None:
        loaded.prepare(launches)
        self._loaded, self._given = loaded, given
        self._launches = []
        self._copies = []
        for (target, room), (source, size) in zip(loaded.constants, given.constants, strict=True):
            if room != size:
                raise ValueError(f"{size} bytes for a constant of {room}")
            self._copies.append((target, source, size))
        for step, (launch, values) in enumerate(zip(launches, given.steps, strict=True)):
            cells = [ctypes.create_string_buffer(v, len(v)) for v in values]
            pointers = (ctypes.c_void_p * max(1, len(cells)))(*[ctypes.addressof(c) for c in cells])
            self._launches.append((loaded.pointer(step), launch, cells, pointers))

    def __call__(self, stream: Any) -> None:
        self.fill_constants(stream)
        self.launch(stream)

    def fill_constants(self, stream: Any) -> None:
        """Put their contents into the module's constants: it may have been launched on other buffers since."""
        for target, source, size in self._copies:
            cp.cuda.runtime.memcpyAsync(target, source, size, _DEVICE_TO_DEVICE, stream.ptr)

    def launch(self, stream: Any) -> None:
        """The launches alone."""
        for function, launch, _, pointers in self._launches:
            driver.launchKernel(
                function, *launch.grid, *launch.block, launch.shared_bytes, stream.ptr, ctypes.addressof(pointers), 0
            )


def copy_bytes(target: Any, source: Any) -> None:
    """Copy an array on the device to one of as many bytes; CuPy's assignment compiles a kernel for that. Raises ValueError."""
    if source.nbytes != target.nbytes:
        raise ValueError(f"{source.nbytes} bytes for {target.nbytes}")
    target.data.copy_from_device_async(source.data, target.nbytes, cp.cuda.get_current_stream())


def copied(source: Any) -> Any:
    """A copy of an array on the device; CuPy's own `copy` compiles a kernel for each type."""
    target = cp.empty_like(source)
    copy_bytes(target, source)
    return target


class Board:
    """Small results of the worker's own kernels: they gather on the device and are read with one wait."""

    _SLOTS = 1 << 15  # sixteen checks of a kernel with as many arrays as parameters fit

    def __init__(self) -> None:
        self._words = cp.zeros(self._SLOTS, cp.uint64)
        # As cupyx.empty_pinned makes it: importing cupyx brings SciPy, which takes longer than all else a worker starts with.
        pinned = cp.cuda.alloc_pinned_memory(8 * self._SLOTS)
        self._host: np.ndarray[Any, np.dtype[np.uint64]] = np.ndarray(self._SLOTS, np.uint64, pinned)
        self.used = 0

    def clear(self) -> None:
        """Forget what was taken; every slot taken from here on starts as zero."""
        self._words.data.memset_async(0, 8 * self.used, cp.cuda.get_current_stream())
        self.used = 0

    def take(self, words: int) -> tuple[int, slice]:
        """The device address of so many words, and where `read` has them. Raises RuntimeError when the board is full."""
        start, self.used = self.used, self.used + words
        if self.used > self._SLOTS:
            raise RuntimeError("more results than the board has slots")
        return int(self._words.data.ptr) + 8 * start, slice(start, self.used)

    def read(self) -> np.ndarray[Any, np.dtype[np.uint64]]:
        """Everything taken since `clear`; waits for the device."""
        stream = cp.cuda.get_current_stream()
        self._words.data.copy_to_host_async(self._host.ctypes.data, 8 * self.used, stream)
        stream.synchronize()
        return self._host[: self.used].copy()


class Salt:
    """A word on the device that kernels of ours draw from, so that what is recorded in a graph draws anew each time."""

    def __init__(self) -> None:
        self._word = cp.zeros(1, cp.uint64)
        self.address = int(self._word.data.ptr)

    def put(self, value: int) -> None:
        """Make it the salt of what is launched from now on."""
        # By a copy: where an array is filled, CuPy first compiles a kernel.
        self._word.set(np.array([value], np.uint64), stream=cp.cuda.get_current_stream())


class Tools:
    """The worker's own kernels (tools.cu), and the board that their results go to."""

    COMPARISON = np.dtype(
        [("bad", "<u8"), ("first", "<u8"), ("max_error", "<f8"), ("sum_squares", "<f8"), ("finite", "<u8")]
    )

    def __init__(self, cubin: bytes, *, bare: bool = False) -> None:
        self.bare = bare
        rng = unpredictable()
        self.guard = nan_word(rng)
        self.poison = (nan_word(rng), plausible_word(rng))  # outputs start from one of these
        self._module = cp.cuda.function.Module()
        self._module.load(cubin)
        self._cache: dict[str, Any] = {}
        self.board = Board()

    def _launch(self, name: str, blocks: int, *arguments: ctypes._SimpleCData[Any], threads: int = 256) -> None:
        function = self._cache.get(name)
        if function is None:
            function = self._cache[name] = self._module.get_function(name)
        pointers = (ctypes.c_void_p * len(arguments))(*[ctypes.addressof(a) for a in arguments])
        stream = cp.cuda.get_current_stream()
        driver.launchKernel(function.ptr, blocks, 1, 1, threads, 1, 1, 0, stream.ptr, ctypes.addressof(pointers), 0)

    @staticmethod
    def _blocks(count: int) -> int:
        return max(1, min(1056, -(-count // 1024)))

    def fill(self, address: int, size_bytes: int, word: int) -> None:
        """Fill exactly these bytes with a repeated 4-byte word."""
        if size_bytes:
            self._launch(
                "fill_words",
                self._blocks(size_bytes // 4),
                ctypes.c_void_p(address),
                ctypes.c_uint64(size_bytes),
                ctypes.c_uint32(word),
            )

    def read(self, address: int, size_bytes: int, sink: int) -> None:
        """Read every 16-byte vector of a buffer of zeros; a word that is not zero goes to the address `sink`."""
        vectors = size_bytes // 16
        self._launch(
            "read_words", self._blocks(vectors), ctypes.c_void_p(address), ctypes.c_uint64(vectors), ctypes.c_void_p(sink)
        )  # fmt: skip

    def move(self, source: int, read_bytes: int, target: int, written_bytes: int, parts: tuple[int, int]) -> None:
        """Read and write so many bytes, rounded down to 16; the buffers are at least as large, `target` at least 16 bytes.

        A thread has a vector of 16 bytes of each of so many `parts` (one of `PARTS`) of what is read and of what is written.
        """
        reads, writes = read_bytes // 16, written_bytes // 16
        part = max(1, -(-reads // parts[0]), -(-writes // parts[1]))
        self._launch(
            f"move_{parts[0]}_{parts[1]}", -(-part // 256), ctypes.c_void_p(source), ctypes.c_uint64(reads),
            ctypes.c_void_p(target), ctypes.c_uint64(writes), ctypes.c_uint64(part),
        )  # fmt: skip

    def hash_into(self, address: int, size_bytes: int, out: int) -> None:
        self._launch(
            "hash_bytes",
            self._blocks(size_bytes // 4),
            ctypes.c_void_p(address),
            ctypes.c_uint64(size_bytes),
            ctypes.c_void_p(out),
        )

    def hash(self, pieces: Sequence[tuple[int, int]]) -> list[int]:
        """The hash of each of these pieces of memory (address, bytes); forgets what the board has."""
        self.board.clear()
        address, place = self.board.take(len(pieces))
        for i, (start, size_bytes) in enumerate(pieces):
            self.hash_into(start, size_bytes, address + 8 * i)
        return [int(word) for word in self.board.read()[place]]

    def check_guards(self, zones: int, count: int, out: int) -> None:
        self._launch(
            "check_guards", count, ctypes.c_void_p(zones), ctypes.c_uint32(count), ctypes.c_uint32(self.guard), ctypes.c_void_p(out),
            threads=128,
        )  # fmt: skip

    def widen(self, kind: str, source: int, target: int, count: int) -> None:
        self._launch(
            f"widen_{kind}",
            self._blocks(count),
            ctypes.c_void_p(source),
            ctypes.c_void_p(target),
            ctypes.c_uint64(count),
        )

    def draw(self, kind: str, address: int, count: int, figures: Draw, salt: int) -> None:
        """Draw an array's contents; the same numbers for the same figures and the same word at the address `salt` (0: none)."""
        self._launch(
            f"draw_{kind}", self._blocks(count), ctypes.c_void_p(address), ctypes.c_uint64(count),
            ctypes.c_uint64(figures.seed), ctypes.c_void_p(salt), ctypes.c_uint32(_FILLS.index(figures.kind)), ctypes.c_double(figures.low),
            ctypes.c_double(figures.high), ctypes.c_double(figures.scale), ctypes.c_double(figures.most),
            ctypes.c_uint32(figures.special), ctypes.c_double(figures.tiny), ctypes.c_double(figures.large),
        )  # fmt: skip

    def permute(self, address: int, item_bytes: int, count: int, seed: int, salt: int) -> None:
        """Put 0 .. count - 1 there in random order; seed and salt as in `draw`."""
        self._launch(
            "draw_permutation", self._blocks(count), ctypes.c_void_p(address), ctypes.c_uint32(item_bytes), ctypes.c_uint64(count),
            ctypes.c_uint64(seed), ctypes.c_void_p(salt),
        )  # fmt: skip

    def sparse(
        self, offsets: tuple[int, int], columns: tuple[int, int], shape: SparseShape, seed: int, salt: int
    ) -> None:
        """Draw a sparse matrix in compressed rows; `offsets` and `columns` are address and bytes of an item. Seed and salt as
        in `draw`."""
        rows, entries, width = shape.rows, shape.entries, shape.width
        offset_words = ctypes.c_void_p(offsets[0]), ctypes.c_uint32(offsets[1])
        self._launch(
            "draw_csr_offsets", self._blocks(rows + 1), *offset_words, ctypes.c_uint64(rows), ctypes.c_uint64(entries),
            ctypes.c_uint64(width), ctypes.c_uint64(seed), ctypes.c_void_p(salt),
        )  # fmt: skip
        self._launch(
            "draw_csr_columns", self._blocks(32 * rows), ctypes.c_void_p(columns[0]), ctypes.c_uint32(columns[1]), *offset_words,
            ctypes.c_uint64(rows), ctypes.c_uint64(width), ctypes.c_uint64(seed ^ 1), ctypes.c_void_p(salt),
        )  # fmt: skip

    def perturb(self, address: int, count: int, epsilon: float, seed: int) -> None:
        self._launch(
            "perturb", self._blocks(count), ctypes.c_void_p(address), ctypes.c_uint64(count), ctypes.c_double(epsilon),
            ctypes.c_uint64(seed),
        )  # fmt: skip

    def compare(self, pair: Compared, tolerance: float, relative: float) -> slice:
        """Compare two arrays on the device; `comparison` of what the board has there is the result."""
        address, place = self.board.take(self.COMPARISON.itemsize // 8)
        self._launch(
            f"compare_{pair.kind}", self._blocks(pair.count), ctypes.c_void_p(pair.got), ctypes.c_void_p(pair.original),
            ctypes.c_void_p(pair.wide), ctypes.c_uint64(pair.count), ctypes.c_double(tolerance), ctypes.c_double(relative),
            ctypes.c_void_p(address),
        )  # fmt: skip
        return place

    @classmethod
    def comparison(cls, words: np.ndarray[Any, np.dtype[np.uint64]]) -> np.void:
        """The record (of COMPARISON) that a comparison left on the board."""
        record: np.void = words.copy().view(cls.COMPARISON)[0]
        record["first"] = ~record["first"]
        return record


class Arena:
    """Named buffers. Sizes are bytes.

    As a rule all lie in one allocation with guard zones between them, which are checked for writes. With `tools.bare` each
    is an allocation of its own of exactly its size: then compute-sanitizer sees every access outside, reads too.
    """

    def __init__(self, sizes: Mapping[str, int], tools: Tools) -> None:
        self.sizes = dict(sizes)
        self._tools = tools
        self._names = list(sizes)
        self._zones: list[tuple[int, int]] = []
        if tools.bare:
            # Not from CuPy's pool, which hands out more than was asked for.
            self._memory = {name: cp.cuda.memory.Memory(size) for name, size in sizes.items()}
            self._addresses = {name: int(memory.ptr) for name, memory in self._memory.items()}
            self.bytes = sum(sizes.values())
            return
        offset = GUARD_BYTES
        offsets: dict[str, int] = {}
        zones: list[tuple[int, int]] = [(0, GUARD_BYTES)]
        for name, size in sizes.items():
            offsets[name] = offset
            end = offset + size
            # Every byte up to the next aligned buffer belongs to the guard.
            offset = -(-end // _ALIGN) * _ALIGN + GUARD_BYTES
            zones.append((end, offset - end))
        self._block = cp.empty(offset, cp.uint8)
        base = int(self._block.data.ptr)
        self._addresses = {name: base + start for name, start in offsets.items()}
        self.bytes = offset
        self._zones = [(base + start, length) for start, length in zones]
        self._zone_table = cp.asarray(np.array(self._zones, dtype=np.uint64))
        self.set_guards()

    def address(self, name: str) -> int:
        return self._addresses[name]

    def piece(self, name: str) -> tuple[int, int]:
        """Address and bytes of a buffer."""
        return self._addresses[name], self.sizes[name]

    def view(self, name: str, dtype: Any) -> Any:
        """The buffer as a CuPy array."""
        size = self.sizes[name]
        memory = cp.cuda.UnownedMemory(self._addresses[name], size, self)
        kind = np.dtype(dtype)
        return cp.ndarray((size // kind.itemsize,), kind, cp.cuda.MemoryPointer(memory, 0))

    def set_guards(self) -> None:
        for address, size in self._zones:
            self._tools.fill(address, size, self._tools.guard)

    def watch(self) -> slice | None:
        """Look at the guard zones; `touched` says what the board then has there. None: there are none."""
        if not self._zones:
            return None
        address, place = self._tools.board.take(1)
        self._tools.check_guards(int(self._zone_table.data.ptr), len(self._zones), address)
        return place

    def touched(self, place: slice | None, words: np.ndarray[Any, np.dtype[np.uint64]]) -> str | None:
        """The name of the buffer next to the first guard zone that was written, and the guards set anew; None: all are whole."""
        if place is None or not int(words[place][0]):
            return None
        zone = len(self._zones) - int(words[place][0])
        self.set_guards()
        return f"before {self._names[0]}" if zone == 0 else f"after {self._names[zone - 1]}"
