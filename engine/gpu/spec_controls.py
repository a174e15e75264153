"""Wrong results that a spec has to tell from the original's, on the device. Worker only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import cupy as cp
import numpy as np

from engine.gpu.buffers import CaseBuffers
from engine.gpu.device import Call, copied, copy_bytes
from engine.spec.data import any_bits

if TYPE_CHECKING:
    from engine.gpu.checks import Checker


class SpecControls:
    """What the check cases of one validation have told apart."""

    def __init__(self, checker: Checker) -> None:
        self._checker = checker
        self._proven: set[tuple[str, str]] = set()  # (what, argument) shown at least once
        self._wanted: set[tuple[str, str]] = set()
        self._plain: dict[str, bool] = {}  # whether an output is a copy of an input in each case, whatever stands there

    def problems(self) -> list[str]:
        """What no case told apart. A copy that is the original's result is no control."""
        said = {
            "input": "no output depends on the input '{}' in any check case",
            "zeros": "all zeros in '{}' would be accepted as a correct result",
            "copy": "a copy of an input in '{}' would be accepted as a correct result",
            "stale": "the previous contents of '{}' would be accepted as a correct result",
        }
        copies = {("copy", name) for name, plain in self._plain.items() if plain}
        return [said[what].format(name) for what, name in sorted(self._wanted - self._proven - copies)]

    def compare(self, index: int, family: str) -> None:
        """Compare wrong contents of each output with what the original left in `main`."""
        buffers = self._checker.buffers(index)
        for name in buffers.written:
            target = buffers.main.view(name, cp.uint8)
            saved = copied(target)
            controls: dict[str, Any] = {"zeros": cp.zeros_like(target)}
            stale = buffers.pristine.view(name, cp.uint8) if name in buffers.inout and buffers.pristine else None
            if stale is None:
                stale = cp.asarray(
                    np.resize(np.frombuffer(np.uint32(self._checker.tools.poison[1]).tobytes(), np.uint8), target.size)
                )
            controls["stale"] = stale
            if source := _copied(buffers, name):
                controls["copy"] = buffers.main.view(source, cp.uint8)[: target.size]
            else:  # no input has room for it: whoever copies one fails here
                self._proven.add(("copy", name))
            tolerance = self._checker.tolerances([(index, family)])[index, family, name]
            for what, content in controls.items():
                self._wanted.add((what, name))
                copy_bytes(target, content)
                if self._checker.differs(index, name, tolerance):
                    self._proven.add((what, name))
            copy_bytes(target, saved)

    def _copies(self, call: Call, index: int, name: str) -> bool:
        """Whether the original copies an input to an output whatever stands there: then that is its result. The input is drawn anew."""
        buffers = self._checker.buffers(index)
        source = _copied(buffers, name)
        if not source:
            return False
        drawn = any_bits(buffers.dtypes[source], buffers.counts[source], np.random.default_rng(0))
        buffers.reset(buffers.main, 0)
        buffers.put(source, drawn.tobytes())
        call(self._checker.stream)
        self._checker.tools.board.clear()
        buffers.main.touched(buffers.main.watch(), self._checker.tools.board.read())
        found = cp.asnumpy(buffers.main.view(name, cp.uint8))  # compared here: CuPy would compile a kernel
        return bool((found == drawn.view(np.uint8)[: found.size]).all())

    def exchange(self, call: Call, index: int, family: str, seed: int) -> None:
        """Run the original with one input drawn anew at a time. Leaves the inputs of `seed`."""
        if family == "declared":
            for name in [argument for what, argument in self._wanted - self._proven if what == "copy"]:
                self._plain[name] = self._plain.get(name, True) and self._copies(call, index, name)
        buffers = self._checker.buffers(index)
        fresh: dict[str, Any] = {}
        for argument in buffers.buffers:
            name = argument.name
            if argument.role == "out" or ("input", name) in self._proven or argument.fill.kind == "constant":
                continue
            self._wanted.add(("input", name))
            if not fresh:
                buffers.draw(seed + 2, family, widen=False)
                fresh = {a.name: copied(buffers.first(a.name)) for a in buffers.buffers if a.role != "out"}
            buffers.draw(seed, family, widen=True)
            self._checker.run_reference(index, 1)  # on the unchanged inputs
            buffers.reset(buffers.main, 0)
            copy_bytes(buffers.main.view(name, cp.uint8), fresh[name])
            call(self._checker.stream)
            self._checker.tools.board.clear()
            buffers.main.touched(buffers.main.watch(), self._checker.tools.board.read())
            tolerances = self._checker.tolerances([(index, family)])
            for output in buffers.written:
                if self._checker.differs(index, output, tolerances[index, family, output]):
                    self._proven.add(("input", name))
                    break
        buffers.draw(seed, family, widen=True)


def _copied(buffers: CaseBuffers, name: str) -> str:
    """The input that stands for an output in one control; "" where none has its type and room."""
    fitting = (
        other
        for other in buffers.read_only
        if buffers.dtypes[other] == buffers.dtypes[name] and buffers.main.sizes[other] >= buffers.main.sizes[name]
    )
    return next(fitting, "")
