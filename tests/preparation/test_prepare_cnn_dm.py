"""CNN/DailyMail."""

import hashlib
import random
import shutil
import tarfile
from pathlib import Path

import pytest
from fairseq.data import Dictionary
from release_scripts import assert_refused, binarised, load_script, sha256

extract_cnn_dm = load_script("extract_cnn_dm")

URL = "http://web.archive.org/web/2015id_/http://www.example.org/{}.html"


def story_name(url: str) -> str:
    return hashlib.sha1(url.encode()).hexdigest() + ".story"


def story(article: str, *highlights: str) -> str:
    return "\n\n".join((article, *(f"@highlight\n\n{line}" for line in highlights))) + "\n"


def test_extracts_article_and_summary():
    text = story(
        "By . Jane Doe\n\n(CNN)  --  First\u00a0line\tof ‘text.’\r\nA caption\n\n He said “no” .  ",
        "Summaries lack stops",
        "Is this one?",
        "two\nlines",
    )
    assert extract_cnn_dm.article_and_summary(text) == (
        "By . Jane Doe. (CNN) -- First line of ‘text.’ A caption. He said “no” .",
        "Summaries lack stops. <q> Is this one? <q> two. <q> lines.",
    )
    assert extract_cnn_dm.article_and_summary(story("", "Only a highlight.")) == (
        "",
        "Only a highlight.",
    )
    assert extract_cnn_dm.article_and_summary("No highlights.\n@highlight\n\n") == (
        "No highlights.",
        "",
    )


def test_extraction_names_what_is_missing_and_keeps_what_is_there(tmp_path, capsys):
    stories, urls = tmp_path / "stories", tmp_path / "urls.txt"
    stories.mkdir()
    urls.write_text("".join(URL.format(i) + "\n" for i in (2, 1, 3)))
    (stories / story_name(URL.format(1))).write_text(story("One", "1"))
    arguments = ["--stories", str(stories), "--urls", str(urls), "--output", str(tmp_path / "out")]
    with pytest.raises(SystemExit, match=f"2 of the stories .* first {story_name(URL.format(2))}"):
        extract_cnn_dm.main(arguments)
    (stories / story_name(URL.format(2))).write_text(story("Two", "2"))
    (stories / story_name(URL.format(3))).write_bytes(b"\xff" + story("Three", "3").encode())
    with pytest.raises(SystemExit, match="utf-8"):
        extract_cnn_dm.main(arguments)
    (stories / story_name(URL.format(3))).write_text(story("", "3"))
    extract_cnn_dm.main(arguments)
    assert (tmp_path / "out.source").read_text() == "Two.\nOne.\n"
    assert (tmp_path / "out.target").read_text() == "2.\n1.\n"
    assert "2 pairs of 3 stories; 1 lack" in capsys.readouterr().out


@pytest.fixture
def cnn_dm(tmp_path) -> dict[str, list[tuple[str, str]]]:
    """The release's files in tmp_path/source; its pairs by split."""
    rng = random.Random(3)

    def words(count: int) -> str:
        letters = "abcdefghijklmnopqrstuvwxyz"
        return " ".join("".join(rng.choices(letters, k=8)) for _ in range(count))

    source = tmp_path / "source"
    pairs, stories = {}, {}
    for list_name, count in (("train", 30), ("val", 4), ("test", 5)):
        urls = [URL.format(f"{list_name}/{i}") for i in range(count)]
        rng.shuffle(urls)
        split = "valid" if list_name == "val" else list_name
        pairs[split] = []
        for number, url in enumerate(urls):
            article = "" if (split, number) == ("train", 3) else words(500) + "."
            highlights = [f"{words(4)}." for _ in range(3)]
            stories[url] = story(article, *highlights)
            if article:
                pairs[split].append((article, " <q> ".join(highlights)))
        (tmp_path / "source" / "url_lists").mkdir(parents=True, exist_ok=True)
        (source / "url_lists" / f"all_{list_name}.txt").write_text("\n".join(urls) + "\n")
    for i, (url, text) in enumerate(stories.items()):
        folder = source / ("cnn", "dailymail")[i % 2] / "stories"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / story_name(url)).write_text(text)
    for publisher in ("cnn", "dailymail"):
        with tarfile.open(source / f"{publisher}_stories.tgz", "w:gz") as archive:
            archive.add(source / publisher, publisher)
        shutil.rmtree(source / publisher)
    return pairs


def cnn_dm_numbers(source: Path) -> dict[str, object]:
    archives = [source / f"{publisher}_stories.tgz" for publisher in ("cnn", "dailymail")]
    lists = [source / "url_lists" / f"all_{name}.txt" for name in ("train", "val", "test")]
    return {path.name: sha256(path) for path in (*archives, *lists)}


@pytest.mark.slow
@pytest.mark.ci
def test_cnn_dm(scripts, cnn_dm, tmp_path):
    source, output = tmp_path / "source", tmp_path / "out"
    numbers = {
        **cnn_dm_numbers(source),
        "train": ["all_train", 29],  # list and pairs
        "valid": ["all_val", 4],
        "test": ["all_test", 5],
    }
    scripts.for_release("cnn_dm", **numbers)
    run = scripts.prepare("cnn_dm", "--source", source, "--output", output)
    assert run.returncode == 0, run.stdout + run.stderr
    assert {path.name for path in output.iterdir()} == {"text", "bpe", "pieces", "bin", "origin"}
    dictionaries = [output / "bin" / f"dict.{side}.txt" for side in ("source", "target")]
    assert dictionaries[0].read_bytes() == dictionaries[1].read_bytes()
    assert len(Dictionary.load(str(dictionaries[0]))) == 30_001  # with <pad>
    longest = 0
    for split, pairs in cnn_dm.items():
        for side, texts in zip(("source", "target"), zip(*pairs, strict=True), strict=True):
            lines = (output / "text" / f"{split}.{side}").read_text(encoding="utf-8")
            assert lines.splitlines() == list(texts)
            prefix = output / "bin" / f"{split}.source-target.{side}"
            found = [line.split() for line in binarised(prefix, dictionaries[0])]
            decoded = ["".join(pieces).replace("\u2581", " ")[1:] for pieces in found]
            if side == "target":
                assert decoded == list(texts)
                assert all(pieces.count("\u2581<q>") == 2 for pieces in found)
            else:
                assert all(map(str.startswith, texts, decoded))
                longest = max(longest, *map(len, found))
    assert longest == 400


def test_cnn_dm_from_folders(scripts, cnn_dm, tmp_path):
    source, output = tmp_path / "source", tmp_path / "out"
    shutil.unpack_archive(source / "dailymail_stories.tgz", source)
    (source / "dailymail_stories.tgz").unlink()
    scripts.stand_in("fairseq-preprocess", "exit 1")
    arguments = ("cnn_dm", "--source", source, "--output", output, "--sample")
    run = scripts.prepare(*arguments)
    assert_refused(run, "fairseq-preprocess failed")
    work = output.with_name("out.preparing")
    assert {path.name for path in work.iterdir() if path.is_dir()} == {"text", "bpe", "pieces"}
