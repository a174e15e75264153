"""The GPU worker: a long-lived process that gets machine code and launch figures, never host code of a candidate.

Answers one frame per request. An error that breaks the context is answered where it can be, then the process ends: the parent
starts another one.
"""

import contextlib
import ctypes
import os
import sys
import threading
import time

from engine.process import wire


def _begin() -> None:
    """Have the driver make the context, which takes as long as importing CuPy does, beside that. Errors are CuPy's to tell."""
    with contextlib.suppress(OSError):
        driver = ctypes.CDLL("libcuda.so.1")
        device, context = ctypes.c_int(), ctypes.c_void_p()
        if driver.cuInit(0) == 0 and driver.cuDeviceGet(ctypes.byref(device), 0) == 0:
            driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)


def main() -> int:
    """Serve until the input closes. Exit code 0; 70 after an error that broke the context."""
    threading.Thread(target=_begin, daemon=True).start()
    source, sink = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # printf of a kernel must not reach the frames
    failed: Exception | None = None
    try:
        # CuPy is imported beside the making of the context.
        from engine.gpu.gpu_session import GpuRequests

        requests = GpuRequests()
    except Exception as error:  # told at the first request
        failed = error
    while True:
        try:
            header, blobs = wire.receive(source)
        except wire.WireError:
            return 0
        if failed is not None:
            raise failed
        begin = time.perf_counter()
        answer, out, broken = requests.answer(header, blobs)
        answer["seconds"] = time.perf_counter() - begin
        wire.send(sink, answer, out)
        if broken:
            os._exit(70)


if __name__ == "__main__":
    sys.exit(main())
