"""What is refused or warned of where fairseq begins to train, or to evaluate a checkpoint."""

import pytest
from fairseq import checkpoint_utils

from fairseq_convattn.checkpoints import guard

pytestmark = pytest.mark.reliability


@pytest.mark.parametrize(
    "name", ["checkpoint_best.pt", "checkpoint2.pt.tmp", "crash.pt.tmp", "dummy"]
)
def test_no_training_writes_through_a_link(tmp_path, name):
    (tmp_path / "private").write_text("kept")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / name).symlink_to(tmp_path / "private")
    with pytest.raises(FileExistsError, match=f"{name} is a symbolic link.+--save-dir"):
        checkpoint_utils.verify_checkpoint_directory(str(tmp_path / "run"))
    (tmp_path / "link").symlink_to(tmp_path / "run")
    (tmp_path / "run" / name).unlink()
    (tmp_path / "run" / "pretrained.pt").symlink_to(tmp_path / "private")
    checkpoint_utils.verify_checkpoint_directory(str(tmp_path / "link"))
    assert (tmp_path / "private").read_text() == "kept"


def test_no_training_writes_where_links_are_not_seen(tmp_path, unlistable):
    unlistable(tmp_path)
    with pytest.raises(FileExistsError, match="cannot be listed.+another --save-dir"):
        checkpoint_utils.verify_checkpoint_directory(str(tmp_path))


@pytest.mark.parametrize(
    "trained, words, used",
    [
        ("summarization", "fairseq-generate DATA", "translation"),
        ("summarization", "fairseq-interactive DATA --task=translation", "translation"),
        ("summarization", "fairseq-generate DATA --task summarization", None),
        ("summarization", "fairseq-interactive DATA --task=translation --task=summarization", None),
        ("summarization", "fairseq-validate DATA --task translation", None),
        ("summarization", "fairseq-train DATA", None),
        ("translation", "fairseq-generate DATA --task summarization", "summarization"),
        ("translation", "fairseq-generate DATA", None),
    ],
)
def test_a_summarizer_is_not_taken_for_a_translator_without_a_word_or_the_other_way_round(
    trained, words, used, monkeypatch, caplog
):
    monkeypatch.setattr("sys.argv", words.split())
    guard._warn_of_another_task({"cfg": {"task": {"_name": trained}}})
    warning = f"was trained with --task {trained}, and is used with {used}"
    assert (warning in caplog.text) == bool(caplog.messages) == bool(used)
