"""Dataclasses from JSON of a stranger: what is wrong is said with its place."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

import pytest

from engine.process.decode import NotThis, decode


class Colour(StrEnum):
    RED = "red"


@dataclass(frozen=True)
class Leaf:
    number: int
    share: float = 0.5


@dataclass(frozen=True)
class Whole:
    name: str
    leaves: tuple[Leaf, ...] = ()
    pair: tuple[int, str] = (0, "")
    by_name: Mapping[str, Leaf | None] = field(default_factory=dict)
    kind: Literal["a", "b"] = "a"
    colour: Colour = Colour.RED
    either: int | str | None = None
    blob: bytes = b""
    flag: bool = False
    anything: Any = None
    within: Whole | None = None


WELL = {
    "name": "n", "leaves": [{"number": 1}, {"number": 2, "share": 1}], "pair": [3, "x"], "by_name": {"a": {"number": 4}, "b": None},
    "kind": "b", "colour": "red", "either": "text", "blob": None, "flag": True, "anything": {"a": [1, "b", None]},
    "within": {"name": "m"},
}  # fmt: skip


def test_every_field_comes_by_its_type() -> None:
    assert decode(Whole, WELL) == Whole(
        "n", (Leaf(1), Leaf(2, 1.0)), (3, "x"), {"a": Leaf(4), "b": None}, "b", Colour.RED, "text", b"", True,
        {"a": [1, "b", None]}, Whole("m"),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"leaves": [{"number": 1}, {"number": "2"}]}, "Whole.leaves[1].number is not of type int"),
        ({"leaves": [{"number": True}]}, "Whole.leaves[0].number is not of type int"),
        ({"leaves": [{"number": 2**63}]}, "Whole.leaves[0].number is not of type int"),
        ({"leaves": [{}]}, "Whole.leaves[0] has no field 'number'"),
        ({"leaves": [{"number": 1, "more": 2}]}, "Whole.leaves[0] has the unknown field 'more'"),
        ({"leaves": {}}, "Whole.leaves is not a list of at most 10000 items"),
        ({"leaves": [{"number": 1, "share": float("nan")}]}, "Whole.leaves[0].share is not of type float"),
        ({"pair": [1]}, "Whole.pair is not a list of 2 items"),
        ({"pair": [1, 2]}, "Whole.pair[1] is not of type str"),
        ({"by_name": {"k": {"number": None}}}, "Whole.by_name.k.number is not of type int"),
        ({"by_name": {"\ud800": None}}, "Whole.by_name contains an incomplete surrogate pair"),
        ({"by_name": []}, "Whole.by_name is not an object of at most 10000 fields"),
        ({"kind": "c"}, "Whole.kind is not one of a, b"),
        ({"colour": "blue"}, "Whole.colour is 'blue', not a valid Colour"),
        ({"either": 1.5}, "Whole.either is not of type str"),
        ({"anything": [0, {"a": float("inf")}]}, "Whole.anything[1].a is not a finite number"),
        ({"within": {"name": "m", "within": {"name": 0}}}, "Whole.within.within.name is not of type str"),
        ({"name": "x" * ((2 << 20) + 1)}, "Whole.name exceeds 2097152 characters"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(NotThis) as raised:
        decode(Whole, {**WELL, **changed})
    assert str(raised.value) == said


def test_what_is_nested_too_deeply_is_refused() -> None:
    deep = json.loads("[" * 26 + "]" * 26)
    with pytest.raises(NotThis, match="is nested too deeply"):
        decode(Whole, {"name": "n", "anything": deep})
    assert decode(Whole, {"name": "n", "anything": deep[0][0][0]}).anything == deep[0][0][0]


def test_a_later_version_may_have_more_fields_and_who_asks_bounds_them() -> None:
    assert decode(Leaf, {"number": 1, "new": 2}, later=True) == Leaf(1)
    with pytest.raises(NotThis, match=r"^there\.leaves is not a list of at most 11 items$"):
        decode(Whole, {"name": "n", "leaves": [{"number": 1}] * 12}, "there", most=11)
