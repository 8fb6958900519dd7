"""convattn convert-albert: ALBERT of Hugging Face's transformers, here and fine-tuned."""

import json
import shutil

import pytest
import sentencepiece
import torch
from albert_miniature import CONFIG, SPECIAL, albert, write_albert
from fairseq import checkpoint_utils
from fairseq.data.data_utils import load_indexed_dataset
from glue_miniature import miniature_sentences

from fairseq_convattn.architectures import ConvAttnMaskedLanguageModel
from fairseq_convattn.architectures.presets import ARCHITECTURE_NAMES
from fairseq_convattn.checkpoints.albert import convert_albert, main
from fairseq_convattn.checkpoints.checks import CheckpointError
from fairseq_convattn.glue.binarising import Pieces, binarise
from fairseq_convattn.glue.evaluation import example_lengths
from fairseq_convattn.glue.finetuning import Run, finetune
from fairseq_convattn.glue.pretrained import read_pretrained
from fairseq_convattn.glue.tasks import TASKS

FAIRSEQS_EPS = 1e-5
POSITIONS = 12
PAIR = ("the cat sat on a mat", "on a mat said anna")


@pytest.fixture(scope="module")
def published(tmp_path_factory, miniature):
    folder = tmp_path_factory.mktemp("published") / "albert"
    return folder, write_albert(folder, miniature_sentences(miniature[1]))


def converted(published, tmp_path, mixer: str, keep_positions: bool = False):
    """RoBERTa's hub interface to the model, evaluating."""
    convert_albert(published[0], tmp_path / "new", mixer, keep_positions)
    where = str(tmp_path / "new")
    return ConvAttnMaskedLanguageModel.from_pretrained(where, "checkpoint.pt", where).eval()


def theirs(folder) -> tuple[list[int], list[int], list[str]]:
    """ALBERT's numbers of PAIR, their segments, and all its pieces."""
    model = sentencepiece.SentencePieceProcessor(model_file=str(folder / "spiece.model"))
    first, second = model.encode(list(PAIR))
    cls, sep = SPECIAL.index("[CLS]"), SPECIAL.index("[SEP]")
    numbers = [cls, *first, sep, *second, sep]
    segments = [0] * (len(first) + 2) + [1] * (len(second) + 1)
    return numbers, segments, [model.id_to_piece(i) for i in range(len(model))]


def ours(hub) -> torch.Tensor:
    """Our numbers of PAIR [1, tokens]."""
    return hub.encode(*PAIR)[None]


@torch.no_grad()
def test_with_attention_it_is_albert(published, tmp_path):
    hub = converted(published, tmp_path, "attention")
    numbers, segments, pieces = theirs(published[0])
    features, logits = albert(published[1], numbers, segments, FAIRSEQS_EPS)
    tokens = ours(hub)
    padded = torch.nn.functional.pad(tokens, (0, 5), value=hub.task.source_dictionary.pad())
    batch = torch.cat([padded, padded.flip(1)])
    for given in (tokens, batch):
        found, _ = hub.model(given, features_only=True)
        torch.testing.assert_close(found[0, : len(numbers)], features)
    found, _ = hub.model(tokens)
    names = {"<s>": "[CLS]", "</s>": "[SEP]", "<mask>": "[MASK]"}
    symbols = hub.task.source_dictionary.symbols
    order = [pieces.index(names.get(symbol, symbol)) for symbol in symbols]
    assert sorted(order) == list(range(CONFIG["vocab_size"]))
    torch.testing.assert_close(found[0], logits[:, order])
    exact, _ = albert(published[1], numbers, segments, CONFIG["layer_norm_eps"])
    assert (exact - features).abs().max() < 1e-3


def test_text_is_prepared_as_in_albert(published, tmp_path):
    hub = converted(published, tmp_path, "tisa")
    plain = hub.encode(PAIR[0])
    assert not plain.eq(hub.task.source_dictionary.unk()).any()
    assert torch.equal(hub.encode(f"  {PAIR[0].upper()} "), plain)
    assert hub.decode(hub.encode(*PAIR)[:-1]) == [hub.decode(hub.encode(text)) for text in PAIR]


@torch.no_grad()
@pytest.mark.parametrize("mixer", ["tisa", "composite"])
def test_terms_for_positions_are_new(published, tmp_path, mixer):
    """The rest is ALBERT's: without them, and with its positions, it computes the same."""
    hub = converted(published, tmp_path, mixer, keep_positions=True)
    encoder = hub.model.encoder.sentence_encoder
    numbers, segments, _ = theirs(published[0])
    features, _ = albert(published[1], numbers, segments, FAIRSEQS_EPS)
    assert (hub.model(ours(hub), features_only=True)[0][0] - features).abs().max() > 1e-3
    for layer in encoder.layers:
        for table in layer.self_attn.terms.parameters():
            table.zero_()
    torch.testing.assert_close(hub.model(ours(hub), features_only=True)[0][0], features)


