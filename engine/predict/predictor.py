"""Predictions for one architecture, with each machine code disassembled once."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from engine.compile.cubin import disassemble
from engine.model import Binary, LaunchConfig
from engine.predict.counts import AccessCounts
from engine.predict.sass import KernelCode, parse_sass
from engine.predict.targets import figures_for
from engine.predict.timing_model import Prediction, predict

if TYPE_CHECKING:
    from engine.process.sandbox import NoSandbox, Sandbox

_KEPT = 512  # disassemblies; each is a few kilobytes once parsed


class Predictor:
    """Predicts times on `arch`. Thread-safe. Raises UsageError where nothing is known of the architecture."""

    def __init__(self, arch: str, *, sandbox: Sandbox | NoSandbox) -> None:
        self.figures = figures_for(arch)
        self._sandbox = sandbox
        self._code: OrderedDict[tuple[str, tuple[str, ...]], Mapping[str, KernelCode]] = OrderedDict()
        self._lock = threading.Lock()

    def code(self, binary: Binary) -> Mapping[str, KernelCode]:
        """The binary's machine code as loops, by entry. Raises MachineError without nvdisasm."""
        key = (binary.code_hash, binary.entries)
        with self._lock:
            known = self._code.get(key)
        if known is None:
            known = parse_sass(disassemble(binary.cubin, sandbox=self._sandbox, line_info=True))
            with self._lock:
                self._code[key] = known
                while len(self._code) > _KEPT:
                    self._code.popitem(last=False)
        return known

    def predict(self, binary: Binary, launches: Sequence[LaunchConfig], counts: AccessCounts) -> Prediction:
        """See `engine.predict.timing_model.predict`. Raises RefusedError, MachineError."""
        return predict(binary, launches, counts, self.figures, self.code(binary))
