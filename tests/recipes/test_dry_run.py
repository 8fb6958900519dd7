"""What recipes run, compared with command lines that were reviewed by hand."""

import re
import shlex
from pathlib import Path

import pytest
from conftest import ROOT
from fairseq.options import get_training_parser, parse_args_and_arch

from fairseq_convattn.architectures.registration import TASK_MODELS
from fairseq_convattn.recipes import catalogue, devices
from fairseq_convattn.recipes.__main__ import command_line, main, resolve

GOLDEN = Path(__file__).parent / "golden"


@pytest.fixture(autouse=True)
def at_the_root_of_a_machine_without_gpus(monkeypatch):
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    monkeypatch.setattr(devices, "processor", dict)


def dry_run(capsys, name: str, *arguments: object) -> list[str]:
    main([name, "--dry-run", *map(str, arguments)])
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("name", catalogue.RECIPES)
def test_the_commands_are_those_that_were_reviewed(capsys, name):
    lines = dry_run(capsys, name, "--gpus", catalogue.RECIPES[name].batch.workers)
    reviewed = (GOLDEN / f"{name}.txt").read_text(encoding="utf-8").splitlines()
    assert commands(lines) == commands(reviewed)


@pytest.mark.parametrize("name", catalogue.RECIPES)
def test_published_figures_are_of_scores_that_there_will_be(name):
    recipe = catalogue.RECIPES[name]
    metrics = {"bleu": ["BLEU"], "rouge": ["rouge1", "rouge2", "rougeL", "rougeLsum"]}
    scores = {"test perplexity"} | {
        f"{test} {score}"
        for test, scorings in getattr(recipe, "tests", {}).items()
        for score in metrics[scorings[0].metric.split()[0]]
    }
    assert scores >= recipe.published.keys()


def commands(lines: list[str]) -> list[str]:
    """Without what is said about them."""
    return [line for line in lines if line and not line.startswith("#")]


def test_what_is_said_about_the_commands(capsys):
    said = [line for line in dry_run(capsys, "gbw", "--gpus", 8) if line.startswith("# ")]
    *lines, arch, batch, precision = said[:8]
    paper = "Wu et al. 2019 (arXiv 1901.10430); the figures of convolutions as Papers with Code "
    paper += "lists them"
    assert lines[0] == f"# One Billion Word: {paper}; dynamic, seed 1"
    beginnings = ("hyper-parameters", "our choice", "published, test perplexity", "unconfirmed")
    assert [line.split(": ")[0] for line in lines[1:]] == [f"# {name}" for name in beginnings]
    assert arch.startswith("# --arch dynamic_conv_lm_gbw presets --decoder-mixers dynamic ")
    assert batch == (
        "# 73,728 tokens an update, on 8 GPUs: 8 x 3,072 x update-freq 3 "
        "(the recipe's 8 x 3,072 x 3)"
    )
    assert precision.startswith("# --fp16: no GPU here to check")


@pytest.mark.parametrize(
    ("arguments", "end"),
    [
        ("multi30k --gpus 2 -- --fp32", "--ddp-backend legacy_ddp"),
        ("multi30k --gpus 2 -- --memory-efficient-bf16", "legacy_ddp --memory-efficient-bf16"),
        ("multi30k -- --dropout 0.2", "--ddp-backend legacy_ddp --cpu --dropout 0.2"),
        ("wmt16_en_de --gpus 8 --fsdp", "--ddp-backend fully_sharded --fp16"),
    ],
)
def test_devices_and_what_follows_two_hyphens_come_last(capsys, arguments, end):
    """What fairseq-train is given there wins."""
    name, *options = arguments.split()
    assert dry_run(capsys, name, "train", *options)[-1].endswith(f" {end}")


def test_another_mixer_is_another_architecture_and_another_folder(capsys):
    *_, train = dry_run(capsys, "gbw", "train", "--mixer", "tisa")
    assert " --arch tisa_lm_gbw " in train
    assert " --save-dir runs/gbw-tisa-seed1/checkpoints " in train


