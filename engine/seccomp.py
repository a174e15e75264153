"""A seccomp filter for what neither a compiler nor a CUDA program needs: system calls that widen what a program can reach.

The filter is a classic BPF program (linux/filter.h, linux/seccomp.h), written by hand so that nothing needs libseccomp.
What it names fails with EPERM; a program of a foreign architecture is killed.
"""

from __future__ import annotations

import functools
import os
import platform
import struct

_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06  # BPF_LD|W|ABS, BPF_JMP|JEQ|K, BPF_JMP|JGE|K, BPF_RET|K
_ALLOW, _EPERM, _KILL = 0x7FFF0000, 0x00050000 | 1, 0x80000000
_NUMBER, _ARCH = 0, 4  # offsets in struct seccomp_data
_X32 = 0x40000000  # the x32 calls of x86-64 are the same calls under other numbers

# Numbers: asm/unistd_64.h for x86-64, asm-generic/unistd.h for the others.
_CALLS: dict[str, tuple[int, int | None]] = {  # name: (x86-64, generic)
    "ptrace": (101, 117), "syslog": (103, 116), "pivot_root": (155, 41), "adjtimex": (159, 171), "chroot": (161, 51),
    "acct": (163, 89), "settimeofday": (164, 170), "mount": (165, 40), "umount2": (166, 39), "swapon": (167, 224),
    "swapoff": (168, 225), "reboot": (169, 142), "sethostname": (170, 161), "setdomainname": (171, 162), "iopl": (172, None),
    "ioperm": (173, None), "init_module": (175, 105), "delete_module": (176, 106), "quotactl": (179, 60),
    "lookup_dcookie": (212, 18), "clock_settime": (227, 112), "kexec_load": (246, 104), "add_key": (248, 217),
    "request_key": (249, 218), "keyctl": (250, 219), "migrate_pages": (256, 238), "unshare": (272, 97),
    "move_pages": (279, 239), "vmsplice": (278, 75), "perf_event_open": (298, 241), "fanotify_init": (300, 262),
    "name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265), "clock_adjtime": (305, 266), "setns": (308, 268),
    "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "kcmp": (312, 272), "finit_module": (313, 273),
    "kexec_file_load": (320, 294), "bpf": (321, 280), "userfaultfd": (323, 282), "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426), "io_uring_register": (427, 427), "open_tree": (428, 428), "move_mount": (429, 429),
    "fsopen": (430, 430), "fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433), "pidfd_getfd": (438, 438),
    "process_madvise": (440, 440), "mount_setattr": (442, 442), "quotactl_fd": (443, 443),
}  # fmt: skip
_ARCHITECTURES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}  # AUDIT_ARCH_*, column above


def denied() -> tuple[str, ...]:
    """Names of the system calls that the filter refuses on this machine; empty where no filter is known for it."""
    known = _ARCHITECTURES.get(platform.machine())
    return tuple(name for name, numbers in _CALLS.items() if known and numbers[known[1]] is not None)


def number(name: str) -> int:
    """This machine's number of a system call that the filter names. Raises KeyError."""
    found = _CALLS[name][_ARCHITECTURES[platform.machine()][1]]
    if found is None:
        raise KeyError(name)
    return found


def program() -> bytes:
    """The filter as an array of `struct sock_filter`; empty where the machine's architecture is not known."""
    known = _ARCHITECTURES.get(platform.machine())
    if known is None:
        return b""
    arch, _ = known
    numbers = sorted(number(name) for name in denied())
    count = len(numbers)
    rows = [(_LOAD, 0, 0, _ARCH), (_EQUAL, 1, 0, arch), (_RETURN, 0, 0, _KILL), (_LOAD, 0, 0, _NUMBER)]
    rows.append((_AT_LEAST, count + 1, 0, _X32))
    rows += [(_EQUAL, count - i, 0, value) for i, value in enumerate(numbers)]
    rows += [(_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _EPERM)]
    return b"".join(struct.pack("=HBBI", *row) for row in rows)


@functools.cache
def path() -> str | None:
    """A file of this process that holds the filter, to be opened by what it starts; None where there is none."""
    data = program()
    if not data or not hasattr(os, "memfd_create"):
        return None
    handle = os.memfd_create("seccomp", os.MFD_CLOEXEC)
    os.write(handle, data)
    return f"/proc/{os.getpid()}/fd/{handle}"
