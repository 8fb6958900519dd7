"""The preparation of the translation corpora, on small files in the shape of the releases."""

import hashlib
import random
import shutil
import tarfile
from pathlib import Path

import pytest
from release_scripts import Scripts, assert_refused, binarised, load_script

from fairseq_convattn.recipes import catalogue

ARCHIVE = "wmt16_en_de.tar.gz"


miniature_release, moses_text = map(load_script, ("miniature_release", "moses_text"))


def release(recipe: str, folder: Path) -> Path:
    """The release of a recipe in miniature."""
    files = [f"{file}={content}" for file, content in catalogue.recipe(recipe).release.items()]
    miniature_release.main([str(folder), "--files", *files])
    return folder


@pytest.fixture
def wmt16(tmp_path) -> Path:
    """The folder of Google's archive, for its MD5 is of the whole."""
    (tmp_path / "source").mkdir()
    folder = release("wmt16_en_de", tmp_path / "files")
    with tarfile.open(tmp_path / "source" / ARCHIVE, "w:gz") as archive:
        for file in folder.iterdir():
            archive.add(file, f"./{file.name}")
    shutil.rmtree(folder)
    return tmp_path / "source"


def wmt16_numbers(source: Path) -> dict[str, object]:
    digest = hashlib.md5((source / ARCHIVE).read_bytes()).hexdigest()
    return {
        "sum": digest,
        "train": ["train", 300],
        "valid": ["newstest2013", 20],
        "test": ["newstest2014", 20],
        "tok": ["newstest2014", 20],
        "raw": ["newstest2014", 20],
    }


def for_wmt16(scripts: Scripts, source: Path) -> None:
    """Names stay as they are; the checksum and the numbers become those of the miniature."""
    script = scripts.folder / "prepare_wmt16_en_de.sh"
    text = script.read_text(encoding="utf-8")
    for old, new in (
        ("874ab6bbfe9c21ec987ed1b9347f95ec", wmt16_numbers(source)["sum"]),
        ("[train]=4500966 [valid]=3000", "[train]=300 [valid]=20"),
        ("[test]=3003 [tok]=3003 [raw]=3003", "[test]=20 [tok]=20 [raw]=20"),
    ):
        assert text.count(old) == 1
        text = text.replace(old, str(new))
    script.write_text(text, encoding="utf-8")


@pytest.mark.slow
@pytest.mark.ci
def test_wmt16_wrong_and_truncated_downloads_are_detected(scripts, wmt16, mirror, tmp_path):
    arguments = ("wmt16_en_de", "--mirror", mirror.address, "--output", tmp_path / "out")
    whole = (wmt16 / ARCHIVE).read_bytes()
    run = scripts.prepare(*arguments)
    assert_refused(run, f"{mirror.address}/{ARCHIVE} does not have the release's checksum 874ab6bb")
    assert not (tmp_path / "out.preparing").exists()
    for_wmt16(scripts, wmt16)
    for wrong in (b"<html>This file is too large to be scanned</html>", whole[:-100]):
        (wmt16 / ARCHIVE).write_bytes(wrong)
        run = scripts.prepare(*arguments)
        assert_refused(run, f"{ARCHIVE} does not have the release's checksum")
        assert not (tmp_path / "out.preparing").exists()
    (wmt16 / ARCHIVE).write_bytes(whole)
    mirror.cut = [100]
    assert_refused(scripts.prepare(*arguments), f"cannot download {mirror.address}/{ARCHIVE}")
    run = scripts.prepare(*arguments)
    assert run.returncode == 0, run.stdout + run.stderr
    assert mirror.requests[-1] == (ARCHIVE, "bytes=100-")
    output = tmp_path / "out"
    assert {path.name for path in output.iterdir()} == {"bpe", "text", "bin"}
    dictionaries = [output / "bin" / f"dict.{language}.txt" for language in ("en", "de")]
    assert dictionaries[0].read_bytes() == dictionaries[1].read_bytes()
    tested = binarised(output / "bin" / "test.en-de.de", dictionaries[1])
    assert len(tested) == 20
    text = (output / "text" / "newstest2014.tok.de").read_text().splitlines()
    assert len(text) == 20
    assert len((output / "text" / "newstest2014.de").read_text().splitlines()) == 20


