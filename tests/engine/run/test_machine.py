"""Which GPU is taken, by what the environment leaves visible."""

from __future__ import annotations

import types

import pytest

from engine.errors import MachineError
from engine.run.device_choice import visible_gpu

ARCHES = [(9, 0), (8, 0)]


class _Error(Exception):
    pass


@pytest.fixture(autouse=True)
def nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two GPUs, known by index and UUID."""

    def by_index(index: int) -> int:
        if index >= len(ARCHES):
            raise _Error
        return index

    def by_uuid(uuid: str) -> int:
        return by_index({"GPU-a": 0, "GPU-b": 1}.get(uuid, 9))

    fake = types.SimpleNamespace(
        NVMLError=_Error,
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByIndex=by_index,
        nvmlDeviceGetHandleByUUID=by_uuid,
        nvmlDeviceGetCudaComputeCapability=lambda handle: ARCHES[handle],
        nvmlDeviceGetIndex=lambda handle: handle,
    )
    monkeypatch.setattr("engine.run.device_choice.pynvml", fake)


@pytest.mark.parametrize(
    ("visible", "found"),
    [
        (None, (0, "sm_90")),
        ("1", (1, "sm_80")),
        ("1,0", (1, "sm_80")),
        ("GPU-b", (1, "sm_80")),
        ("GPU-gone", None),
        ("7", None),
        ("", None),
        ("-1", None),
    ],
)
def test_takes_the_first_visible_gpu(
    visible: str | None, found: tuple[int, str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert visible_gpu() == found


def test_refuses_a_part_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-3eb87630")
    with pytest.raises(MachineError, match="MIG instance"):
        visible_gpu()
