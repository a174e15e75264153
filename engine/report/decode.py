"""Frozen dataclasses from the JSON of an artifact: every field by its declared type; fields that are not known are left out.

A result of the same schema may have fields that were added later, so these are no error here.
"""

from __future__ import annotations

import dataclasses
import json
import math
import types
import typing
from collections.abc import Mapping
from enum import Enum
from functools import lru_cache
from typing import Any, TypeVar, Union, cast, get_args, get_origin

T = TypeVar("T")

_DEEPEST = 32


class NotThis(ValueError):
    """The data has not the declared form; the text says which field."""


def load(data: bytes | str) -> Any:
    """Parsed JSON without NaN and infinities. Raises NotThis."""
    try:
        return json.loads(data, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise NotThis(f"is no JSON: {str(error)[:120]}") from None


def decode(kind: type[T], data: Any, where: str = "") -> T:
    """An instance of the dataclass `kind`. Missing fields without a default and wrong types raise NotThis."""
    return cast(T, _decode(kind, data, where or kind.__name__, 0))


def _decode(kind: Any, data: Any, where: str, depth: int) -> Any:
    if depth > _DEEPEST:
        raise NotThis(f"{where} is nested too deeply")
    origin = get_origin(kind)
    if kind is Any:
        return data
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return _instance(kind, data, where, depth)
    if origin in (Union, types.UnionType):
        return _union(kind, data, where, depth)
    if origin is tuple and isinstance(data, list):
        items = get_args(kind)
        each = items[:1] * len(data) if items[-1] is Ellipsis else items
        if len(each) == len(data):
            return tuple(
                _decode(k, d, f"{where}[{i}]", depth + 1) for i, (k, d) in enumerate(zip(each, data, strict=True))
            )
    if origin is Mapping and isinstance(data, dict):
        item = get_args(kind)[1]
        return {key: _decode(item, d, f"{where}.{key[:60]}", depth + 1) for key, d in data.items()}
    if origin is typing.Literal and isinstance(data, str) and data in get_args(kind):
        return data
    return _scalar(kind, data, where)


def _instance(kind: Any, data: Any, where: str, depth: int) -> Any:
    if not isinstance(data, dict):
        raise NotThis(f"{where} is no object")
    hints = _hints(kind)
    values: dict[str, Any] = {}
    for field in dataclasses.fields(kind):
        if field.name in data:
            values[field.name] = _decode(hints[field.name], data[field.name], f"{where}.{field.name}", depth + 1)
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise NotThis(f"{where} has no field '{field.name}'")
    return kind(**values)


@lru_cache(maxsize=64)
def _hints(kind: Any) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _union(kind: Any, data: Any, where: str, depth: int) -> Any:
    if data is None and type(None) in get_args(kind):
        return None
    options = [option for option in get_args(kind) if option is not type(None)]
    for option in options[:-1]:
        try:
            return _decode(option, data, where, depth)
        except NotThis:
            continue
    return _decode(options[-1], data, where, depth)


def _scalar(kind: Any, data: Any, where: str) -> Any:
    if kind in (str, bool) and isinstance(data, kind):
        return data
    if kind in (int, float) and isinstance(data, int | float) and not isinstance(data, bool):
        if kind is int and isinstance(data, int) and abs(data) < 1 << 63:
            return data
        if kind is float and abs(data) < 1e300 and math.isfinite(data):
            return float(data)
    if isinstance(kind, type) and issubclass(kind, Enum) and data in [member.value for member in kind]:
        return kind(data)
    raise NotThis(f"{where} is no {getattr(kind, '__name__', 'such value')}")


def _no_constant(text: str) -> Any:
    raise ValueError(f"{text} is no number")
