"""Examples as fairseq's ``sentence_prediction`` reads them: TASK/input0, input1 and label."""

import functools
import shutil
from collections.abc import Iterable
from pathlib import Path

import sentencepiece
from fairseq.data import Dictionary
from fairseq.data.indexed_dataset import make_builder

from ..architectures.albert_text import is_alberts, pieces_of
from .reading import Examples, read_examples
from .tasks import HIGHEST_SCORE, TASKS, GlueError, GlueTask

_FEWEST_COMMON = 0.9
_MOST_UNKNOWN = 0.1
_SIZE_FILLER = "madeupword"  # fairseq-preprocess's
_AT_A_TIME = 10_000  # sentences whose pieces are in memory


def read_dictionary(file: Path) -> Dictionary:
    """A dictionary of fairseq.

    Raises:
        GlueError: the file is none.
        OSError: it cannot be read.
    """
    try:
        return Dictionary.load(str(file))
    except OSError:
        raise
    except Exception as error:  # fairseq raises no special one
        raise GlueError(f"{file} is not a dictionary of fairseq ({error})") from None


class Pieces:
    """Encodes sentences with the pieces and the dictionary of a pre-trained model.

    For ALBERT's pieces (Lan et al. 2020), recognised by ``[CLS]`` and no capitals, text is
    lower-cased and prepared as in ALBERT.

    Raises:
        GlueError: a file cannot be read, or one does not belong to the other.
    """

    def __init__(self, sentencepiece_model: Path, dictionary: Path):
        self.file = dictionary
        for file in (sentencepiece_model, dictionary):
            if not file.is_file():
                raise GlueError(f"there is no file {file}")
        try:
            self.processor = sentencepiece.SentencePieceProcessor(
                model_file=str(sentencepiece_model)
            )
        except (RuntimeError, OSError):
            raise GlueError(f"{sentencepiece_model} is not a SentencePiece model") from None
        self.dictionary = read_dictionary(dictionary)
        pieces = {self.processor.id_to_piece(i) for i in range(self.processor.get_piece_size())}
        entries = self.dictionary.symbols[self.dictionary.nspecial :]
        entries = [entry for entry in entries if not entry.startswith(_SIZE_FILLER)]
        common = sum(entry in pieces for entry in entries)
        if common < _FEWEST_COMMON * len(entries) or not entries:
            raise GlueError(
                f"only {common:,} of the {len(entries):,} entries of {dictionary} are pieces of "
                "the SentencePiece model; give both as the model was pre-trained with"
            )
        self.albert = is_alberts(self.processor)

    def encode(self, sentences: list[str]) -> Iterable:
        """The numbers of the sentences' pieces, each ``[pieces + 1]`` with end-of-sentence."""
        for start in range(0, len(sentences), _AT_A_TIME):
            for pieces in self._split(sentences[start : start + _AT_A_TIME]):
                yield self.dictionary.encode_line(
                    " ".join(pieces), add_if_not_exist=False, append_eos=True
                )

    def _split(self, sentences: list[str]) -> list[list[str]]:
        if self.albert:
            return pieces_of(self.processor, sentences)
        return self.processor.encode(sentences, out_type=str)


def binarise(
    names: Iterable[str], tsv: Path, output: Path, pieces: Pieces, sample: bool = False
) -> None:
    """Write ``output/TASK`` from ``tsv/TASK`` for some of ``TASKS``, and print a line for each.

    Args:
        sample: whether unknown numbers of examples are only reported, not refused.

    Raises:
        GlueError: a file cannot be read. All files are read before anything is written.
    """
    read = {name: _read(TASKS[name], tsv / name, sample) for name in names}
    for name, examples in read.items():
        print(f"{name}: {_write(TASKS[name], examples, output / name, pieces)}")


def _read(task: GlueTask, folder: Path, sample: bool) -> dict[str, Examples]:
    """The examples by subset; those of a test set if its file is there."""
    read = {}
    for subset, file in (task.files | task.test_files).items():
        path, expected = folder / f"{file}.tsv", task.examples[file]
        if subset in task.test_files and not path.exists():
            continue
        read[subset] = read_examples(task, path, labelled=subset in task.files)
        found = len(read[subset].sentences)
        if found not in expected:
            differs = (
                f"{path} has {found:,} examples, not {' or '.join(map('{:,}'.format, expected))}"
            )
            if not sample:
                raise GlueError(f"{differs} (for a part of the release there is --sample)")
            print(f"note: {differs}")
    return read


def _write(task: GlueTask, read: dict[str, Examples], output: Path, pieces: Pieces) -> str:
    """Write the subsets of a task; returns what was written, in words."""
    labels = Dictionary()
    for label in task.classes:  # in this order, whatever their frequencies
        labels.add_symbol(label)
    (output / "label").mkdir(parents=True)
    if task.classes:
        labels.save(str(output / "label" / "dict.txt"))
    total = unknown = 0
    for subset, examples in read.items():
        for number, sentences in enumerate(zip(*examples.sentences, strict=True)):
            folder = output / f"input{number}"
            folder.mkdir(exist_ok=True)
            shutil.copyfile(pieces.file, folder / "dict.txt")
            encoded = pieces.encode(list(sentences))
            counts = _write_dataset(encoded, folder / subset, pieces.dictionary)
            total, unknown = total + counts[0], unknown + counts[1]
        if not examples.labels:
            continue
        if task.classes:
            encode = functools.partial(labels.encode_line, add_if_not_exist=False)
            _write_dataset(map(encode, examples.labels), output / "label" / subset, labels)
        else:
            text = "".join(f"{float(label) / HIGHEST_SCORE}\n" for label in examples.labels)
            (output / "label" / f"{subset}.label").write_text(text, encoding="ascii")
    sizes = ", ".join(f"{subset} {len(examples.sentences):,}" for subset, examples in read.items())
    words = f"{sizes} examples, {100 * unknown / total:.2f} % unknown pieces"
    if unknown > _MOST_UNKNOWN * total:
        words += "\nwarning: a model pre-trained with this dictionary hardly knows this text"
    return words


def _write_dataset(sentences: Iterable, prefix: Path, dictionary: Dictionary) -> tuple[int, int]:
    """Write a dataset; returns how many pieces it has, and how many of them are unknown."""
    builder = make_builder(f"{prefix}.bin", impl="mmap", vocab_size=len(dictionary))
    total = unknown = 0
    for sentence in sentences:
        builder.add_item(sentence)
        total += len(sentence)
        unknown += int((sentence == dictionary.unk()).sum())
    builder.finalize(f"{prefix}.idx")
    return total, unknown
