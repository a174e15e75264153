"""Settings files as plain values with the line of each key: TOML and YAML, and nothing of either beyond plain values."""

import re
import tomllib
from typing import Any, NoReturn

from engine.errors import OptimlError
from engine.settings.toml_positions import check_keys, locate

Keys = tuple[str | int, ...]
_MAX_DEPTH = 32


class ConfigError(OptimlError):
    """The settings have an unknown key, a wrong type or a value out of range. `where` is `path:line`."""

    exit_code = 2


def from_toml(text: str, path: str) -> tuple[object, dict[Keys, int]]:
    """The value of `[tool.optiml]` (None where there is none) and the line of each key. Raises ConfigError."""
    plain = text.replace("\r\n", "\n")
    try:
        check_keys(plain)
        value = tomllib.loads(plain)
        found = value.get("tool", {}).get("optiml") if isinstance(value.get("tool", {}), dict) else None
        if found is None:
            return None, {}
        places = locate(plain)
    except tomllib.TOMLDecodeError as error:
        match = re.search(r"\(at line (\d+)", str(error))
        raise ConfigError(f"is not valid TOML: {str(error)[:200]}", f"{path}:{match[1] if match else 1}") from None
    except RecursionError:
        raise ConfigError("is nested too deeply", path, "use flat tables") from None
    lines = {k[2:]: plain.count("\n", 0, p.key[0]) + 1 for k, p in places.items() if k[:2] == ("tool", "optiml")}
    return found, lines


def from_yaml(text: str, path: str) -> tuple[object, dict[Keys, int]]:
    """The value of a YAML document ({} where it is empty) and the line of each key. Raises ConfigError.

    Only plain values: no alias, no tag of Python's, no key twice, no depth to exhaust the stack with.
    """
    # Settings in YAML are rare, and hooks start without the reader of it.
    import yaml

    lines: dict[Keys, int] = {(): 1}

    def fail(what: str, mark: Any, do: str = "") -> NoReturn:
        raise ConfigError(what, f"{path}:{mark.line + 1 if mark is not None else 1}", do)

    def plain(node: yaml.Node, keys: Keys) -> object:
        if not isinstance(node, yaml.ScalarNode) and node.tag not in ("tag:yaml.org,2002:map", "tag:yaml.org,2002:seq"):
            fail("is not valid YAML: a tag", node.start_mark, "write the plain value")
        if isinstance(node, yaml.MappingNode):
            found: dict[object, object] = {}
            for key_node, value_node in node.value:
                key = scalar(key_node) if isinstance(key_node, yaml.ScalarNode) else None
                if not isinstance(key, str):
                    fail("a key is not a plain word", key_node.start_mark, "write key: value")
                if key in found:
                    fail(f"the key {shown(key)} is given twice", key_node.start_mark, "keep one of them")
                lines[*keys, key] = key_node.start_mark.line + 1
                found[key] = plain(value_node, (*keys, key))
            return found
        if isinstance(node, yaml.SequenceNode):
            entries = []
            for index, entry in enumerate(node.value):
                lines[*keys, index] = entry.start_mark.line + 1
                entries.append(plain(entry, (*keys, index)))
            return entries
        return scalar(node)

    def scalar(node: yaml.Node) -> object:
        return loader.construct_object(node)

    try:
        depth = 0
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            # An alias makes a small file a large value, and a deep one exhausts the stack.
            if isinstance(event, yaml.AliasEvent):
                fail("uses an alias", event.start_mark, "write the value out")
            if depth > _MAX_DEPTH:
                fail("is nested too deeply", event.start_mark, "use flat tables")
        loader = yaml.SafeLoader(text)
        root = loader.get_single_node()
        value = {} if root is None else plain(root, ())
    except yaml.MarkedYAMLError as error:
        fail(f"is not valid YAML: {error.problem or 'not understood'}"[:200], error.problem_mark or error.context_mark)
    except (yaml.YAMLError, ValueError) as error:
        line = text.count("\n", 0, getattr(error, "position", 0)) + 1
        raise ConfigError(f"is not valid YAML: {str(error).splitlines()[0][:200]}", f"{path}:{line}") from None
    return ({} if value is None else value), lines


def shown(value: object) -> str:
    """A given value in a message, cut short."""
    text = str(value)
    return f"'{text[:60]}…'" if len(text) > 60 else f"'{text}'"
