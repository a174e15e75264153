from __future__ import annotations

from collections.abc import Iterator

import pytest

from engine.compile.nvrtc import NvrtcCompiler
from engine.process import sandbox as module
from engine.process.sandbox import NoSandbox, Sandbox


@pytest.fixture(scope="session")
def box() -> Sandbox | NoSandbox:
    works, why = module.available()
    if not works:
        pytest.skip(f"no sandbox here: {why}")
    return module.sandbox()


@pytest.fixture(scope="session")
def compiler(box: Sandbox | NoSandbox) -> Iterator[NvrtcCompiler]:
    with NvrtcCompiler("sm_90", cache=None, sandbox=box, jobs=2, timeout_s=100.0) as made:
        yield made