def test_what_an_architecture_is_stands_beside_it(capsys):
    """As options: fairseq-train understands the same without it."""
    lines = dry_run(capsys, "wmt16_en_de", "train", "--mixer", "attention")
    ((_, _, arch, _, *chosen),) = (line.split() for line in lines if line.startswith("# --arch "))
    _, *options = shlex.split(lines[-1])
    at = options.index("--arch") + 1
    assert options[at] == arch and "--encoder-glu" not in chosen  # which attention has not
    found = []
    said = [*options[:at], TASK_MODELS["translation"], *chosen, *options[at + 1 :]]
    for words in (options, said):
        parsed = vars(parse_args_and_arch(get_training_parser(), words))
        found.append({key: text(value) for key, value in parsed.items() if key != "arch"})
    unread = ("weight_dropout", "input_dropout", "_kernel_sizes", "_glu", "_across_layers")
    assert not [x for x in found[0] if found[0][x] != found[1][x] and not x.endswith(unread)]


def text(value: object) -> str:
    """A list as the command line has it."""
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def test_several_machines_are_started_by_torchrun_or_slurm(capsys):
    lines = dry_run(capsys, "wmt14_en_fr", "train", "--gpus", 4, "--nodes", 2)
    run = "runs/wmt14_en_fr-dynamic-seed1"
    torchrun, srun = (line for line in lines if "--save-dir" in line)
    start, ended = f"mkdir -p {run}/logs && set -o pipefail; ", f"touch {run}/training-ended"
    assert torchrun.startswith(f"{start}torchrun --nnodes 2 --nproc-per-node 4 ")
    assert srun.startswith(f"# {start}srun --nodes 2 --ntasks-per-node 4 ")  # or it trains twice
    logged = f" 2>&1 | tee -a {run}/logs/train.log && "
    assert torchrun.endswith(f'{logged}{{ [ "$NODE_RANK" != 0 ] || {ended}; }}')
    assert srun.endswith(f" --distributed-port 29500{logged}{ended}")
    words = (shlex.split(line.partition(logged)[0]) for line in (torchrun, srun.strip("# ")))
    torchrun, srun = words
    arguments = torchrun[torchrun.index("fairseq_convattn.launch") + 1 :]
    assert arguments == srun[srun.index("fairseq-train") + 1 : -2]


def test_several_cpus_are_started_by_torchrun_alone(capsys):
    lines = dry_run(capsys, "multi30k", "train", "--nodes", 2)
    (started,) = (line for line in lines if "--save-dir" in line)
    assert "torchrun --nnodes 2 --nproc-per-node 1 " in started and " --cpu " in started
    assert "--distributed-world-size 2 --update-freq 1 " in started


def test_a_cpu_trains_in_the_precision_that_it_computes_in(capsys, monkeypatch):
    monkeypatch.setattr(devices, "processor", lambda: {"flags": "fpu avx512_bf16"})
    for options, precision in ((["--smoke"], "--bf16 "), (["--", "--fp32"], "")):
        lines = dry_run(capsys, "multi30k", "train", *options)
        assert lines[-1].endswith(f"--ddp-backend legacy_ddp {precision}--cpu")
    assert "bf16" not in "".join(dry_run(capsys, "multi30k", "generate"))


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ("--dropuot 0.1", "after --: unrecognized arguments: --dropuot 0.1"),
        ("--encoder-mixers no", "after --: --encoder-mixers: unknown mixer 'no', choose from "),
        ("--bf16 --fp16", "--bf16 and --fp16 after --: give one precision"),
        ("--fp32 --bf16", "--fp32 and --bf16 after --: give one precision"),
        ("--encoder-layers -3", "after --: --encoder-layers"),
    ],
)
def test_what_fairseq_train_does_not_know_is_refused_before_any_work(tmp_path, given, error):
    output = tmp_path / "run"
    for options in ((), ("--dry-run",)):
        with pytest.raises(SystemExit, match=f"^error: {error}"):
            main(["multi30k", "--output", str(output), *options, "--", *given.split()])
    assert not output.exists()


