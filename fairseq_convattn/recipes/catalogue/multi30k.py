"""Multi30k English-German, at the size of one machine."""

from ..command import options
from ..devices import Batch
from ..sequence_to_sequence import PREPARED_HERE, TestSet, Translation, detokenised, tokenised
from . import _wu_2019

TESTS = {"test_2016_flickr": "test", "test_2017_flickr": "test1"}
PUBLIC = "README-baseline.md and the code of LividWo/Revisit-MMT"


def multi30k(target: str, published: dict[str, dict[str, float]], **others) -> Translation:
    """The recipe of the same source and training for a target language."""
    splits = {"train": "train", "val": "valid", **dict.fromkeys(TESTS, "test")}
    return Translation(
        paper="Wu et al. 2021",
        corpus="multi30k" if target == "de" else f"multi30k_en_{target}",
        release={
            f"tok/{name}.{language}": f"{split}.{side}"
            for name, split in splits.items()
            for language, side in (("en", "source"), (target, "target"))
        },
        shape="tiny",
        training=options(
            f"--share-all-embeddings --dropout 0.3 --attention-dropout 0.0 {_wu_2019.OBJECTIVE} "
            "--clip-norm 25 --lr 0.005 --lr-scheduler inverse_sqrt --warmup-updates 2000 "
            "--max-update 8000 --patience 10 --keep-last-epochs 10"
        ),
        batch=Batch(4096, workers=1, update_freq=2),
        average=10,
        decoding=options("--beam 5 --batch-size 128 --remove-bpe"),
        tests=tuple(
            TestSet(
                name,
                (
                    tokenised(f"{name}.{target}", published=published.get(name)),
                    # the release is lower-cased and tokenised
                    detokenised(target, f"{name}.{target}", also="--detokenize-reference"),
                ),
                subset,
            )
            for name, subset in TESTS.items()
        ),
        needs=PREPARED_HERE,
        **others,
    )


RECIPE = multi30k(
    "de",
    {"test_2016_flickr": {"attention": 41.02}},
    title="Multi30k English-German",
    figures="Wu et al. 2021 (README-baseline.md of LividWo/Revisit-MMT)",
    origin=PUBLIC,
    prepare_script=("prepare_multi30k.sh",),
    reading="mixers other than attention, which alone is published, and their DropConnect of 0.1",
)
