"""YAML is read as it looks, or refused with the line."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments import strict_yaml
from sim.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e9", 1e9),
        ("1.5e-3", 1.5e-3),
        ("-2E+3", -2000.0),
        (".5", 0.5),
        ("1_000_000", 1_000_000),
        ("0x1F", 31),
        (".inf", float("inf")),
        ("no", "no"),
        ("on", "on"),
        ("1:30", "1:30"),
        ("010", "010"),
        ("2023-11-16", "2023-11-16"),
        ("true", True),
        ("~", None),
        ("", None),
    ],
)
def test_scalars_are_what_they_look_like(text: str, value: object) -> None:
    read = strict_yaml.parse(f"key: {text}", "c.yaml")["key"]

    assert read == value
    assert type(read) is type(value)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a: 1\nb: 2\na: 3", "c.yaml: line 3: a is given twice (first in line 1)"),
        ("x: {b: 1, b: 2}", "c.yaml: line 1: b is given twice (first in line 1)"),
        (
            "a: !!python/object/apply:os.system [ls]",
            "c.yaml: line 1, column 4: tags (!...) are not read: a config holds plain values only",
        ),
        ("1: 2", "c.yaml: line 1: key '1' is no word; put it in quotes"),
        ("[1]: 2", "c.yaml: line 1: a key has to be a word"),
        ("a: 1\n---\nb: 2", "c.yaml: line 2, column 1: a second document begins; a file holds one"),
        ("a: b: c", "c.yaml: line 1, column 5: mapping values are not allowed here"),
        ("a: &x [*x]", "c.yaml: nested without end"),
    ],
)
def test_what_is_ambiguous_or_unsafe_is_refused(text: str, line: str) -> None:
    with pytest.raises(ConfigError) as error:
        strict_yaml.parse(text, "c.yaml")

    assert str(error.value) == line


def test_aliases_that_explode_are_refused() -> None:
    bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "\n".join(
        f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 9)
    )

    with pytest.raises(ConfigError, match="aliases expand to more than 100,000 values"):
        strict_yaml.parse(bomb, "c.yaml")


def test_anchors_and_merge_keys_work() -> None:
    text = "base: &b {x: 1, y: 2}\nmore:\n  <<: *b\n  y: 3"

    assert strict_yaml.parse(text, "c")["more"] == {"x": 1, "y": 3}


def test_a_missing_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nothing\.yaml: no such file$"):
        strict_yaml.read(tmp_path / "nothing.yaml")


def test_a_byte_order_mark_is_no_part_of_the_first_key(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_bytes(b"\xef\xbb\xbfa: 1\r\nb: 2\r\n")

    assert strict_yaml.read(path) == {"a": 1, "b": 2}
