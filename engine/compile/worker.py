"""The child process that holds NVRTC: compiles what frames on its standard input ask for, until that ends.

Run inside the sandbox. It sees CUDA's headers and this installation, no other file, no key, no network.
"""

from __future__ import annotations

import io
import os
import resource
from typing import Any, BinaryIO

from engine import wire
from engine.compile.describe import describe
from engine.errors import CompileError

_REQUEST_LIMIT = 64 << 20
_PCH_HEAP_BYTES = 1 << 30  # NVRTC's default heap is too small for a precompiled CUB header


def _compile(request: dict[str, Any], includes: list[str], pch_folder: str) -> tuple[dict[str, Any], bytes]:
    from cuda.core import Program, ProgramOptions

    text = str(request["text"])
    options: dict[str, Any] = {}
    if "#include" in text:
        # Headers cost 0.7 s (cooperative groups, half) to 1.1 s (CUB's block parts) each time; precompiled 0.15 s.
        options = {"pch": True, "pch_dir": pch_folder}
    defines = [tuple(d.split("=", 1)) if "=" in d else str(d) for d in request["defines"]]
    log = io.StringIO()
    expressions = [str(e) for e in request["expressions"]]
    try:
        program = Program(
            text,
            "c++",
            ProgramOptions(
                name=str(request["name"]),
                arch=str(request["arch"]),
                std=str(request["std"]),
                include_path=[*[str(p) for p in request["include"]], *includes],
                define_macro=defines or None,
                lineinfo=True if request["line_info"] else None,
                ptxas_options=["-v"],
                **options,
            ),
        )
        compiled = program.compile("cubin", name_expressions=tuple(expressions), logs=log)
    except Exception as error:  # NVRTCError is private to cuda.core; whatever it is, it is this text's and no other's
        _, _, said = str(error).partition("compilation log:")
        return {"ok": False, "log": said or str(error)}, b""
    names = {key: value.decode() for key, value in dict(compiled.symbol_mapping).items()}
    code, said = bytes(compiled.code), log.getvalue()
    try:
        described = describe(code, [names[e] for e in expressions], said, str(request["name"]))
    except CompileError as error:
        return {"refused": error.what, "log": said}, b""
    return {"ok": True, "described": described}, code


def main() -> None:
    from cuda.bindings import nvrtc

    from engine.compile.cubin import include_folders

    source: BinaryIO = os.fdopen(os.dup(0), "rb")
    sink: BinaryIO = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # a library that prints must not break the frames
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    includes = [str(path) for path in include_folders()]
    pch_folder = os.path.join(os.environ.get("TMPDIR", "/tmp"), f"pch-{os.getpid()}")
    os.makedirs(pch_folder, mode=0o700, exist_ok=True)
    nvrtc.nvrtcSetPCHHeapSize(_PCH_HEAP_BYTES)
    while True:
        try:
            request, _ = wire.receive(source, _REQUEST_LIMIT)
        except wire.WireError:
            break
        header, cubin = _compile(request, includes, pch_folder)
        header["peak_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        wire.send(sink, header, [cubin])
    os._exit(0)  # NVRTC's own teardown may take a second and has nothing left to do


if __name__ == "__main__":
    main()
