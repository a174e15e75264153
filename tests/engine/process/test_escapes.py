"""Attempts to get out of the sandbox, each run for real and each bound to fail; what it reached for is really there."""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from engine.compile.compiler import Translation
from engine.compile.nvrtc import NvrtcCompiler
from engine.process import gpu_nodes, seccomp
from engine.process import sandbox as module
from engine.process.sandbox import NOBODY, Sandbox, SandboxAccess

from .inside import SECRET, needs_sandbox, python, run, shell

pytestmark = needs_sandbox


def test_the_probe_itself_works_inside(box: Sandbox) -> None:
    # Without this, every attempt below would "fail" for want of a working Python.
    assert python(box, "import os, socket, ctypes; print('ran')").stdout == "ran\n"


# ---- secrets


def test_environment(box: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_TOKEN", SECRET)
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    done = python(box, "import os; print(dict(os.environ)); print(open('/proc/self/environ').read())")
    assert done.returncode == 0
    assert SECRET not in done.stdout


def test_environment_of_other_processes(box: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_TOKEN", SECRET)
    done = shell(
        box, "for p in /proc/[0-9]*; do cat $p/environ $p/cmdline; done 2>/dev/null | tr '\\0' '\\n'; echo end"
    )
    assert done.stdout.endswith("end\n")
    assert SECRET not in done.stdout


def test_files_of_the_user(box: Sandbox, secret: Path) -> None:
    assert SECRET not in shell(box, f"cat '{secret}'; cat '{secret.parent}'/*").stdout
    home = os.path.expanduser("~")
    done = shell(box, f"ls -A '{home}/.ssh' '{home}/.gnupg' '{home}/.aws' '{home}/.config' /home /etc/shadow")
    assert done.stdout.strip() == ""


def test_parent_through_proc(box: Sandbox) -> None:
    done = shell(box, f"ls /proc/{os.getpid()}/root /proc/{os.getpid()}/fd /proc/1/root/etc/shadow /proc/1/root/home")
    assert done.returncode != 0
    assert done.stdout.strip() == ""


def test_open_files_of_the_parent(box: Sandbox, secret: Path) -> None:
    with secret.open() as held:
        os.set_inheritable(held.fileno(), True)
        code = "import os\nfor fd in range(3, 64):\n  try: print(os.pread(fd, 100, 0))\n  except OSError: pass\nprint('end')"
        done = python(box, code)
    assert "end" in done.stdout
    assert SECRET not in done.stdout


def test_symbolic_link_out_of_the_scratch_folder(box: Sandbox, scratch: Path, secret: Path) -> None:
    (scratch / "link").symlink_to(secret)
    done = shell(box, f"cat '{scratch}/link'; echo x > '{scratch}/link'", writable=[scratch])
    assert SECRET not in done.stdout
    assert secret.read_text() == SECRET


def test_hard_link_and_parent_folder(box: Sandbox, scratch: Path, secret: Path) -> None:
    done = shell(
        box,
        f"ln '{secret}' '{scratch}/h'; cat '{scratch}/h' '{scratch}/../secret.txt'; ls '{scratch}/..'",
        writable=[scratch],
    )
    assert SECRET not in done.stdout
    assert "secret.txt" not in done.stdout


def test_kernel_memory_and_logs(box: Sandbox) -> None:
    done = shell(
        box, "head -c 1 /dev/mem /dev/kmem /proc/kcore /dev/kmsg; dmesg | head -1; ls /sys/kernel/debug /sys/firmware"
    )
    assert done.stdout.replace("==>", "").strip() == "" or "Permission denied" in done.stderr
    assert not any(word in done.stdout for word in ("Linux version", "tracing"))


# ---- other processes


def test_signal_to_the_parent(box: Sandbox) -> None:
    victim = subprocess.Popen(["/bin/sleep", "60"])
    try:
        for target in (victim.pid, os.getpid(), os.getppid()):
            done = python(box, f"import os, signal; os.kill({target}, signal.SIGKILL)")
            assert done.returncode != 0
        shell(box, "kill -9 -1")
        time.sleep(0.1)
        assert victim.poll() is None
    finally:
        victim.kill()
        victim.wait()


@pytest.mark.skipif(not seccomp.denied(), reason="no filter for this architecture")
@pytest.mark.parametrize(
    "name", ["ptrace", "mount", "umount2", "pivot_root", "chroot", "unshare", "setns", "keyctl", "add_key", "request_key",
             "bpf", "userfaultfd", "perf_event_open", "process_vm_readv", "process_vm_writev", "io_uring_setup", "open_by_handle_at",
             "kexec_load", "init_module", "settimeofday", "pidfd_getfd", "fsopen", "move_mount"],
)  # fmt: skip
def test_system_call(box: Sandbox, name: str) -> None:
    code = (
        "import ctypes, errno\nlibc = ctypes.CDLL(None, use_errno=True)\n"
        f"print(libc.syscall({seccomp.number(name)}, 0, 0, 0, 0, 0, 0), ctypes.get_errno())"
    )
    assert python(box, code).stdout.split() == ["-1", "1"]


def test_filter_refuses_exactly_what_it_names(box: Sandbox) -> None:
    # A wrong jump in the filter would refuse calls that honest programs need, or let through the last of the list.
    if not seccomp.denied():
        pytest.skip("no filter for this architecture")
    numbers = {seccomp.number(name) for name in seccomp.denied()}
    for value in (*range(0, 460), 0x40000000, 0x40000065, 0xFFFFFFFF):
        refused = _verdict(value, 1) == 0x00050001
        assert refused == (value in numbers or value >= 0x40000000), value


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="numbers of x86-64")
def test_filter_reads_families_of_sockets_and_flags_of_clones() -> None:
    refused = 0x00050000 | errno.EAFNOSUPPORT
    for call in (41, 53):
        for family in range(64):
            assert (_verdict(call, family) == refused) == (family not in (1, 2, 10, 16)), family
    for bit in range(32):
        new = bit in (17, 25, 26, 27, 28, 29, 30)
        assert (_verdict(56, 1 << bit) == 0x00050001) == new, bit
    assert _verdict(435, 0) == 0x00050000 | errno.ENOSYS


def _verdict(value: int, argument: int) -> int:
    """What the filter says of a call with this first argument: classic BPF, interpreted."""
    program = seccomp.program()
    rows = [struct.unpack("=HBBI", program[i : i + 8]) for i in range(0, len(program), 8)]
    arch = rows[1][3]
    at, loaded = 0, 0
    while True:
        code, yes, no, operand = rows[at]
        at += 1
        if code == 0x06:
            return int(operand)
        if code == 0x20:
            loaded = {0: value, 4: arch, 16: argument}[operand]
        else:
            holds = {0x15: loaded == operand, 0x35: loaded >= operand, 0x45: bool(loaded & operand)}[code]
            at += yes if holds else no


@pytest.mark.parametrize("family", [x for x in range(46) if x not in (1, 2, 10, 16)])
def test_exotic_socket_families(box: Sandbox, family: int) -> None:
    code = (
        "import socket\n"
        "for kind in (1, 2, 3, 5):\n"
        f"  try: socket.socket({family}, kind); print('made')\n"
        "  except OSError as error: print(error.errno)\n"
    )
    assert set(python(box, code).stdout.split()) == {str(errno.EAFNOSUPPORT)}


def test_what_it_takes_to_be_root_is_gone(box: Sandbox, scratch: Path) -> None:
    """User 65534 of a namespace that root made is root for files outside: where root calls, the code must be another user."""
    done = shell(box, f"touch '{scratch}/made'; cat /proc/self/uid_map", writable=[scratch])
    owner = (scratch / "made").stat().st_uid
    assert owner == (os.getuid() or NOBODY), done.stderr
    assert "65534 0 1" not in " ".join(done.stdout.split())


def test_nothing_of_proc_and_sys_can_be_written(box: Sandbox) -> None:
    code = (
        "import os\n"
        "for top in ('/proc', '/sys'):\n"
        "  for folder, names, files in os.walk(top):\n"
        "    names[:] = [n for n in names if folder != '/proc' or not n.isdigit()]\n"  # what is a process's own is its own
        "    for name in files:\n"
        "      path = os.path.join(folder, name)\n"
        "      if os.path.islink(path): continue\n"
        "      try: os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK)); print(path)\n"
        "      except OSError: pass\n"
        "print('end')"
    )
    assert python(box, code).stdout.split() == ["end"]


def test_core_pattern(box: Sandbox) -> None:
    path = Path("/proc/sys/kernel/core_pattern")
    before = path.read_text()
    done = shell(box, f"cat {path} && echo '|/tmp/evil' > {path} && echo written")
    assert "written" not in done.stdout
    assert path.read_text() == before


def test_new_user_namespace(box: Sandbox) -> None:
    assert shell(box, "unshare -Ur true").returncode != 0
    clone = "import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\nprint(libc.unshare(0x10000000))"
    assert python(box, clone).stdout.strip() == "-1"


def test_gaining_privileges(box: Sandbox) -> None:
    done = shell(box, "grep -E 'NoNewPrivs|CapEff|CapBnd' /proc/self/status; su -c id; sudo -n id")
    assert "NoNewPrivs:\t1" in done.stdout
    assert "CapEff:\t0000000000000000" in done.stdout
    assert "uid=0" not in done.stdout


def test_what_it_leaves_running_dies_with_it(box: Sandbox) -> None:
    marker = f"987613.{os.getpid()}"
    code = f"(setsid sleep {marker} >/dev/null 2>&1 &) ; echo started"
    assert "started" in shell(box, code).stdout
    assert _ends(marker)


def _ends(marker: str) -> bool:
    """Whether no process with this among its arguments is left in a moment."""
    deadline = time.monotonic() + 20
    while _running(marker):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def _running(marker: str) -> bool:
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if marker.encode() in entry.read_bytes():
                return True
        except OSError:
            continue
    return False


# ---- bombs


def test_fork_bomb(box: Sandbox) -> None:
    marker = f"987614.{os.getpid()}"
    code = (
        "import os, time\nmade = 0\n"
        f"try:\n  for _ in range(3000):\n    if os.fork() == 0:\n      time.sleep(900)  # {marker}\n    made += 1\n"
        "except OSError as error:\n  print('refused after', made, error.errno, flush=True)\nprint('made', made, flush=True)\nos._exit(0)"
    )
    done = python(box, code, processes=50)
    assert "refused" in done.stdout
    assert _ends(marker)


def test_memory_bomb(box: Sandbox) -> None:
    done = python(box, "x = []\nwhile True: x.append(bytearray(16 << 20))", memory_bytes=512 << 20)
    assert "MemoryError" in done.stderr


def test_disk_bomb_in_tmp(box: Sandbox) -> None:
    done = shell(box, "dd if=/dev/zero of=/tmp/x bs=16M count=100 2>&1; ls -l /tmp/x", file_bytes=64 << 20)
    size = max(
        int(word) for line in done.stdout.splitlines() if "/tmp/x" in line for word in line.split() if word.isdigit()
    )
    assert size <= 64 << 20


def test_disk_bomb_in_the_scratch_folder(box: Sandbox, scratch: Path) -> None:
    shell(box, f"dd if=/dev/zero of='{scratch}/x' bs=1M count=200", writable=[scratch], file_bytes=8 << 20)
    assert (scratch / "x").stat().st_size <= 8 << 20


def test_shared_memory_bomb(box: Sandbox) -> None:
    done = shell(box, "dd if=/dev/zero of=/dev/shm/x bs=16M count=40 2>&1; stat -c %s /dev/shm/x")
    assert "No space left" in done.stdout
    assert int(done.stdout.split()[-1]) <= 256 << 20


def test_open_file_bomb(box: Sandbox) -> None:
    done = python(box, "x = []\nwhile True: x.append(open('/dev/null'))")
    assert "Too many open files" in done.stderr


def test_endless_computation(box: Sandbox) -> None:
    done = python(box, "while True: pass", cpu_s=1)
    assert done.returncode != 0


def test_raising_the_limits_again(box: Sandbox) -> None:
    code = "import resource as r; r.setrlimit(r.RLIMIT_AS, (r.RLIM_INFINITY, r.RLIM_INFINITY))"
    assert python(box, code, memory_bytes=1 << 30).returncode != 0


def test_core_dump(box: Sandbox, scratch: Path) -> None:
    shell(box, "ulimit -c unlimited; kill -ABRT $$", writable=[scratch], cwd=scratch)
    assert not list(scratch.iterdir())


# ---- network


def test_loopback_and_outside(box: Sandbox) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        code = f"import socket; socket.create_connection(('127.0.0.1', {server.getsockname()[1]}), 2)"
        assert run([sys.executable, "-I", "-c", code]).returncode == 0
        assert python(box, code).returncode != 0
    assert python(box, "import socket; socket.create_connection(('1.1.1.1', 53), 2)").returncode != 0
    assert python(box, "import socket; print(socket.getaddrinfo('example.com', 80))").returncode != 0


def test_unix_socket(box: Sandbox, tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        code = f"import socket; socket.socket(socket.AF_UNIX).connect({str(path)!r})"
        assert run([sys.executable, "-I", "-c", code]).returncode == 0
        assert python(box, code).returncode != 0
    assert shell(box, "ls /run/docker.sock /var/run/docker.sock /tmp/.X11-unix").stdout == ""


def test_abstract_unix_socket(box: Sandbox) -> None:
    name = f"\0optiml-escape-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(name)
        server.listen()
        code = f"import socket; socket.socket(socket.AF_UNIX).connect({name!r})"
        assert run([sys.executable, "-I", "-c", code]).returncode == 0
        assert python(box, code).returncode != 0


def test_raw_and_netlink_sockets(box: Sandbox) -> None:
    assert python(box, "import socket; socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 3)").returncode != 0
    assert python(box, "import socket; socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)").returncode != 0


def test_shared_memory_of_the_host(box: Sandbox) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    key = 0x0F71 + os.getpid()
    made = libc.shmget(key, 4096, 0o1666)
    assert made >= 0
    try:
        code = f"import ctypes; print(ctypes.CDLL(None).shmget({key}, 4096, 0o666))"
        assert run([sys.executable, "-I", "-c", code]).stdout.strip() == str(made)
        assert python(box, code).stdout.strip() == "-1"
    finally:
        libc.shmctl(made, 0, None)


# ---- writing where others will look


def test_system_and_package_folders(box: Sandbox) -> None:
    package = Path(module.__file__).parent
    for target in (
        "/usr/bin/evil",
        "/usr/lib/evil",
        "/etc/ld.so.preload",
        f"{package}/evil.py",
        f"{sys.prefix}/evil",
        "/bin/evil",
    ):
        done = shell(box, f"echo x > '{target}' && echo written")
        assert "written" not in done.stdout, target
        assert not Path(target).exists()


def test_remount(box: Sandbox) -> None:
    assert shell(box, "mount -o remount,rw /usr && echo done; mount --bind /tmp /usr && echo done").stdout == ""


def test_set_user_id_file_in_the_scratch_folder(box: Sandbox, scratch: Path) -> None:
    shell(box, f"cp /bin/true '{scratch}/t'; chmod 4755 '{scratch}/t'", writable=[scratch])
    # What comes out belongs to who started it, and a bit that it carries must not give more than that user has.
    found = (scratch / "t").stat()
    assert found.st_uid == (os.getuid() or NOBODY)
    done = shell(box, f"'{scratch}/t'; grep NoNewPrivs /proc/self/status", writable=[scratch])
    assert "NoNewPrivs:\t1" in done.stdout


def test_device_nodes(box: Sandbox, scratch: Path) -> None:
    done = shell(
        box, f"mknod '{scratch}/sda' b 8 0 && echo made; mknod /tmp/n c 195 1 && echo made", writable=[scratch]
    )
    assert "made" not in done.stdout
    names = shell(box, "ls /dev").stdout.split()
    assert not [n for n in names if n.startswith(("nvidia", "sd", "nvme", "vd", "mem", "kmsg", "fuse", "kvm", "dri"))]


def test_device_nodes_of_another_gpu(box: Sandbox, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The stand-ins for the nodes are really bound; which of them is what matters."""
    there = ["nvidia0", "nvidia1", "nvidia11", "nvidia-caps", "nvidia-modeset", "nvidia-uvm", "nvidiactl"]
    common = ["nvidia-uvm", "nvidiactl"]
    assert sorted(gpu_nodes.nodes_for(there, 0, 1)) == [*common[:1], "nvidia1", *common[1:]]
    assert sorted(gpu_nodes.nodes_for(there, 1, None)) == [*common[:1], "nvidia1", *common[1:]]
    assert sorted(gpu_nodes.nodes_for(there, 2, None)) == common
    assert sorted(gpu_nodes.nodes_for(["nvidia3", "nvidiactl"], 0, None)) == ["nvidia3", "nvidiactl"]
    for name in there:
        (tmp_path / name).touch()
    monkeypatch.setattr(gpu_nodes, "minor_number", lambda device: 11)
    real, bound = gpu_nodes.nodes_for, []

    def nodes(names: list[str], device: int, minor: int | None) -> list[str]:
        bound.extend(real(there, device, minor))
        return []

    monkeypatch.setattr(gpu_nodes, "nodes_for", nodes)
    box.command(["/bin/true"], SandboxAccess(gpu=True, device=2))
    assert sorted(set(bound)) == ["nvidia-uvm", "nvidia11", "nvidiactl"]


def test_file_name_macros(box: Sandbox, tmp_path: Path) -> None:
    """They say what the repository calls the file, and nothing of where anything lies."""
    text = (
        "__global__ void k(const char** p) { const char* all[] = {__FILE__, __BASE_FILE__}; p[0] = all[threadIdx.x]; }"
    )
    with NvrtcCompiler("sm_90", cache=None, sandbox=box, jobs=1) as compiler:
        made = compiler.compile(Translation(text, "src/a.cu", ("k",))).cubin
    assert b"src/a.cu" in made
    for folder in (Path(tempfile.gettempdir()), Path.home(), Path.cwd()):
        assert folder == Path("/") or str(folder).encode() not in made


def test_terminal_injection(box: Sandbox) -> None:
    # --new-session leaves no controlling terminal to push characters into (TIOCSTI).
    code = "import fcntl; fcntl.ioctl(open('/dev/tty'), 0x5412, b'x')"
    assert python(box, code).returncode != 0


def test_preloaded_library(box: Sandbox, scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_PRELOAD", "")
    monkeypatch.setenv("LD_AUDIT", "/tmp/evil.so")
    monkeypatch.setenv("PYTHONPATH", str(scratch))
    (scratch / "sitecustomize.py").write_text("print('taken over')")
    done = python(box, "import os; print('LD_AUDIT' in os.environ, 'LD_PRELOAD' in os.environ)", readable=[scratch])
    assert done.stdout == "False False\n"


@pytest.mark.parametrize(
    "name",
    ["--bind / x.cu", "-o evil", "a;touch pwned;.cu", "$(touch pwned).cu", "`touch pwned`.cu", "a\nb.cu", "'\".cu"],
)
def test_hostile_file_name(box: Sandbox, scratch: Path, name: str) -> None:
    path = scratch / name.replace("/", "_")
    path.write_text("content")
    done = run(box.command(["/bin/cat", str(path)], SandboxAccess(writable=[scratch], cwd=scratch)))
    assert done.stdout == "content"
    assert not (scratch / "pwned").exists()
