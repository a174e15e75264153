"""What a job of another trust wrote, as frozen dataclasses: `engine.process.decode` at its strictest, with the error of this side."""

from __future__ import annotations

from typing import Any, TypeVar

from bot.errors import BundleError
from engine.process import decode as strict

T = TypeVar("T")


def load_json(data: bytes) -> Any:
    """JSON without NaN, infinities, repeated keys and numbers of any length. Raises BundleError."""
    try:
        return strict.load(data)
    except strict.NotThis as error:
        raise BundleError(error.what) from None


def decode(kind: type[T], data: Any, where: str = "") -> T:
    """An instance of the dataclass `kind` from parsed JSON. Unknown and missing fields are errors. Raises BundleError."""
    try:
        return strict.decode(kind, data, where)
    except strict.NotThis as error:
        raise BundleError(error.what, error.where) from None
