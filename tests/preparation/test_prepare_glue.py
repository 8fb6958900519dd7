"""scripts/prepare_glue.sh on miniatures of the nine tasks."""

import dataclasses
import gzip
import shutil
import zipfile
from pathlib import Path

import pytest
import sentencepiece
from fairseq import tasks as fairseq_tasks
from fairseq.data import Dictionary, data_utils
from glue_miniature import plain
from omegaconf import OmegaConf
from release_scripts import Scripts, assert_refused, tree

from fairseq_convattn.glue.reading import read_examples
from fairseq_convattn.glue.tasks import TASKS

ARCHIVES = {name: f"{name}.zip" for name in TASKS if name != "MRPC"}
ARCHIVES |= {"QQP": "QQP-clean.zip", "QNLI": "QNLIv2.zip"}


def only_tsv(scripts: Scripts) -> None:
    """Let prepare_glue.sh end before anything is split or binarised."""
    (scripts.folder / "cli.py").write_text("")


def options(pretrained_files, *arguments) -> tuple:
    model, dictionary = pretrained_files
    return ("glue", "--sentencepiece", model, "--dictionary", dictionary, *arguments)


def sentences(folder: Path, subset: str, processor) -> list[str]:
    words = Dictionary.load(str(folder / "dict.txt"))
    data = data_utils.load_indexed_dataset(str(folder / subset), words, "mmap")
    return [processor.decode(words.string(data[i]).split()) for i in range(len(data))]


def release(folder: Path, miniature: Path) -> None:
    """The archives of GLUE, and MRPC as it is published."""
    folder.mkdir()
    for name, archive in ARCHIVES.items():
        with zipfile.ZipFile(folder / archive, "w") as file:
            for tsv in (miniature / name).iterdir():
                file.write(tsv, f"{name}/{tsv.name}")
    msr(folder, miniature)


def msr(folder: Path, miniature: Path) -> None:
    """MSR's training set, in disorder, with a BOM and CRLF; GLUE's list of the dev set."""
    train, dev = (
        (miniature / "MRPC" / f"{file}.tsv").read_bytes().decode().split("\n")[:-1]
        for file in ("train", "dev")
    )
    dev = dev[1:]
    dev = [line.replace("ID", "dev ID") for line in dev]
    lines = [train[0], *dev[:2], *train[1:], *dev[2:]]
    text = "\ufeff" + "".join(f"{line}\r\n" for line in lines)
    (folder / "msr_paraphrase_train.txt").write_bytes(text.encode())
    pairs = ["\t".join(line.split("\t")[1:3]) for line in dev]
    (folder / "mrpc_dev_ids.tsv").write_text("".join(f"{pair}\n" for pair in pairs))
    shutil.copy(miniature / "MRPC" / "test.tsv", folder / "msr_paraphrase_test.txt")


@pytest.mark.slow
@pytest.mark.ci
def test_all_tasks_are_downloaded_and_are_what_fairseq_reads(
    scripts, mirror, miniature, pretrained_files, tmp_path
):
    source, rows = miniature
    release(mirror.folder, source)
    output = tmp_path / "new" / "glue"
    arguments = ("--mirror", mirror.address, "--output", output, "--sample")
    run = scripts.prepare(*options(pretrained_files, *arguments))
    assert run.returncode == 0, run.stderr
    wanted = {*ARCHIVES.values(), "msr_paraphrase_train.txt", "mrpc_dev_ids.tsv"}
    wanted.add("msr_paraphrase_test.txt")
    assert sorted(name for name, _ in mirror.requests) == sorted(wanted)
    assert {path.name for path in output.iterdir()} == {"tsv", "bin", "origin"}
    assert {path.name for path in output.parent.iterdir()} == {"glue"}
    assert "note: " in run.stdout and "CoLA/dev.tsv has 8 examples, not 1,043" in run.stdout

    processor = sentencepiece.SentencePieceProcessor(model_file=str(pretrained_files[0]))
    dictionary = pretrained_files[1].read_bytes()
    for name, task in TASKS.items():
        folder = output / "bin" / name
        inputs = {f"input{number}" for number in range(len(task.sentences))}
        assert {path.name for path in folder.iterdir()} == {*inputs, "label"}
        for number, column in enumerate(task.sentences):
            assert (folder / f"input{number}" / "dict.txt").read_bytes() == dictionary
            for subset, file in (task.files | task.test_files).items():
                found = sentences(folder / f"input{number}", subset, processor)
                assert found == [plain(cells[column]) for cells in rows[name, file]]
        cfg = {
            **dataclasses.asdict(fairseq_tasks.sentence_prediction.SentencePredictionConfig()),
            **{"data": str(folder), "num_classes": len(task.classes) or 1, "seed": 1},
            **{"regression_target": not task.classes, "no_shuffle": True},
            **{"init_token": 0, "separator_token": 2, "_name": "sentence_prediction"},
        }
        reader = fairseq_tasks.setup_task(OmegaConf.create(cfg))
        for subset, file in task.files.items():
            dataset = reader.load_dataset(subset)
            batch = dataset.collater([dataset[i] for i in range(len(dataset))])
            labels = [cells[task.label] for cells in rows[name, file]]
            if task.classes:
                assert [task.classes[i] for i in batch["target"].view(-1)] == labels
            else:
                expected = [float(label) / 5 for label in labels]
                assert batch["target"].view(-1).tolist() == pytest.approx(expected)


