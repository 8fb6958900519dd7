"""WikiText-2, at word level and at the size of one machine."""

from ..command import options
from ..devices import Batch
from ..language_model import LanguageModel

RECIPE = LanguageModel(
    title="WikiText-2",
    paper="Merity et al. 2016, the corpus",
    origin="ours: a small model for a small corpus",
    reading="all of it: 2,000 updates of 8,192 tokens in blocks of 256, learning rate 0.002 "
    "falling linearly to 0 after 200 updates, dropout 0.3, inputs and outputs tied; <unk> and ends "
    "of lines count, as usual; at least 128 tokens before every token, or none before a block",
    corpus="wikitext2",
    release={
        "train.txt": "train.source",
        "valid.txt": "valid.source",
        "test.txt": "test.source",
    },
    shape="lm_tiny",
    training=options(
        "--criterion cross_entropy --share-decoder-input-output-embed --sample-break-mode none "
        "--tokens-per-sample 256 --optimizer adam --adam-betas '(0.9, 0.98)' --weight-decay 0.01 "
        "--clip-norm 1.0 --lr 0.002 --lr-scheduler polynomial_decay --warmup-updates 200 "
        "--total-num-update 2000 --max-update 2000 --keep-last-epochs 1"
    ),
    batch=Batch(4096, workers=1, update_freq=2),
    evaluations={
        name: options(
            "--sample-break-mode none --tokens-per-sample 256 --max-tokens 4096 "
            f"--context-window {context}"
        )
        for name, context in (("", 128), ("without context", 0))
    },
)
