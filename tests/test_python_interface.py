"""Trained models, mixers and operations from Python, as docs/python.md shows them."""

import math
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import small_models
import torch
from conftest import ROOT, command, eval_lm, generate
from omegaconf import OmegaConf
from small_models import PIECES, SOURCES, load

from fairseq_convattn.architectures import (
    ConvAttnLanguageModel,
    ConvAttnMaskedLanguageModel,
    ConvAttnModel,
)

HIDDEN_FAIRSEQ = """
import importlib.util, sys, torch
sys.modules["fairseq"], importlib.util.find_spec = None, lambda *_: None
"""
folder = small_models.folder
here = small_models.here


def joined(hypotheses) -> list[str]:
    """fairseq-generate's output as text."""
    return [
        hypotheses[number][1].replace(" ", "").replace("▁", " ").strip()
        for number in range(len(SOURCES))
    ]


def run_page(folder, name, first="") -> subprocess.CompletedProcess:
    """The snippets from the heading ``first`` on, where there is no checkout."""
    page = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    skipped = re.compile(r"^<!-- skip: .*?^```\w+\n.*?^```", flags=re.MULTILINE | re.DOTALL)
    page = skipped.sub("", page[page.index(first) :])
    snippets = re.findall(r"^```python\n(.*?)^```", page, flags=re.MULTILINE | re.DOTALL)
    hidden = HIDDEN_FAIRSEQ if first else ""
    (folder / name).write_text(hidden + "\n".join(snippets), encoding="utf-8")
    return subprocess.run(
        [sys.executable, "-W", "ignore", name],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
    )


@pytest.mark.slow
@pytest.mark.ci
def test_the_page_runs(folder):
    run = run_page(folder, "page.py")
    assert run.returncode == 0, run.stderr
    assert len(run.stdout.splitlines()) >= 10
    assert "required-batch-size-multiple" not in run.stderr


@pytest.mark.slow
def test_a_plugin_that_adds_a_mixer(data, tmp_path):
    page = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    snippet = page[page.index("### Your own, in another plugin") :].split("```")[1]
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "__init__.py").write_text(snippet.removeprefix("python"), encoding="utf-8")
    there = ("--user-dir", tmp_path / "own", "--cpu")
    length = ("--max-tokens", "600", "--max-update", "2", "--save-dir", tmp_path, "--lr", "0.01")
    length = (*length, "--optimizer", "adam", "--required-batch-size-multiple", "1")
    run = command("fairseq-train", data, *there, "--arch", "mean_tiny", *length, cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    assert "Mean()" in run.stdout + run.stderr
    code = (
        "import own, torch; from fairseq_convattn.mixers import MixerConfig, build_mixer; "
        "mixer, x = build_mixer(MixerConfig('mean', 4, 2, causal=True)), torch.randn(5, 3, 4); "
        "state, whole = {}, mixer(x)[0]; "
        "steps = [mixer(x[i : i + 1], incremental_state=state)[0] for i in range(5)]; "
        "torch.testing.assert_close(torch.cat(steps), whole)"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], cwd=tmp_path, check=True)


def test_operations_need_no_fairseq(folder):
    run = run_page(folder, "operations.py", first="## Convolutions")
    assert run.returncode == 0, run.stderr


def test_translates_as_fairseq_generate(here, caplog):
    model = load(ConvAttnModel, "translation", **PIECES)
    checkpoint = here / "checkpoints" / "translation" / "checkpoint_last.pt"
    flags = ("--beam", "3", "--max-len-b", "12", "--lenpen", "0.5")
    generated = generate(here / "texts" / "translation" / "bin", checkpoint, *flags)
    decoding = {"beam": 3, "max_len_b": 12, "lenpen": 0.5}
    assert model.translate(SOURCES, **decoding) == joined(generated)
    assert model.translate(SOURCES[1], **decoding) == joined(generated)[1]
    assert model.translate(iter(SOURCES), **decoding) == joined(generated)
    best, *_ = model.generate(model.encode(SOURCES[1]), **decoding)
    assert best["score"].item() / math.log(2) == pytest.approx(generated[1][0], abs=1e-4)
    assert "required-batch-size-multiple" not in caplog.text
    longer = "cedar " * 300  # than the --max-tokens of the training
    assert isinstance(model.translate(longer, beam=1, max_len_b=2), str)


