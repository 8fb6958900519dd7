"""The model that a fine-tuning starts from, as its checkpoint has it."""

from contextlib import suppress

import finetuning_cases
import pytest
import torch
from conftest import PLUGIN
from fairseq import options
from fairseq import tasks as fairseq_tasks
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from finetuning_cases import POSITIONS, SHRUNK, pretrain

from fairseq_convattn.glue.pretrained import read_pretrained
from fairseq_convattn.glue.tasks import GlueError

folder, model = finetuning_cases.folder, finetuning_cases.model
CLASSES = (
    *("--criterion", "sentence_prediction", "--num-classes", "2"),
    *("--max-positions", str(POSITIONS)),
)


@pytest.mark.parametrize(
    "chosen",
    [
        ("--arch", "roberta", "--dropout", "0.3", "--encoder-normalize-before"),
        (
            *("--arch", "dynamic_conv_bert_tiny", "--encoder-mixers", "dynamic,composite"),
            *("--attention-terms", "content,tisa"),
        ),
        ("--arch", "convattn_mlm", "--encoder-kernel-sizes", "3"),  # stores no max_positions
    ],
)
def test_architecture_comes_from_the_checkpoint(folder, tmp_path, chosen):
    found = read_pretrained(pretrain(folder, tmp_path, *chosen, "--max-update", "1"))
    assert found.architecture == chosen[1]
    named = {option.partition("=")[0] for option in found.options}
    assert {option for option in chosen[2:] if option.startswith("--")} <= named
    assert "--attention-dropout" not in named  # as the architecture has it
    assert found.max_positions == POSITIONS
    asked = [*SHRUNK, *chosen[2:]]
    models = []
    for arguments in (asked, found.options):
        command = ["data", "--user-dir", str(PLUGIN), "--task", "sentence_prediction", *CLASSES]
        command += ["--arch", chosen[1], *arguments, "--required-batch-size-multiple", "1"]
        parsed = options.parse_args_and_arch(options.get_training_parser(), command)
        cfg = convert_namespace_to_omegaconf(parsed)
        cfg.task.data = str(folder / "bin" / "SST-2")
        models.append(fairseq_tasks.setup_task(cfg.task).build_model(cfg.model))
    assert str(models[0]) == str(models[1])
    assert [p.shape for p in models[0].parameters()] == [p.shape for p in models[1].parameters()]


def test_an_option_that_a_file_brings_is_no_word_of_a_command_line(tmp_path):
    """fairseq imports what --user-dir names before it looks at any other option."""
    plugin = tmp_path / "plugin_of_a_file"
    plugin.mkdir()
    (plugin / "__init__.py").write_text(f"open({str(tmp_path / 'created')!r}, 'w')")
    model = {"_name": "roberta", "arch": "roberta_base", "max_positions": 512}
    for name in ("encoder_layers_to_keep", "activation_fn", "max_positions"):
        cfg = {"model": {**model, name: f"--user-dir={plugin}"}, "task": {"_name": "masked_lm"}}
        weights = {"encoder.sentence_encoder.embed_tokens.weight": torch.ones(8, 4)}
        torch.save({"cfg": cfg, "model": weights}, tmp_path / "x.pt")
        with suppress(GlueError, SystemExit):
            read_pretrained(tmp_path / "x.pt")
    assert not (tmp_path / "created").exists()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"attention_terms": "content,rotary"}, "x.pt: --attention-terms: unknown term 'rotary'"),
        ({"quant_noise_scalar": None}, "x.pt: quant_noise_scalar is None, which no option"),
        ({"max_positions": None}, "x.pt does not say how many positions"),
        ({"max_positions": "512"}, "x.pt does not say how many positions"),
    ],
)
def test_what_a_fine_tuning_cannot_start_from(model, tmp_path, changed, message):
    state = torch.load(model, weights_only=False)
    for name, value in changed.items():
        state["cfg"]["model"][name] = value
    if "max_positions" in changed:
        state["cfg"]["task"]["tokens_per_sample"] = None
    torch.save(state, tmp_path / "x.pt")
    with pytest.raises(GlueError, match=message):
        read_pretrained(tmp_path / "x.pt")
