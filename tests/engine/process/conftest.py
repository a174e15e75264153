from __future__ import annotations

from pathlib import Path

import pytest

from engine.process.sandbox import Sandbox, sandbox

from .inside import SECRET


@pytest.fixture(scope="module")
def box() -> Sandbox:
    found = sandbox()
    assert isinstance(found, Sandbox)
    return found


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    folder = tmp_path / "scratch"
    folder.mkdir()
    folder.chmod(0o777)
    return folder


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "secret.txt"
    path.write_text(SECRET)
    path.chmod(0o644)
    return path
