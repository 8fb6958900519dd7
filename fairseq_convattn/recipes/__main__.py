"""``python -m fairseq_convattn.recipes``: from raw text to the figure of a paper."""

import argparse
import difflib
import os
import shlex
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from ..architectures.overview import preset_options
from ..architectures.presets import ARCHITECTURE_NAMES
from ..checkpoints.checks import CheckpointError
from ..checkpoints.recovery import restore_last
from ..child_processes import CommandFailed
from ..command_lines import at_dashes, missing_modules, one_line_errors, seed_number, whole_number
from ..folder_lock import locked
from ..run_records import parse_options, read_json, sha256, write_json
from ..spelling import printable
from ..training_options import option_of, refusal
from . import catalogue
from .checkpoint import evaluated, require_data
from .command import RecipeError, Stage
from .devices import PRECISIONS, Batch, Devices, choose_devices
from .recipe import STAGES, Recipe
from .record import precisions, results, score_lines
from .runner import Runner
from .settings import Settings

# options of fairseq-train that the recipe's command sets itself
_BATCH = ("--max-tokens", "--batch-size", "--max-sentences", "--update-freq")
_SET_BY_THE_RECIPE = (
    *("--arch", "-a", "--task", "--user-dir", "--seed", "--save-dir", "--restore-file", "--cpu"),
    *("--distributed-world-size", "--distributed-port", "--distributed-rank", "--device-id"),
    *("--distributed-init-method", "--distributed-no-spawn", "--distributed-num-procs"),
    *("--nprocs-per-node", "--log-format", *_BATCH),
)
_OF_EVALUATION_TOO = (
    *("--source-lang", "-s", "--target-lang", "-t"),
    *("--max-source-tokens", "--truncate-source", "--source-prefix"),
    *("--add-bos-token", "--output-dictionary-size"),
)
_DIGITS = 8  # digits of a checkpoint's SHA-256, as many files are called model.pt


