"""A kernel spec as plain data, for frames between processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from engine.spec.kernel_spec import Argument, Case, CompileOptions, Fill, KernelSpec, LaunchExpr, Step


def as_spec(data: Mapping[str, Any]) -> KernelSpec:
    """A KernelSpec from its `dataclasses.asdict` form."""

    def launch(value: Mapping[str, Any] | None) -> LaunchExpr | None:
        if value is None:
            return None
        constants = tuple((str(name), int(number)) for name, number in value.get("constants", ()))
        return LaunchExpr(tuple(value["grid"]), tuple(value["block"]), value["shared"], constants)

    def cases(values: Sequence[Mapping[str, Any]]) -> tuple[Case, ...]:
        return tuple(Case(v["name"], v["sizes"], v["weight"], v["changed"]) for v in values)

    return KernelSpec(
        file=data["file"],
        steps=tuple(
            Step(s["kernel"], s["template_args"], tuple(s["arguments"]), launch(s["launch"])) for s in data["steps"]
        ),
        arguments=tuple(Argument(**{**a, "fill": Fill(**a["fill"])}) for a in data["arguments"]),
        check=cases(data["check"]),
        time=cases(data["time"]),
        tolerance=data["tolerance"],
        compile=CompileOptions(
            tuple(data["compile"]["defines"]),
            tuple(data["compile"]["include"]),
            data["compile"]["std"],
            data["compile"]["unit"],
        ),
        origin=data["origin"],
        deterministic=data["deterministic"],
    )
