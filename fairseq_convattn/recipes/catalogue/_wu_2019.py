"""What the recipes of Wu et al. 2019 share, and their objective and optimizer with others."""

from ..devices import Batch

PAPER = "Wu et al. 2019"
FIGURES = f"{PAPER} (arXiv 1901.10430)"
PUBLIC = "fairseq's examples/pay_less_attention_paper"
OBJECTIVE = {
    "--criterion": "label_smoothed_cross_entropy",
    "--label-smoothing": "0.1",
    "--optimizer": "adam",
    "--adam-betas": "(0.9, 0.98)",
}
GPUS = Batch(3584, workers=8, update_freq=16)


def training(updates: int, warmup: int = 10_000) -> dict[str, str | None]:
    """Adam with a warm-up and half a cosine over the other updates."""
    return {
        **OBJECTIVE,
        "--clip-norm": "0.0",
        "--weight-decay": "0.0",
        "--lr-scheduler": "cosine",
        "--warmup-updates": str(warmup),
        "--warmup-init-lr": "1e-07",
        "--lr": "0.001",
        "--min-lr": "1e-07",
        "--stop-min-lr": "1e-09",
        "--lr-shrink": "1",
        "--t-mult": "1",
        "--lr-period-updates": str(updates - warmup),
        "--max-update": str(updates),
        "--keep-last-epochs": "10",
    }


SHARED_EMBEDDINGS: dict[str, str | None] = {"--share-all-embeddings": None}


def decoding(length_penalty: str) -> dict[str, str | None]:
    return {
        "--batch-size": "128",
        "--beam": "5",
        "--lenpen": length_penalty,
        "--remove-bpe": None,
    }
