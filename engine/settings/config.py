"""The project's settings, from `.optiml.yml` or `[tool.optiml]` in pyproject.toml: one frozen object, read strictly.

The dataclasses are the only place where an option is described. The reader and the published JSON schema
(`docs/optiml.schema.json`, written by `make schema`) both follow from them.
"""

from __future__ import annotations

import dataclasses
import difflib
import fnmatch
import json
import os
import stat
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NoReturn, TypeVar

from engine.settings.config_text import ConfigError, Keys, from_toml, from_yaml, shown
from engine.settings.config_values import Choice, Command, Flag, Kind, Many, Number, Text, Time, Wrong, kind_of
from engine.settings.suffixes import KERNELS

NAMES = (".optiml.yml", "pyproject.toml")
_MAX_BYTES = 256 << 10  # a pyproject.toml may hold much else
_MAX_GLOB = 200

T = TypeVar("T")


def _option(default: object, kind: Kind, says: str, written: object = None, key: str | None = None) -> Any:
    """An option's field. `written` is the default as a person writes it, `key` the option's name, where they differ."""
    return field(default=default, metadata={"kind": kind, "says": says, "written": written, "key": key})


def key_of(option: dataclasses.Field[Any]) -> str:
    """The name that a settings file uses for an option."""
    return option.metadata.get("key") or option.name


def _table(cls: type, says: str) -> Mapping[str, Any]:
    return {"table": cls, "says": says}


_GLOB = Text(
    rf"(?!/)(?!.*(?:^|/)\.\.(?:/|$))[^\x00-\x1f\\]{{1,{_MAX_GLOB}}}",
    "write a pattern relative to the root, such as src/**/*.cu",
)
_PATH = Text(
    r"(?!/)(?!.*(?:^|/)\.\.(?:/|$))[^\x00-\x1f\\]{1,200}|",
    "write a path inside the repository, relative to its root",
)
_MACRO = Text(r"[A-Za-z_][A-Za-z0-9_]{0,63}(=[A-Za-z0-9_.+-]{0,64})?", "write NAME or NAME=VALUE, a number or a name")
_ARCH = Text(r"sm_[0-9]{2,3}a?", "expected e.g. sm_90")
_MODEL = Text(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,99}|", "write the model's name on its server")
_PRICE = Text(
    r"[0-9]{1,5}(\.[0-9]{1,4})?/[0-9]{1,5}(\.[0-9]{1,4})?|",
    "write READ/WRITTEN in dollars per million tokens, as 2.50/10.00",
)
_ROLES = ("read", "triage", "write", "maintain", "admin")
Kinds = Literal["spec", "compile", "spills", "occupancy", "coalescing", "bank-conflicts"]
KINDS: tuple[Kinds, ...] = ("spec", "compile", "spills", "occupancy", "coalescing", "bank-conflicts")


@dataclass(frozen=True)
class Budgets:
    """Times in seconds."""

    total: float = _option(900.0, Time(5, 86_400), "Total for one pull request.", "15m")
    kernel: float = _option(120.0, Time(5, 86_400), "For the search of one kernel.", "2m")
    kernels: int = _option(8, Number(1, 100, whole=True), "Maximum number of kernels searched per pull request.")


@dataclass(frozen=True)
class All:
    """The search of every kernel of the default branch: `/optiml all`, and the scheduled workflow."""

    budget: float = _option(3600.0, Time(5, 86_400), "Total for one search of all kernels.", "1h")
    max_prs: int = _option(
        5, Number(1, 100, whole=True), "Maximum number of its pull requests that are open at once.", key="max-prs"
    )


@dataclass(frozen=True)
class Thresholds:
    """Ratios of times: base time over new time, above 1 is faster."""

    speedup: float = _option(
        1.02, Number(1.0, 100.0), "Minimum speedup for a suggestion (lower bound of its interval)."
    )
    regression: float = _option(
        0.98, Number(0.1, 1.0), "A changed kernel is a regression below this ratio (upper bound of its interval)."
    )


Tools = Literal["memcheck", "racecheck", "initcheck", "synccheck"]
TOOLS: tuple[Tools, ...] = ("memcheck", "racecheck", "initcheck", "synccheck")


