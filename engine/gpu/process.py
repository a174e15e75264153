"""The process that holds the GPU, started: it makes its context and imports CuPy before it is asked anything."""

import tempfile
from collections.abc import Sequence
from pathlib import Path

from engine.process.cores import ONE_THREAD
from engine.process.sandbox import NoSandbox, Sandbox, SandboxAccess, python_command
from engine.process.worker_process import Worker


def gpu_process(box: Sandbox | NoSandbox, scratch: Path, device: int = 0, watcher: Sequence[str] = ()) -> Worker:
    """A GPU worker that nobody has talked to. `scratch` holds its own compile cache, where that can be written; `device` is NVML's index.

    `watcher` is the argv of a tool that it runs under. Raises MachineError.
    """
    writable = [scratch]
    try:
        scratch.mkdir(parents=True, exist_ok=True, mode=0o700)
        scratch.chmod(0o700)  # where root calls, the sandbox gives it to the user that the worker runs as
    except OSError:  # then it compiles its own kernels anew: the sandbox's /tmp goes with it
        writable, scratch = [], Path("/tmp/worker") if box.safe else Path(tempfile.mkdtemp(prefix="optiml"))
    command = box.command(
        [*watcher, *python_command("engine.gpu.gpu_worker")],
        SandboxAccess(
            writable=writable,
            gpu=True,
            device=device,
            environment={
                **ONE_THREAD,
                "CUPY_CACHE_DIR": str(scratch / "cupy"),
                "CUDA_CACHE_PATH": str(scratch / "driver"),
            },
        ),
    )
    return Worker(command)