def test_the_help_of_fairseq_train_is_no_refusal():
    with pytest.raises(SystemExit) as ended:
        main(["multi30k", "--dry-run", "--", "--help"])
    assert ended.value.code == 0


def test_what_a_local_copy_lacks_of_glue_is_downloaded(capsys, tmp_path):
    for given in ([], ["--source", tmp_path]):
        lines = dry_run(capsys, "bert_small", "prepare", *given)
        (glue,) = (line for line in lines if line.startswith("bash scripts/prepare_glue.sh"))
        assert (f"--source {tmp_path}" in glue) == ("--download-rest" in glue) == bool(given)


def test_glues_metrics_are_asked_for_before_the_pre_training(not_installed, tmp_path):
    not_installed("sklearn")
    output = tmp_path / "run"
    with pytest.raises(SystemExit, match="needs scikit-learn: pip install scikit-learn"):
        main(["bert_small", "--source", str(tmp_path), "--output", str(output)])
    assert not output.exists()


def test_a_smoke_test_fine_tunes_one_task_for_an_epoch(capsys):
    (smoke,) = (line for line in dry_run(capsys, "bert_base", "--smoke") if "finetune" in line)
    assert " RTE " in smoke and " --epochs 1 -- --weight-decay 0 " in smoke
    assert "/glue/MNLI" not in smoke


def test_small_tasks_start_from_mnlis_model(capsys):
    given = [line.split() for line in dry_run(capsys, "bert_small") if "finetune" in line]
    starts = {words[4]: words[5] for words in given}
    mnli = "runs/bert_small-composite-seed1/glue/MNLI"
    assert {task for task, start in starts.items() if start == mnli} == {"MRPC", "STS-B", "RTE"}
    assert list(starts).index("MNLI") < min(map(list(starts).index, ("MRPC", "STS-B", "RTE")))


def test_what_only_another_stage_needs_is_not_asked_for(not_installed, tmp_path):
    not_installed("jieba")
    for stage, error in (
        ("prepare", "to prepare, the recipe needs jieba: pip install jieba"),
        ("score", "the stage prepare has to be done first"),
    ):
        with pytest.raises(SystemExit, match=error):
            main(["wmt17_zh_en", stage, "--output", str(tmp_path / "run")])


def test_sharding_needs_fairscale(monkeypatch, not_installed, tmp_path):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    not_installed("fairscale")
    with pytest.raises(SystemExit, match="--fsdp needs fairscale: pip install fairscale"):
        main(["gbw", "--gpus", "2", "--fsdp", "--output", str(tmp_path / "run")])


def test_batches_of_another_size_make_the_same_update(capsys):
    given = ("--gpus", "8", "--device-batch", "14336")
    (line,) = (x for x in dry_run(capsys, "wmt16_en_de", "train", *given) if "fairseq-train" in x)
    assert " --max-tokens 14336 " in line and " --update-freq 4 " in line


