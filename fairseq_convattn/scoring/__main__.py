"""BLEU, chrF or ROUGE of one system, or of two and whether they differ.

Detokenised text, with sacreBLEU's tokeniser:
  convattn score --metric bleu --reference REF --hypothesis HYP
Tokenised text, as Moses' multi-bleu.perl scores it, and as in the WMT papers, compounds split:
  convattn score --metric bleu --tokenize none --reference REF --hypothesis HYP
  convattn score --metric bleu --compound-split --reference REF --hypothesis HYP
A model of tokens against the original text:
  convattn score --metric bleu --detokenize de --reference RAW --hypothesis GENERATED
Chinese, words split or not:
  convattn score --metric bleu --tokenize zh --reference REF --hypothesis HYP
Summaries in several sentences, from fairseq-generate's output and against its targets:
  convattn score --metric rouge --rouge-split punctuation --hypothesis GENERATED
Two systems:
  convattn score --metric chrf --reference REF --hypothesis NEW --baseline OLD

A file has one text a line, in the same order, or is what fairseq-generate printed.
fairseq-generate output is detected. Its D- lines are scored; with --tokenize none,
--compound-split or --detokenize, its H- lines. Without --reference they are scored against its
T- lines. In these, words that the dictionary lacks are <<unk>>, which match nothing: give
--reference for a number to publish.

Scores are in percent. The 95 % confidence intervals and the p-values of the paired bootstrap
come from 1,000 resamples of the texts; all that a score depends on is in the signature. Doubtful
texts, such as subwords left in, give a warning.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from typing import NamedTuple

import sacrebleu
from tqdm import tqdm

from ..command_lines import one_line_errors
from ..spelling import flag
from . import rouge
from .bootstrap import p_value, paired_bootstrap
from .checks import alike, hypothesis_warnings, mask_unknowns, reference_warnings
from .conventions import detokenise, detokenizer_version, split_compounds
from .generated import ScoringError, Texts, read_texts

METRICS_OF_OPTIONS = {
    "tokenize": ("bleu",),
    "compound_split": ("bleu",),
    "detokenize": ("bleu", "chrf"),
    "detokenize_reference": ("bleu", "chrf"),
    "lowercase": ("bleu", "chrf"),
    "rouge_no_stem": ("rouge",),
    "rouge_split": ("rouge",),
}


class Report(NamedTuple):
    """Scores by system and name, the p-values of their difference by name."""

    signature: str
    scores: list[dict[str, dict]]
    p_values: dict[str, float]


def command_line() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--metric", required=True, choices=("bleu", "chrf", "rouge"))
    add(
        "--reference",
        nargs="+",
        metavar="FILE",
        help="reference texts, one per line; give several files for several references of each "
        "text (default: the T- lines of --hypothesis)",
    )
    add("--hypothesis", required=True, metavar="FILE", help="the system's output")
    add("--baseline", metavar="FILE", help="another system's output, to compare with")
    add(
        "--tokenize",
        choices=list(sacrebleu.BLEU.TOKENIZERS),
        help="BLEU: sacreBLEU's tokeniser; zh or char (character by character) for Chinese; none "
        "for text that is tokenised already, which takes H- lines (default: 13a, or none with "
        "--compound-split)",
    )
    add(
        "--detokenize",
        metavar="LANGUAGE",
        help="BLEU, chrF: detokenise H- lines (or plain files) and T- lines with sacremoses; they "
        "must be Moses tokens of this language (en, de, fr, ...)",
    )
    for name, what in {
        "--detokenize-reference": "detokenise --reference too",
        "--compound-split": "BLEU: split a-b into a ##AT##-##AT## b on both sides, as the papers "
        "do on WMT en-de",
        "--lowercase": "BLEU, chrF: ignore case (ROUGE always does)",
        "--rouge-no-stem": "ROUGE: compare words, not their Porter stems",
    }.items():
        add(name, action="store_true", help=what)
    add(
        "--rouge-split",
        metavar="WHERE",
        help="ROUGE: where sentences are split for ROUGE-Lsum, which papers call ROUGE-L: newline "
        "(a text is one line, so it is never split and ROUGE-Lsum equals ROUGE-L), punctuation "
        "(after . ! ? and a space) or a marker between sentences, such as <q> (default: newline)",
    )
    add("--format", choices=("text", "json"), default="text")
    return parser


def parsed_arguments(given: Sequence[str] | None) -> argparse.Namespace:
    parser = command_line()
    arguments = parser.parse_args(given)
    for option, metrics in METRICS_OF_OPTIONS.items():
        is_given = getattr(arguments, option) not in (None, False)
        if is_given and arguments.metric not in metrics:
            parser.error(f"{flag(option)} cannot be used with --metric {arguments.metric}")
    if arguments.compound_split and arguments.tokenize not in (None, "none"):
        parser.error("--compound-split is for tokenised text: it needs --tokenize none")
    if arguments.detokenize and (arguments.tokenize == "none" or arguments.compound_split):
        parser.error("--detokenize cannot be used with --tokenize none or --compound-split")
    if arguments.detokenize_reference and not (arguments.detokenize and arguments.reference):
        parser.error("--detokenize-reference is for --detokenize LANGUAGE and --reference FILE")
    arguments.tokenize = arguments.tokenize or ("none" if arguments.compound_split else "13a")
    arguments.tokenised = bool(arguments.tokenize == "none" or arguments.detokenize)
    arguments.detokenize_reference |= bool(arguments.detokenize and not arguments.reference)
    return arguments


def references(arguments: argparse.Namespace, systems: Sequence[Texts]) -> list[list[str]]:
    """The texts of every reference.

    Raises:
        OSError: a file cannot be read.
        ScoringError: there is none, or it does not belong to what the systems wrote.
    """
    if arguments.reference:
        files = [read_texts(path) for path in arguments.reference]
        for file in files:
            if file.generated:
                raise ScoringError(f"{file.path} is fairseq-generate's output, no reference")
        return [list(file.detokenised) for file in files]
    first = systems[0]
    if first.targets is None:
        raise ScoringError(f"{first.path} has no T- lines to score against; add --reference")
    if any(system.targets not in (None, first.targets) for system in systems):
        raise ScoringError("--hypothesis and --baseline have different T- lines; add --reference")
    if arguments.tokenised and first.hypotheses != first.detokenised:
        raise ScoringError(
            f"the T- lines of {first.path} are detokenised; add a tokenised --reference"
        )
    return [list(first.targets)]


def require_same_length(names: Sequence[str], texts: Sequence[Sequence[str]]) -> None:
    """Raise ScoringError, with the names, unless all have the same number of texts."""
    for name, lines in zip(names, texts, strict=True):
        if len(lines) != len(texts[0]):
            raise ScoringError(
                f"{names[0]} has {len(texts[0])} texts and {name} {len(lines)}: "
                "they must correspond line by line"
            )


def sacrebleu_report(
    arguments: argparse.Namespace, systems: Sequence[list[str]], refs: list[list[str]]
) -> Report:
    """BLEU or chrF, with sacreBLEU's own intervals and paired bootstrap.

    Raises:
        ImportError, RuntimeError: the tokeniser needs a package that is not installed.
    """
    if arguments.metric == "chrf":
        metric = sacrebleu.CHRF(lowercase=arguments.lowercase)
    else:
        metric = sacrebleu.BLEU(
            tokenize=arguments.tokenize,
            lowercase=arguments.lowercase,
            force=arguments.tokenize == "none",
        )
    name, signature, results = paired_bootstrap(metric, systems[::-1], refs)
    hypothesis, *baseline = reversed(results)
    scores = []
    for texts, result in zip(systems, (hypothesis, *baseline), strict=True):
        score = metric.corpus_score(texts, refs)
        low, high = float(result.mean - result.ci), float(result.mean + result.ci)
        line = f"{score.format()} [{low:.2f}, {high:.2f}]"
        scores.append({name: {"score": score.score, "confidence": [low, high], "verbose": line}})
    p_values = {}
    if baseline:
        p_values[name] = p_value(hypothesis, baseline[0])
    return Report(f"{name}|{signature}", scores, p_values)


def rouge_report(
    arguments: argparse.Namespace, systems: Sequence[list[str]], refs: list[list[str]]
) -> Report:
    """ROUGE, with percentile intervals and a paired bootstrap.

    Raises:
        ImportError: rouge-score is not installed.
        ScoringError: ``--rouge-split`` is nothing to split at.
    """
    split = "newline" if arguments.rouge_split is None else arguments.rouge_split
    try:
        settings = rouge.RougeSettings(stem=not arguments.rouge_no_stem, split=split)
    except ValueError as error:
        raise ScoringError(f"--rouge-split: {error}") from None
    for line in rouge.rouge_warnings([line for lines in refs for line in lines], settings):
        warn(line)
    signature = rouge.signature(len(refs), settings)
    by_system = [
        [
            rouge.sentence_scores(text, targets, settings)
            for text, *targets in tqdm(
                zip(texts, *refs, strict=True), total=len(texts), disable=None, unit=" texts"
            )
        ]
        for texts in systems
    ]
    scores = [
        {
            name: {
                "score": score.fmeasure,
                "confidence": [score.low, score.high],
                "precision": score.precision,
                "recall": score.recall,
                "verbose": f"{rouge.NAMES[name]} F1 = {score}",
            }
            for name, score in rouge.corpus_scores(sentence_scores).items()
        }
        for sentence_scores in by_system
    ]
    p_values = rouge.paired_p_values(*by_system) if len(systems) > 1 else {}
    return Report(f"ROUGE|{signature}", scores, p_values)


def report(arguments: argparse.Namespace) -> Report:
    """Compute the report that the arguments ask for.

    Raises:
        ImportError, RuntimeError: a package is missing.
        OSError: a file cannot be read.
        ScoringError: the texts cannot be scored.
    """
    systems = [read_texts(path) for path in (arguments.hypothesis, arguments.baseline) if path]
    refs = references(arguments, systems)
    tokenised = arguments.tokenised
    texts = [list(system.hypotheses if tokenised else system.detokenised) for system in systems]
    names = arguments.reference or [f"T- lines of {arguments.hypothesis}"]
    require_same_length((*names, *(str(system.path) for system in systems)), (*refs, *texts))
    warn_of_hypotheses(arguments, systems, texts, refs)
    for name, lines in zip(names, refs, strict=True):
        for line in reference_warnings(lines):
            warn(f"{name}: {line}")
    refs = [list(map(mask_unknowns, lines)) for lines in refs]
    if arguments.detokenize:
        texts = [detokenise(lines, arguments.detokenize) for lines in texts]
        if arguments.detokenize_reference:
            refs = [detokenise(lines, arguments.detokenize) for lines in refs]
    if arguments.metric == "rouge":
        return rouge_report(arguments, texts, refs)
    if arguments.compound_split:
        texts, refs = ([list(map(split_compounds, x)) for x in lists] for lists in (texts, refs))
    result = sacrebleu_report(arguments, texts, refs)
    return result._replace(signature=result.signature + conventions(arguments))


def warn_of_hypotheses(
    arguments: argparse.Namespace,
    systems: Sequence[Texts],
    texts: Sequence[list[str]],
    refs: Sequence[list[str]],
) -> None:
    """Warn of hypotheses that are probably not what the user means to score."""
    for system, lines in zip(systems, texts, strict=True):
        for line in hypothesis_warnings(lines):
            warn(f"{system.path}: {line}")
        if lines in refs:
            score_reference = "; fairseq-generate writes the references with --score-reference"
            told = score_reference if system.generated else ""
            warn(f"{system.path}: every hypothesis is its reference{told}")
        if arguments.reference and system.targets and not alike(system.targets, refs):
            warn(
                f"{system.path}: its T- lines differ from {' '.join(arguments.reference)}: does "
                "the reference belong to another subset, or is it in another order, or another "
                "translation?"
            )


def conventions(arguments: argparse.Namespace) -> str:
    """Conventions that sacreBLEU's signature does not record."""
    fields = ["compounds:split"] if arguments.compound_split else []
    if arguments.detokenize:
        sides = "both" if arguments.detokenize_reference else "hypothesis"
        fields.append(f"detok:sacremoses-{arguments.detokenize}-{sides}-{detokenizer_version()}")
    return "".join(f"|{field}" for field in fields)