@dataclass(frozen=True)
class Guardrails:
    """Hard conditions on suggestions. Slowdowns are ratios of times: new time over old time."""

    case: float = _option(
        1.03, Number(1.0, 10.0), "No timing case may become slower than this many times its old time."
    )
    spills: float = _option(
        1.0, Number(1.0, 100.0), "Minimum measured speedup (lower bound) at which spills and local memory may grow."
    )
    repeatable: bool = _option(True, Flag(), "Output must be bitwise reproducible where the original's is.")
    sanitizers: tuple[Tools, ...] = _option(
        TOOLS,
        Many(Choice(TOOLS)),
        "Tools of compute-sanitizer that must report no error; an original with a report is refused.",
    )
    command: tuple[str, ...] = _option(
        (),
        Command(),
        "An end-to-end benchmark or test, run in the sandbox with the old and the new files in turn.",
        "",
    )
    prepare: tuple[str, ...] = _option(
        (), Command(), "Run once in each of the two trees before the command, such as make.", ""
    )
    end_to_end: float = _option(
        1.03, Number(1.0, 10.0), "The command may not become slower than this many times its old time."
    )
    time: float = _option(
        120.0, Time(1, 86_400), "Total for all runs of the command; one run may take half of it.", "2m"
    )


@dataclass(frozen=True)
class Permissions:
    """Who may do what in a pull request: the least role on the repository."""

    commands: str = _option(
        "write", Choice(_ROLES), "Role required for commands in comments, except `apply`, `pr` and `all`."
    )
    apply: str = _option(
        "write", Choice(_ROLES[2:]), "Role required for `/optiml apply`, `/optiml pr` and `/optiml all`."
    )


@dataclass(frozen=True)
class SearchSettings:
    """What a search uses beside the rules."""

    tuner: bool = _option(False, Flag(), "Search templates too: sizes that are declared or that rules leave open.")
    memory: bool = _option(
        False,
        Flag(),
        "Keep lessons of searches in the runner's cache for later ones; never of pull requests from forks.",
    )


@dataclass(frozen=True)
class Model:
    """A language model as a source of edits. Its address and key come from the environment alone."""

    enabled: bool = _option(False, Flag(), "Ask a language model for edits, in addition to the rules.")
    name: str = _option("", _MODEL, "The model's name on its server.")
    plan: str = _option(
        "", _MODEL, "A model that makes plans for the other to write as code; `same` for the model itself."
    )
    judge: str = _option("", _MODEL, "A model that scores edits before they are tried; `same` for the model itself.")
    tokens: int = _option(200_000, Number(0, 100_000_000, whole=True), "Hard limit for one kernel.")
    price: str = _option(
        "", _PRICE, "Dollars per million tokens read and written, as `2.50/10.00`, for the cost in reviews."
    )


@dataclass(frozen=True)
class Post:
    """What is posted on a pull request."""

    review: bool = _option(True, Flag(), "A review with the findings.")
    suggestions: bool = _option(True, Flag(), "Suggestions that can be committed with a click.")
    status: bool = _option(True, Flag(), "One comment with the state of the run, edited in place.")
    check: bool = _option(True, Flag(), "A check run with annotations.")
    summary: bool = _option(True, Flag(), "The job's summary.")
    predicted: bool = _option(True, Flag(), "Findings that are predicted and not measured, marked as such.")
    conclusion: str = _option(
        "neutral", Choice(("neutral", "failure")), "Conclusion of the check run when a kernel became slower."
    )


@dataclass(frozen=True)
class CheckSettings:
    """The pre-commit hook optiml-check."""

    budget: float = _option(
        10.0,
        Time(0.5, 3600),
        "Per commit, or per file with `--all`; kernels that are not reached pass.",
        "10s",
    )
    fail: tuple[Kinds, ...] = _option(
        ("spec", "compile"), Many(Choice(KINDS)), "Kinds of findings that fail; the others warn."
    )
    ignore: tuple[Kinds, ...] = _option((), Many(Choice(KINDS)), "Kinds of findings that are not shown.")
    occupancy: float = _option(0.5, Number(0.0, 1.0), "Occupancy below which a kernel is a finding.")


