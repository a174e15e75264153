"""What a sandboxed process needs of one GPU: its device nodes, their group, and CUDA's name for it."""

import functools
import os
import re
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_SYSFS = ("/sys/devices", "/sys/bus", "/sys/class", "/sys/module")  # the driver reads topology there


def gpu_binds(device: int) -> list[str]:
    """Options of bubblewrap that show one GPU: its device nodes, and the folders from which the driver reads topology."""
    there = sorted(path.name for path in Path("/dev").glob("nvidia*"))
    result: list[str] = []
    for name in [*nodes_for(there, device, minor_number(device)), "nvidia-caps", "dxg"]:
        if os.path.exists(f"/dev/{name}"):
            result += ["--dev-bind", f"/dev/{name}", f"/dev/{name}"]
    for folder in (*_SYSFS, "/opt/nvidia"):
        if os.path.isdir(folder):
            result += ["--ro-bind", folder, folder]
    return result


def nodes_for(there: Sequence[str], device: int, minor: int | None) -> list[str]:
    """Of the names in /dev, those that a process on one GPU needs: the driver's, and that GPU's own."""
    own = [name for name in there if re.fullmatch(r"nvidia\d+", name)]
    if len(own) > 1:
        own = [name for name in own if name == f"nvidia{device if minor is None else minor}"]
    return own + [name for name in there if name in ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools")]


def cuda_name(device: int) -> str:
    """What CUDA_VISIBLE_DEVICES calls the GPU with this index of NVML: where one alone can be seen CUDA counts anew."""
    name = _nvml("nvmlDeviceGetUUID", device)
    return str(device if name is None else name)


def minor_number(device: int) -> int | None:
    """The number of a GPU's node, which need not be its index; None where the driver does not say."""
    number = _nvml("nvmlDeviceGetMinorNumber", device)
    return None if number is None else int(number)


@functools.cache
def _nvml(question: str, device: int) -> Any:
    """What NVML's function of this name says of a GPU; None where it says nothing."""
    try:
        # Only the sandbox of a GPU asks.
        import pynvml

        pynvml.nvmlInit()
        return getattr(pynvml, question)(pynvml.nvmlDeviceGetHandleByIndex(device))
    except Exception:  # whatever is wrong with the driver, it shows when the GPU is used
        return None


def node_groups(device: int) -> tuple[int, ...]:
    """Groups that a user without rights of its own needs for the nodes: where the driver was told to keep others out."""
    there = [path.name for path in Path("/dev").glob("nvidia*")]
    groups: set[int] = set()
    for name in nodes_for(there, device, minor_number(device)):
        try:
            found = os.stat(f"/dev/{name}")
        except OSError:
            continue
        # Group 0 would give files of root's group too.
        if stat.S_IMODE(found.st_mode) & 0o066 == 0o060 and found.st_gid:
            groups.add(found.st_gid)
    return tuple(sorted(groups))