def test_tisa_has_no_other_positions_and_the_same_parameters_again(published, tmp_path):
    states = []
    for again in ("a", "b"):
        (tmp_path / again).mkdir()
        torch.manual_seed(len(states))
        hub = converted(published, tmp_path / again, "tisa")
        assert hub.model.encoder.sentence_encoder.embed_positions is None
        states.append(hub.model.state_dict())
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_classification_begins_with_the_pooler(published, tmp_path):
    """As a checkpoint to fine-tune from, whatever the number of classes."""
    hub = converted(published, tmp_path, "tisa")
    hub.model.register_classification_head("head", num_classes=3)
    state = torch.load(tmp_path / "new" / "checkpoint.pt", weights_only=True)["model"]
    hub.model.load_state_dict(state, strict=True)
    head = hub.model.classification_heads["head"]
    for part in ("weight", "bias"):
        assert torch.equal(getattr(head.dense, part), published[1][f"albert.pooler.{part}"])


def config(**changed):
    return lambda folder, _: (folder / "config.json").write_text(json.dumps(CONFIG | changed))


def missing(name: str):
    return lambda folder, _: (folder / name).unlink()


def stored(choose):
    return lambda folder, weights: torch.save(choose(weights), folder / "pytorch_model.bin")


def without_predictions(weights):
    return {name: x for name, x in weights.items() if not name.startswith("predictions.")}


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (config(model_type="bert"), "config.json is not of an ALBERT model"),
        (config(num_hidden_groups=2), "num_hidden_groups is 2; all layers must share one"),
        (config(hidden_size=None), "hidden_size is None, not a size"),
        (config(num_attention_heads=3), "3 heads do not divide 16"),
        (config(hidden_dropout_prob=None), "hidden_dropout_prob is None, not a probability"),
        (config(hidden_dropout_prob=1.5), "hidden_dropout_prob is 1.5, not a probability"),
        (config(hidden_dropout_prob=True), "hidden_dropout_prob is True, not a probability"),
        (config(position_embedding_type="relative_key"), "its positions are relative_key"),
        (config(hidden_act="silu"), "hidden_act silu is none of gelu_new, gelu, relu"),
        (config(embedding_size=16), "embeddings as wide as the model have no map"),
        (config(intermediate_size=25), r"ffn.weight is \[24, 16\], not \[25, 16\]"),
        (missing("config.json"), "no config.json that can be read"),
        (missing("spiece.model"), "spiece.model is not a SentencePiece model"),
        (missing("pytorch_model.bin"), "pytorch_model.bin: there is no such file"),
        (stored(without_predictions), "the weights have no predictions.*save them from"),
        (stored(lambda weights: {"model": None}), "does not hold tensors by name"),
    ],
)
def test_what_is_not_albert_is_refused(published, tmp_path, change, error):
    folder = shutil.copytree(published[0], tmp_path / "old")
    change(folder, published[1])
    with pytest.raises(CheckpointError, match=error):
        convert_albert(folder, tmp_path / "new", "tisa", keep_positions=False)
    assert {path.name for path in tmp_path.iterdir()} == {"old"}


def test_its_options_are_alberts_and_random_numbers_as_before(published, tmp_path):
    folder = shutil.copytree(published[0], tmp_path / "old")
    config(hidden_act="gelu")(folder, None)
    random = torch.random.get_rng_state()
    convert_albert(folder, tmp_path / "new", "tisa", keep_positions=False)
    assert torch.equal(torch.random.get_rng_state(), random)
    found = torch.load(tmp_path / "new" / "checkpoint.pt", weights_only=True)["cfg"]["model"]
    expected = {"activation_fn": "gelu", "dropout": 0.2, "attention_dropout": 0.3}
    expected |= {"pooler_dropout": 0.1, "max_positions": 40, "segments": 2}
    assert {name: found[name] for name in expected} == expected


