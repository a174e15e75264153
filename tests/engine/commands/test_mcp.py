"""`optiml mcp` as an editor's assistant meets it: the SDK's own client over standard input and output, on the CPU path."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.engine.commands.test_optimize import ROW_SUM
from tests.runtime import with_runtime

mcp = pytest.importorskip("mcp")
compiled = pytest.mark.skipif(not (shutil.which("g++") or shutil.which("clang++")), reason="needs a C++ compiler")


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return with_runtime(tmp_path_factory.mktemp("cache"))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    base = tmp_path / "work"
    (base / "src").mkdir(parents=True)
    (base / "src" / "row_sum.cu").write_text(ROW_SUM)
    (tmp_path / "outside.cu").write_text(ROW_SUM)
    (base / "link.cu").symlink_to(tmp_path / "outside.cu")
    subprocess.run(["git", "init", "-q", str(base)], check=True)
    return base


class Session:
    """One client; `call` gives the structured result, or the error's text."""

    def __init__(self, client: Any) -> None:
        self.client, self.progress = client, list[tuple[float, float | None, str]]()

    async def call(self, tool: str, **arguments: Any) -> Any:
        async def note(done: float, total: float | None, message: str | None) -> None:
            self.progress.append((done, total, message or ""))

        answer = await self.client.call_tool(tool, arguments, progress_callback=note)
        if answer.is_error:
            return answer.content[0].text
        return answer.structured_content


@asynccontextmanager
async def session(root: Path, cache: Path) -> AsyncIterator[Session]:
    parameters = mcp.StdioServerParameters(
        command=sys.executable,
        args=["-m", "engine.cli", "mcp"],
        cwd=root,
        env={**os.environ, "OPTIML_CACHE": str(cache)},
    )
    async with mcp.Client(parameters) as client:
        yield Session(client)


@pytest.mark.slow
@compiled
def test_a_kernel_is_diagnosed_optimised_explained_and_applied(root: Path, cache: Path) -> None:
    async def run() -> None:
        async with session(root, cache) as client:
            tools = {tool.name: tool for tool in (await client.client.list_tools()).tools}
            assert set(tools) == {"optimize", "profile_diagnose", "explain", "apply"}
            assert all(tool.description and tool.input_schema and tool.output_schema for tool in tools.values())

            found = await client.call("optimize", file="src/row_sum.cu", budget="6", device="cpu")
            assert found["state"] == "screened"
            assert found["speed"]["measured"] is False
            assert "predicted" in found["verdict"]
            assert found["folder"] == ".optiml/row_sum-row_sum"
            assert any(message.startswith("searching: ") for _, _, message in client.progress)
            assert (root / "src" / "row_sum.cu").read_text() == ROW_SUM  # nothing is changed unasked
            again = await client.call("optimize", file="src/row_sum.cu", budget="6", device="cpu")
            assert again == found

            explained = await client.call("explain", folder=found["folder"], candidates=[1])
            assert explained["run"]["steps"]
            assert explained["candidates"][0]["id"] == 1

            patch = root / found["folder"] / "best.patch"
            kept = patch.read_bytes()
            patch.write_bytes(kept.replace(b"+", b"+ ", 1))
            assert "best.patch is not what the run found" in await client.call("apply", folder=found["folder"])
            patch.write_bytes(kept)
            assert (await client.call("apply", folder=found["folder"]))["files"] == ["src/row_sum.cu"]
            assert (root / "src" / "row_sum.cu").read_text() != ROW_SUM
            assert (await client.call("apply", folder=found["folder"]))["files"] == []
            (root / "src" / "row_sum.cu").write_text(ROW_SUM.replace("0.0f", "1.0f").replace("float sum", "double sum"))
            assert "the source has changed since the run" in await client.call("apply", folder=found["folder"])

            (root / "src" / "row_sum.cu").write_text(ROW_SUM)
            diagnosed = await client.call("profile_diagnose", file="src/row_sum.cu", device="cpu")
            assert diagnosed["measured"] is False
            assert diagnosed["diagnosis"]
            assert diagnosed["registers"] > 0

    asyncio.run(run())


def test_errors_are_the_tools_and_no_path_leads_out(root: Path, cache: Path) -> None:
    run_folder = root / ".optiml" / "forged"
    run_folder.mkdir(parents=True)
    (run_folder / "result.json").write_text(json.dumps({"schema": "optiml.result/1"}))

    async def run() -> None:
        async with session(root, cache) as client:
            for file in ("../outside.cu", "/etc/passwd", "link.cu"):
                said = await client.call("optimize", file=file)
                assert "is outside the repository" in said, said
                assert "Traceback" not in said
            assert "is outside the repository" in await client.call("apply", folder="..")
            assert "no such file" in await client.call("optimize", file="src/missing.cu")
            assert "invalid budget" in await client.call("optimize", file="src/row_sum.cu", budget="soon")
            assert "device" in await client.call("optimize", file="src/row_sum.cu", device="tpu")
            assert "result.json" in await client.call("explain", folder=".optiml/forged")
            assert "no such folder" in await client.call("apply", folder=".optiml/none")

    asyncio.run(run())


def test_without_the_package_it_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from engine.cli import main

    monkeypatch.setitem(sys.modules, "engine.commands.mcp_server", None)
    monkeypatch.setitem(sys.modules, "mcp.server.mcpserver", None)
    monkeypatch.delitem(sys.modules, "engine.commands.mcp_server")
    assert main(["mcp"]) == 2
    assert "pip install 'optiml-cuda[mcp]'" in capsys.readouterr().err
