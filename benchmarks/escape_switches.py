"""The sandbox's defences switched off one by one, to show that each is needed: rewrites the argv that starts a sandbox."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.escape_attempts import Targets
from engine.process.sandbox import NOBODY, Limits, Sandbox, SandboxAccess

_WORDS = {
    "pids": "--unshare-pid", "die": "--unshare-pid", "net": "--unshare-net", "ipc": "--unshare-ipc", "session": "--new-session",
}  # fmt: skip
_LIMITS = {"file size": "--fsize=", "open files": "--nofile=", "cpu": "--cpu=", "core": "--core="}
_UNBOUNDED = str(1 << 36)


def command(box: Sandbox, argv: Sequence[str], options: Mapping[str, Any], off: Sequence[str]) -> list[str]:
    """The argv of `box.command` without the defences in `off`."""
    given = dict(options)
    if "root" in off:
        box = dataclasses.replace(box, drop="no")
    if "filter" in off:
        box = dataclasses.replace(box, filtered=False)
    if "userns" in off:
        box = dataclasses.replace(box, nested=False)
    if "group" in off:
        box = dataclasses.replace(box, memory_group="")
    if "memory" in off:
        given.pop("memory_bytes", None)
    if "processes" in off:
        given.pop("processes", None)
    limits = {each.name: given.pop(each.name) for each in dataclasses.fields(Limits) if each.name in given}
    words = box.command(argv, SandboxAccess(**given), Limits(**limits))
    end = len(words) - len(argv)
    words, argv = words[:end], words[end:]
    for name in off:
        if name in _WORDS:
            words = [word for word in words if word != _WORDS[name]]
        if name in _LIMITS:
            words = [word for word in words if not word.startswith(_LIMITS[name])]
    if "proc" in off:
        words = _without_binds(words)
    if "environment" in off:
        words = [word for word in words if word not in ("-i", "--clearenv")]
    for name, folder in (("tmp", "/tmp"), ("shm", "/dev/shm")):
        if name in off:
            at = next(i for i, word in enumerate(words) if word == "--tmpfs" and words[i + 1] == folder)
            words[at - 3] = _UNBOUNDED
    at = words.index("--chdir")
    added = []
    if "mounts" in off:
        words = words[: at - 2] + words[at:]  # it made all of this read-only
        at -= 2
        added += ["--bind", "/", "/"]
    if "devices" in off:
        added += ["--dev-bind", "/dev", "/dev"]
    if "capabilities" in off:
        added += ["--cap-add", "ALL"]
        words = ["0" if word == str(NOBODY) else word for word in words]
    return [*words[:at], *added, *words[at:], *argv]


def host_options(there: Targets, off: Sequence[str]) -> dict[str, Any]:
    """Arguments of Popen without the defences that lie there."""
    if "descriptors" not in off:
        return {}
    handle = os.open(there.secret, os.O_RDONLY)
    return {"pass_fds": [handle]}


def _without_binds(words: list[str]) -> list[str]:
    kept: list[str] = []
    at = 0
    while at < len(words):
        if words[at] == "--ro-bind" and words[at + 1].startswith("/proc/"):
            at += 3
            continue
        kept.append(words[at])
        at += 1
    return kept
