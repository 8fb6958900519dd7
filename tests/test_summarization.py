"""``--task summarization`` through fairseq's own entry points."""

import re
import shutil

import numpy as np
import pytest
import summarization_cases
import torch
from conftest import PLUGIN, SHRUNK, generate, slow_but, train
from fairseq import checkpoint_utils, options, tasks
from fairseq.dataclass.configs import GenerationConfig
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.logging import metrics
from fairseq_cli import interactive as interactive_command
from fairseq_cli import validate as validate_command
from summarization_cases import CUT, DYNAMIC, LENGTHS, SHORT_ROUGE, TASK, lines, run, setup, texts

from fairseq_convattn.summarization.options import DECODING_DEFAULTS

articles = summarization_cases.articles
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


@pytest.fixture(scope="module")
def trained(articles, tmp_path_factory):
    """A checkpoint that has learnt capitals and no more: it repeats itself and never ends."""
    folder = tmp_path_factory.mktemp("trained")
    flags = ("--max-source-tokens", str(CUT), "--max-update", "20", "--no-epoch-checkpoints")
    train(articles, folder, *TASK, *DYNAMIC, *flags)
    return folder / "checkpoint_last.pt"


def generation(*flags) -> GenerationConfig:
    """What fairseq-generate decodes with."""
    arguments = ("data", "--path", "x", "--user-dir", str(PLUGIN), *flags)
    namespace = options.parse_args_and_arch(options.get_generation_parser(), arguments)
    return convert_namespace_to_omegaconf(namespace).generation


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
        (
            ["--eval-rouge", "--best-checkpoint-metric", "rougel"],
            "--best-checkpoint-metric rougel: must be one of rouge1, rouge2, rougeL",
        ),
        (["--eval-rouge", "--eval-rouge-remove-bpe", "sentencpiece"], "has no sentencpiece; give"),
        (["--best-checkpoint-metric", "bleu"], "summarization scores no BLEU; use --eval-rouge"),
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
