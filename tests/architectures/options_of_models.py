"""What command lines say of models."""

import pytest
from conftest import PLUGIN
from fairseq import options
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.models import ARCH_CONFIG_REGISTRY

from fairseq_convattn.architectures.config import ENCODER_DECODER, LANGUAGE_MODEL, configure
from fairseq_convattn.architectures.translation import nested_config


def parse(arch, *flags):
    """What fairseq-train makes of a command line."""
    parser = options.get_training_parser()
    arguments = ["data", "--user-dir", str(PLUGIN), "--arch", arch, *flags]
    return options.parse_args_and_arch(parser, arguments)


def refusal(arch, *flags) -> str:
    """The one line in which fairseq-train refuses a command line."""
    with pytest.raises(SystemExit) as error:
        parse(arch, *flags)
    (line,) = str(error.value).splitlines()
    assert line.startswith("error: ")
    return line.removeprefix("error: ")


def configuration(arch, *flags):
    """fairseq's nested configuration of the model that fairseq-train builds."""
    cfg = convert_namespace_to_omegaconf(parse(arch, *flags)).model
    ARCH_CONFIG_REGISTRY[arch](cfg)
    return nested_config(configure(cfg, ENCODER_DECODER).options)


def parse_lm(arch, *flags):
    return parse(arch, "--task", "language_modeling", *flags)


def lm_options(arch, *flags):
    if not arch.endswith("tiny") and "none" not in flags:
        flags = (*flags, "--criterion", "adaptive_loss")
    return configure(parse_lm(arch, *flags), LANGUAGE_MODEL).options


def count(model) -> float:
    return round(sum(p.numel() for p in model.parameters()) / 1e6, 1)
