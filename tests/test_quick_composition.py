"""That tests read command lines as fairseq's commands do."""

import pytest
import quick_composition
from fairseq import options
from fairseq.dataclass import utils
from omegaconf import OmegaConf

TRAINING = (
    "data --arch dynamic_conv_tiny --source-lang a --criterion "
    "label_smoothed_cross_entropy --label-smoothing 0.1 --optimizer adam --adam-betas (0.9,0.98) "
    "--lr 0.001 --lr-scheduler inverse_sqrt --warmup-updates 400 --max-tokens 100 --cpu"
)
COMMANDS = [
    (options.get_training_parser, TRAINING),
    (options.get_generation_parser, "data --path model.pt --beam 5 --gen-subset valid"),
]


@pytest.mark.parametrize("parser, command", COMMANDS)
def test_is_what_hydra_makes(parser, command, monkeypatch):
    def configuration():
        arguments = options.parse_args_and_arch(parser("translation"), command.split())
        return utils.convert_namespace_to_omegaconf(arguments)

    assert utils.compose is quick_composition.compose
    quick, again = configuration(), configuration()  # the second from what the first has kept
    monkeypatch.setattr(utils, "compose", quick_composition._compose)
    hydras = configuration()
    assert OmegaConf.to_yaml(quick) == OmegaConf.to_yaml(again) == OmegaConf.to_yaml(hydras)
    assert OmegaConf.is_struct(quick) == OmegaConf.is_struct(hydras)
