"""The nine tasks of GLUE in miniature, and a pre-trained model's pieces."""

import random
from collections.abc import Iterable
from pathlib import Path

import sentencepiece

from fairseq_convattn.glue.tasks import TASKS

# of the training sets; the others have an index, the sentences and the label
COLUMNS = {
    "CoLA": ("source", "acceptable", "mark", "sentence"),
    "MRPC": ("Quality", "#1 ID", "#2 ID", "#1 String", "#2 String"),
}
# what a reader of quoted or loosely split lines gets wrong
AWKWARD = ('"', 'a "quoted start', "it 's", "two\u2028lines", "next\x85line", "cr\rin it", "")


def row(name: str, columns, number: int, rng: random.Random) -> dict[str, str]:
    task = TASKS[name]
    cells = {column: f"{column} {number}" for column in columns}
    for column in task.sentences:
        words = rng.choices("the cat sat on a mat , said Anna .".split(), k=rng.randint(1, 6))
        cells[column] = " ".join([*words, AWKWARD[number % len(AWKWARD)]]).strip()
    if task.classes:
        cells[task.label] = task.classes[rng.randrange(len(task.classes))]
    else:
        cells[task.label] = f"{rng.uniform(0, 5):.3f}"
    return cells


def write_tsv(path: Path, columns, rows, header: bool = True) -> None:
    lines = [columns] if header else []
    lines += [[cells[column] for column in columns] for cells in rows]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes("".join("\t".join(line) + "\n" for line in lines).encode())


def write_miniature(folder: Path) -> dict[tuple[str, str], list[dict[str, str]]]:
    """TASK/*.tsv as GLUE ships them; their rows by task and file."""
    rows = {}
    rng = random.Random(1)
    for name, task in TASKS.items():
        for file in task.files.values():
            columns = COLUMNS.get(name, ("index", *task.sentences, task.label))
            if file.startswith("dev_"):  # of MNLI, with the labels of all who were asked
                columns = (*columns[:-1], "label1", "label2", columns[-1])
            rows[name, file] = [row(name, columns, i, rng) for i in range(9 - len(file) // 3)]
            path = folder / name / f"{file}.tsv"
            write_tsv(path, columns, rows[name, file], header=name != "CoLA")
        for size, file in enumerate(task.test_files.values(), start=5):
            columns = COLUMNS["MRPC"] if name == "MRPC" else ("index", *task.sentences)
            rows[name, file] = [row(name, columns, i, rng) | {"index": str(i)} for i in range(size)]
            write_tsv(folder / name / f"{file}.tsv", columns, rows[name, file])
    return rows


def write_pretrained(folder: Path, sentences: Iterable[str], size: int) -> tuple[Path, Path]:
    """A SentencePiece model of the sentences and a dictionary for fairseq."""
    text = folder / "text"
    text.write_text("".join(f"{plain(sentence)}\n" for sentence in sentences), encoding="utf-8")
    sentencepiece.SentencePieceTrainer.train(
        input=[str(text)],
        model_prefix=str(folder / "bpe"),
        vocab_size=size,
        model_type="bpe",
        character_coverage=1.0,
        minloglevel=2,
    )
    vocabulary = (folder / "bpe.vocab").read_text(encoding="utf-8").splitlines()
    entries = [line.split("\t")[0] for line in vocabulary[3:]]
    lines = "".join(f"{entry} 1\n" for entry in [*reversed(entries), "madeupword0000"])
    (folder / "dict.txt").write_text(lines, encoding="utf-8")
    return folder / "bpe.model", folder / "dict.txt"


def miniature_sentences(rows: dict[tuple[str, str], list[dict[str, str]]]) -> list[str]:
    return [
        cells[column]
        for (name, _), examples in rows.items()
        for cells in examples
        for column in TASKS[name].sentences
    ]


def plain(text: str) -> str:
    """What is left of a sentence when SentencePiece has normalised it."""
    return " ".join(text.replace("\x85", "").split())
