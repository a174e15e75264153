"""Self-test cases that a user brings: a folder of TOML files, each with an original, an edit of it, and what should happen."""

import tomllib
from pathlib import Path, PurePosixPath
from typing import Any

from engine.errors import UsageError
from engine.selftest.cases import HONEST, REFUSED, SelfCase, originals

_MAX_CASES = 10_000
_MAX_BYTES = 1 << 20
_KEYS = frozenset({"idea", "expect", "original", "edited", "kernel", "edit", "files", "only"})


def read_folder(folder: Path) -> tuple[SelfCase, ...]:
    """The cases of a folder and the folders below it, by name. The form is documented in docs/selftest.md.

    Raises UsageError with the file for what is no case. Nothing outside of the folder is read.
    """
    if not folder.is_dir():
        raise UsageError("no such folder of cases", str(folder), "give a folder of TOML files (docs/selftest.md)")
    root = folder.resolve()
    paths = sorted(path for path in root.rglob("*.toml") if path.name != "optiml.toml")
    if not paths or len(paths) > _MAX_CASES:
        many = f"{len(paths)} TOML files, more than {_MAX_CASES}" if paths else "no TOML file"
        raise UsageError(f"there are {many} in it", str(folder), "see docs/selftest.md")
    return tuple(_read(path, root) for path in paths)


def _read(path: Path, root: Path) -> SelfCase:
    where = str(path.relative_to(root))
    try:
        data = tomllib.loads(_bytes(path, root, where).decode())
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"is not valid TOML: {error}", where, "see docs/selftest.md") from None
    unknown = sorted(set(data) - _KEYS)
    if unknown:
        raise UsageError(f"unknown key '{unknown[0]}'", where, f"known keys: {', '.join(sorted(_KEYS))}")
    expect = data.get("expect")
    if expect not in ("refused", "accepted"):
        raise UsageError('needs expect = "refused" or "accepted"', where, "give the expected verdict of the edit")
    only = data.get("only", "")
    if only not in ("", "gpu", "cpu"):
        raise UsageError("'only' is not a path", where, 'write only = "gpu" or only = "cpu", or leave it out')
    outcomes = REFUSED if expect == "refused" else HONEST
    original, source = _original(data, path, root, where)
    edits, kernel, edited = _edit(data, path, root, where)
    if not (edits or kernel or edited is not None):
        raise UsageError("has no edit", where, "give 'edited', 'kernel' or [[edit]]")
    return SelfCase(
        where.removesuffix(".toml"), "attacks" if expect == "refused" else "honest", str(data.get("idea", "")), original,
        kernel, edits, () if only == "cpu" else outcomes, () if only == "gpu" else outcomes, "", source,
        tuple((name, _bytes(path.parent / name, root, where)) for name in _names(data.get("files", []), where)),
        () if edited is None else ((f"{original}.cu", edited),),
    )  # fmt: skip


def _original(data: dict[str, Any], path: Path, root: Path, where: str) -> tuple[str, bytes]:
    """The original's name, and its text where it is no original of the self-test's own."""
    name = data.get("original")
    if not isinstance(name, str):
        raise UsageError("needs 'original'", where, f"give a .cu file, or one of {', '.join(originals())}")
    if not name.endswith(".cu"):
        if name not in originals():
            raise UsageError(f"no original '{name[:80]}'", where, f"originals: {', '.join(originals())}")
        return name, b""
    return Path(name).stem, _bytes(path.parent / name, root, where)


def _edit(
    data: dict[str, Any], path: Path, root: Path, where: str
) -> tuple[tuple[tuple[str, str], ...], str, bytes | None]:
    edits = data.get("edit", [])
    kernel = data.get("kernel", "")
    whole = data.get("edited")
    good = isinstance(edits, list) and all(
        isinstance(e, dict) and set(e) == {"find", "replace"} and all(isinstance(v, str) for v in e.values())
        for e in edits
    )
    if not good or not isinstance(kernel, str) or not isinstance(whole, str | None):
        raise UsageError("has an edit with invalid keys", where, "see docs/selftest.md")
    edited = None if whole is None else _bytes(path.parent / whole, root, where)
    return tuple((e["find"], e["replace"]) for e in edits), kernel, edited


def _names(value: Any, where: str) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise UsageError("'files' is not a list of names", where, "see docs/selftest.md")
    for name in value:
        if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
            raise UsageError(f"'{name[:80]}' leads out of the folder", where, "keep a case's files in its folder")
    return value


def _bytes(path: Path, root: Path, where: str) -> bytes:
    """A file inside the folder. Raises UsageError."""
    found = path.resolve()
    if not found.is_relative_to(root) or not found.is_file():
        raise UsageError(f"'{path.name}' is not a file inside the folder", where, "keep a case's files in its folder")
    with found.open("rb") as stream:
        data = stream.read(_MAX_BYTES + 1)
    if len(data) > _MAX_BYTES:
        raise UsageError(f"'{path.name}' is larger than {_MAX_BYTES} bytes", where)
    return data