@pytest.mark.slow
@pytest.mark.ci
def test_iwslt14_is_known_by_its_archives_git_blob_and_by_its_lines(scripts, mirror, tmp_path):
    pytest.importorskip("sacremoses")
    (tmp_path / "source").mkdir()
    folder = release("iwslt14_de_en", tmp_path / "files")
    archive = tmp_path / "source" / "de-en.tgz"
    with tarfile.open(archive, "w:gz") as packed:
        packed.add(folder, "de-en")
    arguments = ("iwslt14", "--mirror", mirror.address, "--output", tmp_path / "out")
    assert_refused(scripts.prepare(*arguments), "does not have the release's checksum aa8c3f40f88")
    assert not (tmp_path / "out.preparing").exists()
    whole = archive.read_bytes()
    digest = hashlib.sha1(f"blob {len(whole)}\0".encode() + whole).hexdigest()
    scripts.for_release("iwslt14", sum=digest)
    assert_refused(scripts.prepare(*arguments), "train.tags.de-en.de has 301 lines, not 174443")
    scripts.for_release("iwslt14", raw_lines=301, published=301, test_lines=100)
    run = scripts.prepare(*arguments)
    assert run.returncode == 0, run.stdout + run.stderr
    output = tmp_path / "out"
    assert {path.name for path in output.iterdir()} == {"text", "bpe", "bin"}
    assert "note: text/train.de differs from fairseq's own" in run.stdout
    assert len(binarised(output / "bin" / "test.de-en.de", output / "bin" / "dict.de.txt")) == 100
    train, valid = (
        (output / "text" / f"{split}.en").read_text().splitlines() for split in ("train", "valid")
    )
    assert (len(train), len(valid)) == (301 - 301 // 23, 301 // 23)


@pytest.mark.parametrize(
    ("name", "archive"),
    [
        ("wmt14_en_fr", "training-parallel-europarl-v7.tgz"),
        ("wmt17_zh_en", "training-parallel-nc-v12.tgz"),
    ],
)
def test_statmts_archives_have_checksums(scripts, tmp_path, name, archive):
    for module in catalogue.recipe(name).needs["prepare"]:
        pytest.importorskip(module)
    source = release(name, tmp_path / "source")
    (file,) = source.glob("training/*.zh-en.zh" if "zh" in name else "training/europarl*.en")
    file.rename(tmp_path / "gone")
    (source / archive).write_bytes(b"not the release")
    arguments = (name, "--source", source, "--output", tmp_path / "out")
    assert_refused(scripts.prepare(*arguments), f"{archive} does not have the release's checksum")


def test_sides_of_different_lengths_are_refused(scripts, tmp_path):
    for module in catalogue.recipe("wmt17_zh_en").needs["prepare"]:
        pytest.importorskip(module)
    source = release("wmt17_zh_en", tmp_path / "source")
    cut = source / "neu2017" / "NEU_en.txt"
    cut.write_text("".join(cut.read_text().splitlines(keepends=True)[:-1]))
    arguments = ("wmt17_zh_en", "--source", source, "--output", tmp_path / "out", "--sample")
    run = scripts.prepare(*arguments)
    assert_refused(run, "NEU_cn.txt has 300 lines and NEU_en.txt 299", "files again")


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
    moses_text.main(["clean", *names, "--longest", "7"])
    kept = []
    for source, target in pairs:
        m, n = len(source.split()), len(target.split())
        if m and n and m <= 7 and n <= 7 and not m / n > 1.5 and not n / m > 1.5:
            kept.append((source, target))
    lines = [Path(name).read_text().splitlines() for name in names[2:]]
    assert list(zip(*lines, strict=True)) == kept
    assert f"kept {len(kept)} of 99 pairs" in capsys.readouterr().out
    moses_text.main(["clean", *names, "--longest", "7", "--unique"])
    assert sorted(set(kept)) == sorted(
        zip(*(Path(name).read_text().splitlines() for name in names[2:]), strict=True)
    )
