"""A seccomp filter for what neither a compiler nor a CUDA program needs: system calls that widen what a program can reach.

The filter is a classic BPF program (linux/filter.h, linux/seccomp.h), written by hand so that nothing needs libseccomp.
The calls that it names fail with EPERM, as does `clone` with a new namespace. Sockets exist in four address families alone: not every
other is confined by a network namespace (AF_VSOCK reaches the host of a virtual machine), and each is code of the kernel within reach.
`clone3`, whose flags a filter cannot read, fails with ENOSYS: C libraries then use `clone`. A program of a foreign architecture is killed.
"""

import errno
import functools
import os
import platform
import struct

# BPF_LD|W|ABS, BPF_JMP|JEQ|K, BPF_JMP|JGE|K, BPF_JMP|JSET|K, BPF_RET|K
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _ERROR, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_NUMBER, _ARCH, _FIRST_ARGUMENT = (
    0,
    4,
    16,
)  # offsets in struct seccomp_data; of the argument the low half, as both are little-endian
_FAMILIES = {
    "AF_UNIX": 1,
    "AF_INET": 2,
    "AF_INET6": 10,
    "AF_NETLINK": 16,
}  # ncu and its target talk by TCP, CUDA by unix sockets
_NAMESPACES = 0x7E020000  # CLONE_NEWNS, -CGROUP, -UTS, -IPC, -USER, -PID, -NET
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
_BY_ARGUMENT: dict[str, tuple[int, int]] = {
    "socket": (41, 198), "socketpair": (53, 199), "clone": (56, 220), "clone3": (435, 435),
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
    arch, column = known
    by_argument = {name: numbers[column] for name, numbers in _BY_ARGUMENT.items()}
    clone = [
        (_LOAD, 0, 0, _FIRST_ARGUMENT),
        (_ANY_BIT, 0, 1, _NAMESPACES),
        _error(errno.EPERM),
        (_RETURN, 0, 0, _ALLOW),
    ]
    families = sorted(_FAMILIES.values())
    socket = [(_LOAD, 0, 0, _FIRST_ARGUMENT)]
    socket += [(_EQUAL, len(families) - i, 0, family) for i, family in enumerate(families)]
    socket += [_error(errno.EAFNOSUPPORT), (_RETURN, 0, 0, _ALLOW)]
    rows = [(_LOAD, 0, 0, _ARCH), (_EQUAL, 1, 0, arch), (_RETURN, 0, 0, _KILL), (_LOAD, 0, 0, _NUMBER)]
    rows += [(_AT_LEAST, 0, 1, _X32), _error(errno.EPERM)]
    for name in denied():
        rows += [(_EQUAL, 0, 1, number(name)), _error(errno.EPERM)]
    rows += [(_EQUAL, 0, 1, by_argument["clone3"]), _error(errno.ENOSYS)]
    rows += [(_EQUAL, 0, len(clone), by_argument["clone"]), *clone]
    for name in ("socket", "socketpair"):
        rows += [(_EQUAL, 0, len(socket), by_argument[name]), *socket]
    rows.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("=HBBI", *row) for row in rows)


def _error(code: int) -> tuple[int, int, int, int]:
    return (_RETURN, 0, 0, _ERROR | code)


@functools.cache
def path() -> str | None:
    """A file of this process that holds the filter, to be opened by what it starts; None where there is none."""
    data = program()
    if not data or not hasattr(os, "memfd_create"):
        return None
    handle = os.memfd_create("seccomp", os.MFD_CLOEXEC)
    os.write(handle, data)
    return f"/proc/{os.getpid()}/fd/{handle}"
