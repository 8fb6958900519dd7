"""The results of a run: ``results.json`` and the last lines on the screen."""

import functools
import os
import platform
import subprocess
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import Any

import torch

from ..run_records import sha256, versions
from .command import ROOT
from .devices import precision_of, processor_name
from .recipe import Recipe, Score
from .settings import Settings

_PACKAGES = (
    *("numpy", "torch", "sacrebleu", "rouge-score", "sentencepiece", "subword-nmt"),
    *("sacremoses", "jieba", "fairscale", "triton"),
)
_VARIABLES = ("OMP_", "CUDA_", "CONVATTN_", "TORCH_", "NCCL_", "SLURM_JOB", "SLURM_NNODES")


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


@functools.cache
def environment() -> dict[str, Any]:
    """The versions, commit and machine that results can depend on."""
    return {
        "versions": versions(_PACKAGES),
        "git": _git(),
        "platform": platform.platform(),
        "processor": processor_name(),
        "processors": os.cpu_count(),
        "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
        "variables": {k: v for k, v in sorted(os.environ.items()) if k.startswith(_VARIABLES)},
    }


def _git() -> dict[str, Any] | None:
    """The commit, and whether tracked files differ from it; None without git, and for an
    installed package, which may lie in another repository."""
    try:
        if not Path(_ask_git("rev-parse --show-toplevel")).samefile(ROOT):
            return None
        found = _ask_git("describe --always --dirty --exclude * --abbrev=40")
    except (OSError, subprocess.CalledProcessError):
        return None
    return {"commit": found.removesuffix("-dirty"), "changed": found.endswith("-dirty")}


def _ask_git(arguments: str) -> str:
    command = ["git", "-C", str(ROOT), *arguments.split()]
    return subprocess.check_output(command, stderr=subprocess.DEVNULL, text=True).strip()


def data_checksums(settings: Settings) -> dict[str, str]:
    """SHA-256 of the dictionaries, the test sets, and downloads without a published checksum."""
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
    """The content of ``results.json``; ``stages`` holds the records by name."""
    batch = recipe.used_batch(settings)
    trained = settings.checkpoint is None
    return {
        "command": command,
        "title": recipe.title,
        "paper": recipe.paper,
        "origin": recipe.origin,
        "reading": recipe.reading,
        "unconfirmed": recipe.unconfirmed,
        "mixer": settings.mixer,
        "architecture": recipe.architecture(settings) if trained else None,
        "seed": settings.seed if trained else None,
        "precision": _precision(stages.get("train"), settings) if trained else None,
        "smoke": settings.smoke,
        "checkpoint": None if trained else str(settings.checkpoint),
        "batch": {"size": batch.size, "unit": batch.unit, "per_update": batch.per_update},
        "stages": stages,
        "environment": environment(),
        "data": data_checksums(settings),
        "scores": [_compared(score, recipe, settings) for score in scores],
    }


def _precision(training: Mapping[str, Any] | None, settings: Settings) -> str:
    """The precision of the training, or those of its sessions; before it begins, the settings'."""
    if not training:
        return settings.precision
    last = precision_of(" ".join(training["commands"]).split())
    return ", then ".join(name for name, _ in groupby([*precisions(settings), last]))


def precisions(settings: Settings) -> list[str]:
    """Those in which the training has run by its log, in order; one for equal ones in a row."""
    log = settings.output / "logs" / "train.log"
    text = log.read_text(encoding="utf-8", errors="replace") if log.is_file() else ""
    found: list[str] = []
    precision = ""
    for line in text.splitlines():
        if line.startswith("+ fairseq-train "):
            precision = precision_of(line.split())
        elif "No existing checkpoint found" in line:  # fairseq's, of a training from the start
            found = []
        elif "begin training epoch" in line and precision:
            found.append(precision)
    return [name for name, _ in groupby(found)]


def _compared(score: Score, recipe: Recipe, settings: Settings) -> dict[str, Any]:
    """A score beside the paper's figures, and its difference from that of the same mixer."""
    published = recipe.published.get(score.name, {})
    own = None if settings.smoke else published.get(settings.mixer)
    return {
        **asdict(score),
        "published": published,
        "published_in": recipe.paper,
        "difference": None if own is None else score.score - own,
    }


def score_lines(results: Mapping[str, Any]) -> list[str]:
    """Baselines, then the scores, then those beside the paper's figures: last, where they are seen
    first."""
    lines, mixer = [], results["mixer"]
    for score in sorted(results["scores"], key=lambda x: (not x["baseline"], bool(x["published"]))):
        interval = " [{:.2f}, {:.2f}]".format(*score["confidence"]) if score["confidence"] else ""
        whose = "baseline" if score["baseline"] else mixer
        lines.append(f"{score['name']}: {score['score']:.2f}{interval} ({whose})")
        figures = {name: f"{name} {figure:.2f}" for name, figure in score["published"].items()}
        if score["difference"] is not None:
            figures[mixer] += f" (difference {score['difference']:+.2f})"
        if figures:
            lines.append(f"  published, {score['published_in']}: {', '.join(figures.values())}")
        lines.append(f"  {score['signature']}")
    if results["unconfirmed"]:
        lines.append(f"unconfirmed: {results['unconfirmed']}")
    if results["smoke"]:
        lines.append("(a smoke test: it shows that every stage runs, its scores mean nothing)")
    return lines
