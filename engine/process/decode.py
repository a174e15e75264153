"""Frozen dataclasses from JSON of a stranger: every field by its declared type, every size bounded."""

from __future__ import annotations

import dataclasses
import json
import math
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from enum import Enum
from functools import lru_cache, partial
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin

T = TypeVar("T")

_MAX_TEXT = 2 << 20  # characters of one string; a patch is one
_MAX_ITEMS = 10_000  # of one list or object
_MAX_DEPTH = 24
_MAX_INTEGER = 2**63
_MAX_FLOAT = (
    1e300  # what is computed from two of them stays finite more often than not, and no figure of ours comes near
)


class NotThis(ValueError):
    """The data has not the declared form: `what` is wrong with it, and `where`."""

    def __init__(self, what: str, where: str = "") -> None:
        super().__init__(f"{where} {what}" if where else what)
        self.what, self.where = what, where


def load(data: bytes | str) -> Any:
    """JSON without NaN, infinities, repeated keys and numbers of any length. Raises NotThis."""
    try:
        text = data.decode("utf-8") if isinstance(data, bytes) else data
        return json.loads(text, parse_constant=_no_constant, parse_int=_integer, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise NotThis(f"is not valid JSON: {str(error)[:200]}") from None


def decode(kind: type[T], data: Any, where: str = "", *, later: bool = False, most: int = _MAX_ITEMS) -> T:
    """An instance of the dataclass `kind` from parsed JSON. Missing and unknown fields and wrong types raise NotThis.

    With `later`, fields that are not known are left out: a later version of the same schema may have them. `most` bounds
    the items of each list and object.
    """
    try:
        return cast(T, _reader(cast(Any, kind))(data, _Limits(later, most), 0))
    except NotThis as error:
        raise NotThis(error.what, (where or kind.__name__) + error.where) from None


@dataclasses.dataclass(frozen=True)
class _Limits:
    later: bool
    most: int

    def items(self, data: Any) -> list[Any]:
        if not isinstance(data, list) or len(data) > self.most:
            raise NotThis(f"is not a list of at most {self.most} items")
        return data

    def fields(self, data: Any) -> dict[str, Any]:
        if not isinstance(data, dict) or len(data) > self.most:
            raise NotThis(f"is not an object of at most {self.most} fields")
        return data


# Reads a value that stands so deep. A NotThis says where below that value; who reads the value around it adds the way there, which for
# every value that is well took half of the time.
_Reader = Callable[[Any, _Limits, int], Any]


@lru_cache(maxsize=512)
def _reader(kind: Any) -> _Reader:
    """What reads values of a type, worked out once."""
    if kind in (Any, object):
        return _plain
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return partial(_instance, kind)
    origin, items = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return partial(_union, [option for option in items if option is not type(None)], type(None) in items)
    if origin is Literal:
        return partial(_literal, items)
    if origin is tuple:
        return partial(_tuple, items)
    if origin is Mapping:
        return partial(_mapping, items[1])
    return partial(_scalar, kind)


def _within(read: _Reader, data: Any, limits: _Limits, depth: int, place: str | int) -> Any:
    if depth > _MAX_DEPTH:
        raise NotThis("is nested too deeply", _at(place))
    try:
        return read(data, limits, depth)
    except NotThis as error:
        raise NotThis(error.what, _at(place) + error.where) from None


def _at(place: str | int) -> str:
    return f"[{place}]" if isinstance(place, int) else f".{place[:80]}"


def _instance(kind: Any, data: Any, limits: _Limits, depth: int) -> Any:
    given = limits.fields(data)
    fields = _fields(kind)
    if not (limits.later or given.keys() <= fields.keys()):
        unknown = next(key for key in given if key not in fields)
        raise NotThis(f"has the unknown field '{unknown[:80]}'")
    values: dict[str, Any] = {}
    for name, (read, needed) in fields.items():
        if name in given:
            values[name] = _within(read, given[name], limits, depth + 1, name)
        elif needed:
            raise NotThis(f"has no field '{name}'")
    return kind(**values)


@lru_cache(maxsize=64)
def _fields(kind: Any) -> dict[str, tuple[_Reader, bool]]:
    """What reads each field of a dataclass, and whether it must be there."""
    hints, missing = typing.get_type_hints(kind), dataclasses.MISSING
    return {
        field.name: (_reader(hints[field.name]), field.default is missing and field.default_factory is missing)
        for field in dataclasses.fields(kind)
    }


def _union(options: Sequence[Any], none: bool, data: Any, limits: _Limits, depth: int) -> Any:
    if data is None and none:
        return None
    for option in options[:-1]:
        with suppress(NotThis):
            return _reader(option)(data, limits, depth)
    return _reader(options[-1])(data, limits, depth)


def _literal(values: Sequence[Any], data: Any, limits: _Limits, depth: int) -> Any:
    if isinstance(data, str) and data in values:
        return data
    raise NotThis(f"is not one of {', '.join(map(str, values))}")


def _tuple(items: tuple[Any, ...], data: Any, limits: _Limits, depth: int) -> Any:
    given = limits.items(data)
    each = items[:1] * len(given) if items[-1] is Ellipsis else items
    if len(each) != len(given):
        raise NotThis(f"is not a list of {len(each)} items")
    return tuple([
        _within(_reader(kind), item, limits, depth + 1, place) for place, (kind, item) in enumerate(zip(each, given, strict=True))
    ])  # fmt: skip


def _mapping(kind: Any, data: Any, limits: _Limits, depth: int) -> Any:
    read = _reader(kind)
    return {_text(key): _within(read, item, limits, depth + 1, key) for key, item in limits.fields(data).items()}


def _plain(data: Any, limits: _Limits, depth: int) -> Any:
    if depth > _MAX_DEPTH:
        raise NotThis("is nested too deeply")
    if isinstance(data, dict):
        given = limits.fields(data)
        return {_text(key): _within(_plain, item, limits, depth + 1, key) for key, item in given.items()}
    if isinstance(data, list):
        return [_within(_plain, item, limits, depth + 1, at) for at, item in enumerate(limits.items(data))]
    if isinstance(data, str):
        return _text(data)
    if isinstance(data, float) and not math.isfinite(data):
        raise NotThis("is not a finite number")
    return data


def _scalar(kind: Any, data: Any, limits: _Limits, depth: int) -> Any:
    if kind is str and isinstance(data, str):
        return _text(data)
    if kind is bool and isinstance(data, bool):
        return data
    if kind is int and isinstance(data, int) and not isinstance(data, bool) and abs(data) < _MAX_INTEGER:
        return data
    if kind is float and isinstance(data, int | float) and not isinstance(data, bool) and abs(data) < _MAX_FLOAT:
        return float(data)  # NaN is not below anything
    if kind is bytes and data is None:
        return b""  # they come as a blob
    if isinstance(kind, type) and issubclass(kind, Enum) and isinstance(data, str):
        try:
            return kind(data)
        except ValueError:
            raise NotThis(f"is '{data[:80]}', not a valid {kind.__name__}") from None
    raise NotThis(f"is not of type {getattr(kind, '__name__', kind)}")


def _text(data: str) -> str:
    if len(data) > _MAX_TEXT:
        raise NotThis(f"exceeds {_MAX_TEXT} characters")
    if not data.isascii() and any(0xD800 <= ord(c) <= 0xDFFF for c in data):
        raise NotThis("contains an incomplete surrogate pair")
    return data


def _integer(text: str) -> int:
    if len(text) > 20 or abs(int(text)) >= _MAX_INTEGER:
        raise ValueError("an integer is too large")
    return int(text)


def _no_constant(text: str) -> Any:
    raise ValueError(f"{text} is not a number")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("an object has a duplicate key")
    return found
