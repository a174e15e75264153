"""The reference worker: runs one reference function in Python, one frame per request. Only ever started inside the sandbox.

What the reference prints goes to standard error; what it writes, in its own empty /tmp, goes with the process.
"""

from __future__ import annotations

import inspect
import os
import runpy
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

import numpy as np

from engine.generate.torch_module import as_function, is_module
from engine.process import wire

_MOST_WHAT = 300


class _RefusedCode(Exception):
    """What the reference or its answer lacks, in words."""


class _Reference:
    """One function of one file, imported from a copy in the sandbox's /tmp."""

    def __init__(self, header: dict[str, Any], source: bytes) -> None:
        self.file = str(Path(tempfile.mkdtemp()) / "reference.py")
        Path(self.file).write_bytes(source)
        name = header["function"]
        try:
            held = runpy.run_path(self.file)
        except BaseException as error:
            raise _RefusedCode(f"cannot be imported: {self.said(error)}") from None
        # The arrays of the library that a file works with: its functions take no others.
        packages = {v.__name__.partition(".")[0] for v in held.values() if inspect.ismodule(v)}
        self.cupy = "cupy" in packages
        self.torch = sys.modules.get("torch") if "torch" in packages else None
        self.function = held.get(name)
        if is_module(self.function, self.torch):
            try:
                self.function = as_function(self.function, held, self.torch)
            except BaseException as error:
                raise _RefusedCode(f"cannot be made: {self.said(error)}") from None
        if not callable(self.function):
            there = sorted(k for k, v in held.items() if inspect.isfunction(v) and v.__module__ == "<run_path>")
            known = f"; it has {', '.join(there[:10])}" if there else ""
            raise _RefusedCode(f"has no function '{name}'{known}")
        try:
            parameters = inspect.signature(self.function).parameters.values()
        except (ValueError, TypeError):
            raise _RefusedCode(f"'{name}' has no readable signature") from None
        if any(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD, p.POSITIONAL_ONLY) for p in parameters):
            raise _RefusedCode(f"'{name}' must take its arguments by name, without * and /")
        self.required = [p.name for p in parameters if p.default is p.empty]
        self.optional = [p.name for p in parameters if p.default is not p.empty]

    def _from_torch(self, value: Any) -> Any:
        """A tensor as an array. NumPy has no bfloat16, and takes no tensor that has a gradient."""
        assert self.torch is not None
        if not isinstance(value, self.torch.Tensor):
            return value
        value = value.detach()
        return (value.double() if value.is_floating_point() else value).numpy()

    def said(self, error: BaseException) -> str:
        """The error in one line, with the line of the reference where it arose."""
        lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == self.file]
        if isinstance(error, SyntaxError) and error.filename == self.file:
            lines = [error.lineno]
        at = f" (line {lines[-1]})" if lines and lines[-1] else ""
        text = " ".join(f"{type(error).__name__}: {error}".split())
        return f"{text[:_MOST_WHAT]}{at}"

    def call(self, header: dict[str, Any], blobs: list[bytes]) -> tuple[list[dict[str, Any]], list[bytes]]:
        """The function's outputs for these inputs: float64, int64 or uint64, in the order asked for."""
        values: dict[str, Any] = dict(header["scalars"])
        for told, blob in zip(header["inputs"], blobs, strict=True):
            array = np.frombuffer(blob, told["dtype"]).reshape(told["shape"]).copy()
            if self.cupy:
                # References in NumPy run without it.
                import cupy

                array = cupy.asarray(array)
            values[told["name"]] = array if self.torch is None else self.torch.from_numpy(array)
        wanted = {n: values[n] for n in (*self.required, *self.optional) if n in values}
        assert self.function is not None
        try:
            with np.errstate(all="ignore"):
                given = self.function(**wanted)
        except BaseException as error:
            raise _RefusedCode(f"raises {self.said(error)}") from None
        names = header["outputs"]
        if isinstance(given, dict):
            if set(given) != set(names):
                raise _RefusedCode(f"returns {sorted(map(str, given))[:10]}, and the outputs are {names}")
            listed = [given[n] for n in names]
        elif isinstance(given, (tuple, list)) and len(names) > 1:
            listed = list(given)
        else:
            listed = [given]
        if given is None or len(listed) != len(names):
            count = "nothing" if given is None else f"{len(listed)} arrays"
            raise _RefusedCode(f"returns {count}, and there are {len(names)} outputs ({', '.join(names)})")
        told, blobs = [], []
        for name, value in zip(names, listed, strict=True):
            if hasattr(value, "get") and hasattr(value, "__cuda_array_interface__"):
                value = value.get()
            try:
                array = np.asarray(value if self.torch is None else self._from_torch(value))
            except Exception as error:
                raise _RefusedCode(f"returns no array for '{name}': {type(error).__name__}") from None
            wide = {"f": "<f8", "i": "<i8", "u": "<u8", "b": "<u8"}.get(array.dtype.kind)
            if wide is None:
                raise _RefusedCode(f"returns '{name}' of the type {array.dtype}, which is not numeric")
            told.append({"dtype": wide, "shape": list(array.shape)})
            blobs.append(np.ascontiguousarray(array.astype(wide)).tobytes())
        return told, blobs


def main() -> int:
    """Serve until the input closes. Exit code 0."""
    source, sink = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a reference prints must not reach the frames
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    reference: _Reference | None = None
    while True:
        try:
            header, blobs = wire.receive(source)
        except wire.WireError:
            return 0
        answer: dict[str, Any]
        out: list[bytes] = []
        try:
            if header["op"] == "open":
                reference = _Reference(header, blobs[0])
                answer = {"required": reference.required, "optional": reference.optional, "cupy": reference.cupy}
            else:
                assert reference is not None
                told, out = reference.call(header, blobs)
                answer = {"outputs": told}
        except _RefusedCode as refused:
            answer, out = {"refused": str(refused)}, []
        except MemoryError:
            answer, out = {"refused": "exceeds the memory limit of a reference"}, []
        wire.send(sink, answer, out)


if __name__ == "__main__":
    sys.exit(main())
