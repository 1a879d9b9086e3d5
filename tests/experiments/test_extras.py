"""A missing optional dependency says what to install."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.extras import MissingExtraError, require


def test_an_installed_module_is_returned() -> None:
    assert require("json", "figures").dumps(1) == "1"


def test_a_missing_extra_is_one_line_with_the_command_to_install_it() -> None:
    with pytest.raises(MissingExtraError) as caught:
        require("no_such_renderer", "figures", "writing SVG files")
    assert str(caught.value) == (
        "writing SVG files needs no_such_renderer, which is not installed; "
        'install it with: pip install "phasewise[figures]"'
    )


def test_a_broken_extra_is_not_reported_as_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_renderer.py").write_text("import what_it_needs\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="what_it_needs"):
        require("broken_renderer", "figures")
