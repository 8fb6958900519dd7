import importlib
import json
import math
import os
import subprocess
import sys
from collections import Counter, defaultdict
from random import Random

import pytest
import torch
from conftest import ROOT
from fairseq import options, tasks
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq_cli import preprocess
from fairseq_cli.eval_lm import eval_lm

import fairseq_convattn  # noqa: F401  (fairseq cannot read sentence by sentence without)

sys.path.append(str(ROOT / "scripts"))
language = importlib.import_module("generate_language")

SCRIPT = ROOT / "scripts" / "generate_language.py"
SIZES = {"test": 200, "valid": 100, "train": 20_000}


@pytest.fixture(scope="module")
def files() -> dict[str, list[str]]:
    return language.generate(SIZES, seed=1)


def report(files: dict[str, list[str]]) -> dict:
    return json.loads("\n".join(files["entropy.json"]))


def matches(phrase, words: list[str], start: int) -> tuple[dict[int, float], float]:
    """The probability that ``phrase`` is words[start:end], by end, and that it goes on beyond
    the words; over all the ways in which it can be drawn."""
    if isinstance(phrase, str):
        if start == len(words):
            return {}, 1.0
        return ({start + 1: 1.0} if words[start] == phrase else {}), 0.0
    ends: dict[int, float] = defaultdict(float)
    beyond = 0.0
    if isinstance(phrase, language.Choice):
        for part, probability in zip(phrase.phrases, phrase.probabilities, strict=True):
            part_ends, part_beyond = matches(part, words, start)
            beyond += probability * part_beyond
            for end, p in part_ends.items():
                ends[end] += probability * p
        return ends, beyond
    ends[start] = 1.0
    for part in phrase:
        previous, ends = ends, defaultdict(float)
        for middle, probability in previous.items():
            part_ends, part_beyond = matches(part, words, middle)
            beyond += probability * part_beyond
            for end, p in part_ends.items():
                ends[end] += probability * p
    return ends, beyond


def sentence_probability(words: list[str]) -> float:
    return matches(language.sentence(), words, 0)[0].get(len(words), 0.0)


def prefix_probability(words: list[str]) -> float:
    ends, beyond = matches(language.sentence(), words, 0)
    return ends.get(len(words), 0.0) + beyond


def test_a_sentence_is_as_probable_as_the_draw_that_made_it():
    rng = Random(3)
    for _ in range(150):
        words, bits = language.draw(rng, language.sentence())
        assert -math.log2(sentence_probability(words)) == pytest.approx(bits)


def test_entropy_and_length_of_a_language_that_can_be_listed():
    phrase = (
        language.perhaps(0.3, "a"),
        language.Choice(("b", ("c", language.one_of(("d", "e", ("e", "e"))))), (0.25, 0.75)),
    )
    sentences = {
        (*first, *rest): p * q
        for first, p in {("a",): 0.3, (): 0.7}.items()
        for rest, q in {
            ("b",): 0.25,
            ("c", "d"): 0.25,
            ("c", "e"): 0.25,
            ("c", "e", "e"): 0.25,
        }.items()
    }
    entropy = -sum(p * math.log2(p) for p in sentences.values())
    assert language.entropy(phrase) == pytest.approx(entropy)
    length = sum(p * len(words) for words, p in sentences.items())
    assert language.mean_length(phrase) == pytest.approx(length)


def test_figures_are_those_of_the_text(files):
    test = report(files)["test"]
    sentences = [line.split() for line in files["test.txt"]]
    assert test["tokens"] == sum(len(words) + 1 for words in sentences)
    bits = -sum(math.log2(sentence_probability(words)) for words in sentences) / test["tokens"]
    assert test["bits_per_token"] == pytest.approx(bits, abs=1e-5)
    assert test["perplexity"] == pytest.approx(2**bits, abs=1e-4)


def test_a_long_text_has_the_entropy_of_the_language(files):
    figures = report(files)
    assert figures["train"]["bits_per_token"] == pytest.approx(
        figures["language"]["bits_per_token"], rel=0.005
    )
    assert figures["language"]["perplexity"] == pytest.approx(
        2 ** figures["language"]["bits_per_token"], abs=1e-4
    )


class PerfectModel(torch.nn.Module):
    """The language's own probability of each next word, for fairseq's scorer."""

    def __init__(self, dictionary):
        super().__init__()
        self.dictionary = dictionary
        self.device_of = torch.nn.Parameter(torch.zeros(()))

    def forward(self, src_tokens, src_lengths):
        probabilities = torch.zeros(*src_tokens.shape, len(self.dictionary))
        for row, length, out in zip(src_tokens, src_lengths, probabilities, strict=True):
            words = [self.dictionary[token] for token in row[1:length]]
            prefixes = [prefix_probability(words[:i]) for i in range(len(words) + 1)]
            prefixes.append(sentence_probability(words))
            after = [*row[1:length], self.dictionary.eos()]
            for position, token in enumerate(after):
                out[position, token] = prefixes[position + 1] / prefixes[position]
        return (probabilities,)

    @staticmethod
    def get_normalized_probs(net_output, log_probs, sample):
        return net_output[0].log() if log_probs else net_output[0]


