"""What is missing or mistyped ends fairseq's commands with one line."""

import argparse
import os
import shutil
import subprocess
import sys
from types import SimpleNamespace

import pytest
import sentencepiece
import torch
from conftest import (
    PLUGIN,
    SHRUNK,
    SHRUNK_LM,
    command,
    eval_lm,
    generate,
    interactive,
    preprocess,
    train,
    validate,
)

from fairseq_convattn import program_errors, programs
from fairseq_convattn.architectures import ConvAttnModel, checks
from fairseq_convattn.checkpoints.files import read_checkpoint
from fairseq_convattn.spelling import printable


def reported(capsys, call, *arguments) -> str:
    """The one line that is printed of an exception."""
    with pytest.raises(Exception) as caught:
        call(*arguments)
    capsys.readouterr()
    program_errors.report(caught.type, caught.value, caught.tb)
    (line,) = capsys.readouterr().err.splitlines()
    return line


@pytest.mark.parametrize(
    "name, options, message",
    [
        ("fairseq-train", ("--arch", "dynamic_conv_tny"), "did you mean dynamic_conv_tiny?"),
        pytest.param(
            *("fairseq-train", ("--arch", "dynamic_conv_iwslt_en_de")),
            "did you mean dynamic_conv_iwslt_de_en?",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            *("fairseq-eval-lm", ("--path", "x.pt")),
            "there is no none; give the folder that fairseq-",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_commands_end_with_one_line(name, options, message, tmp_path):
    run = command(name, "none", "--user-dir", PLUGIN, "--cpu", *options, cwd=tmp_path)
    assert run.returncode == 1 and "Traceback" not in run.stderr
    assert run.stderr.splitlines()[-1].startswith("error: ") and message in run.stderr


def test_a_mistyped_checkpoint(trained, data, capsys, monkeypatch):
    line = reported(capsys, generate, data, trained.with_name("checkpoint_lst.pt"))
    assert line.endswith("checkpoint_lst.pt; did you mean checkpoint_last.pt?")
    line = reported(capsys, generate, data, trained.parent / "none" / "x.pt")
    assert line.endswith(f"no folder {trained.parent / 'none'}")
    monkeypatch.setattr(sys, "argv", ["fairseq-generate", str(data), "--path", str(trained.parent)])
    line = reported(capsys, generate, data, trained.parent)
    assert line == f"error: {trained.parent} is a folder; give one of its files"


def test_a_file_in_place_of_a_folder(trained, data, tmp_path, capsys, monkeypatch):
    file = data / "dict.src.txt"
    expected = f"error: {file} is a file, not a folder; give the folder that fairseq-preproc"
    monkeypatch.setattr(sys, "argv", ["fairseq-generate", str(file)])
    assert reported(capsys, generate, file, trained).startswith(expected)
    line = reported(
        capsys, train, file, tmp_path, "--arch", "dynamic_conv_tiny", "-s", "a", "-t", "b"
    )
    assert line.startswith(expected)
    for option, folder in (
        *(("--save-dir", file), ("--results-path", file / "results")),
        *(("--tensorboard-logdir", file), ("--log-file", file / "log")),
    ):
        monkeypatch.setattr(sys, "argv", ["fairseq-train", str(data), option, str(folder)])
        line = reported(capsys, os.mkdir, folder / "made")
        assert line == f"error: {file} is a file, not a folder"


def test_mistyped_data(trained, tmp_path, capsys, monkeypatch):
    none = tmp_path / "lr=0.1" / "none"
    none.parent.mkdir()
    for given in (
        ["--input", str(none)],
        [f"--input={none}"],
        ["--input", f"{none.parent}/./none"],
    ):
        monkeypatch.setattr(sys, "argv", ["fairseq-interactive", "data", *given])
        assert reported(capsys, open, none) == f"error: there is no {none}"
    monkeypatch.setattr(sys, "argv", ["fairseq-generate", str(none)])
    line = reported(capsys, generate, none, trained)
    assert f"there is no {none}; give the folder that fairseq-preprocess wrote" in line
    line = reported(capsys, generate, tmp_path, trained)
    assert "has no sentence pairs; give the folder that fairseq-preprocess wrote" in line


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # fairseq's Index
def test_data_that_lack_a_subset_its_text_or_a_language(
    trained, data, tmp_path, capsys, monkeypatch
):
    line = reported(capsys, generate, data, trained, "--gen-subset", "dev")
    pairs = "test (src-tgt), train (src-tgt), valid (src-tgt)"
    assert line == f"error: {data} has no subset dev for these options; it has {pairs}"
    empty = preprocess({"train": [("a", "A")], "test": []}, tmp_path)
    for name in ("src", "tgt"):
        shutil.copy(data / f"dict.{name}.txt", empty)
    line = reported(capsys, generate, empty, trained)
    assert line.startswith("error: a binarised file is empty")
    monkeypatch.setattr(sys, "argv", ["fairseq-generate", str(data)])
    line = reported(capsys, generate, data, trained, "-s", "en", "-t", "de")
    assert line.endswith("dict.en.txt; the folder has the languages src, tgt")


def test_samples_that_are_longer_than_a_model_takes(monolingual, tmp_path, capsys, monkeypatch):
    options = ("--task", "language_modeling", "--tokens-per-sample")
    shape = ("--arch", "dynamic_conv_lm_tiny", *SHRUNK_LM, "--max-update", "1")
    train(monolingual, tmp_path, *options, "8", *shape)
    last = tmp_path / "checkpoint_last.pt"
    for more, way_out in (
        ([], "give --sample-break-mode eos"),
        (["--sample-break-mode", "complete"], "shorten the text, or leave such samples out"),
    ):
        monkeypatch.setattr(sys, "argv", ["fairseq-generate", *options, "20", *more])
        line = reported(capsys, generate, monolingual, last, *options, "20", *more)
        assert f"the model takes 8: {way_out}" in line


def test_another_precision_is_told(trained, data, tmp_path, capsys, monkeypatch):
    shutil.copyfile(trained, tmp_path / "checkpoint_last.pt")
    given = ("--arch", "dynamic_conv_tiny", *SHRUNK, "--bf16")
    monkeypatch.setattr(sys, "argv", ["fairseq-train", *given])
    line = reported(capsys, train, data, tmp_path, *given)
    assert "another optimizer or precision: repeat its options, or" in line


@pytest.mark.parametrize("given", [["--task", "masked_lm"], ["--task=language_modeling"]])
def test_the_option_that_takes_longer_samples_is_the_tasks(given, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["fairseq-train", "data", *given])
    error = Exception("Size of sample #5 is invalid (=200) since max_positions=128, skip this")
    assert "the model takes 128: raise --tokens-per-sample, or" in program_errors._one_line(error)


def test_the_side_that_is_too_long_is_told(data, tmp_path, capsys, monkeypatch):
    given = ("--arch", "dynamic_conv_tiny", *SHRUNK, "--max-target-positions", "4")
    monkeypatch.setattr(sys, "argv", ["fairseq-train", *given])
    line = reported(capsys, train, data, tmp_path, *given)
    assert "tokens, the model takes 4: raise --max-source-positions or --max-target" in line


def test_data_that_cannot_be_opened_print_nothing_when_they_are_freed(monkeypatch):
    others = []
    monkeypatch.setattr(sys, "__unraisablehook__", others.append)
    half_opened = AttributeError("'Index' object has no attribute '_bin_buffer_mmap'")
    for error in (half_opened, ValueError("another")):
        programs.but_of_half_opened_data(SimpleNamespace(exc_value=error))
    assert [str(other.exc_value) for other in others] == ["another"]


def test_a_text_that_lacks_a_subset(monolingual, tmp_path, capsys):
    options = ("--task", "language_modeling", "--arch", "dynamic_conv_lm_tiny", *SHRUNK_LM)
    line = reported(capsys, train, monolingual, tmp_path, *options, "--valid-subset", "dev")
    there = ", ".join(sorted(file.stem for file in monolingual.glob("*.bin")))
    assert line == f"error: {monolingual} has no subset dev for these options; it has {there}"


@pytest.mark.parametrize(
    ("languages", "others", "missing"),
    [
        (("zh-cn", "en"), (), None),
        (("src", "tgt"), ("train.src-None.src", "train.src-fr.src", "train.tgt-src.src"), None),
        (("src", "tgt"), ("train.old.src-tgt.src",), None),
        (("src", "tgt"), (), "valid.src-tgt.tgt.idx"),
        (("tgt", "src"), (), "train.src-tgt.src.bin"),
    ],
)
def test_which_pairs_are_half_there(languages, others, missing, tmp_path):
    pair = "-".join(languages if "src" not in languages else ("src", "tgt"))
    names = [f"{part}.{pair}.{x}" for part in ("train", "valid") for x in languages]
    for name in (*names, *others):
        for ending in ("idx", "bin"):
            (tmp_path / f"{name}.{ending}").touch()
    if missing:
        (tmp_path / missing).unlink()
    given = argparse.Namespace(
        data=f"{tmp_path}:{tmp_path / 'second'}",
        source_lang=languages[0],
        target_lang=languages[1],
        train_subset="train",
        valid_subset="valid",
        disable_validation=False,
        dataset_impl=None,
    )
    if not missing:
        checks.sentence_pairs(given)
        return
    with pytest.raises(ValueError, match=f"has {missing.split('.')[0]} in {languages[0]}, but not"):
        checks.sentence_pairs(given)


def test_a_call_without_targets_keeps_its_traceback(capsys):
    """As of another plugin's criterion, where the data are whole."""

    def criterion(sample):
        return ConvAttnModel.forward(None, None, None)

    with pytest.raises(TypeError) as caught:
        criterion({"target": torch.ones(1)})
    program_errors.report(caught.type, caught.value, caught.tb)
    printed = capsys.readouterr().err
    assert printed.startswith("Traceback") and not printed.endswith("\n\n")


def test_a_subset_of_one_language(trained, data, tmp_path, capsys, monkeypatch):
    """As fairseq-preprocess leaves it where a file is missing; fairseq would train an epoch."""
    half = tmp_path / "bin"
    half.mkdir()
    for file in data.iterdir():
        if not file.name.startswith("valid.src-tgt.tgt."):
            (half / file.name).symlink_to(file)
    given = ("--arch", "dynamic_conv_tiny", *SHRUNK, "--max-update", "1")
    with pytest.raises(SystemExit, match="has valid in src, but not in tgt; delete the folder"):
        train(half, tmp_path, *given)
    train(half, tmp_path, *given, "--disable-validation")
    line = reported(capsys, validate, half, trained, "--task", "translation")
    assert line.startswith("error: a subset has sentences of the source language alone")


def test_first_weights_and_pieces_that_are_not_there(data, trained, tmp_path, capsys, monkeypatch):
    given = ("--arch", "dynamic_conv_tiny", *SHRUNK, "--finetune-from-model")
    mistyped = str(trained.with_name("checkpoint_lst.pt"))
    line = reported(capsys, train, data, tmp_path, *given, mistyped)
    assert line.endswith("checkpoint_lst.pt; did you mean checkpoint_last.pt?")
    options = ("--bpe", "sentencepiece", "--sentencepiece-model", str(tmp_path / "bpe.model"))
    line = reported(capsys, interactive, data, trained, *options)
    assert line == f"error: there is no {tmp_path / 'bpe.model'}"


def test_a_vocabulary_for_pieces(capsys, tmp_path):
    (tmp_path / "bpe.vocab").write_text("a\t0\n")
    load = sentencepiece.SentencePieceProcessor
    line = reported(capsys, lambda: load(model_file=str(tmp_path / "bpe.vocab")))
    assert line.endswith("bpe.vocab is not a SentencePiece model; give the .model file")


def test_sentence_pairs_for_a_language_model(trained, data, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["fairseq-train", str(data)])
    options = ("--task", "language_modeling", "--arch", "dynamic_conv_lm_tiny", *SHRUNK_LM)
    line = reported(capsys, train, data, tmp_path, *options)
    assert line.startswith(f"error: {data} has sentence pairs; the task needs the folder that ")
    assert line.endswith("fairseq-preprocess --only-source wrote")
    monkeypatch.setattr(sys, "argv", ["fairseq-eval-lm", str(data)])
    line = reported(capsys, eval_lm, data, trained)
    assert "has sentence pairs, and fairseq-eval-lm scores no translation models; " in line


def test_a_checkpoint_of_another_vocabulary(trained, tmp_path, capsys):
    pairs = [("a b", "B A"), ("b a", "A B")]
    splits = {"train": pairs, "valid": pairs, "test": pairs}
    other = preprocess(splits, tmp_path, "--joined-dictionary")
    expected = f"the checkpoint has 24 types, {other / 'dict.src.txt'} has 8; binarise the data"
    assert expected in reported(capsys, generate, other, trained)
    options = ("--arch", "dynamic_conv_tiny", *SHRUNK)
    assert expected in reported(capsys, train, other, trained.parent, *options)


def test_a_folder_with_another_model(trained, data, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["fairseq-train", str(data)])
    line = reported(capsys, train, data, trained.parent, "--arch", "attention_tiny", *SHRUNK)
    assert "with --arch dynamic_conv_tiny, not attention_tiny (with --encoder-mixers dyn" in line
    assert ", not attention): choose a new --save-dir" in line
    wider = ("--arch", "dynamic_conv_tiny", *SHRUNK, "--encoder-ffn-embed-dim", "48")
    line = reported(capsys, train, data, trained.parent, *wider)
    assert "choose a new --save-dir" in line and "fc1" in line


@pytest.mark.parametrize("adaptive", [False, True])
def test_a_language_model_of_another_vocabulary(adaptive, monolingual, tmp_path, capsys):
    options = ("--task", "language_modeling", "--arch", "dynamic_conv_lm_tiny", *SHRUNK_LM)
    options += ("--max-update", "1", "--tokens-per-sample", "16")
    if adaptive:
        options += ("--adaptive-input", "true", "--adaptive-input-cutoff", "8")
    train(monolingual, tmp_path, *options)
    other = tmp_path / "other"
    other.mkdir()
    letters = (monolingual / "dict.txt").read_text(encoding="utf-8").splitlines()
    (other / "dict.txt").write_text("\n".join(letters[:10]) + "\n", encoding="utf-8")
    types = len(letters) + 4
    line = reported(capsys, eval_lm, other, tmp_path / "checkpoint_last.pt")
    assert f"the checkpoint has {types} types, {other / 'dict.txt'} has 14; " in line


def test_fusion_without_the_language_models_dictionary(
    trained, data, monolingual, tmp_path, capsys, monkeypatch
):
    options = ("--task", "language_modeling", "--arch", "dynamic_conv_lm_tiny", *SHRUNK_LM)
    train(monolingual, tmp_path, *options, "--max-update", "1", "--tokens-per-sample", "16")
    options = ("--lm-path", str(tmp_path / "checkpoint_last.pt"))
    monkeypatch.setattr(sys, "argv", ["fairseq-generate", str(data), *options])
    line = reported(capsys, generate, data, trained, *options)
    assert line.endswith("dict.txt; --lm-path needs its model's dict.txt in the data folder")


def test_a_perplexity_of_a_part_is_an_error(monolingual, tmp_path):
    """Of nothing, too."""
    options = ("--task", "language_modeling", "--arch", "dynamic_conv_lm_tiny", *SHRUNK_LM)
    train(monolingual, tmp_path, *options, "--max-update", "1", "--tokens-per-sample", "8")
    last = tmp_path / "checkpoint_last.pt"
    for samples, *given in ((6, "10"), (6, "12", "--context-window", "2"), (1, "100")):
        message = f"skip {samples} samples, .* model's 8 positions: .*--tokens-per-sample 8"
        with pytest.raises(SystemExit, match=message):
            eval_lm(monolingual, last, "--tokens-per-sample", *given)
    assert eval_lm(monolingual, last, "--tokens-per-sample", "8") > 0


@pytest.mark.parametrize("context", ["8", "20"])
def test_a_context_as_long_as_a_block(monolingual, tmp_path, capsys, monkeypatch, context):
    options = ("--task", "language_modeling", "--arch", "dynamic_conv_lm_tiny", *SHRUNK_LM)
    train(monolingual, tmp_path, *options, "--max-update", "1", "--tokens-per-sample", "8")
    given = ("--tokens-per-sample", "8", "--context-window", context)
    monkeypatch.setattr(sys, "argv", ["fairseq-eval-lm", *given])
    line = reported(capsys, eval_lm, monolingual, tmp_path / "checkpoint_last.pt", *given)
    assert line.startswith("error: --context-window must be shorter than a block")
    assert program_errors._one_line(ValueError("malformed node")) is None


def test_a_perplexity_of_a_translator_is_an_error(trained, monolingual, capsys):
    """Of fairseq's own, too, of which its task asks this attribute."""
    line = reported(capsys, eval_lm, monolingual, trained)
    assert line.startswith("error: this is a translation or summarization model: it needs --task ")
    assert line.endswith(", not language_modeling, as fairseq-eval-lm sets it")
    line = reported(capsys, lambda: ConvAttnModel.supported_targets)
    assert line.startswith("error: the checkpoint is not a language model")


@pytest.mark.parametrize("option", ["--self-target", "--past-target"])
def test_other_targets_than_the_next_token(monolingual, tmp_path, monkeypatch, capsys, option):
    given = ("--task", "language_modeling", "--arch", "dynamic_conv_lm_tiny", *SHRUNK_LM, option)
    monkeypatch.setattr(sys, "argv", ["fairseq-train", *given])
    line = reported(capsys, train, monolingual, tmp_path, *given)
    assert line.endswith(f"the next token only: leave out {option}")
    monkeypatch.setattr(sys, "argv", ["fairseq-train", "DATA", "--arch", "transformer_tiny"])
    line = reported(capsys, lambda: ConvAttnModel.supported_targets)
    assert line.startswith("error: --arch is no language model")


def test_a_perplexity_of_a_masked_language_model_is_an_error(monolingual, tmp_path, capsys):
    options = ("--task", "masked_lm", "--criterion", "masked_lm", "--arch", "tisa_bert_tiny")
    shape = ("--encoder-embed-dim", "16", "--encoder-attention-heads", "4", "--encoder-layers", "1")
    train(monolingual, tmp_path, *options, *shape, "--max-update", "1", "--tokens-per-sample", "32")
    last = tmp_path / "checkpoint_last.pt"
    line = reported(capsys, eval_lm, monolingual, last)
    assert line.startswith("error: this is a masked language model: it needs --task masked_lm or")
    given = ("--task", "language_modeling", "--arch", "tisa_lm_tiny", *SHRUNK_LM)
    given += ("--tokens-per-sample", "16", "--finetune-from-model", str(last))
    line = reported(capsys, train, monolingual, tmp_path / "new", *given)
    assert line.startswith(f"error: {last} has only an encoder, --arch tisa_lm_tiny only a decoder")


def test_a_language_model_translates_nothing_and_starts_no_translator(
    data, monolingual, tmp_path, capsys
):
    options = ("--task", "language_modeling", "--arch", "dynamic_conv_lm_tiny", *SHRUNK_LM)
    train(monolingual, tmp_path, *options, "--max-update", "1", "--tokens-per-sample", "16")
    last = tmp_path / "checkpoint_last.pt"
    line = reported(capsys, generate, data, last)
    assert line == (
        "error: this is a language model: it needs --task language_modeling, not translation"
    )
    state, fairseqs = torch.load(last), tmp_path / "fairseqs.pt"
    state["cfg"]["model"].update(_name="transformer_lm", arch="transformer_lm")
    torch.save(state, fairseqs)
    for start in (last, fairseqs):
        given = ("--arch", "dynamic_conv_tiny", *SHRUNK, "--finetune-from-model", str(start))
        line = reported(capsys, train, data, tmp_path / "new", *given)
        assert line == (
            f"error: {start} has only a decoder, --arch dynamic_conv_tiny an encoder and a "
            "decoder: give a checkpoint of the same task"
        )


def test_a_message_has_no_control_characters(capsys):
    line = reported(capsys, read_checkpoint, "a\x1b[2Jb\u200dc.pt")
    assert line == "error: a\\x1b[2Jb\u200dc.pt: there is no such file"
    assert printable("mon\u00a0dossier\u3000\t") == "mon\u00a0dossier\u3000\t"


def test_a_sample_that_is_longer_than_a_batch(data, tmp_path, capsys):
    given = ("--arch", "dynamic_conv_tiny", *SHRUNK, "--max-update", "1", "--max-tokens", "4")
    line = reported(capsys, train, data, tmp_path, *given)
    assert line.startswith("error: a sample has more than the 4 tokens of a batch: raise --max-tok")


def test_a_link_in_the_folder_of_a_training(data, tmp_path, capsys):
    (tmp_path / "private").write_text("kept")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "checkpoint_best.pt").symlink_to(tmp_path / "private")
    given = ("--arch", "dynamic_conv_tiny", *SHRUNK, "--max-update", "1")
    line = reported(capsys, train, data, tmp_path / "run", *given)
    assert line.endswith(
        "lead to any file; remove it or choose another --save-dir (which may itself be a link)"
    )
    assert (tmp_path / "private").read_text() == "kept"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_training_that_needs_a_gpu(monkeypatch, capsys):
    def without_driver():
        raise RuntimeError("Found no NVIDIA driver on your system. Please check that you have")

    missing = "error: there is no GPU, or torch does not see it"
    for needed in (lambda: torch.ones(1).cuda(), without_driver):
        ways_out = {"--amp": "--amp needs one", "--profile": "leave it out", "--x": "give --cpu"}
        for given, way_out in ways_out.items():
            monkeypatch.setattr(sys, "argv", ["fairseq-train", "DATA", given])
            line = reported(capsys, needed)
            assert line.startswith(missing) and way_out in line


def test_several_workers_without_a_gpu(capsys):
    def refuse():
        raise AssertionError("world size is 2 but have 0 available devices")

    assert "-m fairseq_convattn.launch DATA" in reported(capsys, refuse)


def test_what_nobody_mistyped_keeps_its_traceback(capsys):
    with pytest.raises(RuntimeError) as caught:
        try:
            open("/nowhere/cache")
        except FileNotFoundError:
            raise RuntimeError("out of memory") from None
    program_errors.report(caught.type, caught.value, caught.tb)
    printed = capsys.readouterr().err
    assert printed.startswith("Traceback") and "out of memory" in printed
    with pytest.raises(FileNotFoundError) as caught:
        subprocess.run(["no-such-compiler"])
    program_errors.report(caught.type, caught.value, caught.tb)
    assert capsys.readouterr().err.startswith("Traceback")


@pytest.mark.parametrize(
    ("program", "way_out"),
    [
        ("fairseq-train DATA", "choose a new --save-dir"),
        ("fairseq-train DATA --finetune-from-model x.pt", "that --finetune-from-model names"),
        ("fairseq-eval-lm --model-overrides {}", "what --model-overrides"),
        ("fairseq-eval-lm DATA --path x.pt", "repeat the options of its --task"),
    ],
)
def test_weights_of_another_model(program, way_out, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", program.split())
    small, large = torch.nn.Linear(2, 2), torch.nn.Linear(2, 3)
    line = reported(capsys, large.load_state_dict, small.state_dict())
    assert line.startswith("error: the checkpoint does not fit") and way_out in line
    assert "size mismatch for weight" in line and len(line) < 400


def test_a_clone_is_not_taken_for_the_package():
    """Whose guard against pickles would be missing."""
    code = (
        "import sys, types; clone = types.ModuleType('fairseq_convattn'); clone.__file__ = None; "
        f"clone.__path__ = [{str(PLUGIN)!r}]; sys.modules['fairseq_convattn'] = clone; "
        "import fairseq_convattn.architectures"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.returncode == 1 and "is a clone of fairseq_convattn, not the pack" in run.stderr
