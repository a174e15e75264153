"""Runs a challenge's own tests on a compiled program. Only ever started inside the sandbox, by `benchmarks.torch_judge`.

    python torch_judge_worker.py CHALLENGES CHALLENGE_FILE PROGRAM MOST_ELEMENTS

The inputs of each test go to the program's standard input in the order of the challenge's signature, its buffers come back whole. Prints
one JSON object: "tests" that ran, "skipped" ones with more elements or that did not end in time, and the
first "failure".
"""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from typing import Any

import torch

_TEST_S = 40.0


def main() -> int:
    """See the module's docstring."""
    challenges, file, program, most = sys.argv[1:]
    sys.path.insert(0, challenges)
    torch.manual_seed(0)
    challenge = runpy.run_path(file)["Challenge"](device="cpu")
    names = list(challenge.get_solve_signature())
    found: dict[str, Any] = {"tests": 0, "skipped": 0, "failure": ""}
    for number, test in enumerate(challenge.generate_functional_test()):
        values = {name: _made(test[name]) for name in names}
        tensors = {name: value for name, value in values.items() if isinstance(value, torch.Tensor)}
        if sum(tensor.numel() for tensor in tensors.values()) > int(most):
            found["skipped"] += 1
            continue
        expected = {n: v.clone() if isinstance(v, torch.Tensor) else v for n, v in values.items()}
        challenge.reference_impl(**expected)
        try:
            said = _differs(challenge, values, expected, program)
        except subprocess.TimeoutExpired:
            found["skipped"] += 1
            continue
        found["tests"] += 1
        if said:
            found["failure"] = f"test {number}: {said}"
            break
    print(json.dumps(found))
    return 0


def _made(value: Any) -> Any:
    """A tensor of a test, which some challenges describe by shape and range."""
    if isinstance(value, torch.Tensor) or not hasattr(value, "shape"):
        return value
    dtype = getattr(torch, value.dtype)
    if hasattr(value, "std"):
        return torch.randn(value.shape).mul(value.std).add(value.mean).to(dtype)
    if hasattr(value, "value"):
        return torch.full(value.shape, value.value, dtype=dtype)
    if hasattr(value, "low"):
        return torch.empty(value.shape).uniform_(float(value.low), float(value.high)).to(dtype)
    return torch.zeros(value.shape, dtype=dtype)


def _differs(challenge: Any, values: dict[str, Any], expected: dict[str, Any], program: str) -> str:
    """How what the program gives differs from what the reference gives; "" where all is close. Raises TimeoutExpired."""
    sent = b"".join(_bytes(value) for value in values.values())
    done = subprocess.run([program], input=sent, capture_output=True, timeout=_TEST_S, check=False)
    if done.returncode:
        return done.stderr.decode("utf-8", "replace").strip()[:200] or f"exit code {done.returncode}"
    at = 0
    for name, value in values.items():
        if not isinstance(value, torch.Tensor):
            continue
        size = value.numel() * value.element_size()
        blob = bytearray(done.stdout[at : at + size])
        at += size
        got = torch.frombuffer(blob, dtype=value.dtype).view(value.shape)
        if not torch.allclose(got, expected[name], atol=challenge.atol, rtol=challenge.rtol, equal_nan=True):
            return f"'{name}' differs"
    return "" if at == len(done.stdout) else "sent another number of bytes"


def _bytes(value: Any) -> bytes:
    """A buffer with its size in front, or a number as eight bytes."""
    if isinstance(value, torch.Tensor):
        raw = value.contiguous().flatten().view(torch.uint8).numpy().tobytes()
        return len(raw).to_bytes(8, "little") + raw
    if isinstance(value, float):
        return bytes(torch.tensor([value], dtype=torch.float64).view(torch.uint8).tolist())
    return int(value).to_bytes(8, "little", signed=True)


if __name__ == "__main__":
    sys.exit(main())
