"""The child process that holds NVRTC: compiles what frames on its standard input ask for, until that ends.

Run inside the sandbox. It sees CUDA's headers and this installation, no other file, no key, no network.
"""

import os
import resource
import signal
import sys
from typing import Any, BinaryIO

from engine.compile.fallback_headers import library_folders
from engine.compile.index_precision import lossy_indices
from engine.compile.program import Refused, allow_precompiled_headers, compile_text
from engine.compile.resources import describe
from engine.compile.toolkit import include_folders
from engine.errors import CompileError
from engine.process import wire
from engine.process.cores import stand_back

_REQUEST_LIMIT = 64 << 20


def _compile(request: dict[str, Any], includes: list[str], pch_folder: str) -> tuple[dict[str, Any], bytes]:
    text, name = str(request["text"]), str(request["name"])
    options = [f"-arch={request['arch']}", f"--std={request['std']}", "--ptxas-options=-v"]
    options += [f"--define-macro={define}" for define in request["defines"]]
    options += [f"--include-path={folder}" for folder in (*request["include"], *includes)]
    if request["line_info"]:
        options.append("--generate-line-info")
    if "#include" in text:
        # Headers cost 0.7 s (cooperative groups, half) to 1.1 s (CUB's block parts) each time; precompiled 0.15 s.
        options += ["--pch", f"--pch-dir={pch_folder}"]
    try:
        compiled = compile_text(text, name, [str(e) for e in request["expressions"]], options)
    except Refused as error:
        return {"ok": False, "log": error.log or error.what}, b""
    try:
        kernels = sum(not str(e).startswith("&") for e in request["expressions"])
        described = describe(compiled.code, compiled.names, compiled.log, name, kernels=kernels)
        described["lossy_indices"] = lossy_indices(compiled.ptx)
    except CompileError as error:
        return {"refused": error.what, "log": compiled.log}, b""
    return {"ok": True, "described": described}, compiled.code


def main() -> None:
    if "stand-back" in sys.argv[1:]:
        stand_back()
    source: BinaryIO = os.fdopen(os.dup(0), "rb")
    sink: BinaryIO = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # a library that prints must not break the frames
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    includes = [str(path) for path in (*include_folders(), *library_folders())]
    pch_folder = os.path.join(os.environ.get("TMPDIR", "/tmp"), f"pch-{os.getpid()}")
    os.makedirs(pch_folder, mode=0o700, exist_ok=True)
    allow_precompiled_headers()
    while True:
        try:
            request, _ = wire.receive(source, _REQUEST_LIMIT)
        except wire.WireError:
            break
        # The signal ends this process, within a call of the library as well; whoever waits learns the reason from it.
        signal.setitimer(signal.ITIMER_PROF, float(request["seconds"]))
        header, cubin = _compile(request, includes, pch_folder)
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        header["peak_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        wire.send(sink, header, [cubin])
    os._exit(0)  # NVRTC's own teardown may take a second and has nothing left to do


if __name__ == "__main__":
    main()
