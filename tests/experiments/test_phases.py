"""`phasewise phases`: tables, sentences, JSON and the page."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

from experiments.cli import app

ASK = ["phases", "--model", "llama-3.1-8b", "--device", "h100-sxm"]


def say(*more: str) -> str:
    result = CliRunner().invoke(app, [*ASK, *more])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_it_says_what_bounds_each_phase() -> None:
    text = say("--prompt", "2000", "--batch", "16", "--context", "500")
    assert "ridge 295 FLOP/byte" in text
    assert "prefill 1 x 2000" in text
    assert "decode 16 at 500" in text
    assert "compute bound from 317 prompt tokens on" in text


def test_rows_of_tokens_for_teaching() -> None:
    text = say("--prompt", "6", "--output", "4", "--token-rows")
    assert "without a KV cache, 6 prompt + 4 output: 6 + 7 + 8 + 9 = 30" in text
    assert "with a KV cache, 6 prompt + 4 output: 6 + 1 + 1 + 1 = 9" in text


def test_json_has_all_numbers() -> None:
    found = json.loads(say("--json", "--token-rows", "--output", "1"))
    assert round(found["ridge_flops_per_byte"]) == 295
    assert [step["bound"] for step in found["steps"]] == ["compute", "compute", "memory", "memory"]
    assert found["kv_bytes_per_token"] == 131072
    assert found["most_requests"] == found["kv_tokens"] // 1024
    assert found["tpot_floor_s"] is None
    assert found["token_rows"] == {"without_cache": [1024], "with_cache": [1024]}


def test_a_model_that_does_not_fit_says_so() -> None:
    result = CliRunner().invoke(app, ["phases", "--model", "deepseek-v3", "--device", "h200"])
    assert result.exit_code == 0
    assert "no room for KV blocks" in result.stdout


def test_the_page_needs_nothing_else(tmp_path: Path) -> None:
    page = tmp_path / "roofline.html"
    say("--plot", str(page))
    text = page.read_text(encoding="utf-8")
    assert 'id="roofline"' in text
    assert 'id="intensity"' in text
    assert "Prefill and decode on one device" in text


def test_a_wrong_name_is_one_line() -> None:
    result = CliRunner().invoke(app, ["phases", "--model", "lama-3.1-8b", "--device", "h100-sxm"])
    assert result.exit_code == 2
    assert "llama-3.1-8b" in result.output


def refused(*more: str) -> str:
    result = CliRunner().invoke(app, [*ASK, *more])
    assert result.exit_code == 2, result.output
    return result.stderr


def test_requests_fit_by_whole_blocks() -> None:
    found = json.loads(say("--json", "--context", "17"))
    assert found["most_requests"] == found["kv_tokens"] // 16 // 2


def test_no_column_is_cut_in_a_narrow_terminal() -> None:
    text = say("--prompt", "100000", "--batch", "256")
    assert "…" not in text
    (row,) = (line for line in text.splitlines() if "prefill 256 x 100000" in line)
    assert row.split()[4:] == [
        "25600000",
        "1.03e+06",
        "3,370",
        "305,000",
        "compute,",
        "1,030x",
        "1,040",
        "s",
    ]


def test_what_the_model_cannot_hold_is_refused() -> None:
    assert "--prompt and --output: 131,172 tokens" in refused("--prompt", "131044")
    assert "--context: 200,000 tokens" in refused("--context", "200000")


def test_a_page_is_an_html_file_in_a_folder_that_is_there(tmp_path: Path) -> None:
    assert "ends in .html" in refused("--plot", str(tmp_path / "roofline.png"))
    assert "there is no folder" in refused("--plot", str(tmp_path / "no" / "roofline.html"))
    assert list(tmp_path.iterdir()) == []
