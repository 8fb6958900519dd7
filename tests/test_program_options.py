"""Options of fairseq's commands that cannot work are told before anything is read."""

import argparse
import logging
import re
import sys
import warnings
from pathlib import Path

import pytest
from conftest import PLUGIN

from fairseq_convattn import programs
from fairseq_convattn.architectures import ConvAttnModel


@pytest.fixture
def install(monkeypatch):
    for name in ("unraisablehook", "excepthook"):
        monkeypatch.setattr(sys, name, getattr(sys, name))
    with warnings.catch_warnings():
        yield programs.install


def test_a_training_without_an_architecture_does_not_begin(install):
    install(["fairseq-train", "DATA", "--user-dir", "mine"])
    install(["fairseq-train", "DATA", "--user-dir", str(PLUGIN), "--help"])
    with pytest.raises(SystemExit, match="give --arch, for example dynamic_conv_tiny"):
        install(["fairseq-train", "DATA", "--user-dir", str(PLUGIN)])


@pytest.mark.parametrize(
    "given, message",
    [
        (
            f"fairseq-train DATA --arch dynamic_conv_tiny --user-dir {PLUGIN}",
            "give --optimizer, for",
        ),
        (
            f"fairseq-train DATA --arch dynamic_conv_lm_tiny --user-dir {PLUGIN}",
            "dynamic_conv_lm_tiny is for --task language_modeling",
        ),
        *(
            (f"fairseq-{name} DATA --task translation", "give --path, the checkpoint")
            for name in ("generate", "interactive", "eval-lm", "validate")
        ),
        (
            "fairseq-generate DATA --path x.pt --remove-bpe sentencepeice",
            "--remove-bpe: fairseq has no 'sentencepeice'; give sentencepiece or",
        ),
        (
            "fairseq-interactive DATA --path=x.pt --post-process=bpe",
            "--post-process: fairseq has no",
        ),
        (
            "fairseq-eval-lm DATA --path=x.pt --remove-bpe sentencepiece",
            "--remove-bpe: fairseq-eval-lm cannot join 'sentencepiece'; give '@@ ', with",
        ),
        (
            "fairseq-eval-lm DATA --path=x.pt --post-process",
            "--post-process: fairseq-eval-lm cannot join subword_nmt; give '@@ ', with",
        ),
    ],
)
def test_what_fairseq_would_find_out_late_is_told_at_once(given, message, install):
    with pytest.raises(SystemExit, match=re.escape(message)):
        install(given.split())


@pytest.mark.parametrize(
    "program, kinds",
    [
        ("generate", [[], ["@@ "], ["subword_nmt"], ["sentencepiece"]]),
        ("interactive", [[], ["@@ "], ["subword_nmt"], ["sentencepiece"]]),
        ("eval-lm", [["@@ "]]),
        ("validate", [["it reads none"]]),
    ],
)
def test_subwords_of_fairseqs_are_taken(program, kinds, install):
    for kind in kinds:
        install([f"fairseq-{program}", "DATA", "--path=x.pt", "--remove-bpe", *kind])


def test_the_last_of_both_names_counts(install):
    given = ["fairseq-eval-lm", "DATA", "--path=x.pt", "--remove-bpe=subword_nmt"]
    install([*given, "--post-process=@@ "])
    install([*given, "--help"])
    with pytest.raises(SystemExit, match="--remove-bpe: fairseq-eval-lm cannot join ''; give"):
        install([*given[:3], "--post-process=@@ ", "--remove-bpe", ""])


def test_another_plugin_may_have_its_own_optimizer(install):
    install(["fairseq-train", "DATA", "--user-dir", "theirs", "--arch", "dynamic_conv_tiny"])


def test_an_architecture_for_another_task_is_told_before_options_that_the_task_lacks():
    given = ["DATA", "--arch", "dynamic_conv_lm_tiny", "--tokens-per-sample", "9"]
    for more in ("--task=language_modeling", "--task=somebody_elses", "--task", "--help"):
        programs.refuse_another_task([*given, more])
    with pytest.raises(SystemExit, match="--arch: dynamic_conv_lm_tiny is for --task language_m"):
        programs.refuse_another_task(given)


def test_an_architecture_of_fairseqs_is_none_of_our_business():
    programs.check_options(["DATA", "--arch=transformer"])
    programs.check_options(["DATA", "--path", "model.pt"])
    with pytest.raises(SystemExit, match="did you mean dynamic_conv_lm_tiny"):
        programs.check_options(["-a", "dynamic_conv_lm_tin", "--user-dir", str(PLUGIN)])


