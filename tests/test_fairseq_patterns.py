"""What fairseq's own suite asks of its transformer, asked of it and of our models alike.

A token that a search writes has the probability that teacher forcing gives it: so decoding
step by step, the order of beams and every constraint of the search are right together.
"""

import contextlib
import functools
import io
import math
import shutil
from collections import defaultdict

import numpy
import pytest
import torch
from conftest import PLUGIN, SHRUNK, SHRUNK_LM, eval_lm, slow_but, train, validate
from fairseq import options
from fairseq.checkpoint_utils import load_model_ensemble_and_task
from fairseq.data import BacktranslationDataset, data_utils
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.sequence_generator import SequenceGenerator
from fairseq_cli import generate, interactive, preprocess

from fairseq_convattn.architectures import ConvAttnModel

HYBRID = ("--encoder-mixers", "dynamic,composite", "--decoder-mixers", "attention,lightweight")
MODELS = {
    "transformer": ("--arch", "transformer", "--max-target-positions", "40"),
    "ours": ("--arch", "dynamic_conv_tiny", *HYBRID, "--max-target-positions", "40"),
    "dynamic": ("--arch", "dynamic_conv_tiny", "--max-target-positions", "40"),
}
LANGUAGE_MODELS = {"transformer": "transformer_lm", "ours": "dynamic_conv_lm_tiny"}
BOTH = pytest.mark.parametrize("name", slow_but(["transformer", "ours"], "ours"))


@pytest.fixture(scope="module")
def models(data, tmp_path_factory):
    """The checkpoint of a name, trained for a moment where it has not been."""
    folder = tmp_path_factory.mktemp("patterns")
    short = ("--max-update", "15", "--no-epoch-checkpoints", "--disable-validation")

    @functools.cache
    def trained(name):
        train(data, folder / name, *MODELS[name], *SHRUNK, *short)
        return folder / name / "checkpoint_last.pt"

    return trained


def decoding(data, *checkpoints):
    return (
        *(str(data), "--user-dir", str(PLUGIN), "--path", ":".join(map(str, checkpoints))),
        *("--cpu", "--num-workers", "0", "--no-progress-bar", "--required-batch-size-multiple"),
        *("1", "--max-len-b", "9", "--seed", "1"),
    )


def lines_of(main, arguments):
    """What a command prints: by letter and number of the sentence, the fields of its lines."""
    printed, found = io.StringIO(), defaultdict(lambda: defaultdict(list))
    with contextlib.redirect_stdout(printed):
        main(arguments)
    for line in printed.getvalue().splitlines():
        head, *fields = line.split("\t")
        letter, _, number = head.partition("-")
        if len(letter) == 1 and number.isdecimal():
            found[letter][int(number)].append(fields)
    return found


def run(data, checkpoints, *flags):
    parser = options.get_generation_parser()
    arguments = (*decoding(data, *checkpoints), *flags)
    return lines_of(generate.main, options.parse_args_and_arch(parser, list(arguments)))


def load(*checkpoints):
    found, _, task = load_model_ensemble_and_task(list(map(str, checkpoints)))
    return [model.eval() for model in found], task


@torch.no_grad()
def forced(models, task, source, target):
    """Probabilities, in logarithms of base 2, that models give a target, on average."""
    dictionary = task.target_dictionary
    encode = {"append_eos": True, "add_if_not_exist": False}
    source = task.source_dictionary.encode_line(source, **encode).long()[None]
    target = dictionary.encode_line(target, **encode).long()
    previous = torch.cat([target.new_tensor([dictionary.eos()]), target[:-1]])[None]
    sums = 0
    for model in models:
        output = model(source, torch.tensor([source.size(1)]), previous)
        sums = sums + model.get_normalized_probs(output, log_probs=False)[0]
    return (sums / len(models)).log2().gather(1, target[:, None])[:, 0]


def assert_forced(found, checkpoints, kind="H"):
    """The probability of every token that was found is that of teacher forcing."""
    models, task = load(*checkpoints)
    assert len(found[kind]) == 13
    for number, hypotheses in found[kind].items():
        for hypothesis, (scores,) in zip(hypotheses, found["P"][number], strict=True):
            expected = forced(models, task, found["S"][number][0][0], hypothesis[-1])
            scores = torch.tensor(list(map(float, scores.split())))
            if scores[-1] == 0:  # the end of a sentence that had to end
                scores, expected = scores[:-1], expected[:-1]
            torch.testing.assert_close(scores, expected, rtol=0, atol=2e-4)


