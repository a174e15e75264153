"""Frozen dataclasses from JSON of a stranger: every field by its declared type, every size bounded."""

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
    return cast(T, _Decoder(later, most).value(kind, data, where or kind.__name__, 0))


@dataclasses.dataclass(frozen=True)
class _Decoder:
    later: bool
    most: int

    def value(self, kind: Any, data: Any, where: str, depth: int) -> Any:
        if depth > _MAX_DEPTH:
            raise NotThis("is nested too deeply", where)
        if kind in (Any, object):
            return self._plain(data, where, depth)
        if dataclasses.is_dataclass(kind) and isinstance(kind, type):
            return self._instance(kind, data, where, depth)
        origin = get_origin(kind)
        if origin in (Union, types.UnionType):
            return self._union(kind, data, where, depth)
        if origin is Literal:
            if isinstance(data, str) and data in get_args(kind):
                return data
            raise NotThis(f"is not one of {', '.join(map(str, get_args(kind)))}", where)
        if origin is tuple:
            given, items = self._list(data, where), get_args(kind)
            each = items[:1] * len(given) if items[-1] is Ellipsis else items
            if len(each) != len(given):
                raise NotThis(f"is not a list of {len(each)} items", where)
            pairs = enumerate(zip(each, given, strict=True))
            return tuple(self.value(k, d, f"{where}[{i}]", depth + 1) for i, (k, d) in pairs)
        if origin is Mapping:
            item = get_args(kind)[1]
            return {
                _text(key, where): self.value(item, d, f"{where}.{key[:80]}", depth + 1)
                for key, d in self._object(data, where).items()
            }
        return _scalar(kind, data, where)

    def _instance(self, kind: Any, data: Any, where: str, depth: int) -> Any:
        given = self._object(data, where)
        hints = _hints(kind)
        fields = {field.name: field for field in dataclasses.fields(kind)}
        unknown = [] if self.later else [key for key in given if key not in fields]
        if unknown:
            raise NotThis(f"has the unknown field '{unknown[0][:80]}'", where)
        values: dict[str, Any] = {}
        for name, field in fields.items():
            if name in given:
                values[name] = self.value(hints[name], given[name], f"{where}.{name}", depth + 1)
            elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
                raise NotThis(f"has no field '{name}'", where)
        return kind(**values)

    def _union(self, kind: Any, data: Any, where: str, depth: int) -> Any:
        options = get_args(kind)
        if data is None and type(None) in options:
            return None
        rest = [option for option in options if option is not type(None)]
        for option in rest[:-1]:
            try:
                return self.value(option, data, where, depth)
            except NotThis:
                continue
        return self.value(rest[-1], data, where, depth)

    def _plain(self, data: Any, where: str, depth: int) -> Any:
        if depth > _MAX_DEPTH:
            raise NotThis("is nested too deeply", where)
        if isinstance(data, dict):
            given = self._object(data, where)
            return {_text(k, where): self._plain(v, where, depth + 1) for k, v in given.items()}
        if isinstance(data, list):
            return [self._plain(item, where, depth + 1) for item in self._list(data, where)]
        if isinstance(data, str):
            return _text(data, where)
        if isinstance(data, float) and not math.isfinite(data):
            raise NotThis("is not a finite number", where)
        return data

    def _list(self, data: Any, where: str) -> list[Any]:
        if not isinstance(data, list) or len(data) > self.most:
            raise NotThis(f"is not a list of at most {self.most} items", where)
        return data

    def _object(self, data: Any, where: str) -> dict[str, Any]:
        if not isinstance(data, dict) or len(data) > self.most:
            raise NotThis(f"is not an object of at most {self.most} fields", where)
        return data


@lru_cache(maxsize=64)
def _hints(kind: Any) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _scalar(kind: Any, data: Any, where: str) -> Any:
    if kind is str and isinstance(data, str):
        return _text(data, where)
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
            raise NotThis(f"is '{data[:80]}', not a valid {kind.__name__}", where) from None
    raise NotThis(f"is not of type {getattr(kind, '__name__', kind)}", where)


def _text(data: str, where: str) -> str:
    if len(data) > _MAX_TEXT:
        raise NotThis(f"exceeds {_MAX_TEXT} characters", where)
    if any(0xD800 <= ord(c) <= 0xDFFF for c in data):
        raise NotThis("contains an incomplete surrogate pair", where)
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
