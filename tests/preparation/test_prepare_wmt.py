"""The preparation of the translation corpora, on small files in the shape of the releases."""

import gzip
import hashlib
import io
import os
import random
import signal
import sys
import tarfile
from pathlib import Path

import pytest
from release_scripts import assert_refused, binarised, load_script

from fairseq_convattn.recipes import catalogue

ARCHIVE = "wmt16_en_de.tar.gz"


miniature_release, moses_text = map(load_script, ("miniature_release", "moses_text"))


def release(recipe: str, folder: Path) -> Path:
    """The release of a recipe in miniature."""
    files = [f"{file}={content}" for file, content in catalogue.RECIPES[recipe].release.items()]
    miniature_release.main([str(folder), "--files", *files])
    return folder


def archive(recipe: str, path: Path, folder: str) -> Path:
    """An archive of the release of a recipe in miniature; its files are in ``folder`` there."""
    path.parent.mkdir()
    with tarfile.open(path, "w:gz") as packed:
        packed.add(release(recipe, path.parent.with_name("files")), folder)
    return path


@pytest.mark.slow
def test_wmt16_wrong_and_truncated_downloads_are_detected(scripts, mirror, tmp_path):
    file = archive("wmt16_en_de", tmp_path / "source" / ARCHIVE, ".")
    output = tmp_path / "out"
    arguments = ("wmt16_en_de", "--mirror", mirror.address, "--output", output)
    whole = file.read_bytes()
    run = scripts.prepare(*arguments)
    assert_refused(run, f"{mirror.address}/{ARCHIVE} does not have the release's checksum 874ab6bb")
    assert not (tmp_path / "out.preparing").exists()
    numbers = {  # the names of the files come first, and stay
        **{"train": ["train", 300], "valid": ["newstest2013", 20]},
        **{split: ["newstest2014", 20] for split in ("test", "tok", "raw")},
    }
    scripts.for_release("wmt16_en_de", sum=hashlib.md5(whole).hexdigest(), **numbers)
    for wrong in (b"<html>This file is too large to be scanned</html>", whole[:-100]):
        file.write_bytes(wrong)
        run = scripts.prepare(*arguments)
        assert_refused(run, f"{ARCHIVE} does not have the release's checksum")
        assert not (tmp_path / "out.preparing").exists()
    file.write_bytes(whole)
    run = scripts.prepare(*arguments)
    assert run.returncode == 0, run.stdout + run.stderr
    assert {path.name for path in output.iterdir()} == {"bpe", "text", "bin", "origin"}
    dictionaries = [output / "bin" / f"dict.{language}.txt" for language in ("en", "de")]
    assert dictionaries[0].read_bytes() == dictionaries[1].read_bytes()
    assert len(binarised(output / "bin" / "test.en-de.de", dictionaries[1])) == 20
    for name in ("newstest2014.tok.de", "newstest2014.de"):
        assert len((output / "text" / name).read_text().splitlines()) == 20


@pytest.mark.slow
def test_iwslt14_is_known_by_its_archives_git_blob_and_by_its_lines(scripts, mirror, tmp_path):
    pytest.importorskip("sacremoses")
    whole = archive("iwslt14_de_en", tmp_path / "source" / "de-en.tgz", "de-en").read_bytes()
    arguments = ("iwslt14", "--mirror", mirror.address, "--output", tmp_path / "out")
    assert_refused(scripts.prepare(*arguments), "does not have the release's checksum aa8c3f40f88")
    assert not (tmp_path / "out.preparing").exists()
    digest = hashlib.sha1(f"blob {len(whole)}\0".encode() + whole).hexdigest()
    scripts.for_release("iwslt14", sum=digest)
    assert_refused(scripts.prepare(*arguments), "train.tags.de-en.de has 301 lines, not 174443")
    scripts.for_release("iwslt14", raw_lines=301, published=301, test_lines=100)
    run = scripts.prepare(*arguments)
    assert run.returncode == 0, run.stdout + run.stderr
    output = tmp_path / "out"
    assert {path.name for path in output.iterdir()} == {"text", "bpe", "bin", "origin"}
    assert "note: text/train.de differs from fairseq's own" in run.stdout
    assert len(binarised(output / "bin" / "test.de-en.de", output / "bin" / "dict.de.txt")) == 100
    train, valid = (
        (output / "text" / f"{split}.en").read_text().splitlines() for split in ("train", "valid")
    )
    assert (len(train), len(valid)) == (301 - 301 // 23, 301 // 23)


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("wmt14_en_fr", "training-parallel-europarl-v7.tgz"),
        ("wmt17_zh_en", "training-parallel-nc-v12.tgz"),
    ],
)
def test_statmts_archives_have_checksums(scripts, tmp_path, name, file):
    for module in catalogue.RECIPES[name].needs["prepare"]:
        pytest.importorskip(module)
    source = release(name, tmp_path / "source")
    (text,) = source.glob("training/*.zh-en.zh" if "zh" in name else "training/europarl*.en")
    text.unlink()
    (source / file).write_bytes(b"not the release")
    arguments = (name, "--source", source, "--output", tmp_path / "out")
    assert_refused(scripts.prepare(*arguments), f"{file} does not have the release's checksum")


def test_sides_of_different_lengths_are_refused(scripts, tmp_path):
    for module in catalogue.RECIPES["wmt17_zh_en"].needs["prepare"]:
        pytest.importorskip(module)
    source = release("wmt17_zh_en", tmp_path / "source")
    cut = source / "neu2017" / "NEU_en.txt"
    cut.write_text("".join(cut.read_text().splitlines(keepends=True)[:-1]))
    arguments = ("wmt17_zh_en", "--source", source, "--output", tmp_path / "out", "--sample")
    run = scripts.prepare(*arguments)
    assert_refused(run, "NEU_cn.txt has 300 lines and NEU_en.txt 299", "one file is incomplete")


