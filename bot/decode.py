"""Makes frozen dataclasses from JSON of a stranger: every field by its declared type, every size bounded."""

from __future__ import annotations

import dataclasses
import json
import math
import types
import typing
from collections.abc import Mapping
from enum import Enum
from functools import lru_cache
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin

from bot.errors import BundleError

T = TypeVar("T")

_MAX_TEXT = 2 << 20  # characters of one string; a patch is one
_MAX_ITEMS = 10_000  # of one list or object
_MAX_DEPTH = 24
_MAX_INTEGER = 2**63


def load_json(data: bytes) -> Any:
    """JSON without NaN, infinities, repeated keys and numbers of any length. Raises BundleError."""
    try:
        return json.loads(
            data.decode("utf-8"), parse_constant=_no_constant, parse_int=_integer, object_pairs_hook=_unique
        )
    except (ValueError, RecursionError) as error:
        raise BundleError(f"is no JSON that is taken here: {str(error)[:200]}") from None


def decode(kind: type[T], data: Any, where: str = "") -> T:
    """An instance of the dataclass `kind` from parsed JSON. Unknown and missing fields are errors. Raises BundleError."""
    return cast(T, _decode(kind, data, where or kind.__name__, 0))


def _decode(kind: Any, data: Any, where: str, depth: int) -> Any:
    if depth > _MAX_DEPTH:
        raise BundleError("is nested too deeply", where)
    if kind is Any:
        return _plain(data, where, depth)
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return _instance(kind, data, where, depth)
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        return _union(kind, data, where, depth)
    if origin is Literal:
        if isinstance(data, str) and data in get_args(kind):
            return data
        raise BundleError(f"is none of {', '.join(map(str, get_args(kind)))}", where)
    if origin is tuple:
        item = get_args(kind)[0]
        return tuple(_decode(item, d, f"{where}[{i}]", depth + 1) for i, d in enumerate(_list(data, where)))
    if origin is Mapping:
        item = get_args(kind)[1]
        return {key: _decode(item, d, f"{where}.{key[:80]}", depth + 1) for key, d in _object(data, where).items()}
    return _scalar(kind, data, where)


def _instance(kind: Any, data: Any, where: str, depth: int) -> Any:
    given = _object(data, where)
    hints = _hints(kind)
    fields = {field.name: field for field in dataclasses.fields(kind)}
    unknown = [key for key in given if key not in fields]
    if unknown:
        raise BundleError(f"has the unknown field '{unknown[0][:80]}'", where)
    values: dict[str, Any] = {}
    for name, field in fields.items():
        if name in given:
            values[name] = _decode(hints[name], given[name], f"{where}.{name}", depth + 1)
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise BundleError(f"has no field '{name}'", where)
    return kind(**values)


@lru_cache(maxsize=64)
def _hints(kind: Any) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _union(kind: Any, data: Any, where: str, depth: int) -> Any:
    options = get_args(kind)
    if data is None and type(None) in options:
        return None
    rest = [option for option in options if option is not type(None)]
    for option in rest[:-1]:
        try:
            return _decode(option, data, where, depth)
        except BundleError:
            continue
    return _decode(rest[-1], data, where, depth)


def _scalar(kind: Any, data: Any, where: str) -> Any:
    if kind is str and isinstance(data, str):
        return _text(data, where)
    if kind is bool and isinstance(data, bool):
        return data
    if kind in (int, float) and isinstance(data, int) and not isinstance(data, bool):
        return float(data) if kind is float else data
    if kind is float and isinstance(data, float) and math.isfinite(data):
        return data
    if isinstance(kind, type) and issubclass(kind, Enum) and isinstance(data, str):
        try:
            return kind(data)
        except ValueError:
            raise BundleError(f"'{data[:80]}' is unknown", where) from None
    raise BundleError(f"is no {getattr(kind, '__name__', kind)}", where)


def _plain(data: Any, where: str, depth: int) -> Any:
    if depth > _MAX_DEPTH:
        raise BundleError("is nested too deeply", where)
    if isinstance(data, dict):
        return {_text(k, where): _plain(v, where, depth + 1) for k, v in _object(data, where).items()}
    if isinstance(data, list):
        return [_plain(item, where, depth + 1) for item in _list(data, where)]
    if isinstance(data, str):
        return _text(data, where)
    if isinstance(data, float) and not math.isfinite(data):
        raise BundleError("is no finite number", where)
    return data


def _text(data: str, where: str) -> str:
    if len(data) > _MAX_TEXT:
        raise BundleError(f"is over {_MAX_TEXT} characters", where)
    if any(0xD800 <= ord(c) <= 0xDFFF for c in data):
        raise BundleError("holds half a character", where)
    return data


def _list(data: Any, where: str) -> list[Any]:
    if not isinstance(data, list) or len(data) > _MAX_ITEMS:
        raise BundleError(f"is no list of at most {_MAX_ITEMS} items", where)
    return data


def _object(data: Any, where: str) -> dict[str, Any]:
    if not isinstance(data, dict) or len(data) > _MAX_ITEMS:
        raise BundleError(f"is no object of at most {_MAX_ITEMS} fields", where)
    return data


def _integer(text: str) -> int:
    if len(text) > 20 or abs(int(text)) >= _MAX_INTEGER:
        raise ValueError("an integer is too large")
    return int(text)


def _no_constant(text: str) -> Any:
    raise ValueError(f"{text} is no number")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key stands twice in one object")
    return found