def test_weights_may_be_safetensors_and_without_a_pooler(published, tmp_path):
    """As transformers saves AlbertForMaskedLM."""
    save = pytest.importorskip("safetensors.torch").save_file
    folder = shutil.copytree(published[0], tmp_path / "old")
    (folder / "pytorch_model.bin").unlink()
    weights = {k: v.clone() for k, v in published[1].items() if "pooler" not in k}
    save(weights, folder / "model.safetensors")
    for source, new in ((published[0], "a"), (folder, "b")):
        convert_albert(source, tmp_path / new, "tisa", keep_positions=False)
    a, b = (
        torch.load(tmp_path / new / "checkpoint.pt", weights_only=True)["model"] for new in "ab"
    )
    assert a.keys() - b.keys() == {"pooler.weight", "pooler.bias"}
    assert all(torch.equal(a[name], value) for name, value in b.items())
    next(iter(weights.values())).view(-1)[0] = float("nan")
    save(weights, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match="model.safetensors: .*not finite"):
        convert_albert(folder, tmp_path / "c", "tisa", keep_positions=False)
    (folder / "model.safetensors").write_bytes(b"half")
    with pytest.raises(CheckpointError, match="model.safetensors: "):
        convert_albert(folder, tmp_path / "c", "tisa", keep_positions=False)


@pytest.mark.parametrize(
    "mixer, keep_positions", [("attention", False), ("tisa", False), ("composite", True)]
)
def test_fine_tuning_can_say_what_it_is(published, tmp_path, mixer, keep_positions):
    convert_albert(published[0], tmp_path / "new", mixer, keep_positions)
    found = read_pretrained(tmp_path / "new" / "checkpoint.pt")
    assert found.architecture == ARCHITECTURE_NAMES[mixer].format("albert_base")
    assert found.learned_positions == (keep_positions or mixer == "attention")
    assert (found.max_positions, found.types, found.segments) == (40, CONFIG["vocab_size"], True)


def test_text_is_prepared_as_alberts(published, tmp_path):
    convert_albert(published[0], tmp_path / "new", "tisa", keep_positions=False)
    pieces = Pieces(tmp_path / "new" / "sentencepiece.bpe.model", tmp_path / "new" / "dict.txt")

    def text(sentence: str) -> str:
        (numbers,) = pieces.encode([sentence])
        return pieces.dictionary.string(numbers)

    def raw(sentence: str) -> str:
        return " ".join(pieces.processor.encode(sentence, out_type=str))

    assert text("The  Cát ``SAT''") == raw('the cat "sat"')
    assert text("\uff43a\u2122") == raw("catm")
    assert raw("9,9,") == "\u25819, 9,"
    assert text("9,9,") == "\u2581 9 , 9 ,"


def test_the_command_writes_a_new_folder(published, tmp_path, capsys):
    new = tmp_path / "new"
    arguments = [str(published[0]), str(new), "--mixer", "attention"]
    main(arguments)
    written = f"wrote {new}\nto fine-tune it: convattn prepare glue "
    assert capsys.readouterr().out.startswith(written)
    names = {"checkpoint.pt", "dict.txt", "sentencepiece.bpe.model"}
    assert {path.name for path in new.iterdir()} == names
    with pytest.raises(SystemExit, match="error: .* is there already; it is not overwritten"):
        main(arguments)


@pytest.mark.slow
def test_it_is_fine_tuned_with_one_separator(published, miniature, tmp_path):
    convert_albert(published[0], tmp_path / "new", "tisa", keep_positions=False)
    files = (tmp_path / "new" / "sentencepiece.bpe.model", tmp_path / "new" / "dict.txt")
    pieces = Pieces(*files)
    data = tmp_path / "bin"
    binarise(["RTE"], miniature[0], data, pieces, sample=True)
    model, output = tmp_path / "new" / "checkpoint.pt", tmp_path / "out"
    extra = ("--cpu", "--num-workers", "0")
    finetune(Run("RTE", model, data, output, 0.01, 4, 1, POSITIONS, extra), [1])
    results = json.loads((output / "results.json").read_text(encoding="utf-8"))
    (seed,) = results["seeds"]
    assert "--separator-token" not in seed["command"] and "accuracy" in seed["scores"]
    (trained,), _, task = checkpoint_utils.load_model_ensemble_and_task([seed["checkpoint"]])
    assert trained.encoder.sentence_encoder.embed_segments.weight.shape == (2, 8)
    examples = task.load_dataset("valid")
    halves = [load_indexed_dataset(str(data / "RTE" / f"input{i}" / "valid"), None) for i in (0, 1)]
    lengths = example_lengths(TASKS["RTE"], data / "RTE", "valid", separators=1)
    for number, (first, second) in enumerate(zip(*halves, strict=True)):
        expected = torch.cat([torch.tensor([task.source_dictionary.bos()]), first, second])
        found = examples[number]["net_input.src_tokens"]
        assert torch.equal(found, expected.long()[:POSITIONS]) and len(expected) == lengths[number]
    assert results["cut"]["valid"] == sum(length > POSITIONS for length in lengths) > 0