@dataclass(frozen=True)
class Quick:
    """The pre-commit hook optiml-quick."""

    budget: float = _option(20.0, Time(1, 3600), "Total for all kernels.", "20s")
    fail: bool = _option(False, Flag(), "Fail when a faster version was found (otherwise pass and show the patch).")


STANDARDS = ("c++11", "c++14", "c++17", "c++20")


@dataclass(frozen=True)
class Compile:
    """What the compiler is given beside the source, for all files, on top of what a compile command says."""

    include: tuple[str, ...] = _option((), Many(_PATH, 0, 32), "Include folders, relative to the root.")
    define: tuple[str, ...] = _option((), Many(_MACRO, 0, 64), "Macros, as NAME or NAME=VALUE.")
    std: str = _option(
        "", Choice(("", *STANDARDS)), "The language standard (default: the compile command's, else c++17)."
    )


@dataclass(frozen=True)
class Config:
    """All settings. Every one has a default, so an empty file is a right one."""

    paths: tuple[str, ...] = _option(
        tuple(f"**/*{end}" for end in KERNELS), Many(_GLOB, 1), "Files to include (headers: those with kernels)."
    )
    exclude: tuple[str, ...] = _option((), Many(_GLOB), "Files to exclude.")
    targets: tuple[str, ...] = _option(
        ("sm_90",),
        Many(_ARCH, 1, 8),
        "Target architectures without a GPU; a suggestion must compile for all of them.",
    )
    compile_commands: str = _option(
        "",
        _PATH,
        "The compile_commands.json, or the folder it is in (default: looked for in the usual build folders).",
        key="compile-commands",
    )
    compile: Compile = field(default_factory=Compile, metadata=_table(Compile, "Compiler options."))
    recording: str = _option(
        "",
        _PATH,
        "Folder with a recording of `optiml capture`, in the repository: kernels with most of its time come first.",
    )
    budget: Budgets = field(default_factory=Budgets, metadata=_table(Budgets, "Time limits of a pull request."))
    all: All = field(default_factory=All, metadata=_table(All, "The search of every kernel of the default branch."))
    thresholds: Thresholds = field(
        default_factory=Thresholds, metadata=_table(Thresholds, "Thresholds for faster and slower.")
    )
    guardrails: Guardrails = field(
        default_factory=Guardrails, metadata=_table(Guardrails, "Hard conditions on suggestions.")
    )
    permissions: Permissions = field(
        default_factory=Permissions, metadata=_table(Permissions, "Roles required for commands.")
    )
    search: SearchSettings = field(
        default_factory=SearchSettings, metadata=_table(SearchSettings, "What a search uses beside the rules.")
    )
    model: Model = field(default_factory=Model, metadata=_table(Model, "A language model as a source of edits."))
    post: Post = field(default_factory=Post, metadata=_table(Post, "What is posted to GitHub."))
    check: CheckSettings = field(
        default_factory=CheckSettings, metadata=_table(CheckSettings, "The pre-commit hook optiml-check.")
    )
    quick: Quick = field(default_factory=Quick, metadata=_table(Quick, "The pre-commit hook optiml-quick."))

    def wants(self, path: str) -> bool:
        """Whether a repository-relative POSIX path is to be looked at. `**` stands for any number of folders."""
        return any(matches(path, p) for p in self.paths) and not any(matches(path, p) for p in self.exclude)


def matches(path: str, pattern: str) -> bool:
    """Whether a path matches a glob pattern, part by part; `**` stands for any number of parts. Time: their product."""
    reached = {0}
    parts = pattern.split("/")

    def skipping(states: set[int]) -> set[int]:
        found = set(states)
        for state in sorted(states):
            while state < len(parts) and parts[state] == "**":
                state += 1
                found.add(state)
        return found

    reached = skipping(reached)
    for part in path.split("/"):
        after: set[int] = set()
        for state in reached:
            if state < len(parts):
                if parts[state] == "**":
                    after.add(state)
                elif fnmatch.fnmatchcase(part, parts[state]):
                    after.add(state + 1)
        reached = skipping(after)
    return len(parts) in reached


