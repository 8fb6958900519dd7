"""Folders as the recipes' runner leaves them, and pages as a browser reads them."""

import json
from datetime import datetime, timedelta
from pathlib import Path

from lxml.html import document_fromstring

from fairseq_convattn.recipes.command import Command, Stage
from fairseq_convattn.recipes.runner import Runner
from fairseq_convattn.run_records import write_json


def start(seconds: float) -> str:
    """Of a line that fairseq wrote so long after midnight."""
    moment = datetime(2026, 11, 21) + timedelta(seconds=seconds)
    return f"{moment:%Y-%m-%d %H:%M:%S} | INFO | "


START = start(0)
HEAD = f"""\
+ fairseq-train data/bin --user-dir fairseq_convattn --task translation
  deprecation_warning(message=message)
{START}fairseq_cli.train | num. shared model params: 91,264 (num. trained: 91,264)
{START}fairseq_cli.train | num. expert model params: 0 (num. trained: 0)
"""
GPU = (
    f"{START}fairseq.utils | rank   0: capabilities =  9.0  ; total memory = 139.719 GB ; "
    "name = NVIDIA H200                             \n"
)
SIGNATURE = "BLEU|nrefs:1|case:mixed|tok:none|version:2.6.0"


def inner(updates: int, loss: float, wps: str = "9000", **more: str) -> str:
    """As ``--log-format json`` has it."""
    figures = {"epoch": 1, "update": 0.5, "loss": str(loss), "nll_loss": "1", "ppl": "9"}
    figures |= {"wps": wps, "wpb": "1087", "num_updates": str(updates), "lr": "0.0005", **more}
    figures["wall"] = "0"  # as in some sessions that take a training up again
    return f"{start(updates * 10)}train_inner | {json.dumps(figures)}\n"


def valid(updates: int, perplexity: object) -> str:
    figures = {"epoch": 1, "valid_loss": "8.1", "valid_ppl": str(perplexity)}
    figures |= {"valid_wps": "0", "valid_num_updates": str(updates)}
    return f"{start(updates * 10)}valid | {json.dumps(figures)}\n"


LOG = HEAD + inner(100, 8.5, "0") + inner(200, 7.25) + valid(200, 188.67) + inner(300, 6.5, "7000")
LOG += valid(300, 64.5)


def generated(texts: list[str], source: str = "a man <unk>") -> str:
    lines = []
    for number, text in reversed(list(enumerate(texts))):
        lines += [f"S-{number}\t{source} {number}", f"T-{number}\tein mann {number}"]
        lines += [f"H-{number}\t-0.5\t{text}", f"D-{number}\t-0.5\t{text}", f"P-{number}\t-0.5"]
    return "\n".join([*lines, "Generate test with beam=5: BLEU4 = 1.00", ""])


def write_run(
    folder: Path,
    mixer: str = "dynamic",
    seed: int = 1,
    scores: dict[str, float] | None = None,
    log: str | None = LOG,
    options: str = "--dropout 0.3",
    texts: list[str] | None = None,
    trained: bool = True,
    smoke: bool = False,
    memory: int = 3 << 29,
    published: dict[str, float] | None = None,
    **more: object,
) -> Path:
    """A run's folder, whose stages the runner has written; ``more`` is in its results."""
    published = {"dynamic": 29.7, "attention": 29.3} if published is None else published
    words = f"fairseq-train data/bin --seed {seed} --save-dir {folder}/checkpoints --max-update 400"
    train = Command([*words.split(), *options.split()], scaling=["--update-freq", "16"])
    stages = [Stage("prepare", [Command(["true"])]), Stage("train", [train])]
    runner = Runner(folder, stages)
    (folder / "logs").mkdir(parents=True)
    for stage in stages if trained else stages[:1]:
        (folder / "stages").mkdir(exist_ok=True)
        runner.finish(stage, "2026-11-21T00:00:00+00:00", 10.0, memory)
    if not trained:
        write_json({"settings": [train.comparable_options()]}, folder / "stages" / "train.begun")
    if log is not None:
        (folder / "logs" / "train.log").write_text(log, encoding="utf-8")
    if texts is not None:
        (folder / "generated.test.txt").write_text(generated(texts), encoding="utf-8")
        speed = "INFO:x:Translated 1,000 sentences (9 tokens) in 4.0s (250.00 sentences/s, 2 tok/s)"
        (folder / "logs" / "generate.log").write_text(f"{speed}\n{speed.replace('250', '125')}\n")
    content = {
        "command": f"python -m fairseq_convattn.recipes wmt16_en_de --mixer {mixer}",
        **{"title": "WMT16 English-German, big", "paper": "Wu et al. 2019", "mixer": mixer},
        **{"seed": seed, "smoke": smoke, "checkpoint": None, "environment": {}},
        "batch": {"size": 3584, "unit": "tokens", "per_update": 458_752},
        "scores": [
            {
                **{"name": name, "score": score, "confidence": [score - 0.5, score + 0.5]},
                **{
                    "signature": SIGNATURE,
                    "published": published,
                    "published_in": "Wu et al. 2019",
                },
            }
            for name, score in (scores or {}).items()
        ],
    }
    write_json(content | more, folder / "results.json")
    return folder


class Page:
    """What a browser makes of it: tags with attributes, rows of tables, text."""

    def __init__(self, text: str):
        elements = [x for x in document_fromstring(text).iter() if isinstance(x.tag, str)]
        self.tags = [(element.tag, dict(element.attrib)) for element in elements]
        self.text = elements[0].text_content()
        self.rows = [
            [cell.text_content() for cell in element.iterchildren("th", "td")]
            for element in elements
            if element.tag == "tr"
        ]

    def row(self, *beginning: str) -> list[str]:
        (found,) = (row for row in self.rows if row[: len(beginning)] == list(beginning))
        return found
