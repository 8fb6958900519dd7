"""What a recipe prints at its end."""

import pytest

from fairseq_convattn.recipes import catalogue, devices
from fairseq_convattn.recipes.__main__ import command_line, main, resolve
from fairseq_convattn.recipes.recipe import Score
from fairseq_convattn.recipes.record import data_checksums, results, score_lines
from fairseq_convattn.recipes.runner import Runner
from fairseq_convattn.run_records import read_json


def score(name, **further):
    plain = {"confidence": None, "signature": "S", "baseline": "", "published": {}}
    return {"name": name, "score": 31.256, "difference": None, **plain, **further}


def test_scores_with_published_figures_come_last_and_baselines_are_called_so():
    published = {"dynamic": 30.0, "attention": 29.5}
    found = score("R1", published=published, published_in="A paper", difference=1.256)
    baseline = score("R1, longest-3", confidence=[31.0, 31.5], baseline="longest-3")
    scores = [found, score("RL"), baseline]
    results = {"mixer": "dynamic", "scores": scores, "unconfirmed": "", "smoke": False}
    assert score_lines(results) == [
        "R1, longest-3: 31.26 [31.00, 31.50] (baseline)",
        "  S",
        "RL: 31.26 (dynamic)",
        "  S",
        "R1: 31.26 (dynamic)",
        "  published, A paper: dynamic 30.00 (difference +1.26), attention 29.50",
        "  S",
    ]


def test_smoke_tests_have_no_difference_and_what_is_unconfirmed_is_said(tmp_path):
    arguments = command_line().parse_args(["iwslt14_de_en", "--smoke", "--output", str(tmp_path)])
    recipe = catalogue.RECIPES["iwslt14_de_en"]
    scores = [Score("test BLEU", 3.0, None, "S")]
    found = results("", recipe, resolve(arguments, recipe, []), {}, scores)
    _, published, _, unconfirmed, smoke = score_lines(found | {"unconfirmed": "its data"})
    assert published.startswith("  published") and "difference" not in published
    assert unconfirmed == "unconfirmed: its data" and smoke.startswith("(a smoke test")


def test_a_training_that_changed_its_precision_says_so(tmp_path, capsys, monkeypatch):
    """As where it began on a machine that computes in bfloat16 and goes on here."""
    monkeypatch.setattr(devices, "processor", dict)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    monkeypatch.setattr(Runner, "run", lambda *_: None)
    arguments = ["multi30k", "--smoke", "--output", str(tmp_path)]
    for name in ("logs", "checkpoints", "stages"):
        (tmp_path / name).mkdir()
    (tmp_path / "checkpoints" / "checkpoint1.pt").touch()
    new = "INFO | fairseq.trainer | No existing checkpoint found checkpoint_last.pt"
    begun = "INFO | fairseq.trainer | begin training epoch 1"
    log = ["+ fairseq-train --fp16", new, begun, "+ fairseq-train --bf16", new, begun]
    log += ["+ fairseq-train --fp16", "out of memory", "+ fairseq-train --bf16", begun]
    (tmp_path / "logs" / "train.log").write_text("\n".join(log))
    main(arguments)
    assert "this training ran in bfloat16, and goes on so\n" in capsys.readouterr().out
    assert read_json(tmp_path / "results.json")["precision"] == "bfloat16"
    (tmp_path / "logs" / "train.log").write_text("\n".join([*log, "+ fairseq-train --cpu", begun]))
    recipe = catalogue.RECIPES["multi30k"]
    settings = resolve(command_line().parse_args(arguments), recipe, [])
    stages = {"train": {"commands": ["fairseq-train --cpu"]}}
    found = results("", recipe, settings, stages, [])
    assert found["precision"] == "bfloat16, then float32"
    elsewhere = {"train": {"commands": ["torchrun --fp16"]}}  # whose command is in no log
    found = results("", recipe, settings, elsewhere, [])
    assert found["precision"] == "bfloat16, then float32, then float16"
    main(arguments)
    assert "this training ran in" not in capsys.readouterr().out
    (tmp_path / "logs" / "train.log").write_text("\n".join(log[:3]))
    with pytest.raises(SystemExit, match="ran in float16, so it goes on on GPUs only"):
        main(arguments)
    main([*arguments, "--dry-run"])
    main([*arguments, "prepare"])
    lines = capsys.readouterr().out.splitlines()
    assert not any(line.startswith("note: this training") for line in lines)


def test_checksums_are_of_dictionaries_and_test_sets(tmp_path):
    """Of bin, also where a dictionary lies beside it, and of the text."""
    counted = {"bin/dict.en.txt", "bin/test.de-en.en.bin", "text/test.en"}
    for name in counted | {"dict.en.txt", "bin/train.de-en.en.bin", "text/train.en"}:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    arguments = command_line().parse_args(["multi30k", "--data", str(tmp_path)])
    settings = resolve(arguments, catalogue.RECIPES["multi30k"], [])
    assert data_checksums(settings).keys() == counted
