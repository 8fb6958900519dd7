"""The trained model in models/."""

import gzip
import json
import shutil
import warnings
from pathlib import Path

import pytest
import sacrebleu
import torch
from conftest import ROOT

from fairseq_convattn.architectures import ConvAttnModel

FOLDER = ROOT / "models" / "multi30k-en-de"


def test_translates():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = ConvAttnModel.from_pretrained(FOLDER)
        assert model.translate("a man rides a bike .") == "ein mann fährt fahrrad ."
    assert not [one for one in caught if "pin_memory" in str(one.message)]


def test_one_binarised_sentence_is_generated_for_as_a_list_is():
    model = ConvAttnModel.from_pretrained(FOLDER)
    tokens = model.encode("a man rides a bike .")
    allowed = [model.tgt_dict.index("ein"), model.tgt_dict.eos()]
    constrained = {"beam": 1, "prefix_allowed_tokens_fn": lambda batch, tokens: allowed}
    (best,) = model.generate(tokens, **constrained)
    assert set(best["tokens"].tolist()) == set(allowed)
    ((again,),) = model.generate([tokens], **constrained)
    assert torch.equal(best["tokens"], again["tokens"])
    prefix = torch.tensor([[model.tgt_dict.index("hund")]])
    best, *_ = model.generate(tokens, inference_step_args={"prefix_tokens": prefix})
    assert best["tokens"][0] == prefix


def test_each_sentence_has_its_own_prefix():
    model = ConvAttnModel.from_pretrained(FOLDER)
    texts = ("a man rides a bike .", "two dogs are playing in the snow .", "children")
    sentences = [model.encode(text) for text in texts]
    prefixes = torch.tensor([[model.tgt_dict.index(x)] for x in ("hund", "mann", "fahrrad")])
    given = {"inference_step_args": {"prefix_tokens": prefixes}}
    found = model.generate(sentences, beam=2, **given)
    assert [best["tokens"][0] for best, *_ in found] == prefixes.flatten().tolist()
    with pytest.raises(ValueError, match="3 prefixes for 2 sentences"):
        model.generate(sentences[:2], **given)


def test_the_card_reads_raw_text():
    pytest.importorskip("sacremoses")
    code = (FOLDER / "README.md").read_text().split("## Raw text")[1].split("```python\n")[1]
    code, found = code.partition("```")[0].replace("models/multi30k-en-de", str(FOLDER)), {}
    exec(code, found)
    model = found["model"]
    tokens = model.encode("a man in a t-shirt and a blue-green hat.")
    assert not tokens.eq(model.src_dict.unk()).any()
    assert model.cfg.tokenizer.target_lang == "de"


def test_subwords_that_are_given_replace_the_checkpoints(tmp_path):
    assert ConvAttnModel.from_pretrained(FOLDER, Path("model.pt"), bpe=None).bpe is None
    model = ConvAttnModel.from_pretrained(FOLDER, bpe="characters")
    assert model.bpe.encode("a man") == "a \u2581 m a n"
    other = shutil.copyfile(FOLDER / "bpecodes", tmp_path / "other")
    model = ConvAttnModel.from_pretrained(FOLDER, bpe_codes=other)
    assert model.cfg.bpe.bpe_codes == str(other)


@pytest.mark.slow
def test_scores_what_its_card_says(shared):
    texts = shared / "data" / "multi30k" / "tok"
    source, reference = (
        gzip.decompress((texts / f"test_2016_flickr.{language}.gz").read_bytes())
        .decode()
        .splitlines()
        for language in ("en", "de")
    )
    translations = ConvAttnModel.from_pretrained(FOLDER).translate(source, beam=5)
    bleu = sacrebleu.corpus_bleu(translations, [reference], tokenize="none", force=True)
    scores = json.loads((FOLDER / "results.json").read_text())["scores"]
    (expected,) = (x["score"] for x in scores if x["name"] == "test_2016_flickr BLEU")
    assert bleu.score == pytest.approx(expected, abs=0.3)  # half precision, other batches
