from __future__ import annotations

from collections.abc import Iterator

import pytest

from .server import Servers


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Servers]:
    for name in ("OPENAI_BASE_URL", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    servers = Servers()
    yield servers
    for server in servers.running:
        server.stop()
