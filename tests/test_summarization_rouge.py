"""ROUGE during the validation of ``--task summarization``."""

import itertools

import pytest
import summarization_cases
import torch
from conftest import generate, preprocess, train
from fairseq.criterions.cross_entropy import CrossEntropyCriterion
from fairseq.data import encoders
from fairseq.logging import metrics
from fairseq_cli import validate as validate_command
from rouge_score.rouge_scorer import RougeScorer
from summarization_cases import DYNAMIC, SHORT_ROUGE, TASK, lines, run, setup, texts

from fairseq_convattn import summarization
from fairseq_convattn.scoring.rouge import sentence_scores

articles = summarization_cases.articles


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


def test_rouge_score_is_asked_for_before_training(articles, tmp_path, monkeypatch):
    def missing(hypothesis, references):
        raise ImportError("ROUGE needs rouge-score")

    monkeypatch.setattr(summarization.task, "sentence_scores", missing)
    with pytest.raises(ImportError, match="needs rouge-score"):
        train(articles, tmp_path, *TASK, *DYNAMIC, "--eval-rouge", "--disable-validation")
    assert not list(tmp_path.glob("*.pt"))
    train(articles, tmp_path, *TASK, *DYNAMIC, "--max-update", "1")
