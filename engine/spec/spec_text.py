"""A kernel spec as text: `// optiml:` lines or a table of an optiml.toml, with notes behind the lines."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence

from engine.spec.dtypes import parse_dtype
from engine.spec.kernel_spec import Argument, Case, KernelSpec, LaunchExpr

Notes = Mapping[str, Sequence[str]]  # by key of the spec: "args.x", "launch", "time", "kernel" …


def spec_text(
    spec: KernelSpec, notes: Notes, missing: Sequence[str], form: str, toml_file: str, typed: Collection[str] = ()
) -> str:
    """The text of a spec of one kernel. `form` is "comments" or "toml"; `toml_file` is the file's path in an optiml.toml.

    `typed` are arguments whose type is not that of the source.
    """
    step = spec.steps[0]
    rows: list[tuple[str, str]] = []
    if form == "toml":
        rows += [("", "[[kernel]]"), ("file", f"file = {_quoted(toml_file)}")]
    if form == "toml" or step.template_args:
        rows.append(("kernel", f"kernel = {_quoted(step.expression)}"))
    if not spec.deterministic:
        rows.append(("deterministic", "deterministic = false"))
    if step.launch:
        rows.append(("launch", launch_line(step.launch)))
    for argument in spec.arguments:
        if (argument.role != "scalar" or argument.value) and not spec.fields(argument.name):
            rows.append(
                (f"args.{argument.name}", f"args.{argument.name} = {_argument(argument, argument.name in typed)}")
            )
    rows += [("check", _cases("check", spec.check)), ("time", _cases("time", spec.time))]
    lines = [f"{text}  # {'; '.join(notes[key])}" if notes.get(key) else text for key, text in rows]
    lines += [f"# missing: {m}" for m in missing]
    prefix = "// optiml: " if form == "comments" else ""
    return "".join(f"{prefix}{line}\n" for line in lines)


def with_checks(text: str, cases: Sequence[Case], note: str) -> str:
    """The text of a spec with other cases to check; the rest stays as it is."""
    lines = []
    for line in text.splitlines():
        prefix, found, _ = line.partition("check = [")
        lines.append(f"{prefix}{_cases('check', cases)}  # {note}" if found and prefix in ("", "// optiml: ") else line)
    return "".join(f"{line}\n" for line in lines)


def _cases(key: str, cases: Sequence[Case]) -> str:
    return f"{key} = [{', '.join(_case(c) for c in cases)}]"


def _table(values: Mapping[str, object]) -> str:
    return "{ " + ", ".join(f"{k} = {v if isinstance(v, str) else json.dumps(v)}" for k, v in values.items()) + " }"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _case(case: Case) -> str:
    values = {**case.sizes, **({} if case.weight == 1 else {"weight": case.weight})}
    return _table(values) if values else "{}"


def launch_line(launch: LaunchExpr) -> str:
    """The line of a spec for a launch."""

    def extents(values: Sequence[str]) -> str:
        return _quoted(values[0]) if len(values) == 1 else f"[{', '.join(map(_quoted, values))}]"

    values = {"grid": extents(launch.grid), "block": extents(launch.block)}
    if launch.shared != "0":
        values["shared"] = _quoted(launch.shared)
    return f"launch = {_table(values)}"


def _argument(argument: Argument, typed: bool) -> str:
    values: dict[str, object] = {}
    declared = bool(argument.symbol) and "." not in argument.name  # with its extent, as constant memory
    if typed or (parse_dtype(argument.type).is_struct and "." not in argument.name):
        values["type"] = _quoted(argument.type)
    if argument.role == "scalar":
        return _table({**values, "value": _quoted(argument.value)})
    if not declared:
        values |= {"role": _quoted(argument.declared_role), "size": _quoted(argument.size or "?")}
    fill = argument.fill
    if argument.role != "out":
        parts = {"kind": _quoted(fill.kind), "low": _quoted(fill.low), "high": _quoted(fill.high)}
        given = {k: v for k, v in parts.items() if v != '""'}
        values["fill"] = _table(given) if len(given) > 1 else _quoted(fill.kind)
    return _table(values)