def test_local_files_serve_and_none_may_be_missing(scripts, miniature, pretrained_files, tmp_path):
    only_tsv(scripts)
    source, output = tmp_path / "source" / "glue", tmp_path / "out"
    for path in miniature[0].glob("*/*.tsv"):
        copy = source / path.parent.name / f"{path.name}.gz"
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(gzip.compress(path.read_bytes()))
    arguments = options(pretrained_files, "--source", source.parent, "--output", output)
    assert scripts.prepare(*arguments).returncode == 0
    for path in miniature[0].glob("*/*.tsv"):
        written = output / "tsv" / path.relative_to(miniature[0])
        assert written.read_bytes() == path.read_bytes()

    (source / "MNLI" / "dev_mismatched.tsv.gz").unlink()
    arguments = (*arguments[:-1], tmp_path / "other")
    assert_refused(scripts.prepare(*arguments), f"no MNLI/dev_mismatched.tsv in {source.parent}")
    (source / "RTE" / "train.tsv.gz").unlink()
    only = ("--tasks", "RTE,CoLA")
    assert_refused(scripts.prepare(*arguments, *only), "no RTE/train.tsv, no RTE.zip in")
    assert not list(tmp_path.glob("other*"))


def test_mrpc_is_cut_by_the_list_of_its_dev_set(scripts, miniature, pretrained_files, tmp_path):
    only_tsv(scripts)
    source = tmp_path / "source" / "MRPC"
    source.mkdir(parents=True)
    msr(source, miniature[0])
    arguments = ("--tasks", "MRPC", "--source", tmp_path / "source", "--output")
    run = scripts.prepare(*options(pretrained_files, *arguments, tmp_path / "out"))
    assert run.returncode == 0, run.stderr
    for file in ("train", "dev", "test"):
        found = read_examples(TASKS["MRPC"], tmp_path / "out" / "tsv" / "MRPC" / f"{file}.tsv")
        assert found == read_examples(TASKS["MRPC"], miniature[0] / "MRPC" / f"{file}.tsv")

    (source / "msr_paraphrase_test.txt").unlink()
    (source / "mrpc_dev_ids.tsv").rename(source / "dev_ids.tsv")  # the name GLUE's script gives
    assert scripts.prepare(*options(pretrained_files, *arguments, tmp_path / "b")).returncode == 0
    (source / "dev_ids.tsv").unlink()
    run = scripts.prepare(*options(pretrained_files, *arguments, tmp_path / "c"))
    assert_refused(run, "no mrpc_dev_ids.tsv", "--sample")
    run = scripts.prepare(*options(pretrained_files, *arguments, tmp_path / "c", "--sample"))
    assert_refused(run, "no mrpc_dev_ids.tsv")
    (source / "msr_paraphrase_test.txt").write_text("any\n")
    run = scripts.prepare(*options(pretrained_files, *arguments, tmp_path / "c", "--sample"))
    assert run.returncode == 0 and "MSR's test set, not GLUE's" in run.stdout
    assert (tmp_path / "c" / "tsv" / "MRPC" / "dev.tsv").read_text() == "any\n"