def test_a_perfect_model_gets_the_perplexity_of_the_report_from_fairseq_eval_lm(files, tmp_path):
    for split in SIZES:
        (tmp_path / f"{split}.txt").write_text("\n".join(files[f"{split}.txt"]) + "\n")
    arguments = ["--only-source", "--destdir", str(tmp_path / "bin")]
    for split in SIZES:
        arguments += [f"--{split}pref", str(tmp_path / f"{split}.txt")]
    preprocess.main(options.get_preprocessing_parser().parse_args(arguments))
    arguments = [str(tmp_path / "bin"), "--path", "none", "--sample-break-mode", "eos"]
    parsed = options.parse_args_and_arch(options.get_eval_lm_parser(), arguments)
    task = tasks.setup_task(convert_namespace_to_omegaconf(parsed).task)
    task.load_dataset("test")
    batches = task.eval_lm_dataloader(task.dataset("test"), max_tokens=2000, num_workers=0)
    result = eval_lm([PerfectModel(task.dictionary)], task.source_dictionary, batches)
    assert result["perplexity"] == pytest.approx(report(files)["test"]["perplexity"], rel=1e-4)


def test_the_last_words_alone_do_not_tell_what_comes_next(files):
    best = report(files)["test"]["perplexity"]
    for length in (0, 1, 2):
        counts: dict[tuple, Counter] = defaultdict(Counter)
        for line in files["train.txt"]:
            for context, token in contexts(line, length):
                counts[context][token] += 1
        bits = [
            -math.log2((counts[context][token] + 0.01) / (counts[context].total() + 0.01 * 273))
            for line in files["test.txt"]
            for context, token in contexts(line, length)
        ]
        assert 2 ** (sum(bits) / len(bits)) > 1.8 * best


def contexts(line: str, length: int):
    words = ["<s>"] * length + line.split() + ["</s>"]
    for i in range(length, len(words)):
        yield tuple(words[i - length : i]), words[i]


def test_verbs_agree_with_their_subjects_at_any_distance(files):
    stems = {*language.TRANSITIVE_VERBS.values(), *language.TRANSFER_VERBS.values()}
    endings = sorted(
        (ending for pair in language.ENDINGS.values() for ending in pair), key=len, reverse=True
    )
    classes = {stem + i: c for stem, c in language.NOUNS.values() for i in ("", "i")}
    distances = set()
    for line in files["train.txt"]:
        words = line.split()
        subject = next(i for i, word in enumerate(words) if word in classes)
        plural = words[subject].endswith(language.NOUN_PLURAL)
        verb = words[-1]
        ending = next(e for e in endings if verb.endswith(e) and verb.removesuffix(e) in stems)
        assert ending == language.ENDINGS[classes[words[subject]]][plural]
        distances.add(len(words) - 1 - subject)
    assert min(distances) == 3 and max(distances) == 15
    assert "up to 15 words\nearlier" in language.__doc__


def test_training_text_knows_all_words(files):
    training = {word for line in files["train.txt"] for word in line.split()}
    assert len(training) == 272
    for split, size in SIZES.items():
        assert len(files[f"{split}.txt"]) == size
        assert {word for line in files[f"{split}.txt"] for word in line.split()} <= training


def test_a_seed_fixes_the_text_and_training_size_leaves_the_held_out_sets_alone(files):
    small = language.generate(SIZES | {"train": 10}, seed=1)
    for name in ("test.txt", "valid.txt"):
        assert small[name] == files[name]
    assert language.generate(SIZES | {"train": 10}, seed=2)["test.txt"] != files["test.txt"]


def test_command_line_writes_four_files_whatever_the_hash_seed(tmp_path):
    expected = language.generate({"test": 4, "valid": 5, "train": 30}, seed=1)
    for hash_seed in ("1", "2"):
        output = tmp_path / hash_seed
        subprocess.run(
            [sys.executable, SCRIPT, output, "--train", "30", "--valid", "5", "--test", "4"],
            env=os.environ | {"PYTHONHASHSEED": hash_seed},
            check=True,
        )
        assert {path.name for path in output.iterdir()} == set(expected)
        for name, lines in expected.items():
            assert (output / name).read_text(encoding="utf-8").split("\n") == [*lines, ""]


@pytest.mark.parametrize(
    "value, message",
    [("0", "--train must be at least 1, not 0"), ("999999999999", "too many")],
)
def test_bad_sizes_are_one_line_errors(tmp_path, value, message):
    with pytest.raises(SystemExit) as error:
        language.main([str(tmp_path / "out"), "--train", value])
    assert message in str(error.value) and "\n" not in str(error.value)
    assert not (tmp_path / "out").exists()
