"""Multi30k English-German, at the size of one machine."""

from ..command import options
from ..devices import Batch
from ..sequence_to_sequence import TOKENISED, Scoring, Translation, parallel
from . import _wu_2019

TESTS = ("test_2016_flickr", "test_2017_flickr")
SPLITS = {"train": "train", "val": "valid", **dict.fromkeys(TESTS, "test")}
PUBLIC = "README-baseline.md and the code of LividWo/Revisit-MMT"


def multi30k(target: str, **others) -> Translation:
    """The recipe of the same source and training for a target language."""
    return Translation(
        paper="Wu et al. 2021",
        corpus="multi30k" if target == "de" else f"multi30k_en_{target}",
        release=parallel(
            {f"tok/{name}.{{}}": f"{split}.{{}}" for name, split in SPLITS.items()}, "en", target
        ),
        shape="tiny",
        training=options(
            f"--share-all-embeddings --dropout 0.3 --attention-dropout 0.0 {_wu_2019.OBJECTIVE} "
            "--clip-norm 25 --lr 0.005 --lr-scheduler inverse_sqrt --warmup-updates 2000 "
            "--max-update 8000 --patience 10 --keep-last-epochs 10"
        ),
        batch=Batch(4096, workers=1, update_freq=2),
        average=10,
        decoding=options("--beam 5 --batch-size 128 --remove-bpe"),
        tests={name: _scorings(name, target) for name in TESTS},
        **others,
    )


def _scorings(name: str, target: str) -> list[Scoring]:
    """The release is lower-cased and tokenised, and with it the reference."""
    reference, metric = f"{name}.{target}", f"bleu --detokenize {target}"
    return [
        Scoring(reference, TOKENISED),
        Scoring(reference, metric, "detokenised", reference_options="--detokenize-reference"),
    ]


RECIPE = multi30k(
    "de",
    published={"test_2016_flickr BLEU": {"attention": 41.02}},
    title="Multi30k English-German",
    figures="Wu et al. 2021 (README-baseline.md of LividWo/Revisit-MMT)",
    origin=PUBLIC,
    reading="mixers other than attention, which alone is published, and their DropConnect of 0.1",
)
