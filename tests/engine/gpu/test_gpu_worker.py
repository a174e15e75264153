"""The worker's own loop, without a device: what is asked along with checks that fail is not done."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path
from typing import Any

from engine.process import wire

ROOT = Path(__file__).parents[3]
# The session answers as the request says; CuPy is there by name alone.
_SCRIPT = """
import sys
from unittest.mock import MagicMock

class Error(Exception): pass
class Memory(Exception): pass

cupy = MagicMock()
cupy.cuda.memory.OutOfMemoryError = Memory
cupy.cuda.driver.CUDADriverError = cupy.cuda.runtime.CUDARuntimeError = Error
sys.modules["cupy"], sys.modules["cupy.cuda"] = cupy, cupy.cuda
import engine.gpu.gpu_session as session
import engine.gpu.gpu_worker as worker

class DeviceSession:
    def __init__(self, *opened): pass
    def load(self, figures, blobs): pass
    def verify(self, header):
        if header["plan"] == "raises":
            raise Error("INVALID_VALUE: refused")
        return {"failure": header["plan"], "checks": 1}
    def time(self, header): return {"results": ["timed"]}

session.DeviceSession = DeviceSession
worker._begin = lambda: None
sys.exit(worker.main())
"""


def _answers(*requests: dict[str, Any]) -> list[dict[str, Any]]:
    asked = io.BytesIO()
    for request in requests:
        wire.send(asked, request)
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT], input=asked.getvalue(), capture_output=True, cwd=ROOT, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    said = io.BytesIO(done.stdout)
    return [wire.receive(said)[0] for _ in requests]


OPEN = {"op": "open"}
TIME = {"op": "time", "if_right": True}


def test_a_timing_begins_where_no_check_failed() -> None:
    _, checked, timed = _answers(OPEN, {"op": "verify", "plan": None}, TIME)
    assert checked["failure"] is None
    assert timed["results"] == ["timed"]


def test_nothing_is_timed_that_failed() -> None:
    failed = {"op": "verify", "plan": {"kind": "wrong_result"}}
    _, first, skipped, second, again, last = _answers(
        OPEN, failed, TIME, {"op": "verify", "plan": "raises"}, TIME, {"op": "time"}
    )
    assert first["failure"]
    assert second["error_kind"] == "launch"
    assert [answer.get("skipped") for answer in (skipped, again)] == [True, True]
    assert not any("results" in answer for answer in (skipped, again))
    assert last["results"] == ["timed"]
