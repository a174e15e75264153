"""Where things are kept between runs. Apart from the machine, so that asking for it loads nothing heavy."""

import os
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from engine.errors import MachineError, OptimlError, UsageError

TRUST = "OPTIML_TRUST"
# Who wrote the code that a run compiles: what one domain keeps no other reads, as a worker that was taken over may have written it.
DOMAINS = ("trusted", "pull", "fork")


def trust_domain() -> str:
    """`$OPTIML_TRUST`: "trusted" (a branch of the repository, the default), "pull" (a pull request) or "fork" (one of a fork).

    Raises UsageError.
    """
    found = os.environ.get(TRUST) or DOMAINS[0]
    if found not in DOMAINS:
        raise UsageError(f"{TRUST} is '{found[:80]}'", "", f"set it to one of: {', '.join(DOMAINS)}")
    return found


@contextmanager
def trust(domain: str) -> Iterator[None]:
    """Have this process, and those that it starts, work on code of this domain for a while."""
    before = os.environ.get(TRUST)
    os.environ[TRUST] = domain
    try:
        yield
    finally:
        if before is None:
            del os.environ[TRUST]
        else:
            os.environ[TRUST] = before


def cache_folder() -> Path:
    """Where compiled things are kept between runs: `$OPTIML_CACHE`, else the user's cache folder; below it for other than trusted code.

    Raises UsageError.
    """
    given = os.environ.get("OPTIML_CACHE")
    root = Path(given) if given else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "optiml"
    domain = trust_domain()
    return root if domain == DOMAINS[0] else root / f"domain-{domain}"


def private_folder(folder: Path) -> Path:
    """Make a folder for this user alone (mode 0700), or narrow one that is there. Raises MachineError where others could write to it."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        found = folder.stat()
        if found.st_uid == os.geteuid() and stat.S_IMODE(found.st_mode) & 0o077:
            folder.chmod(0o700)
        elif found.st_uid != os.geteuid() and stat.S_IMODE(found.st_mode) & 0o022:
            raise MachineError("the cache folder belongs to another user, and others can write to it", str(folder),
                               "set OPTIML_CACHE to another folder")  # fmt: skip
    except OSError:
        pass  # a cache that cannot be written turns itself off, and says so
    return folder


def read_regular(path: Path, limit: int) -> bytes | None:
    """The content of a regular file of at most `limit` bytes; None where there is none.

    A link, a pipe or a device in its place is none: it may have been put there for us to hang or to read elsewhere.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode) or found.st_size > limit:
            return None
        with os.fdopen(os.dup(handle), "rb") as stream:
            data = stream.read(limit + 1)
        return data if len(data) <= limit else None
    except OSError:
        return None
    finally:
        os.close(handle)


def ignore_folder(out: Path) -> None:
    """Keep a default output folder out of git, as the tools of Python do with their caches."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        if out.parent.name == ".optiml":
            marker = out.parent / ".gitignore"
            if not marker.exists():
                marker.write_text("*\n")
    except NotADirectoryError:
        raise MachineError("is not a folder", str(out), "choose another --out") from None
    except OSError as error:
        raise MachineError(f"cannot be written: {error.strerror}", str(out), "choose a writable --out") from None


@contextmanager
def results_folder(out: Path) -> Iterator[None]:
    """`ignore_folder`, and where a run is refused (raises OptimlError) and left nothing there, what was made for it goes again."""
    made = [folder for folder in (out, *out.parents) if not folder.exists()]
    ignore_folder(out)
    try:
        yield
    except OptimlError:
        for folder in made:  # the innermost first
            with suppress(OSError):
                if [p.name for p in folder.iterdir()] == [".gitignore"]:
                    (folder / ".gitignore").unlink()
                folder.rmdir()
        raise


def replace_file(path: Path, data: bytes, do: str, mode: int = 0o600) -> None:
    """Replace a file's contents at once: a full disk leaves the old ones. A new file has the mode. Raises MachineError with `do`."""
    temporary = ""
    try:
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
        os.chmod(temporary, stat.S_IMODE(path.stat().st_mode) if path.exists() else mode)
        os.replace(temporary, path)
    except OSError as error:
        if temporary:
            Path(temporary).unlink(missing_ok=True)
        raise MachineError(f"cannot be written: {error.strerror}", str(path), do) from None


def write_files(folder: Path, contents: Mapping[str, bytes | None]) -> None:
    """Put a result's files into `folder`, and take away those of no contents. Raises MachineError.

    Each file is written beside its name first, so that a reader finds a whole one or none.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in contents.items():
            if data is not None:
                (folder / f".{name}.new").write_bytes(data)
        for name, data in contents.items():
            if data is None:
                (folder / name).unlink(missing_ok=True)
            else:
                (folder / f".{name}.new").replace(folder / name)
    except OSError as error:
        raise MachineError(
            f"the result cannot be written: {error.strerror}", str(folder), "free some space or choose another --out; "
            "the journal contains all evaluated candidates, so --resume does not search again",
        ) from None  # fmt: skip