@pytest.mark.parametrize("bpe", [None, {"_name": "sentencepiece"}])
def test_fairseq_interactive_says_that_it_does_not_split_text(here, bpe, caplog):
    model = load(ConvAttnModel, "translation", **PIECES)
    cfg = {"interactive": {"buffer_size": 1}, "dataset": {}, "generation": {}, "bpe": bpe}
    model.models[0].prepare_for_inference_(OmegaConf.create(cfg))
    found = "give --bpe sentencepiece --sentencepiece-model FILE, unless" in caplog.text
    assert found == (bpe is None)


def test_summarizes_as_fairseq_generate(here):
    model = load(ConvAttnModel, "summaries", **PIECES)
    checkpoint = here / "checkpoints" / "summaries" / "checkpoint_last.pt"
    cut = ("--max-source-tokens", "6", "--source-prefix", model.apply_bpe(SOURCES[0]).split()[0])
    data = here / "texts" / "summaries" / "bin"
    generated = generate(data, checkpoint, "--task", "summarization", *cut)
    assert model.summarize(SOURCES) == joined(generated)
    assert all(len(text.split()) >= 10 for _, text in generated.values())


def test_language_models_score_in_natural_logarithms(here):
    model = load(ConvAttnLanguageModel, "lm", **PIECES)
    (network,) = model.models
    ends = []
    for text, score in zip(SOURCES, model.score(SOURCES), strict=True):
        tokens = model.encode(text)
        previous = torch.cat([tokens[-1:], tokens[:-1]])
        with torch.no_grad():
            logits, _ = network(previous.unsqueeze(0))
        expected = logits[0].log_softmax(-1).gather(1, tokens.unsqueeze(1)).squeeze(1)
        torch.testing.assert_close(score["positional_scores"], expected[:-1])
        torch.testing.assert_close(score["score"], expected[:-1].mean())
        ends.append(expected)
    checkpoint = here / "checkpoints" / "lm" / "checkpoint_last.pt"
    evaluated = eval_lm(here / "data" / "lm", checkpoint, "--sample-break-mode", "eos")
    assert -torch.cat(ends).mean().item() / math.log(2) == pytest.approx(float(evaluated), abs=1e-4)


def test_language_models_continue_a_text(here):
    model = load(ConvAttnLanguageModel, "lm", **PIECES)
    torch.manual_seed(1)
    many = {model.sample("oak pine", sampling=True, max_len_b=12) for _ in range(5)}
    assert len(many) > 1 and all(text.startswith("oak pine") for text in many)
    assert model.sample("oak pine", max_len_b=12) == model.sample("oak pine", max_len_b=12)
    tokens = len(model.encode("oak pine")) - 1
    message = f"the prompt has {tokens} tokens, and max_len_b={tokens} counts them, too"
    with pytest.raises(ValueError, match=message):
        model.sample(["oak", "oak pine"], max_len_b=tokens)
    assert model.sample("oak pine", max_len_b=tokens + 1).startswith("oak pine")
    assert model.sample("oak pine", max_len_a=1, max_len_b=0).startswith("oak pine")
    assert len(model.score("oak pine", max_len_b=tokens)["positional_scores"]) == tokens


@pytest.mark.parametrize("data", [Path("data/translation"), "../../data/translation"])
def test_data_folders(data, here):
    """The working directory's, and the checkpoint's."""
    folder = Path("checkpoints/translation")
    model = ConvAttnModel.from_pretrained(folder, "checkpoint_last.pt", data)
    assert model.translate("▁ oak", max_len_b=3)


def test_a_folder_that_has_all_files(here, tmp_path):
    files = {"checkpoints/translation/checkpoint_last.pt": "model.pt"}
    files["bpe.model"] = "sentencepiece.bpe.model"
    files |= {f"data/translation/dict.{side}.txt": f"dict.{side}.txt" for side in ("src", "tgt")}
    for name, copied in files.items():
        (tmp_path / copied).write_bytes(Path(name).read_bytes())
    expected = load(ConvAttnModel, "translation", **PIECES).translate(SOURCES, max_len_b=9)
    model = ConvAttnModel.from_pretrained(tmp_path, source_lang="src", target_lang="tgt")
    assert model.translate(SOURCES, max_len_b=9) == expected


