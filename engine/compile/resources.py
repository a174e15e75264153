"""What a run wants to know of machine code, read once: in the process that compiled it, where that costs the search nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from engine.compile.compiler import clean_log, parse_resources
from engine.compile.cubin import Cubin, CubinError
from engine.errors import CompileError


def describe(cubin: bytes, names: Sequence[str], log: str, path: str, *, kernels: int | None = None) -> dict[str, Any]:
    """The fields of `Binary` that machine code and the compiler's log tell of, as JSON has them.

    `names` are the entries, one per step; without any it is all of them. Behind the first `kernels` stand constant variables.
    `path` is what errors call the text. Raises CompileError.
    """
    try:
        parsed = Cubin(cubin)
        entries, variables = tuple(names[:kernels]) or parsed.entries, names[kernels:] if kernels is not None else ()
        if not entries:
            raise CompileError("it contains no kernel to compile", path)
        used = parse_resources(log)
        missing = [entry for entry in entries if entry not in used]
        if missing:
            raise CompileError(
                f"the compiler did not report the resources of '{missing[0][:200]}'", path, log=clean_log(log)
            )
        return {
            "entries": list(entries),
            "resources": [vars(used[entry]) for entry in entries],
            "code_hash": parsed.code_hash(entries),
            "most_threads": [parsed.most_threads(entry) for entry in entries],
            "kept_bytes": parsed.local_static_bytes,
            "clock_reads": parsed.clock_reads,
            "block_atomics": parsed.block_atomics,
            "lossy_indices": 0,  # for who has PTX beside it
            "constants": [[name, parsed.variable_bytes(name)] for name in variables],
        }
    except CubinError as error:
        raise CompileError(error.what, path) from None
