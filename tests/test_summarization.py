"""``--task summarization`` through fairseq's own entry points."""

import itertools
import random
import re
import shutil
import sys

import numpy as np
import pytest
import torch
from conftest import (
    PLUGIN,
    SHRUNK,
    generate,
    preprocess,
    slow_but,
    train,
)
from fairseq import checkpoint_utils, options, tasks
from fairseq.criterions.cross_entropy import CrossEntropyCriterion
from fairseq.data import encoders
from fairseq.dataclass.configs import GenerationConfig
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.logging import metrics
from fairseq_cli import interactive as interactive_command
from fairseq_cli import validate as validate_command
from rouge_score.rouge_scorer import RougeScorer

from fairseq_convattn import summarization
from fairseq_convattn.scoring.rouge import sentence_scores
from fairseq_convattn.summarization.options import DECODING_DEFAULTS

TASK = ("--task", "summarization")
DYNAMIC = ("--arch", "dynamic_conv_tiny", *SHRUNK)
ARCHITECTURES = {
    "dynamic": DYNAMIC,
    "fairseq's transformer": ("--arch", "transformer", *SHRUNK),
    "fairseq's lstm": (
        *("--arch", "lstm", "--encoder-embed-dim", "16", "--encoder-hidden-size", "16"),
        *("--decoder-embed-dim", "16", "--decoder-hidden-size", "16"),
        *("--decoder-out-embed-dim", "16"),
    ),
}
SHORT = ("--beam", "2", "--max-len-b", "12")
SHORT_ROUGE = ("--eval-rouge", "--eval-rouge-args", '{"beam": 2, "max_len_b": 12}')
CUT = 10
LENGTHS = (CUT - 1, CUT, CUT + 1, CUT + 2, 3 * CUT, 60, 1, 14, 22, 5, 9, 11, 33)


