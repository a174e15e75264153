"""Places in TOML text: every value found must read back as what tomllib says stands there."""

from __future__ import annotations

import json
import tomllib
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.settings.toml_positions import Path, locate

TEXT = (
    """\
# a comment with = and [brackets]
title = "a # no comment" # one
[[kernel]]
file = 'a.cu'
"quo.ted" . "k\\u0065y" = 1_000
check = [ # first
  { n = 1, m.k = "x" },
  { n = 2 },
]
[kernel.launch]
grid = ["(n+1)/2", '''
]''']
block = \"\"\"2"\\"56\"\"\"
[[kernel]]
file = "b.cu"
[[kernel.chain]]
kernel = "p"
when = 1979-05-27 07:32:00
[[kernel.chain]]
kernel = "q"
"""
    + 'odd = """x"""""\nlast = true'
)


def _dig(data: Any, path: Path) -> Any:
    for part in path:
        data = data[part]
    return data


def _leaves(data: Any, path: Path = ()) -> list[Path]:
    items = data.items() if isinstance(data, dict) else enumerate(data)
    found: list[Path] = []
    for key, value in items:
        here = (*path, key)
        found += _leaves(value, here) if isinstance(value, dict | list) else [here]
    return found


def _check(text: str) -> None:
    data, places = tomllib.loads(text), locate(text)
    for path in _leaves(data):
        start, end = places[path].value
        assert tomllib.loads("v = " + text[start:end])["v"] == _dig(data, path)


def test_every_value_is_found_where_it_stands() -> None:
    _check(TEXT)
    _check(TEXT.replace("\n", "\r\n"))


def test_keys_and_tables_have_places() -> None:
    places = locate(TEXT)
    for path, key in {
        ("kernel", 0, "launch", "grid"): "grid",
        ("kernel", 0, "check", 0, "m", "k"): "m.k",
        ("kernel", 0, "launch"): "kernel.launch",
        ("kernel", 1, "chain", 1, "kernel"): "kernel",
        ("kernel", 0, "quo.ted", "key"): '"quo.ted" . "k\\u0065y"',
    }.items():
        start, end = places[path].key
        assert TEXT[start:end] == key
    assert places["kernel", 0, "check", 0, "n"].inline
    assert not places["kernel", 0, "launch", "grid"].inline


_value = st.recursive(
    st.one_of(st.integers(-(10**9), 10**9), st.booleans(), st.text(max_size=12)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)),
    max_leaves=8,
)


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_toml(k)} = {_toml(v)}" for k, v in value.items()) + " }"
    if isinstance(value, list):
        return "[\n" + ",\n # ]\n ".join(_toml(v) for v in value) + "]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return json.dumps(value)


@settings(deadline=None)
@given(st.dictionaries(st.text(max_size=5), _value, max_size=4))
def test_any_document_is_located(data: dict[str, Any]) -> None:
    text = "".join(f"{_toml(k)} = {_toml(v)}\n" for k, v in data.items())
    assert tomllib.loads(text) == data
    _check(text)