SEARCHES = {
    "beam search, several hypotheses": "--beam 4 --nbest 3",
    "length penalty and bounds": "--beam 3 --lenpen 0.4 --min-len 3 --max-len-a 1 --max-len-b 2",
    "as long as the source": "--beam 3 --match-source-len",
    "without normalisation": "--beam 3 --unnormalized",
    "sampling of the best few": "--sampling --sampling-topk 3 --beam 2 --nbest 2",
    "sampling of the likeliest mass": "--sampling --sampling-topp 0.5 --beam 2 --nbest 2",
    "prefixes": "--prefix-size 2 --beam 3",
    "sentences one by one": "--batch-size 1 --beam 3",
    "sacreBLEU": "--scoring sacrebleu --beam 2",
}


@BOTH
@pytest.mark.parametrize("search", SEARCHES)
def test_search(models, data, name, search):
    flags = SEARCHES[search].split()
    found = run(data, [models(name)], *flags)
    assert_forced(found, [models(name)])
    hypotheses = {n: [h[-1].split() for h in lines] for n, lines in found["H"].items()}
    if "--nbest" in flags:
        assert {len(h) for h in hypotheses.values()} == {int(flags[flags.index("--nbest") + 1])}
    if "--prefix-size" in flags:
        for n, (target,) in found["T"].items():
            assert hypotheses[n][0][:2] == target[0].split()[:2]
    if "--match-source-len" in flags:
        for n, (source,) in found["S"].items():
            assert len(hypotheses[n][0]) <= len(source[0].split()) + 1


@BOTH
@pytest.mark.parametrize(
    "flags",
    ["--diverse-beam-groups 2 --diverse-beam-strength 9", "--diversity-rate 9"],
    ids=["groups", "siblings"],
)
def test_diverse_beams(models, data, name, flags):
    """As many hypotheses as beam search finds, and others."""
    beams = ("--beam", "4", "--nbest", "4")
    found = run(data, [models(name)], *flags.split(), *beams)["H"]
    assert {len(hypotheses) for hypotheses in found.values()} == {4}
    assert found != run(data, [models(name)], *beams)["H"]


@BOTH
def test_references_are_scored(models, data, name):
    """The same by SequenceScorer, by teacher forcing and by fairseq-validate."""
    found = run(data, [models(name)], "--score-reference")
    assert_forced(found, [models(name)])
    scores = [float(x) for lines in found["P"].values() for x in lines[0][0].split()]
    given = ("--task", "translation", "--valid-subset", "test", "--criterion", "cross_entropy")
    loss = validate(data, models(name), *given)
    assert -sum(scores) / len(scores) == pytest.approx(loss, abs=1e-3)


@pytest.mark.parametrize("second", slow_but(["dynamic", "transformer"], "dynamic"))
def test_ensembles(models, data, second):
    both = [models("ours"), models(second)]
    assert_forced(run(data, both, "--beam", "3"), both)
    assert_forced(run(data, both, "--score-reference"), both)


def test_an_ensemble_with_the_transformer_opens_in_python(models, data):
    both = f"{models('transformer')}:{models('ours')}"
    hub = ConvAttnModel.from_pretrained("/", both, data, bpe=None)
    assert [type(model).__name__ for model in hub.models] == ["TransformerModel", "ConvAttnModel"]
    assert hub.translate("x", beam=1)


@BOTH
def test_dropout_can_be_kept(models, data, name):
    """And is drawn by the seed."""
    flags = ("--beam", "2", "--retain-dropout", "--score-reference")
    kept = [run(data, [models(name)], *flags, "--seed", seed)["P"] for seed in "112"]
    assert kept[0] == kept[1] != kept[2]


@pytest.mark.slow
def test_dropout_of_one_class_can_be_kept(models, data):
    flags = ("--beam", "2", "--retain-dropout", "--score-reference", "--retain-dropout-modules")
    names = ("ConvAttnDecoderLayer", "AnotherClass")
    of_layers, of_none = (run(data, [models("ours")], *flags, x)["P"] for x in names)
    assert of_layers != of_none


