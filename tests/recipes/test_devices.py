import pytest

from fairseq_convattn.recipes import devices
from fairseq_convattn.recipes.command import RecipeError
from fairseq_convattn.recipes.devices import Batch, choose_devices

WMT = Batch(3584, workers=8, update_freq=16)


@pytest.mark.parametrize("workers", (1, 3, 128))
def test_every_number_of_devices_sees_the_papers_tokens_or_is_refused(workers):
    assert WMT.per_update == 458_752
    if 128 % workers:
        with pytest.raises(RecipeError, match=f"^{workers} devices of 3,584 tokens cannot share"):
            WMT.update_freq_for(workers)
    else:
        assert workers * WMT.size * WMT.update_freq_for(workers) == WMT.per_update


@pytest.mark.parametrize(
    ("steps", "nodes", "visible", "taken"),
    [(128, 1, 6, 4), (6, 2, 4, 3)],
)
def test_by_default_as_many_train_as_share_an_update(steps, nodes, visible, taken):
    batch = Batch(4096, workers=1, update_freq=steps)
    devices = choose_devices(None, nodes, False, batch, visible)
    assert devices.gpus == taken
    assert devices.workers * batch.update_freq_for(devices.workers) == steps


def test_machines_of_which_no_number_of_gpus_fits_are_refused():
    batch = Batch(4096, workers=1, update_freq=2)
    with pytest.raises(RecipeError, match="--gpus times --nodes may be 1, 2$"):
        choose_devices(None, 3, False, batch, visible=4).training(batch)


@pytest.mark.parametrize(("supported", "precision"), [(True, "--bf16"), (False, "--fp16")])
def test_precision_is_what_the_gpus_compute_in(monkeypatch, supported, precision):
    monkeypatch.setattr(devices.torch.cuda, "is_bf16_supported", lambda **_: supported)
    here = choose_devices(None, 1, False, WMT, visible=4)
    assert (here.gpus, here.precision) == (4, precision)
    assert choose_devices(2, 1, True, WMT, visible=4).precision == "--fp16"  # fairseq's sharding
    assert choose_devices(8, 2, False, WMT, visible=0).precision == "--fp16"  # of another machine


def test_what_linux_says_of_a_processor(tmp_path):
    (tmp_path / "cpuinfo").write_text("model name\t: x: y\nflags\t\t: fpu amx_bf16\n\n")
    found = devices.processor(tmp_path / "cpuinfo")
    assert (found["model name"], found["flags"]) == ("x: y", "fpu amx_bf16")
    assert devices.processor(tmp_path / "none") == {}