def test_a_single_device_of_those_that_were_asked_for_evaluates(capsys):
    for given, on_cpu in ((["--gpus", "8"], False), ([], True)):
        lines = dry_run(capsys, "multi30k", "generate", *given)
        generate = [line for line in lines if line.startswith("fairseq-generate")]
        assert len(generate) == 2 and all(("--cpu" in line) == on_cpu for line in generate)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ("wmt16_en_de --gpus 3", "--gpus times --nodes may be 2 or 4"),
        ("wmt16_en_de --fsdp", "--fsdp shards a model over GPUs"),
        ("wmt16_en_de --device-batch 5000", "--device-batch 5000: does not divide an update"),
        ("wikitext103 --device-batch 1536", "--device-batch 1536: samples have up to 3,072"),
        (
            "wikitext103 --device-batch 4096 -- --tokens-per-sample 4608",
            "samples have up to 4,608 tokens",
        ),
        (
            "wikitext103 -- --tokens-per-sample 4608",
            "up to 4,608 tokens, a device takes 3,072 at a time: give --device-batch 4608",
        ),
        ("cnn_dm --device-batch 256", "samples have up to 400 tokens; 448"),
        ("multi30k --smoke --gpus 1", "--smoke runs on one device"),
        ("multi30k --smoke --device-batch 7", "leave out --gpus, --nodes, --fsdp, --device-b"),
        ("multi30k --checkpoint /no/file.pt --device-batch 2048", "on one device: leave out"),
        ("multi30k -- --fp16", "--fp16 after --: a CPU does not train in float16"),
        ("wmt16_en_de --gpus 8 --fsdp -- --bf16", "--bf16 after --: --fsdp trains in float16"),
        ("multi30k -- --update-freq 4", "--update-freq after --: an update is the paper's"),
        ("multi30k -- --restore-file x", "--restore-file after --: a run continues its own"),
        ("multi30k -- --save-dir=x", "--save-dir=x after --: the recipe sets it; before --"),
        ("multi30k -- -atransformer", "-atransformer after --: the recipe sets it"),
        ("multi30k -- -s de -t en", "-s after --: the evaluation needs it too"),
        ("samsum -- --source-prefix summarize", "--source-prefix after --: the evaluation needs"),
        ("wikitext2 -- --add-bos-token", "--add-bos-token after --: the evaluation needs it too"),
        ("gbw -- --output-dictionary-size=9", "--output-dictionary-size=9 after --: the eval"),
        ("multi30k -- --log-format simple", "--log-format after --: the recipe sets it"),
        ("multi30k --output runs/10:30", "--output: fairseq takes ':' for the end of a path"),
        ("multi30k --data .", "--data .: give the folder by its name"),
        ("multi30k --source /nowhere", "--source /nowhere: there is no such folder"),
        ("multi30k --checkpoint /no/file.pt", "/no/file.pt: there is no such file"),
        ("multi30k --checkpoint /no/file.pt --seed 2", "leave out --smoke, --seed, --source"),
        ("multi30k --checkpoint /no/file.pt --mixer tisa", "--mixer and fairseq-train's"),
    ],
)
def test_what_cannot_work_is_one_line_before_any_work(arguments, error):
    with pytest.raises(SystemExit, match=f"^error: .*{re.escape(error)}"):
        name, *options = arguments.split()
        main([name, "--dry-run", *options])


@pytest.mark.parametrize(
    "given",
    [
        *("--max-epoch 9", "--keep-last-epochs=9", "--no-epoch-checkpoints", "--no-save"),
        *("--max-epoch 80 --save-interval 9", "--checkpoint-suffix new"),
    ],
)
def test_a_training_that_keeps_too_few_epochs_to_average_does_not_begin(given, tmp_path):
    output = tmp_path / "run"
    with pytest.raises(SystemExit, match=f"^error: {given[:9]}.* after --: .* 10 epochs is"):
        main(["multi30k", "--output", str(output), "--", *given.split()])
    assert not output.exists()


@pytest.mark.parametrize(
    "more", ["--max-update 10", "--save-interval-updates 5", "--validate-interval-updates 5"]
)
def test_a_training_that_is_validated_within_epochs_is_evaluable(more):
    given = f"--max-epoch 5 --validate-interval 9 {more}"
    main(["wikitext2", "--dry-run", "--", *given.split()])


def test_what_a_training_lacks_is_told_before_any_work(tmp_path):
    for options, message in (
        (["--", "--finetune-from-model", "no.pt"], "--finetune-from-model no.pt: there is no such"),
        (["--", "--finetune-from-model", "."], "--finetune-from-model .: it is a folder; give one"),
        (["--data", "Smith, J"], "the data folder Smith, J: fairseq-preprocess splits paths at"),
    ):
        with pytest.raises(SystemExit, match=f"^error: {message}"):
            main(["multi30k", "--output", str(tmp_path / "run"), *options])
    assert not (tmp_path / "run").exists()
    main(["multi30k", "score", "--dry-run", "--", "--finetune-from-model", "no.pt"])


