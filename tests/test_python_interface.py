"""Trained models, mixers and operations from Python, as docs/python.md shows them."""

import json
import math
import os
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import sentencepiece
import torch
from conftest import ROOT, SHRUNK, SHRUNK_LM, command, eval_lm, generate, preprocess, train
from fairseq import options
from fairseq_cli import preprocess as preprocess_command

from fairseq_convattn.architectures import (
    ConvAttnLanguageModel,
    ConvAttnMaskedLanguageModel,
    ConvAttnModel,
)
from fairseq_convattn.checkpoints.checks import CheckpointError
from fairseq_convattn.report import ReportError, pack

WORDS = "cedar elm fir hazel larch oak pine rowan willow ash".split()
TINY = ("--max-update", "10", "--no-epoch-checkpoints")
PIECES = {"sentencepiece_model": "bpe.model"}
HIDDEN_FAIRSEQ = """
import importlib.util, sys, torch
sys.modules["fairseq"], importlib.util.find_spec = None, lambda *_: None
"""
SOURCES = ["oak pine rowan", "elm fir cedar hazel larch willow ash oak", "ash"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Models of a few updates, and below ``example`` with the names that docs/python.md has."""
    root = tmp_path_factory.mktemp("python")
    generator = random.Random(1)
    texts = [" ".join(generator.choices(WORDS, k=generator.randint(2, 8))) for _ in range(150)]
    (root / "text").write_text("\n".join(texts))
    sentencepiece.SentencePieceTrainer.train(
        input=str(root / "text"),
        model_prefix=str(root / "bpe"),
        vocab_size=40,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(root / "bpe.model"))
    lines = [" ".join(pieces.encode(text, out_type=str)) for text in texts]
    sources = [" ".join(pieces.encode(text, out_type=str)) for text in SOURCES]
    pairs = list(zip(lines, reversed(lines), strict=True))
    splits = {"train": pairs[10:], "valid": pairs[:10], "test": [(s, s) for s in sources]}
    for task, flags in (
        ("translation", ()),
        ("summarization", ("--max-source-tokens", "6", "--source-prefix", sources[0].split()[0])),
    ):
        name = "summaries" if task == "summarization" else task
        data = preprocess(splits, root / "texts" / name, "--joined-dictionary")
        (root / "data").mkdir(exist_ok=True)
        (root / "data" / name).symlink_to(data)
        model = ("--task", task, "--arch", "dynamic_conv_tiny", *SHRUNK, *flags, *TINY)
        batches = ("--max-tokens", "200", "--required-batch-size-multiple", "8")
        train(data, root / "checkpoints" / name, *model, *batches)
    arguments = ["--only-source", "--destdir", str(root / "data" / "lm")]
    for split, source in (("train", lines[10:]), ("valid", lines[:10]), ("test", sources)):
        (root / "texts" / split).write_text("\n".join(source) + "\n")
        arguments += [f"--{split}pref", str(root / "texts" / split)]
    preprocess_command.main(options.get_preprocessing_parser().parse_args(arguments))
    blocks = ("--tokens-per-sample", "64", "--sample-break-mode")
    model = ("--arch", "dynamic_conv_lm_tiny", *SHRUNK_LM, *blocks, "eos", *TINY)
    train(root / "data" / "lm", root / "checkpoints" / "lm", "--task", "language_modeling", *model)
    model = ("--arch", "composite_attention_bert_tiny", *SHRUNK[:6], *blocks, "complete", *TINY)
    masked = ("--task", "masked_lm", "--criterion", "masked_lm", *model)
    train(root / "data" / "lm", root / "checkpoints" / "mlm", *masked)
    link_examples(root)
    return root


def link_examples(root: Path) -> None:
    """The models where the pages of the documents make them."""
    for page, name, data in (
        ("translation", "translation", "translation"),
        ("lm", "lm", "lm"),
        ("summarization", "summaries", "summaries"),
        ("mlm", "mlm", "lm"),
    ):
        example = root / "example" / page
        example.mkdir(parents=True)
        (example / "checkpoints").symlink_to(root / "checkpoints" / name)
        (example / "bin").symlink_to(root / "data" / data)
        (example / "bpe.model").symlink_to(root / "bpe.model")


@pytest.fixture
def here(folder, monkeypatch) -> Path:
    monkeypatch.chdir(folder)
    return folder


def load(model, name, data=None, **options):
    data = f"data/{data or name}"
    return model.from_pretrained(f"checkpoints/{name}", "checkpoint_last.pt", data, **options)


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
@pytest.mark.ci
def test_a_plugin_that_adds_a_mixer(here, tmp_path):
    page = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    snippet = page[page.index("### Your own, in another plugin") :].split("```")[1]
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "__init__.py").write_text(snippet.removeprefix("python"), encoding="utf-8")
    data, there = here / "data" / "translation", ("--user-dir", tmp_path / "own", "--cpu")
    length = ("--max-tokens", "600", "--max-update", "2", "--save-dir", tmp_path, "--lr", "0.01")
    length = (*length, "--optimizer", "adam", "--required-batch-size-multiple", "1")
    runs = [command("fairseq-train", data, *there, "--arch", "mean_tiny", *length, cwd=tmp_path)]
    checkpoint = ("--path", tmp_path / "checkpoint_last.pt", "--required-batch-size-multiple", "1")
    runs += [command("fairseq-generate", data, *there, *checkpoint, cwd=tmp_path)]
    assert all(run.returncode == 0 for run in runs), runs[-1].stderr
    assert "Mean()" in runs[0].stdout + runs[0].stderr
    assert "Generate test with beam=5" in runs[1].stdout
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
    for name, copy in files.items():
        (tmp_path / copy).write_bytes(Path(name).read_bytes())
    expected = load(ConvAttnModel, "translation", **PIECES).translate(SOURCES, max_len_b=9)
    model = ConvAttnModel.from_pretrained(tmp_path, source_lang="src", target_lang="tgt")
    assert model.translate(SOURCES, max_len_b=9) == expected


RESULTS = {
    "command": "python -m fairseq_convattn.recipes multi30k --mixer dynamic --data /home/me/data",
    "environment": {"versions": {"torch": "2.13.0", "fairseq_convattn": "0.1.0"}, "git": None},
    **{"title": "Multi30k", "mixer": "dynamic", "architecture": "dynamic_conv_tiny", "seed": 1},
    **{"paper": "Wu et al. 2021", "origin": "its code", "reading": "its length", "smoke": False},
}
SCORE = {"name": "BLEU", "score": 42.0, "signature": "tok:none"}
SCORE |= {"published": {}, "published_in": "a paper"}
PARAMETERS = (
    "2026-11-21 00:00:00 | INFO | train | num. shared model params: 9,126 (num. trained: 9)\n"
)


def run_of_a_recipe(here: Path, folder: Path, name: str, **changes) -> Path:
    """With a model of the fixture, and its subwords where the preparation puts them."""
    (folder / "logs").mkdir(parents=True)
    (folder / "logs" / "train.log").write_text(PARAMETERS)
    task = {"lm": "language_modeling", "mlm": "masked_lm"}.get(name, name)
    (folder / "stages").mkdir()
    (folder / "stages" / "train.json").write_text(json.dumps({"settings": [{"--task": task}]}))
    (folder / "checkpoints").symlink_to(here / "checkpoints" / name)
    pieces = (here / "data" / name.removeprefix("m")).resolve().parent / "bpe" / "bpe.model"
    pieces.parent.mkdir(exist_ok=True)
    shutil.copyfile(here / "bpe.model", pieces)
    (folder / "results.json").write_text(json.dumps(RESULTS | {"scores": [SCORE]} | changes))
    return folder


@pytest.mark.parametrize(
    "name, model, use",
    [
        ("translation", ConvAttnModel, lambda model: model.translate(SOURCES, max_len_b=9)),
        ("lm", ConvAttnLanguageModel, lambda model: model.sample(SOURCES, max_len_b=9)),
        (
            "mlm",
            ConvAttnMaskedLanguageModel,
            lambda model: model.fill_mask("oak <mask>", topk=1)[0][0],
        ),
    ],
)
def test_a_packed_model_is_one_folder(name, model, use, here, tmp_path, monkeypatch):
    run = trained_with_paths(run_of_a_recipe(here, tmp_path / "run", name))
    long = "elm " * 99
    samples = f"S-0\toak\nH-0\t-1\t{long}\nS-1\t{long}\nH-1\t-1\tash\nS-2\tfir\nH-2\t-1\tpine\n"
    (run / "generated.test.txt").write_text(samples)
    monkeypatch.setattr(sys, "argv", ["pack", str(run), "--output", str(tmp_path / "packed")])
    pack.main()
    card = (tmp_path / "packed" / "README.md").read_text()
    assert "| 42.00 |" in card and "9,126 parameters" in card and "/home/me" not in card
    assert "answers `pine`" in card and long not in card
    state = torch.load(tmp_path / "packed" / "model.pt")
    assert "last_optimizer_state" not in state
    floats = [w for w in state["model"].values() if w.is_floating_point()]
    assert {w.dtype for w in floats} == {torch.float16}
    paths = {word for word in re.findall(r"'(/[^']*)", str(state)) if word != "/tmp/plasma"}
    assert not paths and "metrics" not in state["extra_state"]
    assert use(model.from_pretrained(tmp_path / "packed"))
    kept = load(model, name, "lm" if name == "mlm" else None, **PIECES)
    expected = use(kept.half().float())
    shutil.move(tmp_path / "packed", tmp_path / "elsewhere")
    monkeypatch.chdir("/")
    assert use(model.from_pretrained(tmp_path / "elsewhere")) == expected


def trained_with_paths(run: Path) -> Path:
    """The same run, whose training was given files of its machine."""
    original = run.joinpath("checkpoints").resolve()
    (run / "checkpoints").unlink()
    (run / "checkpoints").mkdir()
    for name in ("checkpoint_best.pt", "checkpoint_last.pt"):
        state = torch.load(original / name)
        state["cfg"]["checkpoint"]["finetune_from_model"] = "/home/me/first.pt"
        state["cfg"]["common"]["tensorboard_logdir"] = "/home/me/curves"
        if "encoder_embed_path" in state["cfg"]["model"]:
            state["cfg"]["model"]["encoder_embed_path"] = "/home/me/vectors.txt"
        torch.save(state, run / "checkpoints" / name)
    return run


def test_fairseqs_commands_take_a_packed_model(here, tmp_path):
    """With the data of the training."""
    for name in ("translation", "lm"):
        run = run_of_a_recipe(here, tmp_path / name, name)
        pack.pack(run, tmp_path / f"packed-{name}")
    found = generate(here / "data" / "translation", tmp_path / "packed-translation" / "model.pt")
    assert found.keys() == set(range(len(SOURCES)))
    blocks = ("--sample-break-mode", "eos")
    packed, before = (
        eval_lm(here / "data" / "lm", model, *blocks)
        for model in (tmp_path / "packed-lm" / "model.pt", "checkpoints/lm/checkpoint_best.pt")
    )
    assert abs(packed - before) < 0.01


@pytest.mark.parametrize(
    ("name", "said"),
    [("lm", "the words of its dictionary, split by spaces"), ("translation", "writes subwords")],
)
def test_what_a_model_without_subwords_reads(name, said, here, tmp_path):
    run = run_of_a_recipe(here, tmp_path / "run", name)
    shutil.copytree(here / "data" / name, tmp_path / "data" / "bin")
    pack.pack(run, tmp_path / "packed", tmp_path / "data")
    assert said in (tmp_path / "packed" / "README.md").read_text()


def test_bpe_codes_are_packed_too(here, tmp_path):
    run = run_of_a_recipe(here, tmp_path / "run", "translation", reading="")
    data = tmp_path / "data"
    shutil.copytree(here / "data" / "translation", data / "bin")
    (data / "bpe").mkdir()
    (data / "bpe" / "codes.src").write_text("#version: 0.2\no a\nk</w> x\n")
    pack.pack(run, tmp_path / "packed", data)
    card = (tmp_path / "packed" / "README.md").read_text()
    assert "pip install subword-nmt" in card and "Chosen here" not in card
    model = ConvAttnModel.from_pretrained(tmp_path / "packed")
    assert model.apply_bpe("oak") == "oa@@ k"
    pack.pack(run, tmp_path / "of_bin", data / "bin")  # a recipe's --data may be this
    assert (tmp_path / "of_bin" / "dict.src.txt").is_file()
    with pytest.raises(FileNotFoundError, match="neither .*none nor .*bin has dictionaries"):
        pack.pack(run, tmp_path / "of_none", tmp_path / "none")


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"smoke": True}, "is a smoke test"),
        ({"scores": []}, "has no scores yet"),
        ({"origin": ""}, "does not say its origin"),
    ],
)
def test_what_is_no_finished_run_is_not_packed(changes, message, here, tmp_path):
    run = run_of_a_recipe(here, tmp_path / "run", "translation", **changes)
    with pytest.raises(ReportError, match=message):
        pack.pack(run, tmp_path / "packed")
    assert not (tmp_path / "packed").exists()


def test_weights_beyond_half_precision_are_not_packed(here, tmp_path):
    run = run_of_a_recipe(here, tmp_path / "run", "translation")
    best = here / "checkpoints" / "translation" / "checkpoint_best.pt"
    state = torch.load(best, weights_only=False)
    state["model"]["encoder.layers.0.fc1.bias"][0] = 1e5
    (run / "checkpoints").unlink()
    (run / "checkpoints").mkdir()
    torch.save({k: v for k, v in state.items() if k != "digest"}, run / "checkpoints" / best.name)
    with pytest.raises(CheckpointError, match="beyond float16.*fc1.bias"):
        pack.pack(run, tmp_path / "packed")


def test_an_averaged_run_is_not_packed_without_the_average(here, tmp_path):
    run = run_of_a_recipe(here, tmp_path / "run", "translation")
    (run / "stages" / "average.json").write_text("{}")
    with pytest.raises(CheckpointError, match="average.pt: there is no such file"):
        pack.pack(run, tmp_path / "packed")


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
    model = load(ConvAttnMaskedLanguageModel, "mlm", "lm", **PIECES)
    with pytest.raises(ValueError, match="no classification head: fine-tune it first"):
        model.predict("sentence_classification_head", model.encode("oak"))
    model.register_classification_head("kind", num_classes=3)
    assert model.predict("kind", model.encode("oak")).exp().sum().item() == pytest.approx(1)
    with pytest.raises(ValueError, match="no classification head 'sort'; it has kind"):
        model.predict("sort", model.encode("oak"))
    model.register_classification_head("regression", num_classes=1)
    assert model.predict("regression", model.encode("oak")) != 0  # the log-probability of one class
    assert model.fill_mask("oak <mask>")
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
