from __future__ import annotations

import tomllib

import pytest

from engine.settings.toml_positions import check_keys


@pytest.mark.parametrize(
    "text",
    [
        ".".join(["a"] * 50_000) + " = 1",
        "[" + ".".join(["a"] * 200) + "]",
        "x = {" + " . ".join(['"a b"'] * 100) + " = 1}",
    ],
)
def test_a_key_of_many_parts_is_refused_before_it_is_read(text: str) -> None:
    """tomllib takes a minute for one of 50,000."""
    with pytest.raises(tomllib.TOMLDecodeError, match="more than 64 parts"):
        check_keys("# a comment\n" + text)


def test_honest_texts_pass_and_long_ones_cost_little() -> None:
    check_keys("[a.b.c]\nd.e = 1.5\nf = 'x.y.z'\n" + "." * 500)
    check_keys("a" * 250_000)
    check_keys(("a." * 60 + "a = 1\n") * 1000)
    check_keys("'" * 100_000 + '"' * 100_000)
