"""Predictions for one architecture, with each machine code disassembled once."""

from __future__ import annotations

import hashlib
import threading
import zlib
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from engine.compile.cache import DiskCache
from engine.compile.cubin import disassemble, find_tool
from engine.model import Binary, LaunchConfig
from engine.predict.counts import AccessCounts
from engine.predict.sass import KernelCode, parse_sass
from engine.predict.targets import figures_for
from engine.predict.timing_model import Prediction, predict

if TYPE_CHECKING:
    from engine.process.sandbox import NoSandbox, Sandbox

_KEPT = 512  # disassemblies; each is a few kilobytes once parsed


class Predictor:
    """Predicts times on `arch`; disassemblies are kept below the folder `cache`, if one is given. Thread-safe.

    Raises UsageError where nothing is known of the architecture.
    """

    def __init__(self, arch: str, *, sandbox: Sandbox | NoSandbox, cache: Path | None = None) -> None:
        self.figures = figures_for(arch)
        self._sandbox, self._texts = sandbox, DiskCache(cache)
        self._code: OrderedDict[tuple[str, tuple[str, ...]], Mapping[str, KernelCode]] = OrderedDict()
        self._lock = threading.Lock()

    def code(self, binary: Binary) -> Mapping[str, KernelCode]:
        """The binary's machine code as loops, by entry. Raises MachineError without nvdisasm."""
        key = (binary.code_hash, binary.entries)
        with self._lock:
            known = self._code.get(key)
        if known is None:
            known = parse_sass(self._text(binary.cubin))
            with self._lock:
                self._code[key] = known
                while len(self._code) > _KEPT:
                    self._code.popitem(last=False)
        return known

    def _text(self, cubin: bytes) -> str:
        # The tool takes 0.4 s of a core however small the code is.
        tool = find_tool("nvdisasm")
        made = "" if tool is None else f"{tool} {tool.stat().st_size} {tool.stat().st_mtime_ns}"
        key = f"sass {made} {hashlib.sha256(cubin).hexdigest()}"
        kept = self._texts.get(key)
        if kept is not None:
            return zlib.decompress(kept[1]).decode("utf-8")
        text = disassemble(cubin, sandbox=self._sandbox, line_info=True)
        self._texts.put(key, {}, zlib.compress(text.encode("utf-8"), 1))
        return text

    def predict(self, binary: Binary, launches: Sequence[LaunchConfig], counts: AccessCounts) -> Prediction:
        """See `engine.predict.timing_model.predict`. Raises RefusedError, MachineError."""
        return predict(binary, launches, counts, self.figures, self.code(binary))
