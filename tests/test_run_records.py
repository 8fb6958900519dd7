"""What runs note down, and how they differ."""

import shlex

import pytest

from fairseq_convattn.run_records import difference, parse_options, read_json, write_json


def test_json_appears_whole(tmp_path):
    write_json({"a": 1}, tmp_path / "x.json")
    with pytest.raises(TypeError):
        write_json({"a": object()}, tmp_path / "x.json")
    assert (tmp_path / "x.json").read_text() == '{\n  "a": 1\n}\n'
    assert {path.name for path in tmp_path.iterdir()} == {"x.json"}


@pytest.mark.parametrize("text, reason", [("{", "Expecting"), ("[1]", "it is not a JSON object")])
def test_a_damaged_record_is_named(tmp_path, text, reason):
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(OSError, match=f"x.json is damaged: {reason}"):
        read_json(tmp_path / "x.json")


def test_the_first_difference_is_named():
    before = {"--lr": "0.1", "--flag": None}
    assert difference(before, dict(before)) is None
    assert difference(before, before | {"--lr": "0.2"}) == "--lr 0.1, not 0.2"
    assert difference(before, {"--lr": "0.1"}) == "with --flag"
    assert difference(before, before | {"--seed": "2"}) == "without --seed 2"


def test_settings_are_what_a_command_line_means():
    line = "fairseq-train data/bin --lr 0.1 --adam-betas '(0.9, 0.98)' --flag --lr=0.2 --ids 1 -2"
    line += " -s de"
    options = {"--lr": "0.2", "--adam-betas": "(0.9, 0.98)", "--flag": None, "--ids": "1 -2"}
    options["-s"] = "de"
    assert parse_options(shlex.split(line)) == {"command": "fairseq-train data/bin", **options}