def command_line() -> argparse.ArgumentParser:
    recipes = sorted(catalogue.RECIPES.items())
    width = max(map(len, catalogue.RECIPES))
    titles = "\n".join(f"  {name:{width}}  {recipe.title}" for name, recipe in recipes)
    parser = argparse.ArgumentParser(
        prog="convattn recipe",
        usage="%(prog)s RECIPE [STAGE ...] [options] [-- fairseq-train's options]",
        description="Reproduce a published result: prepare the data, train, average checkpoints, "
        "generate and score. Finished stages are skipped; interrupted ones resume. "
        "results.json in the folder of the run has the scores beside the paper's, every command, "
        "versions, seed, commit and machine.",
        epilog=f"recipes:\n{titles}\n\nOptions after -- go to fairseq-train and override the "
        f"recipe's. Refused: {', '.join((*_SET_BY_THE_RECIPE, *_OF_EVALUATION_TOO))}.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("recipe", type=_recipe_name, metavar="RECIPE", help="one of those below")
    known = (*STAGES, "all")
    default = f"{', '.join(STAGES)} or all (default)"
    add("stages", nargs="*", default="all", choices=known, metavar="STAGE", help=default)
    add("--mixer", choices=tuple(ARCHITECTURE_NAMES), help="default: the recipe's")
    add("--seed", type=seed_number, metavar="N", help="seed of the training (default: 1)")
    add("--checkpoint", type=Path, metavar="FILE", help="evaluate this model, train none")
    add("--source", type=Path, metavar="DIR", help="a local copy of the corpus")
    default = "data/CORPUS; with --smoke in the run's folder"
    add("--data", type=Path, metavar="DIR", help=f"prepared data (default: {default})")
    default = "runs/RECIPE-MIXER-seedN; with --smoke runs/smoke/RECIPE-MIXER-seedN"
    add("--output", type=Path, metavar="DIR", help=f"folder of the run (default: {default})")
    most = "as many of this machine as divide an update evenly"
    add("--gpus", type=whole_number(1), metavar="N", help=f"GPUs of each machine (default: {most})")
    most = "tokens or sentences that a device takes at a time; an update stays the paper's"
    add("--device-batch", type=whole_number(1), metavar="N", help=f"{most} (default: the paper's)")
    add("--nodes", type=whole_number(1), default=1, metavar="N", help="machines (default: 1)")
    add("--fsdp", action="store_true", help="shard the model over the GPUs; needs fairscale")
    add("--smoke", action="store_true", help="three epochs of a shrunk model on a few lines")
    add("--dry-run", action="store_true", help="print the commands and run none")
    return parser


def _recipe_name(name: str) -> str:
    if name not in catalogue.RECIPES:
        close = difflib.get_close_matches(name, catalogue.RECIPES, n=1)
        way_out = f"did you mean '{close[0]}'?" if close else "convattn recipe --help lists them"
        raise argparse.ArgumentTypeError(f"there is no recipe '{name}'; {way_out}")
    return name


def main(given: Sequence[str] | None = None) -> None:
    given = list(sys.argv[1:] if given is None else given)
    arguments, extra = at_dashes(given)
    options = command_line().parse_intermixed_args(arguments)
    try:
        with one_line_errors(RecipeError, CheckpointError, CommandFailed):
            _main(options, extra, shlex.join(["python", "-m", __package__, *given]))
    except KeyboardInterrupt:
        print("interrupted; the same command continues", file=sys.stderr)
        sys.exit(128 + signal.SIGINT)


def _main(options: argparse.Namespace, extra: Sequence[str], command: str) -> None:
    recipe = catalogue.RECIPES[options.recipe]
    if not options.smoke and not options.checkpoint:
        recipe = recipe.with_batch(options.device_batch, extra)
    settings = resolve(options, recipe, extra)
    runner = Runner(settings.output, recipe.stages(settings))
    chosen = _chosen(options.stages, runner.stages)
    if "train" in chosen and not options.dry_run and "train" not in runner.records():
        settings = _as_it_ran(settings)
        runner = Runner(settings.output, recipe.stages(settings))
    if extra and (reason := refusal(recipe.train(settings).words()[1:])):
        raise RecipeError(f"after --: {reason}")
    if options.dry_run:
        _require_evaluable(recipe, settings, chosen)
        print("\n".join(_dry_run(recipe, settings, runner.stages, chosen)))
        return
    _require(recipe, settings, chosen)
    to_do = runner.check(chosen)
    _require_evaluable(recipe, settings, to_do)
    if "prepare" in to_do:
        _require_new(settings)
    if "train" in to_do:
        _require_start(extra)
    if to_do and "prepare" not in to_do:
        require_data(settings)  # a refused command leaves no folder
    with locked(settings.output, "results.json", "stages"):
        if "train" in to_do and settings.devices.nodes == 1:
            restore_last(settings.checkpoints)
        _run(command, recipe, settings, runner, chosen)


def resolve(options: argparse.Namespace, recipe: Recipe, extra: Sequence[str]) -> Settings:
    """Turn a command line into settings.

    Raises:
        CheckpointError: ``--checkpoint`` is not a checkpoint.
        RecipeError: the options contradict each other.
    """
    _require_free(extra)
    _require_folders(options)
    seed, mixer, published_format = options.seed or 1, options.mixer or recipe.mixer, False
    name = f"{options.recipe}-{mixer}-seed{seed}"
    if options.checkpoint:
        _require_no_training(options, extra)
        published_format, mixer = evaluated(options.checkpoint, recipe.task, recipe.target_language)
        name = f"{options.recipe}-{options.checkpoint.stem}-{sha256(options.checkpoint)[:_DIGITS]}"
    output = options.output or Path("runs", *(("smoke",) if options.smoke else ()), name)
    data = options.data or (output / "data" if options.smoke else Path("data", recipe.corpus))
    return Settings(
        mixer=mixer,
        seed=seed,
        output=output,
        data=data if data.name not in ("", "..") else data.resolve(),  # GLUE's data lie beside it
        devices=_with_precision(_devices(options, recipe.batch), extra),
        source=options.source,
        smoke=options.smoke,
        checkpoint=options.checkpoint,
        published_format=published_format,
        extra=tuple(extra),
    )


def _require_free(extra: Sequence[str]) -> None:
    """Refuse options for fairseq-train that the recipe sets itself."""
    for name in extra:
        option = option_of(name)
        if option in _BATCH:
            raise RecipeError(
                f"{name} after --: an update is the paper's on any number of --gpus and with any "
                "--device-batch"
            )
        if option == "--restore-file":
            raise RecipeError(
                f"{name} after --: a run continues its own training; give --finetune-from-model"
            )
        if option in _OF_EVALUATION_TOO:
            raise RecipeError(f"{name} after --: the evaluation needs it too and would not get it")
        if option in _SET_BY_THE_RECIPE:
            raise RecipeError(
                f"{name} after --: the recipe sets it; before -- there are --mixer, --seed, "
                "--output, --gpus and --nodes"
            )


def _require_folders(options: argparse.Namespace) -> None:
    """Refuse paths that fairseq or the recipe would misread."""
    if options.source and not options.source.is_dir():
        raise RecipeError(f"--source {options.source}: there is no such folder")
    for name in ("output", "data", "checkpoint"):
        if os.pathsep in str(getattr(options, name) or ""):
            raise RecipeError(f"--{name}: fairseq takes {os.pathsep!r} for the end of a path")
    if options.data and options.data.name in ("", "..") and not options.checkpoint:
        raise RecipeError(f"--data {options.data}: give the folder by its name")


def _require_no_training(options: argparse.Namespace, extra: Sequence[str]) -> None:
    """Refuse options that contradict ``--checkpoint``."""
    if options.smoke or extra or options.seed or options.source or options.mixer:
        raise RecipeError(
            "--checkpoint prepares and trains nothing, and says which mixer it has: leave out "
            "--smoke, --seed, --source, --mixer and fairseq-train's options after --"
        )
    if options.nodes > 1 or options.fsdp or options.device_batch or (options.gpus or 1) > 1:
        raise RecipeError(
            "--checkpoint is evaluated on one device: leave out --nodes, --fsdp, --device-batch"
        )


def _devices(options: argparse.Namespace, batch: Batch) -> Devices:
    """The chosen devices; a single one for a smoke test and if nothing is trained."""
    scaled = options.gpus or options.nodes > 1 or options.fsdp or options.device_batch
    if options.smoke and scaled:
        raise RecipeError(
            "--smoke runs on one device: leave out --gpus, --nodes, --fsdp, --device-batch"
        )
    trains = "all" in options.stages or "train" in options.stages
    if trains and not options.smoke and not options.checkpoint:
        return choose_devices(options.gpus, options.nodes, options.fsdp, batch)
    single = min(options.gpus or torch.cuda.device_count(), 1)
    return choose_devices(single, nodes=1, fsdp=False, batch=batch)


def _with_precision(devices: Devices, extra: Sequence[str]) -> Devices:
    """The same devices, without a precision if the user's own option sets one."""
    names = {PRECISIONS[name]: name for name in extra if name in PRECISIONS}
    if not names:
        return devices
    if len(names) > 1:
        raise RecipeError(f"{' and '.join(names.values())} after --: give one precision")
    (given,) = names.values()
    if devices.fsdp and (given == "--amp" or PRECISIONS[given] != "float16"):
        raise RecipeError(f"{given} after --: --fsdp trains in float16 only")
    if not devices.gpus and PRECISIONS[given] == "float16":
        raise RecipeError(f"{given} after --: a CPU does not train in float16")
    return replace(devices, precision=None)


def _chosen(given: Sequence[str], stages: Sequence[Stage]) -> list[str]:
    names = [stage.name for stage in stages]
    if "all" in given:
        return names
    for name in given:
        if name not in names:
            raise RecipeError(f"--checkpoint needs no stage {name}: there are {', '.join(names)}")
    return [name for name in names if name in given]


def _dry_run(
    recipe: Recipe, settings: Settings, stages: Sequence[Stage], chosen: Sequence[str]
) -> list[str]:
    """The commands as a shell script."""
    seed = "" if settings.checkpoint else f", seed {settings.seed}"
    lines = [f"{recipe.title}: {recipe.paper}; {settings.mixer}{seed}"]
    lines += [f"hyper-parameters: {recipe.origin}"]
    lines += [f"our choice: {recipe.reading}"] if recipe.reading else []
    lines += [_published(name, figures) for name, figures in recipe.published.items()]
    lines += _unconfirmed(recipe)
    if "train" in chosen:
        architecture = recipe.architecture(settings)
        lines += [f"--arch {architecture} presets {preset_options(architecture)}"]
        lines += [settings.devices.explain(recipe.used_batch(settings), settings.smoke)]
        lines += [] if settings.smoke else settings.devices.notes()
    lines = [*map(_comment, lines), f"mkdir -p {shlex.quote(str(settings.output))}"]
    for stage in stages:
        if stage.name in chosen:
            title = f"{stage.name}: {stage.note}" if stage.note else stage.name
            lines += ["", _comment(title), *stage.lines()]
    return lines


def _comment(line: str) -> str:
    """Of a shell script: a checkpoint's text does not end it."""
    return f"# {printable(line)}"


def _published(name: str, figures: Mapping[str, float]) -> str:
    return f"published, {name}: {', '.join(f'{x} {y:.2f}' for x, y in figures.items())}"


def _unconfirmed(recipe: Recipe) -> list[str]:
    return [f"unconfirmed: {recipe.unconfirmed}"] if recipe.unconfirmed else []


def _require(recipe: Recipe, settings: Settings, chosen: Sequence[str]) -> None:
    """Check that this machine has what the chosen stages need.

    Raises:
        RecipeError: something is missing.
    """
    devices, visible = settings.devices, torch.cuda.device_count()
    if "train" in chosen:
        if devices.fsdp and (missing := missing_modules("fairscale")):
            raise RecipeError(f"--fsdp needs {missing}")
        if devices.nodes == 1 and devices.gpus > visible:
            raise RecipeError(
                f"--gpus {devices.gpus}: this machine has {visible} "
                "(--dry-run prints the commands for another one)"
            )
    needed = {stage: recipe.needs.get(stage, ()) for stage in chosen}
    stages = [stage for stage, names in needed.items() if missing_modules(*names)]
    if stages:
        missing = missing_modules(*dict.fromkeys(name for each in stages for name in needed[each]))
        raise RecipeError(f"to {' and '.join(stages)}, the recipe needs {missing}")


def _require_evaluable(recipe: Recipe, settings: Settings, stages: Sequence[str]) -> None:
    if {"average", "generate", "score"} & set(stages) and not settings.checkpoint:
        recipe.require_evaluable(settings)


def _require_start(extra: Sequence[str]) -> None:
    start = parse_options(extra).get("--finetune-from-model")
    if start and not Path(start).is_file():
        reason = "it is a folder; give one of its .pt files" if Path(start).is_dir() else ""
        raise RecipeError(f"--finetune-from-model {start}: {reason or 'there is no such file'}")


def _require_new(settings: Settings) -> None:
    """Refuse a ``--data`` folder of other files before its preparation starts."""
    data = settings.data
    if "," in str(data):
        raise RecipeError(f"the data folder {data}: fairseq-preprocess splits paths at ','")
    if data.exists() and not settings.binarised.is_dir():
        raise RecipeError(
            f"--data {data} is there and has no folder bin; choose another with --data"
        )


def _as_it_ran(settings: Settings) -> Settings:
    """The settings that continue a training, as on another machine: fairseq resumes float32 in
    float32 alone, and half precision in half precision.

    Raises:
        RecipeError: this machine does not have its precision.
    """
    devices, own = settings.devices, PRECISIONS.keys() & set(settings.extra)
    begun = devices.nodes == 1 and any(settings.checkpoints.glob("*.pt"))
    last = precisions(settings)[-1:] if begun and not own else []
    if last in ([], [settings.precision]):
        return settings
    if "float32" not in (*last, settings.precision):
        print(f"note: this training ran in {last[0]} and goes on in {settings.precision}")
        return settings
    if last == ["float16"]:
        raise RecipeError("this training ran in float16, so it goes on on GPUs only")
    print(f"note: this training ran in {last[0]}, and goes on so")
    option = {"float32": None, "bfloat16": "--bf16"}[last[0]]
    return replace(settings, devices=replace(devices, precision=option))


def _run(
    command: str, recipe: Recipe, settings: Settings, runner: Runner, chosen: Sequence[str]
) -> None:
    if "train" in chosen:
        devices = settings.devices
        notes = devices.notes() if devices.nodes > 1 else []
        arithmetic = devices.explain(recipe.used_batch(settings), settings.smoke)
        print(*_unconfirmed(recipe), arithmetic, *notes, sep="\n", flush=True)
    path = settings.output / "results.json"
    before = read_json(path) if path.exists() else {}
    was_scored = all(map(runner.is_done, runner.stages))
    if not (before and was_scored):  # identifies the folder while this run goes on
        write_json(results(command, recipe, settings, runner.records(), []), path)
    runner.run(chosen)
    scores = recipe.scores(settings) if all(map(runner.is_done, runner.stages)) else []
    content = results(command, recipe, settings, runner.records(), scores)
    if was_scored and before.get("data"):
        content["data"] = before["data"]  # they may have changed since
    write_json(content, path)
    print(f"wrote {path}")
    if scores:
        print("\n".join(("", *map(printable, score_lines(content)))))


if __name__ == "__main__":
    if "--dry-run" in sys.argv:
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # so that `| head` may close the pipe
    main()