@pytest.mark.parametrize(
    "option", ["--encoder-conv-type dynamic", "--decoder-kernel-size-list=[3]", "--weight-softmax"]
)
def test_options_of_fairseqs_lightconv_are_answered_with_ours(option):
    programs.check_options(["DATA", "--arch", "lightconv", *option.split()])
    given = ["DATA", "--arch", "dynamic_conv_tiny", *option.split()]
    with pytest.raises(SystemExit, match="lightconv; give --") as caught:
        programs.check_options(given)
    ours = str(caught.value).split("give ")[1]
    parser = argparse.ArgumentParser()
    ConvAttnModel.add_args(parser)
    assert ours in parser._option_string_actions


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        *(("--beam", beam, f"must be at least 1, not {beam}") for beam in ("0", "-1")),
        *(
            ("--model-overrides", text, "must be like .*, not ")
            for text in ("{max_target_positions: 2}", "max_target_positions=2", "2", "", "{[]: 1}")
        ),
    ],
)
def test_impossible_values_of_fairseqs_options_are_one_line(option, value, message, install):
    given = ["fairseq-generate", "DATA", "--path", "x.pt", option]
    with pytest.raises(SystemExit, match=f"{option}: {message}"):
        install([*given, value])
    install([*given, {"--beam": "2"}.get(option, "{'dropout': 0.1}")])
    install(given)  # argparse says that the value is missing


@pytest.mark.parametrize(
    "words",
    [
        "--encoder-kernel-sizes 3 7,15, 31",
        "--encoder-kernel-sizes 3 , 7",
        "--decoder-mixers dynamic, attention,tisa",
        "--attention-terms content, fixed",
    ],
)
def test_lists_with_spaces_are_answered_with_commas(words):
    model = ["--arch", "dynamic_conv_tiny"]
    programs.check_options([*model, *words.replace(", ", ",").split(" ")[:2], "DATA", "--cpu"])
    name, *values = words.split()
    commas = ",".join(word.strip(",") for word in values if word != ",")
    for given in ([name, *values], [f"{name}={values[0]}", *values[1:]]):
        with pytest.raises(SystemExit, match=f"{name}: no spaces: {commas}"):
            programs.check_options([*model, *given, "DATA"])


def test_data_that_are_called_as_a_value_is(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("7", "dynamic"):
        Path(name).mkdir()
    for words in (
        "--decoder-kernel-sizes 31 7",
        "--decoder-kernel-sizes=31 dynamic",
        "--decoder-mixers tisa dynamic",
        "--decoder-mixers tisa 9",
        "--decoder-mixers tisa dynamicdynamic",
        f"--decoder-kernel-sizes 3 {'1' * 60}_data",
        "--attention-terms content dynamic",
        f"--encoder-mixers {','.join(['lightweight'] * 24)} DATA",
    ):
        programs.check_options(["--arch", "dynamic_conv_tiny", *words.split()])


def test_a_plugin_that_imports_this_one_registers_its_own_afterwards():
    programs.check_options(["--arch", "dynamic_conv_tin", "--user-dir", "elsewhere/theirs"])


@pytest.mark.parametrize(
    ("command", "warns"),
    [
        ("fairseq-generate DATA --path x.pt", True),
        ("fairseq-generate DATA --task language_modeling --path x.pt", True),
        ("fairseq-generate DATA --path x.pt --required-batch-size-multiple 1", False),
        ("fairseq-generate DATA --task summarization --path x.pt", False),
        ("fairseq-validate DATA --path x.pt", True),
        ("fairseq-validate DATA --required-batch-size-multiple=1 --path x.pt", False),
        ("fairseq-generate DATA --path x.pt --required-batch-size-multiple abc", False),
        ("fairseq-generate --help", False),
        ("fairseq-interactive DATA --path x.pt", False),
        ("fairseq-eval-lm DATA --path x.pt", False),
    ],
)
def test_commands_that_drop_sentences_say_so(command, warns, monkeypatch, caplog):
    monkeypatch.setattr(sys, "excepthook", None)
    with warnings.catch_warnings():
        programs.install(command.split())
    assert ("silently drops the last batch" in caplog.text) == warns


def test_other_programs_are_left_alone(monkeypatch):
    monkeypatch.setattr(sys, "excepthook", None)
    programs.install(["/usr/bin/python", "--arch", "none"])
    assert sys.excepthook is None
    logging.getLogger("fairseq_cli.eval_lm").info("Evaluated 12 tokens in 1.0s")