def test_a_truncated_test_set_is_refused(scripts, tmp_path):
    for module in catalogue.RECIPES["iwslt14_de_en_low"].needs["prepare"]:
        pytest.importorskip(module)
    source = release("iwslt14_de_en_low", tmp_path / "source")
    (text,) = source.glob("raw/IWSLT14.TED.dev2010.de-en.de.xml")
    cut = text.with_name(f"{text.name}.gz")
    cut.write_bytes(gzip.compress(text.read_bytes())[:-20])
    text.unlink()
    arguments = ("--low", "--source", source, "--output", tmp_path / "out", "--sample")
    assert_refused(scripts.prepare("iwslt14", *arguments), f"{cut} cannot be read")


def test_chinese_needs_what_nobody_offers_for_download(scripts, tmp_path):
    run = scripts.prepare("wmt17_zh_en", "--output", tmp_path / "out")
    assert_refused(run, "--source DIR is needed: nobody offers the corpora of CWMT")
    for module in ("sacremoses", "jieba"):
        pytest.importorskip(module)
    run = scripts.prepare("wmt17_zh_en", "--source", tmp_path, "--output", tmp_path / "out")
    assert_refused(run, f"no casia2015.zip in {tmp_path}")


def test_masked_language_models_need_text(scripts, tmp_path):
    run = scripts.prepare("mlm", "--output", tmp_path / "out")
    assert_refused(run, "--source DIR is needed, with train.txt and valid.txt")
    run = scripts.prepare("mlm", "--source", tmp_path, "--output", tmp_path / "out")
    assert_refused(run, f"no train.txt in {tmp_path}")


def test_tokens_are_moses(capsys):
    pytest.importorskip("sacremoses")
    plain = moses_text.tokeniser("en", normalise=False, aggressive=False, lower=True)
    assert plain("Hello, world! It's <state-of-the-art>.") == (
        "hello , world ! it &apos;s &lt; state-of-the-art &gt; ."
    )
    split = moses_text.tokeniser("fr", normalise=True, aggressive=True, lower=False)
    assert (
        split("«\u00a0L'a-t-il dit\u00a0?\u200b»") == "&quot; L&apos; a @-@ t @-@ il dit ? &quot;"
    )


def test_cleaning_is_that_of_moses(tmp_path, capsys):
    rng = random.Random(1)
    pairs = [
        (" ".join("a" * rng.randint(0, 9)), " ".join("b" * rng.randint(0, 9))) for _ in range(99)
    ]
    for i, name in enumerate(("source", "target")):
        (tmp_path / name).write_text("".join(f"{pair[i]}\n" for pair in pairs))
    names = [str(tmp_path / name) for name in ("source", "target", "new_source", "new_target")]

    def cleaned(*options: str) -> list[tuple[str, str]]:
        moses_text.main(["clean", *names, "--longest", "7", *options])
        return list(zip(*(Path(name).read_text().splitlines() for name in names[2:]), strict=True))

    kept = []
    for source, target in pairs:
        m, n = len(source.split()), len(target.split())
        if m and n and m <= 7 and n <= 7 and not m / n > 1.5 and not n / m > 1.5:
            kept.append((source, target))
    assert cleaned() == kept
    assert f"kept {len(kept)} of 99 pairs" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="new_source is there already; it is not overwritten"):
        cleaned()
    for name in names[2:]:
        Path(name).unlink()
    whole = Path(names[1]).read_text()
    Path(names[1]).write_text(whole + "b\n")
    with pytest.raises(SystemExit, match="differ in length"):
        cleaned()
    Path(names[1]).write_text(whole)
    assert sorted(cleaned("--unique")) == sorted(set(kept))


def test_pairs_are_equal_that_are_written_alike(tmp_path):
    names = [str(tmp_path / name) for name in ("source", "target", "new_source", "new_target")]
    Path(names[0]).write_text("a b\na  b\na b")
    Path(names[1]).write_text("c d\nc d \nc d")
    moses_text.main(["clean", *names, "--longest", "7", "--unique"])
    assert [Path(name).read_text() for name in names[2:]] == ["a b\n", "c d\n"]


def test_a_line_that_is_no_utf8_is_named(tmp_path, monkeypatch):
    names = [str(tmp_path / name) for name in ("source", "target", "new_source", "new_target")]
    Path(names[0]).write_text("a\na\n")
    Path(names[1]).write_bytes(b"a\n\xff\n")
    with pytest.raises(SystemExit, match="target, line 2: not UTF-8"):
        moses_text.main(["clean", *names, "--longest", "7"])
    assert not Path(names[2]).exists()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(open(names[1], "rb")))
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO()))
    with pytest.raises(SystemExit, match="standard input, line 2: not UTF-8"):
        moses_text.main(["tokenise", "--language", "en"])


def test_a_killed_worker_ends_the_tokenisation(monkeypatch, capsys):
    """As when memory runs out."""

    def kill(line: str) -> str:
        os.kill(os.getpid(), signal.SIGKILL)
        return line

    monkeypatch.setattr(moses_text, "tokeniser", lambda *options: kill)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a\nb\n")))
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO()))
    with pytest.raises(SystemExit, match="error: a process ended early; is there enough memory"):
        moses_text.main(["tokenise", "--language", "en"])
