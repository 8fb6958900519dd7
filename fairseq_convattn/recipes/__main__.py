"""``python -m fairseq_convattn.recipes``: from raw text to the figure of a paper."""

import argparse
import shlex
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from ..architectures.overview import preset_options
from ..architectures.presets import ARCHITECTURE_NAMES
from ..checkpoints.files import CheckpointError
from ..checkpoints.recovery import restore_last
from ..child_processes import CommandFailed, exit_on_signals
from ..outputs import missing_modules, whole_number
from ..run_records import sha256, write_json
from ..training_options import refusal
from . import catalogue
from .checkpoint import evaluated, require_dictionaries, updates_done
from .command import Stage
from .devices import Batch, Devices, choose_devices, require_devices
from .errors import RecipeError
from .recipe import STAGES, Recipe
from .record import results, score_lines
from .runner import Runner, exclusive
from .settings import ROOT, Settings

# what fairseq-train's options of a run follow from
_SET_BY_THE_RECIPE = {
    **dict.fromkeys(("--arch", "-a"), "--mixer chooses it"),
    **dict.fromkeys(("--task", "--user-dir"), "it cannot be another"),
    "--seed": "give it before --",
    "--save-dir": "--output chooses it",
    **dict.fromkeys(
        (
            *("--distributed-world-size", "--distributed-port", "--distributed-rank"),
            *("--distributed-init-method", "--distributed-no-spawn", "--device-id", "--cpu"),
            *("--distributed-num-procs", "--nprocs-per-node"),
        ),
        "--gpus and --nodes choose it",
    ),
    "--restore-file": "a run continues its own training; give --finetune-from-model",
    **dict.fromkeys(
        ("--max-tokens", "--batch-size", "--max-sentences", "--update-freq"),
        "an update is the paper's on any number of --gpus",
    ),
}
# options after -- that replace the devices' precision
_FLOAT32 = "--fp32"  # ours: fairseq-train has no option for it
_PRECISIONS = {
    _FLOAT32: "float32",
    **dict.fromkeys(("--fp16", "--memory-efficient-fp16", "--amp"), "float16"),
    **dict.fromkeys(("--bf16", "--memory-efficient-bf16"), "bfloat16"),
}
_DIGITS = 8  # of a checkpoint's SHA-256, which tell apart the many that are called model.pt