def test_an_output_serves_one_model_and_its_tasks(scripts, miniature, pretrained_files, tmp_path):
    only_tsv(scripts)
    tasks = ("--tasks", "RTE,WNLI,RTE")  # one that is named twice is prepared once
    arguments = ("--source", miniature[0], *tasks, "--output", tmp_path / "out")
    assert scripts.prepare(*options(pretrained_files, *arguments)).returncode == 0
    run = scripts.prepare(*options(pretrained_files, *arguments))
    assert run.returncode == 0 and "is there already" in run.stdout
    other = ("--tasks", "RTE")
    run = scripts.prepare(*options(pretrained_files, *arguments, *other))
    assert_refused(run, f"{tmp_path / 'out'} has other tasks or is for another model")
    (tmp_path / "other.txt").write_text("a 1\n")
    run = scripts.prepare(*options((pretrained_files[0], tmp_path / "other.txt"), *arguments))
    assert_refused(run, f"{tmp_path / 'out'} has other tasks or is for another model")

    # the files that it has serve as a source
    again = ("--source", tmp_path / "out" / "tsv", "--tasks", "WNLI", "--output", tmp_path / "b")
    assert scripts.prepare(*options(pretrained_files, *again)).returncode == 0
    written = tmp_path / "b" / "tsv" / "WNLI" / "dev.tsv"
    assert written.read_bytes() == (miniature[0] / "WNLI" / "dev.tsv").read_bytes()


def test_what_a_source_lacks_is_downloaded_on_demand(
    scripts, miniature, pretrained_files, tmp_path
):
    only_tsv(scripts)
    scripts.stand_in("curl", "exit 1")
    shutil.copytree(miniature[0] / "RTE", tmp_path / "source" / "RTE")
    arguments = ("--source", tmp_path / "source", "--output", tmp_path / "out", "--tasks")
    for task, file in (("WNLI", "WNLI.zip"), ("MRPC", "msr_paraphrase_train.txt")):
        run = scripts.prepare(*options(pretrained_files, *arguments, f"RTE,{task}"))
        assert_refused(run, f"no {task}/train.tsv", f"no {file}")
        run = scripts.prepare(*options(pretrained_files, *arguments, task, "--download-rest"))
        assert_refused(run, "cannot download https://", file)
    run = scripts.prepare(*options(pretrained_files, *arguments, "RTE", "--download-rest"))
    assert run.returncode == 0, run.stderr
    (tmp_path / "source" / "RTE" / "dev.tsv").unlink()
    again = ("--source", tmp_path / "source", "--output", tmp_path / "b", "--tasks", "RTE")
    run = scripts.prepare(*options(pretrained_files, *again, "--download-rest"))
    assert_refused(run, "no RTE/dev.tsv")


def test_what_fails_leaves_nothing_but_downloads(scripts, mirror, miniature, tmp_path):
    release(mirror.folder, miniature[0])
    (scripts.folder / "cli.py").write_text("import sys; sys.exit('error: line 7')")
    for file in ("m", "d"):
        (tmp_path / file).write_text("")
    arguments = options((tmp_path / "m", tmp_path / "d"), "--tasks", "WNLI", "--sample")
    arguments += ("--mirror", mirror.address, "--output", tmp_path / "out")
    assert_refused(scripts.prepare(*arguments), "line 7")
    work = tmp_path / "out.preparing"
    assert tree(work) == {"lock", "origin", "download", "download/WNLI.zip"}
    only_tsv(scripts)
    assert scripts.prepare(*arguments).returncode == 0
    assert len(mirror.requests) == 1
    assert tree(tmp_path / "out") == {
        *("origin", "bin", "tsv", "tsv/settings"),
        *("tsv/WNLI", "tsv/WNLI/train.tsv", "tsv/WNLI/dev.tsv", "tsv/WNLI/test.tsv"),
    }


def test_options_of_the_preparation(scripts, pretrained_files, tmp_path):
    output = ("--output", tmp_path / "out")
    assert_refused(scripts.prepare("glue", *output), "--sentencepiece and --dictionary are needed")
    run = scripts.prepare(*options((tmp_path / "none", pretrained_files[1])), *output)
    assert_refused(run, f"{tmp_path / 'none'}: there is no such file")
    run = scripts.prepare(*options(pretrained_files, "--tasks", "CoLA,SNLI"), *output)
    assert_refused(run, "--tasks: 'SNLI' is none of CoLA,SST-2")
    assert not list(tmp_path.glob("out*"))
