"""Random command lines: each is a model that can be built, or refused in one line."""

import argparse
import warnings
from argparse import Namespace

import pytest
from conftest import task_of
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

ARCHITECTURES = [
    f"{mixer}_{shape}"
    for mixer in (
        *("dynamic_conv", "lightweight_conv", "attention", "composite_attention", "tisa"),
        "short_conv",
    )
    for shape in ("tiny", "lm_tiny", "bert_tiny")
] + ["convattn", "convattn_lm", "convattn_mlm"]
SHAPE = {"embed_dim": 16, "ffn_embed_dim": 16, "attention_heads": 4, "layers": 2}
NUMBERS = ["-1", "0", "1", "2", "3", "4", "7", "16", "17"]
FRACTIONS = ["-1", "0", "0.5", "1", "2", "1e9", "nan", "inf"]
TEXTS = [
    *("dynamic", "attention", "tisa,dynamic", "composite", "lightweight,tisa", "mine", "", ","),
    *("3", "4", "3,5", "[3,5]", "3,x", "5,9", "9,5", "none", "0", "0,1", "1,5", "true", "maybe"),
    *("content", "content,tisa", "alibi,fixed", "t5,t5", "[(1, 4)]", "(1,", "exit()"),
    "__import__('os').system('exit 1')",
]
CONVOLUTIONS = ("lightweight", "dynamic")
OF_CONVOLUTIONS = ("weight_dropout", "weight_norm", "input_dropout", "conv_bias", "renorm_padding")
OF_CONVOLUTIONS_BY_STACK = ("kernel_sizes", "conv_dim", "glu")


def parser_of(arch) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(argument_default=argparse.SUPPRESS, exit_on_error=False)
    ARCH_MODEL_REGISTRY[arch].add_args(parser)
    return parser


def values(option: argparse.Action) -> st.SearchStrategy:
    """Words that may follow an option."""
    if option.nargs == 0:
        return st.just([])
    known = list(option.choices or {int: NUMBERS, float: FRACTIONS}.get(option.type, TEXTS))
    word = st.sampled_from(known).map(lambda value: [value])
    return st.one_of(word, st.just([])) if option.nargs == "?" else word


@st.composite
def command_lines(draw) -> tuple[str, list[str], Namespace]:
    arch = draw(st.sampled_from(ARCHITECTURES))
    options = [option for option in parser_of(arch)._actions if option.dest != "help"]
    words = [
        word
        for name, value in SHAPE.items()
        for side in ("encoder", "decoder")
        if f"{side}_{name}" in {option.dest for option in options}
        for word in (f"--{side}-{name.replace('_', '-')}", str(value))
    ]
    for option in draw(st.lists(st.sampled_from(options), max_size=5)):
        value = draw(values(option))
        words += (
            [f"{option.option_strings[-1]}={value[0]}"] if value else option.option_strings[-1:]
        )
    run = {
        "criterion": draw(st.sampled_from(["cross_entropy", "adaptive_loss"])),
        "fp16": draw(st.sampled_from([False] * 5 + [True])),
        "cpu": draw(st.booleans()),
    }
    return arch, words, Namespace(arch=arch, **run)


def assert_no_nonsense(given_options: Namespace, args: Namespace) -> None:
    assert not (args.fp16 and args.cpu)
    stacks = [side for side in ("encoder", "decoder") if hasattr(args, f"{side}_mixers")]
    convolved = {
        side: not set(CONVOLUTIONS).isdisjoint(getattr(args, f"{side}_mixers").split(","))
        for side in stacks
    }
    for name, value in vars(given_options).items():
        if "dropout" in name or "layerdrop" in name:
            assert 0 <= value <= 1, name
        if name.endswith(("_dim", "attention_heads", "max_positions")):
            assert value >= 1, name
        if name in OF_CONVOLUTIONS:
            assert any(convolved.values()), name
        for side in stacks:
            if name in [f"{side}_{option}" for option in OF_CONVOLUTIONS_BY_STACK]:
                assert convolved[side], name


def attempt(command_line: tuple[str, list[str], Namespace]) -> None:
    arch, words, run = command_line
    try:
        given_options = parser_of(arch).parse_args(words)
    except (argparse.ArgumentError, SystemExit):  # one line of argparse's
        return
    args = Namespace(**vars(run), **vars(given_options))
    try:
        ARCH_CONFIG_REGISTRY[arch](args)
    except SystemExit as error:
        assert str(error).startswith("error: --") and "\n" not in str(error)
        return
    assert_no_nonsense(given_options, args)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # tables without columns, of tiny adaptive softmaxes
            model = ARCH_MODEL_REGISTRY[arch].build_model(args, task_of(types=16, positions=8))
    except ValueError as error:  # of dictionaries, which come with the data
        assert "dictionary" in str(error) and "\n" not in str(error)
    else:
        assert next(model.parameters()) is not None


COMMON = {"deadline": None, "database": None, "suppress_health_check": list(HealthCheck)}


@settings(max_examples=100, derandomize=True, **COMMON)
@given(command_lines())
def test_a_command_line_builds_or_says_why_not(command_line):
    attempt(command_line)


@pytest.mark.slow
@settings(max_examples=2000, **COMMON)
@given(command_lines())
def test_two_thousand_command_lines(command_line):
    attempt(command_line)