def test_a_smoke_test_is_validated():
    with pytest.raises(SystemExit, match="^error: --validate-interval after --: checkpoint_best"):
        main(["wikitext2", "--smoke", "--dry-run", "--", "--validate-interval", "4"])


def test_the_recipes_own_number_of_epochs_counts_too(tmp_path):
    output = tmp_path / "run"
    with pytest.raises(SystemExit, match="^error: --save-interval after --: .* 2 epochs is"):
        main(["multi30k", "--smoke", "--output", str(output), "--", "--save-interval", "2"])
    assert not output.exists()


@pytest.mark.parametrize(
    ("recipe", "given", "checkpoint"),
    [
        ("wikitext2", "--no-save", "best"),
        ("wikitext2", "--disable-validation", "best"),
        ("cnn_dm", "--no-save", "best"),
        ("wikitext2", "--save-interval 9 --max-epoch 5", "best"),
        ("wikitext2", "--validate-interval 9 --max-epoch 5", "best"),
        ("bert_small", "--no-last-checkpoints", "last"),
        ("bert_small", "--checkpoint-suffix new", "last"),
    ],
)
def test_a_training_that_leaves_no_checkpoint_to_evaluate_does_not_begin(
    recipe, given, checkpoint, tmp_path
):
    output, (option, *value) = tmp_path / "run", given.split()
    for dry in ([], ["--dry-run"]):
        reason = f"{option} after --: checkpoint_{checkpoint}.pt .* prepare and train alone"
        with pytest.raises(SystemExit, match=f"^error: {reason}$"):
            main([recipe, *dry, "--output", str(output), "--", option, *value])
    assert not output.exists()
    train = [recipe, "prepare", "train", "--dry-run", "--output", str(output)]
    main([*train, "--", option, *value])


@pytest.mark.parametrize(
    ("given", "needed"),
    [
        ("wikitext2 -- --tokens-per-sample 128", 256),
        ("wikitext2 --smoke -- --tokens-per-sample=64", 128),
        ("wikitext103 -- --max-target-positions 512", "3,072"),
    ],
)
def test_a_model_that_takes_too_few_tokens_to_be_evaluated_is_not_trained(given, needed, tmp_path):
    name, *options = given.split()
    with pytest.raises(SystemExit, match=f"^error: --.* after --: .* up to {needed} tokens"):
        main([name, "--output", str(tmp_path / "run"), *options])
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "given", ["wikitext2 -- --tokens-per-sample 128 --max-target-positions 256", "gbw"]
)
def test_a_model_that_takes_enough_tokens_is_evaluable(given):
    name, *options = given.split()
    recipe = catalogue.RECIPES[name]
    recipe.require_evaluable(resolve(command_line().parse_args([name]), recipe, options[1:]))


def test_unknown_names(capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["--dry-run"])
    assert capsys.readouterr().err.endswith(" are required: RECIPE\n")
    with pytest.raises(SystemExit, match="2"):
        main(["multi30k", "--seed", "2147483648"])
    assert "--seed: must be below 2**31" in capsys.readouterr().err
    for arguments in (["nonsense"], ["multi30k", "nonsense"], ["multi30k", "--mixer", "nonsense"]):
        with pytest.raises(SystemExit, match="2"):
            main(arguments)
        assert "nonsense" in capsys.readouterr().err


def test_a_corpus_that_nobody_offers_is_asked_for(capsys, tmp_path):
    for options, asked in (([], True), (["--source", tmp_path], False), (["--smoke"], False)):
        lines = dry_run(capsys, "wmt17_zh_en", "prepare", *options)
        assert ("# prepare: needs --source DIR, too, with the archives of CWMT" in lines) == asked
