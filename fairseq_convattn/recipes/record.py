"""What a run leaves for people and programs: ``results.json`` and the last lines on the screen."""

import functools
import os
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from ..run_records import sha256, versions
from .recipe import Recipe, Score
from .settings import ROOT, Settings

_PACKAGES = (
    *("numpy", "torch", "sacrebleu", "rouge-score", "sentencepiece", "subword-nmt"),
    *("sacremoses", "jieba", "fairscale", "triton"),
)
_VARIABLES = ("OMP_", "CUDA_", "CONVATTN_", "TORCH_", "NCCL_", "SLURM_JOB", "SLURM_NNODES")


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


@functools.cache
def environment() -> dict[str, Any]:
    """Versions, commit and machine, as far as results can depend on them."""
    return {
        "versions": versions(_PACKAGES),
        "git": _git(),
        "platform": platform.platform(),
        "processor": _processor(),
        "processors": os.cpu_count(),
        "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
        "variables": {k: v for k, v in sorted(os.environ.items()) if k.startswith(_VARIABLES)},
    }


def _git() -> dict[str, Any] | None:
    """The commit, and whether the files differ from it; None without git."""
    try:
        commit, changes = (
            subprocess.run(
                ["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=True
            ).stdout.strip()
            for arguments in (("rev-parse", "HEAD"), ("status", "--porcelain", "-uno"))
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return {"commit": commit, "changed": bool(changes)}


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(models, platform.processor())


def data_checksums(settings: Settings) -> dict[str, str]:
    """SHA-256 of what pins the data down: dictionaries, test sets, and the downloads for which
    nobody publishes one."""
    data, binarised = settings.data, settings.binarised
    files = [*binarised.glob("dict*.txt"), *binarised.glob("test*.bin"), *data.glob("text/*test*")]
    found = {str(file.relative_to(data)): sha256(file) for file in sorted(set(files))}
    downloads = data / "sha256sums"
    if downloads.is_file():
        lines = downloads.read_text(encoding="utf-8").splitlines()
        found |= {name: digest for digest, name in (line.split(maxsplit=1) for line in lines)}
    return found


def results(
    command: str, recipe: Recipe, settings: Settings, stages: dict[str, Any], scores: list[Score]
) -> dict[str, Any]:
    """The content of ``results.json``; ``stages`` are their records by name."""
    return {
        "command": command,
        "title": recipe.title,
        "paper": recipe.paper,
        "origin": recipe.origin,
        "reading": recipe.reading,
        "unconfirmed": recipe.unconfirmed,
        "mixer": settings.mixer,
        "architecture": None if settings.checkpoint else recipe.architecture(settings),
        "seed": None if settings.checkpoint else settings.seed,
        "precision": None if settings.checkpoint else settings.precision,
        "smoke": settings.smoke,
        "checkpoint": str(settings.checkpoint) if settings.checkpoint else None,
        "batch": {
            "size": recipe.used_batch(settings).size,
            "unit": recipe.used_batch(settings).unit,
            "per_update": recipe.used_batch(settings).per_update,
        },
        "stages": stages,
        "environment": environment(),
        "data": data_checksums(settings),
        "scores": [
            {
                "name": score.name,
                "score": score.value,
                "confidence": score.confidence,
                "signature": score.signature,
                "published": dict(score.published),
                "published_in": recipe.figures or recipe.paper,
                "difference": None if settings.smoke else score.difference(settings.mixer),
            }
            for score in scores
        ],
    }


def score_lines(recipe: Recipe, settings: Settings, scores: list[Score]) -> list[str]:
    """The scores, each beside what the paper has; those that it has come last, to be seen first."""
    lines = []
    for score in sorted(scores, key=lambda score: bool(score.published)):
        interval = "" if score.confidence is None else " [{:.2f}, {:.2f}]".format(*score.confidence)
        lines.append(f"{score.name}: {score.value:.2f}{interval} ({settings.mixer})")
        lines.append(f"  {_published(recipe, settings, score)}")
        lines.append(f"  {score.signature}")
    if recipe.unconfirmed:
        lines.append(f"unconfirmed: {recipe.unconfirmed}")
    if settings.smoke:
        lines.append("(a smoke test: it shows that every stage runs, its scores mean nothing)")
    return lines


def _published(recipe: Recipe, settings: Settings, score: Score) -> str:
    if not score.published:
        return "published: no figure known"
    figures = {mixer: f"{mixer} {figure:.2f}" for mixer, figure in score.published.items()}
    difference = score.difference(settings.mixer)
    if difference is not None and not settings.smoke:
        figures[settings.mixer] += f" (difference {difference:+.2f})"
    return f"published, {recipe.figures or recipe.paper}: {', '.join(figures.values())}"