def command_line() -> argparse.ArgumentParser:
    titles = "\n".join(f"  {name:20} {catalogue.recipe(name).title}" for name in catalogue.names())
    parser = argparse.ArgumentParser(
        prog="convattn recipe",
        usage="%(prog)s RECIPE [STAGE ...] [options] [-- fairseq-train's options]",
        description="Reproduce a published result: prepare the data, train, average checkpoints, "
        "generate and score. What is done is not done again, what was interrupted continues. "
        "results.json in the folder of the run has the scores beside the paper's, every command, "
        "versions, seed, commit and machine.",
        epilog=f"recipes:\n{titles}\n\nFurther options go to fairseq-train after --, and win; "
        f"refused are {', '.join(_SET_BY_THE_RECIPE)}.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("recipe", choices=catalogue.names(), metavar="RECIPE", help="one of those below")
    # without a default argparse calls them required where the recipe is missing
    add(
        "stages",
        nargs="*",
        default=(),
        metavar="STAGE",
        help=f"{', '.join(STAGES)} or all (default)",
    )
    add("--mixer", choices=tuple(ARCHITECTURE_NAMES), help="default: the paper's own")
    add("--seed", type=whole_number(1), metavar="N", help="of training (default: 1)")
    add("--checkpoint", type=Path, metavar="FILE", help="evaluate this one and train none")
    add("--source", type=Path, metavar="DIR", help="a local copy of the corpus")
    default = "data/CORPUS; with --smoke in the run's folder"
    add("--data", type=Path, metavar="DIR", help=f"prepared data (default: {default})")
    default = "runs/RECIPE-MIXER-seedN; with --smoke runs/smoke/RECIPE-MIXER-seedN"
    add("--output", type=Path, metavar="DIR", help=f"of the run (default: {default})")
    most = "the largest number here that divides an update"
    add("--gpus", type=whole_number(1), metavar="N", help=f"of each machine (default: {most})")
    add("--nodes", type=whole_number(1), default=1, metavar="N", help="machines (default: 1)")
    add("--fsdp", action="store_true", help="shard the model over the GPUs; needs fairscale")
    add("--smoke", action="store_true", help="a few updates of a shrunk model on a few lines")
    add("--dry-run", action="store_true", help="print the commands and run none")
    return parser


def main(given: Sequence[str] | None = None) -> None:
    given = list(sys.argv[1:] if given is None else given)
    split = given.index("--") if "--" in given else len(given)
    parser = command_line()
    options = parser.parse_intermixed_args(given[:split])
    for stage in options.stages:
        if stage not in (*STAGES, "all"):
            parser.error(f"'{stage}' is no stage; there are {', '.join(STAGES)} and all")
    try:
        _main(options, given[split + 1 :], shlex.join(["python", "-m", __package__, *given]))
    except (RecipeError, CheckpointError, CommandFailed, OSError) as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        print("interrupted; the same command continues", file=sys.stderr)
        sys.exit(128 + signal.SIGINT)


def _main(options: argparse.Namespace, extra: Sequence[str], command: str) -> None:
    recipe = catalogue.recipe(options.recipe)
    settings = resolve(options, recipe, extra)
    stages = recipe.stages(settings)
    chosen = _chosen(options.stages, stages)
    if extra and (reason := refusal(_stage("train", stages).commands[0].words()[1:])):
        raise RecipeError(f"after --: {reason}")
    if options.dry_run:
        print("\n".join(_dry_run(recipe, settings, stages, chosen)))
        return
    _require_modules(recipe, chosen)
    require_devices(settings.devices, chosen)
    if settings.checkpoint:
        require_dictionaries(settings.checkpoint, settings.binarised)
    if not settings.output.exists():
        Runner(settings.output, stages).check(chosen)  # what is refused leaves no folder
    with exclusive(settings.output):
        _run(command, recipe, settings, stages, chosen)


def resolve(options: argparse.Namespace, recipe: Recipe, extra: Sequence[str]) -> Settings:
    """The settings that a command line means.

    Raises:
        RecipeError: they contradict each other.
    """
    mixer, published_format = options.mixer or recipe.mixer, False
    for name in extra:
        option = name.split("=")[0] if name.startswith("--") else name[:2]
        if reason := _SET_BY_THE_RECIPE.get(option):
            raise RecipeError(f"{name} after --: the recipe sets it ({reason})")
    if options.checkpoint and (options.smoke or extra or options.seed or options.source):
        raise RecipeError(
            "--checkpoint prepares and trains nothing: leave out --smoke, --seed, --source and "
            "fairseq-train's options after --"
        )
    seed = options.seed or 1
    if options.source and not options.source.is_dir():
        raise RecipeError(f"--source {options.source} is no folder")
    name = f"{options.recipe}-{mixer}-seed{seed}"
    if options.checkpoint:
        if options.mixer:
            raise RecipeError("--checkpoint FILE says which mixer it has: it goes with no --mixer")
        published_format, mixer = evaluated(options.checkpoint, recipe.task)
        digest = "" if options.output else sha256(options.checkpoint)[:_DIGITS]
        name = f"{options.recipe}-{options.checkpoint.stem}-{digest}"
    devices, precision = _with_precision(_devices(options, recipe.batch), extra)
    output = options.output or Path("runs", *(("smoke",) if options.smoke else ()), name)
    data = options.data or (output / "data" if options.smoke else Path("data", recipe.corpus))
    return Settings(
        mixer=mixer,
        seed=seed,
        output=output,
        data=data,
        devices=devices,
        source=options.source,
        smoke=options.smoke,
        checkpoint=options.checkpoint,
        published_format=published_format,
        extra=tuple(word for word in extra if word != _FLOAT32),
        precision=precision,
    )


def _devices(options: argparse.Namespace, batch: Batch) -> Devices:
    """Those that were asked for; a single one for a smoke test and where nothing is trained."""
    if options.smoke and (options.gpus or options.nodes > 1 or options.fsdp):
        raise RecipeError("--smoke runs on one device: it goes with no --gpus, --nodes and --fsdp")
    trains = not options.stages or not {"all", "train"}.isdisjoint(options.stages)
    if trains and not options.smoke and not options.checkpoint:
        return choose_devices(options.gpus, options.nodes, options.fsdp, batch)
    one = 1 if options.gpus or torch.cuda.device_count() > 1 else None
    return choose_devices(one, nodes=1, fsdp=False, batch=batch)


def _with_precision(devices: Devices, extra: Sequence[str]) -> tuple[Devices, str]:
    """The same devices, whose precision a user's own option replaces, and its name."""
    given = [name for name in extra if name in _PRECISIONS]
    if not given:
        return devices, _PRECISIONS[devices.precision or _FLOAT32]
    if devices.fsdp:
        raise RecipeError(f"{given[0]} after --: --fsdp has float16, and no other")
    if not devices.gpus and _PRECISIONS[given[0]] == "float16":
        raise RecipeError(f"{given[0]} after --: a CPU does not train in float16")
    return replace(devices, precision=None), _PRECISIONS[given[0]]


def _chosen(given: Sequence[str], stages: Sequence[Stage]) -> list[str]:
    names = [stage.name for stage in stages]
    for name in given:
        if name not in (*names, "all"):
            raise RecipeError(f"--checkpoint needs no stage {name}: there are {', '.join(names)}")
    return names if not given or "all" in given else [name for name in names if name in given]


def _stage(name: str, stages: Sequence[Stage]) -> Stage:
    (found,) = (stage for stage in stages if stage.name == name)
    return found


def _dry_run(
    recipe: Recipe, settings: Settings, stages: Sequence[Stage], chosen: Sequence[str]
) -> list[str]:
    """The commands, as a script."""
    seed = "" if settings.checkpoint else f", seed {settings.seed}"
    lines = [f"# {recipe.title} ({recipe.paper}), {settings.mixer}{seed}"]
    lines += [f"# hyper-parameters: {recipe.origin}"]
    lines += [f"# our reading: {recipe.reading}"] if recipe.reading else []
    lines += [f"# unconfirmed: {recipe.unconfirmed}"] if recipe.unconfirmed else []
    if "train" in chosen:
        architecture = recipe.architecture(settings)
        lines.append(f"# --arch {architecture} presets {preset_options(architecture)}")
        lines.append(f"# {_explained(recipe, settings)}")
        lines += [] if settings.smoke else [f"# {note}" for note in settings.devices.notes()]
    several = "train" in chosen and settings.devices.nodes > 1
    folder = _train_log(settings).parent if several else settings.output
    lines += [f"mkdir -p {shlex.quote(str(folder))}"]
    for stage in stages:
        if stage.name not in chosen:
            continue
        lines += ["", f"# {stage.name}" + (f": {stage.note}" if stage.note else "")]
        if stage.name == "train" and several:
            how, torchrun, *others = _launch_lines(settings, stage)
            lines += [how, torchrun]  # as a script, the commands train once
            lines += [line if line.startswith("#") else f"# {line}" for line in others]
        else:
            lines += stage.lines()
    return lines


def _explained(recipe: Recipe, settings: Settings) -> str:
    whose = "a smoke test's" if settings.smoke else "the recipe's"
    return settings.devices.explain(recipe.used_batch(settings), whose)


def _require_modules(recipe: Recipe, chosen: Sequence[str]) -> None:
    needed = {name: None for stage in chosen for name in recipe.needs.get(stage, ())}
    if missing := missing_modules(*needed):
        raise RecipeError(f"a stage needs {missing}")


def _run(
    command: str, recipe: Recipe, settings: Settings, stages: Sequence[Stage], chosen: Sequence[str]
) -> None:
    runner = Runner(settings.output, stages)
    _start_over(settings, runner, chosen)
    if "train" in chosen and settings.devices.nodes > 1:
        chosen = _elsewhere(settings, runner, chosen)
    runner.check(chosen)
    if "train" in chosen:
        print(_explained(recipe, settings), flush=True)

    def before(stage: Stage) -> None:
        if stage.name != "prepare" and not list(settings.binarised.glob("dict*.txt")):
            raise RecipeError(
                f"{settings.binarised} is gone; to make it again remove {settings.output}/stages"
            )
        if stage.name == "train":
            restore_last(settings.checkpoints)

    path = settings.output / "results.json"
    if not path.exists():  # it says what the folder is of, should this be interrupted
        write_json(results(command, recipe, settings, runner.records(), []), path)
    runner.run(chosen, before)
    scores = recipe.scores(settings) if all(map(runner.is_done, stages)) else []
    write_json(results(command, recipe, settings, runner.records(), scores), path)
    print(f"wrote {path}")
    if scores:
        print("\n".join(("", *score_lines(recipe, settings, scores))))


def _start_over(settings: Settings, runner: Runner, chosen: Sequence[str]) -> None:
    """Let the chosen stages that have made nothing begin with other options."""
    data = settings.data
    made = {
        "prepare": [data, data.with_name(f"{data.name}.preparing")],
        "train": list(settings.checkpoints.glob("*.pt*")),
    }
    for name in chosen:
        if not any(path.exists() for path in made.get(name, [settings.output])):
            runner.start_over(_stage(name, runner.stages))


def _elsewhere(settings: Settings, runner: Runner, chosen: Sequence[str]) -> list[str]:
    """What is left to run here when several machines train: all, once they have; until then
    what comes before, and the lines that start them."""
    train = _stage("train", runner.stages)
    if runner.is_done(train):
        return list(chosen)
    runner.check(chosen)
    done, end = updates_done(settings.checkpoints), _end_of_training(settings)
    if done and end.exists():
        runner.finish(train)
        end.unlink()
        return list(chosen)
    lines = _launch_lines(settings, train)
    runner.begin(train, lines)
    _train_log(settings).parent.mkdir(exist_ok=True)
    print(
        f"training is at update {done:,} and has not ended; start it with one of these, with "
        f"{ROOT} and the data on every machine, and repeat this command when it is done\n\n"
        + "\n".join([*(f"# {note}" for note in settings.devices.notes()), *lines])
    )
    return [stage for stage in chosen if stage == "prepare"]


def _launch_lines(settings: Settings, train: Stage) -> list[str]:
    log, end = _train_log(settings), _end_of_training(settings)
    return settings.devices.launch_lines(train.lines()[0], log, end)


def _train_log(settings: Settings) -> Path:
    return settings.output / "logs" / "train.log"


def _end_of_training(settings: Settings) -> Path:
    """The file that says that several machines have trained to the end."""
    return settings.output / "training-ended"


if __name__ == "__main__":
    exit_on_signals()
    if "--dry-run" in sys.argv:
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # so that `| head` may close the pipe
    main()
