"""The compilers of optiml-check, which start while the rest of it is imported: either takes half a second."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path

from engine.compile.nvrtc import NvrtcCompiler
from engine.process.sandbox import NoSandbox, Sandbox, sandbox
from engine.settings.folders import cache_folder, private_folder


class Compilers:
    """One compiler for each architecture, set up when it is first asked for. Use as a context manager."""

    def __init__(self, archs: Sequence[str]) -> None:
        self.archs = tuple(archs)
        self.jobs = len(os.sched_getaffinity(0))
        self._stack = ExitStack()

    def __enter__(self) -> Compilers:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def start(self) -> None:
        """Start a worker of each. Raises MachineError where no sandbox or no NVRTC can be had."""
        for compiler in self.by_arch.values():
            compiler.warm(1)

    @cached_property
    def box(self) -> Sandbox | NoSandbox:
        """The sandbox. Raises MachineError where none can be had."""
        return sandbox(False)

    @cached_property
    def cache(self) -> Path:
        """The folder that they keep their results below."""
        return private_folder(cache_folder())

    @cached_property
    def by_arch(self) -> dict[str, NvrtcCompiler]:
        """The compilers. Raises MachineError where no sandbox or no NVRTC can be had."""
        found: dict[str, NvrtcCompiler] = {}
        for arch in self.archs:
            compiler = NvrtcCompiler(arch, cache=self.cache / "compile", sandbox=self.box, jobs=self.jobs)
            compiler.stands_back = False  # a person waits
            found[arch] = self._stack.enter_context(compiler)
        return found
