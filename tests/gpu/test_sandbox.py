"""The GPU worker's wall, with a GPU behind it: its own GPU and nothing else."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys

import pytest

from engine.process.sandbox import Sandbox, SandboxAccess, available, sandbox
from engine.run.device_choice import visible_gpu

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not available()[0], reason=f"no sandbox here: {available()[1]}")]

_LOOK = """
import json, os, socket, sys
import cupy as cp
found = {"devices": cp.cuda.runtime.getDeviceCount(), "sum": float(cp.arange(5).sum())}
found["nodes"] = sorted(os.listdir("/dev"))
found["secret"] = os.environ.get("OPTIML_TEST_SECRET", "")
found["home"] = os.path.exists("/home") or os.path.exists("/root")
try:
    socket.create_connection(("127.0.0.1", int(sys.argv[1])), timeout=1)
    found["network"] = True
except OSError:
    found["network"] = False
print(json.dumps(found))
"""


def test_the_worker_sees_its_own_gpu_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPTIML_TEST_SECRET", "s3cret")
    box, found = sandbox(), visible_gpu()
    assert isinstance(box, Sandbox)
    assert found is not None
    environment = {"CUPY_CACHE_DIR": "/tmp/cupy", "CUDA_CACHE_PATH": "/tmp/driver"}
    with socket.create_server(("127.0.0.1", 0)) as listening:
        look = [sys.executable, "-I", "-c", _LOOK, str(listening.getsockname()[1])]
        command = box.command(look, SandboxAccess(gpu=True, device=found[0], environment=environment))
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    seen = json.loads(done.stdout.splitlines()[-1])
    assert (seen["devices"], seen["sum"]) == (1, 10.0)
    assert len([name for name in seen["nodes"] if re.fullmatch(r"nvidia\d+", name)]) == 1
    assert (seen["secret"], seen["home"], seen["network"]) == ("", False, False)