def as_text(arguments: argparse.Namespace, result: Report) -> str:
    lines = []
    for title, scores in zip(("hypothesis", "baseline"), result.scores, strict=False):
        if arguments.baseline:
            lines.append(f"{title} {getattr(arguments, title)}")
        lines += [score["verbose"] for score in scores.values()]
    for name, found in result.p_values.items():
        ours, baseline = (scores[name]["score"] for scores in result.scores)
        shown = rouge.NAMES.get(name, name)
        lines.append(f"difference in {shown}: {ours - baseline:+.2f}, p = {found:.4f}")
    return "\n".join((*lines, result.signature))


def as_json(arguments: argparse.Namespace, result: Report) -> str:
    signature, (scores, *baseline), p_values = result
    content = {"metric": arguments.metric, "signature": signature, "scores": scores}
    if baseline:
        content |= {"baseline": baseline[0], "p_values": p_values}
    return json.dumps(content, indent=2, ensure_ascii=False)


def warn(line: str) -> None:
    print(f"warning: {line}", file=sys.stderr)


def main(given: Sequence[str] | None = None) -> None:
    arguments = parsed_arguments(given)
    with one_line_errors(ImportError, RuntimeError, ScoringError):
        result = report(arguments)
    print((as_json if arguments.format == "json" else as_text)(arguments, result))


if __name__ == "__main__":
    main()
