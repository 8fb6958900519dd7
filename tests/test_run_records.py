"""What runs note down, and how they differ."""

import pytest

from fairseq_convattn.run_records import difference, write_json


def test_json_appears_whole(tmp_path):
    write_json({"a": 1}, tmp_path / "x.json")
    with pytest.raises(TypeError):
        write_json({"a": object()}, tmp_path / "x.json")
    assert (tmp_path / "x.json").read_text() == '{\n  "a": 1\n}\n'
    assert {path.name for path in tmp_path.iterdir()} == {"x.json"}


@pytest.mark.parametrize(
    ("after", "words"),
    [
        ({"--lr": "0.1", "--flag": None}, None),
        ({"--lr": "0.2", "--flag": None}, "--lr 0.1, not 0.2"),
        ({"--lr": "0.1"}, "with --flag"),
        ({"--lr": "0.1", "--flag": None, "--seed": "2"}, "without --seed 2"),
    ],
)
def test_the_first_difference_is_named(after, words):
    assert difference({"--lr": "0.1", "--flag": None}, after) == words
