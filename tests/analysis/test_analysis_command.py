"""Figures of the analysis, its files, and the command."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from checkpoints_to_analyse import masked_lm, save
from conftest import ROOT

from fairseq_convattn.analysis import __main__ as command
from fairseq_convattn.analysis.__main__ import write_analysis
from fairseq_convattn.analysis.report import analyse
from fairseq_convattn.analysis.toeplitz import toeplitz_r2


def is_picture(path: Path) -> bool:
    image = pytest.importorskip("matplotlib.image").imread(path)
    return min(image.shape[:2]) > 200 and image[..., :3].std() > 0.05


def test_figures_draw_what_was_found(tmp_path):
    figures = pytest.importorskip("fairseq_convattn.analysis.figures").figures
    options = {"encoder_mixers": "composite,lightweight,attention", "attention_span": 2}
    _, path = masked_lm(tmp_path, **options, no_token_positional_embeddings="false")
    results, tables = analyse([path], block=16)
    ((name, result),) = results[0]["stacks"].items()
    drawn = {name.removeprefix("encoder-sentence_encoder-"): figure.axes
             for name, figure in figures(results * 2, tables, block=16)}  # fmt: skip
    titles = {name: [axis.get_title() for axis in axes] for name, axes in drawn.items()}
    assert titles["fixed"][0] == titles["query"][0] == "encoder layer 0"
    assert titles["kernels-input"][0] == "encoder layer 1"
    product = tables[name] @ tables[name].T
    images = [torch.tensor(axis.images[0].get_array()) for axis in drawn["positions"][:3]]
    torch.testing.assert_close(images[0], product)
    torch.testing.assert_close(images[1] + images[2], product)
    assert toeplitz_r2(images[1]) == pytest.approx(1)
    r2 = [[head["overall"] for head in layer["heads"]] for layer in result["attention"]]
    assert drawn["heads"][0].images[0].get_array().tolist() == [pytest.approx(x) for x in r2]
    for term in ("fixed", "query"):
        lines = {x.get_label(): x for x in drawn[term][0].lines}
        for head, values in enumerate(result["terms"][term][0]["heads"]):
            assert lines[f"head {head}"].get_xdata().tolist() == [-2, -1, 0, 1, 2]
            assert lines[f"head {head}"].get_ydata().tolist() == values
    taps = torch.tensor(result["kernels"]["input"][0]["heads"], dtype=torch.double)
    image = drawn["kernels-input"][0].images[0]
    assert image.get_array().tolist() == (taps * taps.size(1)).tolist()
    assert image.get_extent() == [-3.5, 3.5, 3.5, -0.5]  # seven taps, four heads
    mean = drawn["mean-kernels-input"][0].images[0].get_array()[0]
    assert mean.tolist() == pytest.approx((taps.mean(dim=0) * taps.size(1)).tolist())
    of_table = drawn["r2-by-updates"][0].lines[0]
    assert of_table.get_ydata().tolist() == [result["positions"]["r2"]["overall"]] * 2


@pytest.mark.slow
def test_every_figure(tmp_path):
    pytest.importorskip("matplotlib")
    everything = {
        "no_token_positional_embeddings": "false",
        "encoder_mixers": "composite,lightweight,attention",
        "attention_terms": "content,fixed,query,key,tisa,t5,kerple,alibi",
        "query_key_projection": "lightweight",
    }
    _, path = masked_lm(tmp_path, **everything)
    results, tables = analyse([path], block=16)
    files = write_analysis(tmp_path / "out", results, tables, block=16)
    terms = ("fixed", "tisa", "t5", "kerple", "alibi", "query", "key")
    kernels = (f"{kind}-{x}" for kind in ("kernels", "mean-kernels") for x in ("input", "queries"))
    for name in ("positions", "blocks", "heads", *terms, *kernels):
        assert f"encoder-sentence_encoder-{name}.png" in files
    assert all(is_picture(tmp_path / "out" / name) for name in files if name.endswith(".png"))


def test_figure_of_heads_that_are_nearly_flat():
    curves_figure = pytest.importorskip("fairseq_convattn.analysis.figures").curves_figure
    heads = [[0.0] * 5, [100.0, 100.7, 101.2, 100.7, 100.7]]
    curves = {"layers": [0], "distances": list(range(-2, 3)), "heads": heads}
    figure = curves_figure("encoder", "tisa", [curves])
    assert figure.axes[0].get_xlim() == pytest.approx((-2, 2), abs=1)


@pytest.mark.filterwarnings("error")
def test_figures_of_a_single_distance(tmp_path):
    figures = pytest.importorskip("fairseq_convattn.analysis.figures").figures
    _, path = masked_lm(
        tmp_path, encoder_mixers="composite", attention_terms="content,fixed,query",
        attention_span=0, beyond_span="zero",
    )  # fmt: skip
    results, tables = analyse([path], block=16)
    for _, figure in figures(results, tables, block=16):
        figure.savefig(tmp_path / "figure.png")


def test_no_directory_is_replaced_or_half_written(tmp_path, monkeypatch):
    figures = pytest.importorskip("fairseq_convattn.analysis.figures")
    state = {"encoder.embed_positions.weight": torch.randn(5, 4)}
    results, tables = analyse([save(tmp_path / "a.pt", state, {})], block=128)
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileExistsError, match="empty is there already"):
        write_analysis(tmp_path / "empty", results, tables, block=128)

    def broken(*arguments):
        raise RuntimeError("no")

    monkeypatch.setattr(figures, "positions_figure", broken)
    with pytest.raises(RuntimeError):
        write_analysis(tmp_path / "out", results, tables, block=128)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.pt", "empty"]


def run(monkeypatch, *arguments) -> None:
    monkeypatch.setattr(sys, "argv", ["analysis", *map(str, arguments)])
    command.main()


def test_what_is_given_is_refused_before_anything_is_read(tmp_path, monkeypatch, capsys):
    pytest.importorskip("matplotlib")
    with pytest.raises(SystemExit):
        run(monkeypatch, "a.pt", "--block", "0")
    assert "--block: must be a whole number of at least 1, not '0'" in capsys.readouterr().err
    for output, message in (
        (tmp_path, "is there already; it is not overwritten; choose another with --output"),
        (tmp_path / "no" / "x", "no directory"),
    ):
        with pytest.raises(SystemExit, match=message):
            run(monkeypatch, tmp_path / "none.pt", "--output", output)
    with pytest.raises(SystemExit, match="error: .*none.pt: there is no such file"):
        run(monkeypatch, tmp_path / "none.pt", "--output", tmp_path / "x")


def test_without_matplotlib_there_are_no_figures(tmp_path, monkeypatch, capsys, not_installed):
    not_installed("matplotlib")
    monkeypatch.delitem(sys.modules, "fairseq_convattn.analysis.figures", raising=False)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    state = {"encoder.embed_positions.weight": torch.randn(5, 4)}
    run(monkeypatch, save(tmp_path / "a.pt", state, {}), "--output", tmp_path / "out")
    printed = capsys.readouterr()
    assert "R^2" in printed.out
    assert printed.err.endswith("no figures, which need matplotlib: pip install matplotlib\n")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["analysis.json"]


def test_command(fairseqs_transformer, tmp_path):
    pytest.importorskip("matplotlib")
    names = ("checkpoint_last.pt", "checkpoint_1_2.pt")
    checkpoints = [fairseqs_transformer / name for name in names]
    arguments = [*map(str, checkpoints), "--block", "16"]
    process = subprocess.run(
        [sys.executable, "-m", "fairseq_convattn.analysis", *arguments],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(ROOT)},
    )
    assert process.returncode == 0, process.stderr
    assert "tensorboardX" not in process.stderr
    content = json.loads((tmp_path / "analysis" / "analysis.json").read_text())
    assert content["block"] == 16
    assert [x["updates"] for x in content["checkpoints"]] == [2, 4]
    assert [x["checkpoint"] for x in content["checkpoints"]] == [str(x) for x in checkpoints[::-1]]
    stack = content["checkpoints"][1]["stacks"]["encoder"]
    assert set(stack) == {"notes", "positions", "attention", "terms", "kernels"}
    r2 = stack["positions"]["r2"]
    assert f"| 4 | encoder | 0-39 | {r2['overall']:.3f} |" in process.stdout
    pictures = sorted((tmp_path / "analysis").glob("*.png"))
    assert [path.stem for path in pictures] == [
        "decoder-heads", "encoder-blocks", "encoder-heads", "encoder-positions", "r2-by-updates",
    ]  # fmt: skip
    assert all(map(is_picture, pictures))
