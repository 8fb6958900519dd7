"""Lines that nobody planned for: each gets an answer, or is named."""

import io
import random
import re
import sys

import pytest
from conftest import PLUGIN, command, generate, interactive, preprocess
from preparation import Preparation

pytestmark = pytest.mark.reliability

TOO_LONG = 5000
SHORT = ("--beam", "1", "--max-len-b", "3", "--buffer-size", "500", "--max-tokens", "6000")
UNICODE = {
    "empty": [""],
    "blank": [" \t ", "\u00a0", "\u3000"],
    "unknown": ["zzz yyy", "<unk> <s> </s> <pad>", "H-0\t-0.1\tA B"],
    "control": ["a \0 b", "\x1b[2J a", "a\x0bb\x0cc", "\x1c\x1d\x1e\x85", "a\u2028b\u2029", "\x7f"],
    "right-to-left": ["שלום a עולם", "مرحبا b", "\u202e a b \u202c", "\u200f"],
    "emoji": ["👩‍👩‍👧‍👦 a", "🏳️‍🌈", "e\u0301\u0323 b", "\U0010ffff"],
    "one word": ["a" * 100_000, "😀" * 10_000],
    "long": ["a b c " * 300],
}
BROKEN = [b"\xff\xfe a", b"a \xc3", b"\xed\xa0\x80 b", b"\xc0\xaf", b"c \xf0\x9f\x98", b"\x80" * 50]


def mixed_lines(count: int) -> tuple[list[bytes], list[int], list[int]]:
    """Lines; the numbers of those of known words; of those that are too long."""
    choose = random.Random(count)
    kinds = [*UNICODE, "broken", "known", "known", "known", "known"]
    lines, known = [], []
    for number in range(count):
        kind = choose.choice(kinds)
        if kind == "broken":
            lines.append(choose.choice(BROKEN))
        elif kind == "known":
            known.append(number)
            lines.append(" ".join(choose.choices("abcdefghij", k=choose.randint(1, 9))).encode())
        else:
            lines.append(choose.choice(UNICODE[kind]).encode())
    too_long = [count // 3, count // 3 + 1, count - 1]
    for number in too_long:
        lines[number] = b"a " * TOO_LONG
    return lines, [number for number in known if number not in too_long], too_long


def assert_all_answered(answers: dict, said: str, lines, known, too_long, alone: dict) -> None:
    assert sorted(answers) == sorted(set(range(len(lines))) - set(too_long))
    skipped = re.findall(r"([\d,]+) samples have invalid sizes and will be skipped", said)
    assert sum(map(int, skipped)) == len(too_long)
    assert [answers[number][1] for number in known] == [text for _, text in alone.values()]


def alone(lines, known, data, trained, folder) -> dict:
    """The answers to the lines of known words, one at a time."""
    (folder / "known").write_bytes(b"".join(lines[number] + b"\n" for number in known))
    return interactive(data, trained, *SHORT[:4], source=str(folder / "known"))


def test_every_line_is_answered_or_named(data, trained, tmp_path, monkeypatch, caplog):
    """Padded batches answer as single lines do; Python replaces what is not UTF-8."""
    lines, known, too_long = mixed_lines(200)
    expected = alone(lines, known, data, trained, tmp_path)
    content = io.BytesIO(b"\n".join(lines))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(content, "utf-8", errors="replace"))
    answers = interactive(data, trained, *SHORT, "--input", "-")
    assert_all_answered(answers, caplog.text, lines, known, too_long, expected)


@pytest.mark.slow
def test_ten_thousand_lines_as_typed(data, trained, tmp_path, monkeypatch):
    lines, known, too_long = mixed_lines(10_000)
    known = known[:300]
    expected = alone(lines, known, data, trained, tmp_path)
    (tmp_path / "lines").write_bytes(b"\n".join(lines))
    monkeypatch.setenv("PYTHONIOENCODING", "utf-8:replace")
    with open(tmp_path / "lines", "rb") as stdin:
        run = command(
            *("fairseq-interactive", data, "--user-dir", PLUGIN, "--path", trained, "--cpu"),
            *SHORT,
            stdin=stdin,
        )
    assert run.returncode == 0, run.stderr[-2000:]
    answers = re.findall(r"^H-(\d+)\t(\S+)\t(.*)$", run.stdout, re.MULTILINE)
    answers = {int(number): (float(score), text) for number, score, text in answers}
    assert_all_answered(answers, run.stdout + run.stderr, lines, known, too_long, expected)


def test_a_file_that_is_not_utf8_is_named(data, trained, tmp_path):
    """fairseq reads files strictly, and standard input as Python is told to."""
    (tmp_path / "lines").write_bytes(b"\n".join(BROKEN))
    with pytest.raises(UnicodeDecodeError):
        interactive(data, trained, *SHORT, source=str(tmp_path / "lines"))


def test_empty_and_broken_lines_in_a_prepared_set(data, trained, tmp_path):
    """fairseq-preprocess keeps empty lines, and generation answers them."""
    pairs = [("a b", "B A"), ("", ""), ("zzz", "ZZZ"), ("\u2028", "x"), ("c", "C")]
    dictionary = ("--srcdict", str(data / "dict.src.txt"), "--joined-dictionary")
    prepared = preprocess({"test": pairs}, tmp_path, *dictionary)
    answers = generate(prepared, trained, "--beam", "1", "--max-len-b", "3")
    assert sorted(answers) == [0, 1, 2, 3, 4]
    assert answers[1][1] == answers[3][1]


def test_a_corpus_that_is_not_utf8_is_refused_by_its_line(scripts, monolingual, tmp_path):
    preparation = Preparation(scripts, tmp_path, monolingual)
    train_text = preparation.source / "train.txt"
    train_text.write_bytes(b"a\n" + BROKEN[1] + b"\n" + train_text.read_bytes())
    run = preparation.begin(tmp_path / "out")
    assert run.communicate()[1] == "error: line 2 of train is not UTF-8\n"
    assert run.returncode == 1 and not (tmp_path / "out.preparing").exists()