@pytest.mark.parametrize(
    "change, message",
    [
        ({"model_name_or_path": "nowhere"}, "nowhere: no such folder"),
        ({"model_name_or_path": "last.pt"}, r"from_pretrained\('.', 'last.pt'\)"),
        ({"checkpoint_file": "best.pt"}, "has no best.pt; give one .* checkpoint_file: check"),
        ({"data_name_or_path": "binn"}, "binn: no such folder"),
        ({"data_name_or_path": "checkpoints"}, r"no dictionary \(dict.\*.txt\) in checkpoints;"),
        ({"data_name_or_path": "."}, "in checkpoints/translation or .;"),
        ({"bpe": "sentencepeice"}, "bpe='sentencepeice' is unknown; fairseq has .*sentencepiece"),
        ({"tokenizer": "mosses"}, "tokenizer='mosses' is unknown; fairseq has .*moses"),
        ({"data_name_or_path": "data/lm"}, "data/lm has no sentence pairs; data_name_or_path need"),
        ({"bpe": "sentencepiece"}, "needs sentencepiece_model=FILE"),
        ({"bpe": "subword_nmt"}, "bpe='subword_nmt' needs bpe_codes=FILE"),
        ({"sentencpiece_model": "x"}, "no such option; did you mean sentencepiece_model?"),
        ({"bpe_codes": "x"}, "bpe_codes needs bpe='fastbpe' or bpe='subword_nmt'"),
        ({**PIECES, "bpe": None}, "sentencepiece_model needs bpe='sentencepiece'"),
        ({"moses_no_escape": True}, "moses_no_escape needs tokenizer='moses'"),
    ],
)
def test_what_cannot_be_loaded(change, message, here):
    given = {
        "model_name_or_path": "checkpoints/translation",
        "checkpoint_file": "checkpoint_last.pt",
        "data_name_or_path": "data/translation",
    }
    with pytest.raises((ValueError, OSError), match=message) as raised:
        ConvAttnModel.from_pretrained(**{**given, **change})
    assert "\n" not in str(raised.value)


def test_what_cannot_be_asked(here):
    model = load(ConvAttnModel, "translation", **PIECES)
    with pytest.raises(ValueError, match="bem: no option of models in Python; did you mean beam"):
        model.translate("oak", bem=4)
    for option in ("prefix_size", "retain_dropout", "constraints", "nbest"):
        with pytest.raises(ValueError, match=f"{option}: no option"):
            model.translate("oak", **{option: 1})
    with pytest.raises(ValueError, match="skip_invalid_size_inputs: no option"):
        model.translate("oak", skip_invalid_size_inputs=True)
    for beam in (0, 2.0, "2"):
        with pytest.raises(ValueError, match=f"beam must be a whole number .*, not {beam!r}"):
            model.translate("oak", beam=beam)
    for number, empty in ((1, ""), (2, ["oak", " "])):
        with pytest.raises(ValueError, match=f"sentence {number} is empty; leave it out"):
            model.translate(empty)
    for ask in (model.translate, model.summarize, model.sample):
        for wrong in (5, None, b"oak", ["oak", None]):
            with pytest.raises(TypeError, match="give a text, or a list of texts"):
                ask(wrong)
    for wrong in ("oak", ["oak"]):
        with pytest.raises(TypeError, match="generate takes what encode returns"):
            model.generate(wrong)
    with pytest.raises(ValueError, match="only language models"):
        model.score("oak")


@pytest.mark.parametrize("name", ["translation", "lm", "mlm"])
def test_a_model_of_another_class(name, here):
    classes = {"translation": ConvAttnModel, "lm": ConvAttnLanguageModel}
    classes["mlm"] = ConvAttnMaskedLanguageModel
    right = classes.pop(name)
    for wrong in classes.values():
        with pytest.raises(ValueError) as raised:
            load(wrong, name, "lm" if name == "mlm" else None, **PIECES)
        message = (
            f"checkpoint_last.pt is not a {wrong.__name__}: use {right.__name__}.from_pretrained"
        )
        assert str(raised.value) == message


