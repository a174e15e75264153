"""Whole builds that are kept between runs: of a file that is searched again nothing but the suggestion is built."""

import hashlib
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from engine.compile.cache import DiskCache
from engine.compile.nvcc import find_nvcc
from engine.compile.whole import WholeFile, WholeOptions, build_whole
from engine.process.sandbox import NoSandbox, Sandbox

_MOST_BYTES = 64 << 20  # that are taken from a kept build, unpacked. Ours


@dataclass
class WholeBuilds:
    """Builds files whole, or takes what an earlier run made of the same text with the same compiler.

    A file of the system that is included is not part of the key, nor is the host's compiler: where a verdict that came of kept
    builds (`taken`) is bad news, ask again after `forget`.
    """

    sandbox: Sandbox | NoSandbox
    cache: Path | None = None
    taken: bool = field(default=False, init=False)

    def build(
        self, files: Mapping[str, bytes], unit: str, options: WholeOptions, instances: Sequence[str] = ()
    ) -> WholeFile:
        """See `build_whole`."""
        kept, key = DiskCache(self.cache), _key(files, unit, options, instances)
        if found := kept.get(key):
            self.taken = True
            return _unpacked(*found)
        whole = build_whole(files, unit, options, self.sandbox, instances)
        parts = [whole.host.encode(), whole.cubin, whole.object, whole.stubs.encode(), whole.ptx.encode()]
        kept.put(key, {"sizes": [len(part) for part in parts]}, zlib.compress(b"".join(parts), 1))
        return whole

    def forget(self) -> None:
        """Build everything anew from now on."""
        self.cache, self.taken = None, False


def _key(files: Mapping[str, bytes], unit: str, options: WholeOptions, instances: Sequence[str]) -> str:
    nvcc = find_nvcc()
    status = nvcc.stat() if nvcc else None
    made = (str(nvcc), status.st_mtime_ns, status.st_size) if status else ()
    parts = (made, sorted(files.items()), unit, options, tuple(instances))
    return f"whole with ptx {hashlib.sha256(repr(parts).encode()).hexdigest()}"


def _unpacked(header: Mapping[str, object], blob: bytes) -> WholeFile:
    data = zlib.decompressobj().decompress(blob, _MOST_BYTES)
    sizes = header["sizes"]
    assert isinstance(sizes, list)
    host, cubin, made, stubs, ptx = (sum(sizes[: n + 1]) for n in range(5))
    texts = [part.decode("utf-8", "replace") for part in (data[:host], data[made:stubs], data[stubs:ptx])]
    return WholeFile(texts[0], data[host:cubin], data[cubin:made], texts[1], texts[2])