@BOTH
@pytest.mark.parametrize("kind", ["hard", "soft"])
def test_alignments_are_printed(models, data, name, kind):
    found = run(data, [models(name)], "--beam", "2", "--print-alignment", kind)
    for number, (fields,) in found["A"].items():
        words = len(found["H"][number][0][-1].split())
        if kind == "hard":
            pairs = [pair.split("-") for pair in fields[0].split()]
            assert [int(target) for _, target in pairs] == list(range(words))
        else:
            rows = [list(map(float, row.split(","))) for row in fields[0].split()]
            assert all(sum(row) == pytest.approx(1, abs=1e-3) for row in rows[:words])


@BOTH
def test_constraints(models, data, name, tmp_path):
    """Words that must come, in any order and in the one that is given."""
    (tmp_path / "source").write_text("a b c d\tE\tB\nc\tJ A\n")
    for order in ("unordered", "ordered"):
        parser = options.get_interactive_generation_parser()
        arguments = [*decoding(data, models(name)), "--input", str(tmp_path / "source")]
        arguments += ["--constraints", order, "--beam", "8", "--buffer-size", "2"]
        arguments = options.parse_args_and_arch(parser, arguments)
        found = lines_of(interactive.main, convert_namespace_to_omegaconf(arguments))
        first, second = (found["H"][n][0][-1].split() for n in (0, 1))
        assert {"E", "B"} <= set(first) and "J A" in " ".join(second)
        if order == "ordered":
            assert first.index("E") < len(first) - 1 - first[::-1].index("B")


@pytest.fixture(scope="module")
def fusion(data, tmp_path_factory):
    """The targets as a text for language models, and the data with its dictionary beside them."""
    folder = tmp_path_factory.mktemp("fusion")
    shutil.copytree(data, folder / "data")
    shutil.copy(data / "dict.tgt.txt", folder / "data" / "dict.txt")
    arguments = ["--only-source", "--srcdict", str(data / "dict.tgt.txt")]
    arguments += ["--destdir", str(folder / "text")]
    for split in ("train", "valid", "test"):
        arguments += [f"--{split}pref", str(data.parent / f"{split}.tgt")]
    preprocess.main(options.get_preprocessing_parser().parse_args(arguments))
    return folder


@pytest.fixture(scope="module", params=slow_but(LANGUAGE_MODELS, "ours"))
def lm(request, fusion):
    """A checkpoint of that language model."""
    given = ("--task", "language_modeling", "--arch", LANGUAGE_MODELS[request.param], *SHRUNK_LM)
    given = (*given, "--sample-break-mode", "eos", "--tokens-per-sample", "30")
    train(fusion / "text", fusion / request.param, *given, "--max-update", "15")
    return fusion / request.param / "checkpoint_last.pt"


@torch.no_grad()
def test_fusion_with_a_language_model(models, fusion, lm):
    """log p(y | x) + weight log q(y), for every token."""
    flags = ("--beam", "3", "--lm-path", str(lm), "--lm-weight", "0.7")
    found = run(fusion / "data", [models("ours")], *flags)
    translators, task = load(models("ours"))
    (language_model,), _ = load(lm)
    for number, ((_, text),) in found["H"].items():
        expected = forced(translators, task, found["S"][number][0][0], text)
        target = task.target_dictionary.encode_line(text, add_if_not_exist=False).long()
        previous = torch.cat([target[-1:], target[:-1]])[None]
        scores = language_model.get_normalized_probs(language_model(previous), log_probs=True)
        expected += 0.7 * scores[0].gather(1, target[:, None])[:, 0] / math.log(2)
        given = torch.tensor(list(map(float, found["P"][number][0][0].split())))
        torch.testing.assert_close(given, expected, rtol=0, atol=2e-4)


def test_language_models_see_a_context_before_every_window(fusion, lm):
    """The same loss whatever else is in the batch, and another than without the context."""
    given = ("--gen-subset", "test", "--tokens-per-sample", "20", "--sample-break-mode", "none")

    def loss(*flags):
        return float(eval_lm(fusion / "text", lm, *given, *flags))

    alone, batched = (loss("--context-window", "12", "--batch-size", size) for size in "15")
    assert alone == pytest.approx(batched, abs=1e-4)
    assert abs(alone - loss("--batch-size", "1")) > 1e-3