def test_what_other_kinds_of_models_do(here):
    with pytest.raises(FileNotFoundError, match="no .*/dict.txt; data_name_or_path needs the fold"):
        load(ConvAttnLanguageModel, "lm", "translation")
    model = load(ConvAttnLanguageModel, "lm", **PIECES)
    with pytest.raises(ValueError, match="sentence 2 is empty"):
        model.score(["oak", " "])
    for call in (model.translate, model.summarize):
        with pytest.raises(ValueError, match="a language model only continues texts: use sample"):
            call("oak")
    model = load(ConvAttnMaskedLanguageModel, "mlm", "lm", bpe=None)
    assert model.extract_features(torch.tensor([[0, 5, 2]])).size(1) == 3
    assert hasattr(model, "bpe")
    for call in (model.encode, model.fill_mask, lambda text: model.decode(torch.tensor([0, 2]))):
        with pytest.raises(ValueError, match="texts need bpe, such as bpe='sentencepiece'"):
            call("<mask>")
    model = load(ConvAttnMaskedLanguageModel, "mlm", "lm", **PIECES)
    with pytest.raises(ValueError, match="no classification head: fine-tune it first"):
        model.predict("sentence_classification_head", model.encode("oak"))
    model.register_classification_head("kind", num_classes=3)
    assert model.predict("kind", model.encode("oak")).exp().sum().item() == pytest.approx(1)
    with pytest.raises(ValueError, match="no classification head 'sort'; it has kind"):
        model.predict("sort", model.encode("oak"))
    model.register_classification_head("regression", num_classes=1)
    assert model.predict("regression", model.encode("oak")) != 0  # the log-probability of one class
    expected = model.fill_mask("oak <mask> elm", topk=4)
    assert all(text == f"oak{word} elm" for text, _, word in expected)
    with torch.no_grad():  # fairseq's own gives the probability of the word before then
        bias = model.model.encoder.lm_head.bias
        bias[[0, 1, 2, 3, model.task.mask_idx]] = 9
    with pytest.raises(ValueError, match="tokens, the model takes .*: split the text"):
        model.fill_mask(f"<mask> {'oak ' * model.model.max_positions()}")
    with pytest.raises(ValueError, match="topk must be at least 1"):
        model.fill_mask("oak <mask> elm", topk=-1)
    found = model.fill_mask("oak <mask> elm", topk=4)
    assert [x[2] for x in found] == [x[2] for x in expected]
    assert all(more[1] > 10 * less[1] for more, less in zip(expected, found, strict=True))
    everything = model.fill_mask("oak <mask> elm", topk=99)
    special = re.compile("madeup|[<>]")
    assert len(everything) > 9 and not any(special.search(text) for text, _, _ in everything)
    dictionary = model.task.source_dictionary
    dictionary.symbols = [symbol.lstrip("\u2581") for symbol in dictionary.symbols]
    model.bpe = SimpleNamespace(encode=str, decode=str)
    assert all(text == f"oak {word} elm" for text, _, word in model.fill_mask("oak <mask> elm"))
    for text in ("oak", "<mask> <mask>"):
        with pytest.raises(ValueError, match=f"'{text}' must have one <mask>"):
            model.fill_mask(text)
    model.task = object()  # sentence_prediction
    with pytest.raises(ValueError, match="was fine-tuned; its pre-training's checkpoint fills"):
        model.fill_mask("oak <mask>")


@pytest.mark.parametrize(
    "kind, name", [(ConvAttnModel, "translation"), (ConvAttnLanguageModel, "lm")]
)
def test_a_sentence_that_is_too_long(kind, name, here):
    model = load(kind, name, **PIECES)
    longest = min(model.max_positions) if name == "translation" else model.max_positions
    text = "oak " * longest
    message = rf"[\d,]+ tokens, the model takes {longest:,}: split the text"
    with pytest.raises(ValueError, match=message) as raised:
        model.sample(["ash", text])
    assert raised.value.args[0].startswith(f"{len(model.encode(text)):,} tokens")


def test_text_that_is_not_split_into_subwords(here, caplog):
    model = load(ConvAttnModel, "translation", **PIECES)
    model.translate(SOURCES, beam=1, max_len_b=2)
    assert "unknown" not in caplog.text
    model.translate("火 水", beam=1, max_len_b=2)
    assert "4 of 4 tokens are unknown to the dictionary: is the text in the lang" in caplog.text
    caplog.clear()
    model = load(ConvAttnModel, "translation")
    model.translate(["▁ash ▁oak", *SOURCES], beam=1, max_len_b=2)
    (line,) = [message for message in caplog.messages if "unknown" in message]
    assert line == (
        "3 of 3 tokens are unknown to the dictionary: is the text split into subwords? "
        "Give sentencepiece_model=FILE"
    )
    caplog.clear()
    model.generate(model.encode("oak"), beam=1, max_len_b=2)
    assert caplog.text.count("1 of 1 tokens are unknown") == 1
    caplog.clear()
    model.generate(model.encode(f"{model.src_dict[4]} oak"), beam=1, max_len_b=2)
    assert "unknown" not in caplog.text  # of one half