def load_config(root: Path) -> tuple[Config, str]:
    """The settings of the repository at `root`, and the name of the file they are in ("" where there is none).

    Raises ConfigError: the file is wrong, is not a regular file, or both files have settings.
    """
    found: list[tuple[str, Config]] = []
    for name in NAMES:
        data = _read(root / name, name)
        config = None if data is None else parse_config(data, name)
        if config is not None:
            found.append((name, config))
    if len(found) > 1:
        raise ConfigError("pyproject.toml contains settings too", NAMES[0], "keep one of the two places")
    return (found[0][1], found[0][0]) if found else (Config(), "")


def parse_config(data: bytes, path: str) -> Config | None:
    """The settings in a file's bytes; None where a pyproject.toml has no `[tool.optiml]`. Raises ConfigError.

    `path` names the file in messages, and its end says the language (`.toml`, else YAML).
    """
    if len(data) > _MAX_BYTES:
        raise ConfigError(f"has {len(data)} bytes", path, f"at most {_MAX_BYTES} are read")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError("is not UTF-8 text", f"{path}:{line}", "save the file as UTF-8") from None
    value, lines = from_toml(text, path) if path.endswith(".toml") else from_yaml(text, path)
    if value is None:
        return None
    return _build(Config, value, (), lines, path)


def _build(cls: type[T], value: object, keys: Keys, lines: Mapping[Keys, int], path: str) -> T:
    def fail(at: Keys, what: str, do: str) -> NoReturn:
        raise ConfigError(what, f"{path}:{_line(lines, at)}", do)

    if not isinstance(value, dict):
        fail(keys, f"{_dotted(keys)} is {kind_of(value)}, not a table", "write key: value pairs below it")
    fields = {key_of(f): f for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
    given: dict[str, Any] = {}
    for key, entry in value.items():
        at = (*keys, key)
        option = fields.get(key) if isinstance(key, str) else None
        if option is None:
            near = difflib.get_close_matches(str(key)[:60], fields, n=1, cutoff=0.4)
            do = f"did you mean '{near[0]}'?" if near else f"known keys: {', '.join(fields)}"
            fail(at, f"unknown key {shown(key)}", do)
        if "table" in option.metadata:
            given[option.name] = _build(option.metadata["table"], entry, at, lines, path)
            continue
        try:
            given[option.name] = option.metadata["kind"].read(entry)
        except Wrong as wrong:
            at = at if wrong.index is None else (*at, wrong.index)
            fail(at, f"{_dotted(at)} {wrong.what}", wrong.do)
    return cls(**given)


def _read(path: Path, name: str) -> bytes | None:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        # A link could lead anywhere on the machine, and what stands there would be part of a message.
        raise ConfigError(f"cannot be read ({error.strerror})", name, "put the settings themselves there") from None
    with os.fdopen(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ConfigError("is not a regular file", name, "put the settings themselves there")
        return file.read(_MAX_BYTES + 1)


def _line(lines: Mapping[Keys, int], keys: Keys) -> int:
    while keys and keys not in lines:
        keys = keys[:-1]
    return lines.get(keys, 1)


def _dotted(keys: Keys) -> str:
    text = "".join(f"[{k}]" if isinstance(k, int) else f".{k[:60]}" for k in keys)
    return f"'{text[1:]}'" if text else "the file"


# ---- the schema


def schema() -> dict[str, Any]:
    """The settings as JSON schema (draft 2020-12), for editors and validators."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "OptiML settings (.optiml.yml, or [tool.optiml] in pyproject.toml)",
        **_schema_of(Config),
    }


def _schema_of(cls: type) -> dict[str, Any]:
    properties: dict[str, Any] = {}
    for option in dataclasses.fields(cls):
        meta = option.metadata
        if "table" in meta:
            properties[key_of(option)] = {"description": meta["says"], **_schema_of(meta["table"])}
            continue
        default = option.default if meta["written"] is None else meta["written"]
        default = list(default) if isinstance(default, tuple) else default
        properties[key_of(option)] = {"description": meta["says"], **meta["kind"].schema(), "default": default}
    return {"type": "object", "additionalProperties": False, "properties": properties}


def schema_text() -> str:
    """The published file's text."""
    return json.dumps(schema(), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    sys.stdout.write(schema_text())