@BOTH
def test_back_translations_are_those_of_beam_search(models, data, name):
    """BacktranslationDataset: the found sentence becomes the source, the given one the target."""
    (model,), task = load(models(name))
    task.load_dataset("test")
    pairs = task.dataset("test")
    generator = SequenceGenerator([model], task.target_dictionary, beam_size=3, max_len_b=9)
    dataset = BacktranslationDataset(
        pairs,
        task.source_dictionary,
        task.target_dictionary,
        backtranslation_fn=lambda sample: generator.generate([model], sample),
        cuda=False,
    )
    batch = dataset.collater([pairs[n] for n in range(5)])
    for source, number in zip(batch["net_input"]["src_tokens"], batch["id"], strict=True):
        single = pairs.collater([pairs[number]])
        expected = generator.generate([model], single)[0][0]["tokens"]
        assert source[source != task.target_dictionary.pad()].tolist() == expected.tolist()


def test_training_starts_from_fairseqs_transformer(models, data, tmp_path):
    start, short = models("transformer"), ("--max-update", "1", "--lr", "0")
    shape = ("--arch", "attention_tiny", *SHRUNK, "--max-target-positions", "40")
    train(data, tmp_path, *shape, "--finetune-from-model", str(start), *short)
    files = (start, tmp_path / "checkpoint_last.pt")
    before, after = (load(file)[0][0].state_dict() for file in files)
    assert before.keys() == after.keys()
    assert all(torch.equal(weight, after[name]) for name, weight in before.items())


def test_sentences_are_padded_to_few_lengths(data, tmp_path):
    arguments = (*MODELS["ours"], *SHRUNK, "--num-batch-buckets", "3", "--max-update", "1")
    train(data, tmp_path, *arguments)
    assert (tmp_path / "checkpoint_last.pt").is_file()
    lengths = data_utils.get_buckets(numpy.array([5, 1, 9, 4, 3, 2]), 3)
    assert lengths.tolist() == [2, 4, 9]


def test_r_drop(data, tmp_path):
    """fairseq's criterion, whose term is the distance between two draws of dropout."""
    weights = []
    for alpha in ("0", "5"):
        given = ("--dropout", "0.3", "--rdrop-alpha", alpha, "--max-update", "1")
        criterion = ("--criterion", "label_smoothed_cross_entropy_with_rdrop")
        train(data, tmp_path / alpha, *MODELS["ours"], *SHRUNK, *criterion, *given)
        state = torch.load(tmp_path / alpha / "checkpoint_last.pt")["model"]
        weights.append(state["encoder.layers.0.fc1.weight"])
    assert weights[1].isfinite().all() and not torch.equal(*weights)


def test_one_model_for_several_languages(data, tmp_path):
    """translation_multi_simple_epoch, with tokens for languages."""
    (tmp_path / "languages").write_text("src\ntgt\n")
    given = ("--task", "translation_multi_simple_epoch", "--lang-dict", str(tmp_path / "languages"))
    given = (*given, "--lang-pairs", "src-tgt,tgt-src", "--encoder-langtok", "tgt")
    given = (*given, "--decoder-langtok")
    copies = tmp_path / "data"
    shutil.copytree(data, copies)
    for path in list(copies.glob("*.src-tgt.*")):
        shutil.copy(path, copies / path.name.replace("src-tgt", "tgt-src"))
    multilingual = ("--sampling-method", "temperature", "--max-update", "2")
    train(copies, tmp_path / "run", *MODELS["ours"], *SHRUNK, *given, *multilingual)
    decoded = ("--source-lang", "src", "--target-lang", "tgt", "--beam", "2")
    found = run(copies, [tmp_path / "run" / "checkpoint_last.pt"], *given, *decoded)
    assert len(found["H"]) == 13


OTHER_ARCHITECTURES = {
    "multilingual_translation": (
        "--task multilingual_translation --lang-pairs src-tgt",
        "FairseqMultiModel",
    ),
    "iterative refinement": (
        "--task translation_lev --criterion nat_loss --noise full_mask",
        "Boolean value of Tensor",
    ),
}


@pytest.mark.slow
@BOTH
@pytest.mark.parametrize("what", OTHER_ARCHITECTURES)
def test_needs_an_architecture_of_its_own(data, tmp_path, what, name):
    """Not fairseq's transformer either."""
    flags, message = OTHER_ARCHITECTURES[what]
    message = message if name == "transformer" else "needs an --arch such as"
    with pytest.raises((Exception, SystemExit), match=message):
        train(data, tmp_path, *MODELS[name], *SHRUNK, *flags.split())