@pytest.fixture(scope="module")
def articles(tmp_path_factory):
    """Letters, of which the first third in capitals is the summary; LENGTHS tokens long in
    each split but train, where they come several times."""
    generator = random.Random(2)

    def pair(length):
        words = [generator.choice("abcdefghij") for _ in range(length)]
        return " ".join(words), " ".join(word.upper() for word in words[: 1 + length // 3])

    splits = {"train": LENGTHS * 20, "valid": LENGTHS, "test": LENGTHS}
    pairs = {name: [pair(length) for length in lengths] for name, lengths in splits.items()}
    return preprocess(pairs, tmp_path_factory.mktemp("articles"), "--joined-dictionary")


@pytest.fixture(scope="module")
def trained(articles, tmp_path_factory):
    """A checkpoint that has learnt capitals and no more: it repeats itself and never ends."""
    folder = tmp_path_factory.mktemp("trained")
    flags = ("--max-source-tokens", str(CUT), "--max-update", "20", "--no-epoch-checkpoints")
    train(articles, folder, *TASK, *DYNAMIC, *flags)
    return folder / "checkpoint_last.pt"


def lines(data, name) -> list[list[str]]:
    return [line.split() for line in (data.parent / name).read_text().splitlines()]


def setup(data, *flags):
    """The task as fairseq-train sets it up."""
    arguments = (str(data), "--user-dir", str(PLUGIN), "--arch", "transformer", *TASK, *flags)
    namespace = options.parse_args_and_arch(options.get_training_parser(), arguments)
    return tasks.setup_task(convert_namespace_to_omegaconf(namespace).task)


def generation(*flags) -> GenerationConfig:
    """What fairseq-generate decodes with."""
    arguments = ("data", "--path", "x", "--user-dir", str(PLUGIN), *flags)
    namespace = options.parse_args_and_arch(options.get_generation_parser(), arguments)
    return convert_namespace_to_omegaconf(namespace).generation


def run(main, monkeypatch, *arguments) -> None:
    """A command in this process."""
    plugin = ("--user-dir", str(PLUGIN), "--cpu", "--no-progress-bar", "--num-workers", "0")
    monkeypatch.setattr(sys, "argv", ["fairseq", *map(str, (*arguments, *TASK, *plugin))])
    main()


def texts(hypotheses) -> list[list[str]]:
    return [hypotheses[number][1].split() for number in sorted(hypotheses)]


def seen_in_validation(task, batch) -> dict:
    """What the criterion gets."""

    def criterion(model, sample):
        return 0.0, 1, {"sample": sample}

    return task.valid_step(batch, torch.nn.Module(), criterion)[2]["sample"]


def repeated(words, size) -> bool:
    ngrams = [tuple(words[i : i + size]) for i in range(len(words) - size + 1)]
    return len(set(ngrams)) < len(ngrams)


def test_references_are_scored_as_far_as_the_positions_go(articles, tmp_path):
    positions = ("--max-target-positions", "6", "--decoder-learned-pos")
    cut = ("--max-target-tokens", "2")  # in training alone
    train(articles, tmp_path, *TASK, *DYNAMIC, *positions, *cut, "--max-update", "1")
    scored = ("--score-reference", "--min-len", "1", "--max-len-b", "4")
    found = generate(articles, tmp_path / "checkpoint_last.pt", *TASK, *scored)
    assert texts(found) == [words[:5] for words in lines(articles, "test.tgt")]


@pytest.mark.parametrize("prefix", ["", "j a j"])
def test_sources_are_cut_at_the_boundary(articles, prefix, caplog):
    caplog.set_level("INFO")
    task = setup(articles, "--max-source-tokens", str(CUT), "--source-prefix", prefix)
    task.load_dataset("test")
    dataset, dictionary = task.dataset("test"), task.source_dictionary
    texts = lines(articles, "test.src")
    assert {CUT, CUT + 1} <= set(map(len, texts))
    cut = sum(len(words) > CUT for words in texts)
    assert f"test: {cut} of 13 sources cut to {CUT} tokens" in caplog.text
    for index, words in enumerate(texts):
        expected = [dictionary.index(word) for word in prefix.split() + words[:CUT]]
        assert dataset[index]["source"].tolist() == [*expected, dictionary.eos()]
        assert dataset.src_sizes[index] == dataset.size(index)[0] == len(expected) + 1
    tokens = [dictionary.encode_line(" ".join(w), add_if_not_exist=False).long() for w in texts]
    inference = task.build_dataset_for_inference(tokens, list(map(len, tokens)))
    for index in range(len(texts)):
        assert torch.equal(inference[index]["source"], dataset[index]["source"])
        assert inference.src_sizes[index] == dataset.src_sizes[index]


def test_raw_texts_are_the_words_that_unknown_ones_are_replaced_by(articles, tmp_path):
    for side in ("src", "tgt"):
        shutil.copy(articles / f"dict.{side}.txt", tmp_path)
        shutil.copy(articles.parent / f"test.{side}", tmp_path / f"test.src-tgt.{side}")
    flags = ("--max-source-tokens", str(CUT), "--source-prefix", "j a", "--dataset-impl", "raw")
    task = setup(tmp_path, *flags)
    task.load_dataset("test")
    dataset, dictionary = task.dataset("test"), task.source_dictionary
    for index in range(len(dataset)):
        words = dataset.src.get_original_text(index)
        assert words == dictionary.string(dataset[index]["source"])


def test_without_a_limit_sources_fill_the_positions(articles):
    task = setup(articles, "--max-source-positions", "20", "--source-prefix", "a b")
    task.load_dataset("test")
    longest = max(task.dataset("test"), key=lambda example: len(example["source"]))["source"]
    assert len(longest) == 20 and longest[-1] == task.source_dictionary.eos()
    assert not task.dataset("test").filter_indices_by_size(np.arange(13), task.max_positions())[1]


def test_training_targets_are_cut_and_references_are_whole(articles):
    task = setup(articles, "--max-target-tokens", "4")
    words, dictionary = lines(articles, "train.tgt"), task.target_dictionary
    task.load_dataset("train", task_cfg=task.cfg)  # as fairseq-generate does
    assert [len(x["target"]) - 1 for x in task.dataset("train")] == list(map(len, words))
    task.load_dataset("train")
    dataset = task.dataset("train")
    for index in range(len(LENGTHS)):
        expected = [dictionary.index(word) for word in words[index][:4]]
        assert dataset[index]["target"].tolist() == [*expected, dictionary.eos()]
        assert dataset.tgt_sizes[index] == len(expected) + 1
    batch = dataset.collater([dataset[index] for index in range(len(LENGTHS))])
    before, target = batch["net_input"]["prev_output_tokens"], batch["target"]
    assert before.shape == target.shape == (13, 5)
    assert before[:, 0].eq(dictionary.eos()).all()
    kept = before[:, 1:].ne(dictionary.pad())
    assert torch.equal(before[:, 1:][kept], target[:, :-1][kept])


def test_validation_loss_sees_what_training_sees(articles):
    flags = ("--max-target-tokens", "4")
    task = setup(articles, *flags, "--train-subset", "valid")
    task.load_dataset("valid")
    dataset = task.dataset("valid")
    trains = dataset.collater([dataset[index] for index in range(13)])
    task = setup(articles, *flags)
    task.load_dataset("valid")
    dataset = task.dataset("valid")
    whole = dataset.collater([dataset[index] for index in range(13)])
    assert whole["target"].size(1) == 22

    seen = seen_in_validation(task, whole)
    for name in ("src_tokens", "prev_output_tokens"):
        assert torch.equal(seen["net_input"][name], trains["net_input"][name])
    assert torch.equal(seen["target"], trains["target"])
    assert seen["ntokens"] == trains["ntokens"]


def test_batches_are_those_of_the_translation_task(articles):
    task = setup(articles, "--required-seq-len-multiple", "8", "--max-target-tokens", "4")
    for split, shuffled in (("train", True), ("valid", True), ("test", False)):
        task.load_dataset(split)
        assert task.dataset(split).shuffle is shuffled
    dataset = task.dataset("valid")
    batch = dataset.collater([dataset[index] for index in range(13)])
    assert (batch["net_input"]["src_tokens"].size(1), batch["target"].size(1)) == (64, 24)

    seen = seen_in_validation(task, batch)
    assert seen["target"].size(1) == seen["net_input"]["prev_output_tokens"].size(1) == 8


def test_decoding_defaults_yield_to_explicit_options(articles, trained):
    ours, translation = generation(*TASK), generation()
    for name, value in DECODING_DEFAULTS.items():
        assert getattr(ours, name) == value
        assert getattr(translation, name) == GenerationConfig.__dataclass_fields__[name].default
    flags = "--min-len 1 --no-repeat-ngram-size 0 --max-len-b 77 --lenpen 2 --max-len-a 0.5"
    explicit = generation(*TASK, *flags.split())
    assert (explicit.min_len, explicit.no_repeat_ngram_size) == (1, 0)  # fairseq's own defaults
    assert (explicit.max_len_b, explicit.lenpen, explicit.max_len_a) == (77, 2, 0.5)
    task = setup(articles)
    models, _ = checkpoint_utils.load_model_ensemble([str(trained)], task=task)
    for decoding, penalty in ((ours, 1), (explicit, 2)):
        assert task.build_generator(models, decoding).len_penalty == penalty


def test_blocking_and_lengths_in_the_output(articles, trained):
    flags = (*TASK, "--max-source-tokens", str(CUT), "--beam", "2")
    free = texts(generate(articles, trained, *flags, "--no-repeat-ngram-size", "0"))
    assert any(repeated(words, 3) for words in free)
    assert max(map(len, free)) == 200
    blocked = texts(generate(articles, trained, *flags, "--max-len-b", "100"))
    assert not any(repeated(words, 3) for words in blocked)
    assert any(repeated(words, 2) for words in blocked)
    assert {10 <= len(words) <= 100 for words in blocked} == {True}
    short = texts(generate(articles, trained, *flags, "--min-len", "6", "--max-len-b", "7"))
    assert {len(words) for words in short} <= {6, 7}
    single = ("--no-repeat-ngram-size", "1", "--min-len", "2", "--max-len-b", "8")
    assert not any(repeated(w, 1) for w in texts(generate(articles, trained, *flags, *single)))


@pytest.mark.parametrize("name", slow_but(ARCHITECTURES, "dynamic"))
def test_every_encoder_decoder_loses_no_sentence(name, articles, tmp_path, monkeypatch, capsys):
    """Sources and summaries beyond the model's positions, and a batch size multiple with which
    fairseq would drop five of 13."""
    flags = (*TASK, "--source-prefix", "a b", "--required-batch-size-multiple", "8")
    positions = ("--max-source-positions", "24", "--max-target-positions", "16")
    if name == "fairseq's lstm":
        positions = ("--max-source-positions", "24")
    train(articles, tmp_path, *flags, *ARCHITECTURES[name], *positions, *SHORT_ROUGE)
    assert metrics.get_meter("valid", "_rouge_count").sum == 13
    checkpoint = tmp_path / "checkpoint_last.pt"
    generated = generate(articles, checkpoint, *flags, *positions, *SHORT)
    assert sorted(generated) == list(range(13))

    capsys.readouterr()
    source = ("--input", articles.parent / "test.src", "--path", checkpoint)
    decoding = (*flags, *positions, *SHORT, "--buffer-size", "4")
    run(interactive_command.cli_main, monkeypatch, articles, *source, *decoding)
    output = capsys.readouterr().out
    sources = re.findall(r"^S-\d+\t(.*)$", output, re.MULTILINE)
    room = 24 - 1 - 2
    assert sources == [" ".join(["a", "b", *words[:room]]) for words in lines(articles, "test.src")]
    found = re.findall(r"^H-(\d+)\t(\S+)\t(.*)$", output, re.MULTILINE)
    assert len(found) == 13
    for number, score, text in found:
        assert generated[int(number)] == (pytest.approx(float(score), abs=1e-4), text)


def test_eval_rouge_is_what_generation_scores(articles, tmp_path, monkeypatch, capsys):
    """Training's figures over several batches, fairseq-validate's, and rouge-score's own."""
    decoding = ("--beam", "3", "--max-len-b", "15", "--no-repeat-ngram-size", "2")
    args = '{"beam": 3, "max_len_b": 15, "no_repeat_ngram_size": 2}'
    rouge = ("--eval-rouge", "--eval-rouge-args", args, "--max-target-tokens", "3")
    best = ("--best-checkpoint-metric", "rougeL", "--maximize-best-checkpoint-metric")
    train(articles, tmp_path, *TASK, *DYNAMIC, *rouge, *best, "--batch-size-valid", "4")
    logged = metrics.get_smoothed_values("valid")
    checkpoint = tmp_path / "checkpoint_best.pt"
    assert torch.load(checkpoint)["extra_state"]["val_loss"] == logged["rougeL"]

    hypotheses = generate(articles, checkpoint, *TASK, *decoding, "--gen-subset", "valid")
    pairs = zip(texts(hypotheses), lines(articles, "valid.tgt"), strict=True)
    names = ["rouge1", "rouge2", "rougeL", "rougeLsum"]
    scorer = RougeScorer(names, use_stemmer=True)
    scores = [scorer.score(" ".join(reference), " ".join(words)) for words, reference in pairs]
    for name in names:
        mean = sum(score[name].fmeasure for score in scores) / 13
        assert mean > 0
        assert logged[name] == pytest.approx(100 * mean, abs=0.005)

    capsys.readouterr()
    subset = ("--path", checkpoint, "--max-tokens", "600", "--valid-subset", "valid")
    with metrics.aggregate(new_root=True) as validated:
        run(validate_command.cli_main, monkeypatch, articles, *subset)
    for name in names:
        assert validated.get_smoothed_value(name) == logged[name]


def test_rouge_over_workers_is_one_mean(articles):
    """However the sums are spread, also where a worker had nothing to score."""
    task = setup(articles, "--eval-rouge")
    criterion = CrossEntropyCriterion(task, sentence_avg=False)
    sums = {f"_{name}_sum": 1.5 for name in ("rouge1", "rouge2", "rougeL", "rougeLsum")}
    counted = {"loss": 1, "sample_size": 1, "ntokens": 1, "nsentences": 1}
    workers = [
        {**counted, "_rouge_count": 2, **sums},
        counted,
        {**counted, "_rouge_count": torch.tensor(4.0), **sums},
    ]
    for outputs in itertools.permutations(workers):
        with metrics.aggregate(new_root=True) as together:
            task.reduce_metrics(outputs, criterion)
        with metrics.aggregate(new_root=True) as apart:
            for output in outputs:
                task.reduce_metrics([output], criterion)
        for name in ("rouge1", "rougeLsum"):
            assert together.get_smoothed_value(name) == 50.0
            assert apart.get_smoothed_value(name) == 50.0


def scored(task, found, reference) -> dict:
    """What validation adds up for one sentence, given as numbers."""
    task.inference_step = lambda *_: [[{"tokens": found}]]
    task._rouge_generator = task._rouge_detokenizer = None
    sample = {"target": reference.unsqueeze(0)}
    return task.valid_step(sample, torch.nn.Module(), lambda *_: (0.0, 1, {}))[2]


def test_unknown_words_of_a_reference_match_nothing(articles):
    task = setup(articles, "--eval-rouge")
    unknown = torch.full((12,), task.target_dictionary.unk())
    unknown[-1] = task.target_dictionary.eos()
    sums = scored(task, unknown, unknown)
    assert sums["_rouge1_sum"] == 0 and sums["_rouge_count"] == 1


def test_eval_rouge_scores_joined_and_detokenised_text(tmp_path, monkeypatch, caplog):
    """The tokenizer gets its options; an untrained model writes subwords too."""

    class Glue:
        def __init__(self, options):
            self.glue = options.glue

        def decode(self, text):
            return text.replace(" ", self.glue)

    monkeypatch.setitem(encoders.TOKENIZER_REGISTRY, "glue", Glue)
    scored = []

    def record(hypothesis, references, *settings):
        scored.append((hypothesis, *references))
        return sentence_scores(hypothesis, references, *settings)

    monkeypatch.setattr(summarization.task, "sentence_scores", record)
    pairs = {split: [("l@@ o@@ w er", "L@@ O W@@ ER E@@ R")] * 4 for split in ("train", "valid")}
    data = preprocess(pairs, tmp_path / "subwords")
    joined = ("--eval-rouge-remove-bpe", "--eval-rouge-detok", "glue")
    flags = (*SHORT_ROUGE, *joined, "--eval-rouge-detok-args", '{"glue": "_"}')
    caplog.set_level("INFO")
    once = ("--eval-rouge-print-samples", "--max-update", "1")
    train(data, tmp_path, *TASK, *DYNAMIC, *flags, *once)
    assert "example reference: LO_WER_ER" in caplog.text
    hypotheses, references = zip(*(pair for pair in scored if pair != ("", "")), strict=True)
    assert set(references) == {"LO_WER_ER"} and len(references) == 4
    assert all(text and "@@ " not in text and " " not in text for text in hypotheses)


@pytest.mark.parametrize("split", ["newline", "<q>"])
def test_eval_rouge_splits_sentences(tmp_path, split):
    pairs = {"train": [("a", "A B <q> C D")]}
    task = setup(preprocess(pairs, tmp_path), "--eval-rouge", "--eval-rouge-split", split)

    def encode(text):
        return task.target_dictionary.encode_line(text, add_if_not_exist=False).long()

    sums = scored(task, encode("C D <q> A B"), encode("A B <q> C D"))
    assert (sums["_rougeLsum_sum"] == 1) is (split == "<q>")
    assert sums["_rougeL_sum"] < 1


def test_warns_of_sources_prepared_otherwise(articles, trained, caplog):
    generate(articles, trained, *TASK, *SHORT, "--max-source-tokens", str(CUT))
    assert "was trained with" not in caplog.text
    generate(articles, trained, *TASK, *SHORT, "--source-prefix", "a b")
    assert "trained with --max-source-tokens 10, but here it is unset" in caplog.text
    assert "trained with --source-prefix unset, but here it is 'a b'" in caplog.text
    generate(articles, trained, *SHORT)  # as a translation model


@pytest.mark.parametrize(
    "flags, message",
    [
        (["--max-source-tokens", "0"], "--max-source-tokens: must be at least 1, not 0"),
        (
            ["--max-source-tokens", "22", "--source-prefix", "a b", "--max-source-positions", "24"],
            "--max-source-tokens: 24 tokens with those of --source-prefix and end-of-sentence do "
            "not fit into 24",
        ),
        (["--source-prefix", "a b c", "--max-source-positions", "4"], "leave no room"),
        (["--source-prefix", "a summarize: b zz"], "lacks summarize: zz; write the prefix as"),
        (["--load-alignments"], "--load-alignments: summarization cuts texts"),
        (["--num-batch-buckets", "2"], "--num-batch-buckets: summarization cuts texts"),
        (["--best-checkpoint-metric", "rougeL"], "rougeL needs --eval-rouge"),
        (
            ["--best-checkpoint-metric", "rouge2", "--eval-rouge"],
            "rouge2 needs --maximize-best-checkpoint-metric",
        ),
        (["--eval-rouge", "--eval-rouge-args", "{beam: 4}"], "is not JSON"),
        (["--eval-rouge", "--eval-rouge-args", '{"lenpn": 2}'], "lenpn is not an option of"),
        (
            ["--eval-rouge", "--eval-rouge-args", '{"score_reference": true}'],
            "score the references",
        ),
        (["--eval-rouge-args", '{"beam": 4}'], "--eval-rouge-args needs --eval-rouge"),
        (["--eval-rouge-print-samples"], "--eval-rouge-print-samples needs --eval-rouge"),
        (
            [
                *("--eval-rouge", "--source-prefix", "a b", "--eval-rouge-args"),
                '{"max_len_a": 2, "max_len_b": 3}',
            ],
            "--min-len: no summary has 10 tokens or more with at most 9 for a source of 3",
        ),
        (
            ["--eval-rouge", "--eval-rouge-args", '{"min_len": "3"}'],
            '--eval-rouge-args: min_len is "3", but takes int',
        ),
        (["--eval-rouge", "--eval-rouge-detok", "nope"], "--eval-rouge-detok: fairseq has no"),
        (["--eval-rouge", "--eval-rouge-detok-args", "x"], "--eval-rouge-detok-args: x is not"),
        (["--eval-rouge", "--eval-rouge-split", "q"], "--eval-rouge-split: sentences are split"),
        (["--eval-bleu"], "--eval-bleu: it would score against cut references; use --eval-rouge"),
        (
            ["--eval-rouge", "--max-target-positions", "10"],
            "--min-len: no summary has 10 tokens or more with at most 200",
        ),
    ],
)
def test_errors_before_any_work(flags, message, articles):
    with pytest.raises(ValueError, match=re.escape(message)):
        setup(articles, *flags)


def test_what_training_took_is_taken_from_its_checkpoint(articles):
    """Options of --eval-rouge without it were once accepted."""
    stored = setup(articles).cfg
    stored.eval_rouge_args = '{"beam": 4}'
    with pytest.raises(ValueError, match="--eval-rouge-args needs --eval-rouge"):
        tasks.setup_task(stored)
    assert tasks.setup_task(stored, from_checkpoint=True).cfg.eval_rouge_args == '{"beam": 4}'


def test_errors_of_generation(articles, trained):
    for flags, message in (
        (("--max-source-positions", "2000", "--max-source-tokens", "1024"), "do not fit into 1024"),
        (("--max-len-b", "5"), "--min-len: no summary has 10 tokens or more with at most 5"),
        (("--max-len-a", "0.5", "--max-len-b", "5", "--min-len", "10"), "with at most 5 for a"),
        (("--no-repeat-ngram-size", "-2"), "--no-repeat-ngram-size: -2 is negative"),
        (("--beam", "0"), "--beam: must be at least 1, not 0"),
    ):
        with pytest.raises(ValueError, match=message):
            generate(articles, trained, *TASK, *flags)


def test_rouge_score_is_asked_for_before_training(articles, tmp_path, monkeypatch):
    def missing(hypothesis, references):
        raise ImportError("ROUGE needs rouge-score")

    monkeypatch.setattr(summarization.task, "sentence_scores", missing)
    with pytest.raises(ImportError, match="needs rouge-score"):
        train(articles, tmp_path, *TASK, *DYNAMIC, "--eval-rouge", "--disable-validation")
    assert not list(tmp_path.glob("*.pt"))
    train(articles, tmp_path, *TASK, *DYNAMIC, "--max-update", "1")


def test_missing_targets(articles, trained, tmp_path, monkeypatch):
    """Generation does without; training and validation say what is missing, at once."""
    flags = (*TASK, "--max-source-tokens", str(CUT), *SHORT)
    data = tmp_path / "bin"
    data.mkdir()
    for file in articles.iterdir():
        (data / file.name).symlink_to(file)
    for split in ("valid", "test"):
        for ending in ("bin", "idx"):
            (data / f"{split}.src-tgt.tgt.{ending}").unlink()
    assert generate(data, trained, *flags) == generate(articles, trained, *flags)
    with pytest.raises(SystemExit, match="has valid in src, but not in tgt"):
        train(data, tmp_path / "checkpoints", *TASK, *DYNAMIC)
    with pytest.raises(ValueError, match=r"valid has no targets \(tgt\) in "):
        train(data, tmp_path / "checkpoints", *TASK, "--arch", "transformer_tiny")
    assert not list(tmp_path.glob("checkpoints/*.pt"))
    with pytest.raises(ValueError, match=r"test has no targets \(tgt\) in "):
        setup(data, "--valid-subset", "train,test").load_dataset("test")
    subset = ("--path", trained, "--max-tokens", "600", "--valid-subset", "test")
    with pytest.raises(ValueError, match="validation needs targets"):
        run(validate_command.cli_main, monkeypatch, data, *subset)
