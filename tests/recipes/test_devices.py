import re
from contextlib import suppress

import pytest

from fairseq_convattn.recipes import devices
from fairseq_convattn.recipes.catalogue import RECIPES
from fairseq_convattn.recipes.command import RecipeError
from fairseq_convattn.recipes.devices import Batch, Devices, choose_devices

WMT = Batch(3584, workers=8, update_freq=16)


@pytest.fixture
def visible(monkeypatch):
    """A function that says how many GPUs there are, and whether they compute in bfloat16."""

    def see(gpus: int, bfloat16: bool = True) -> None:
        monkeypatch.setattr("torch.cuda.device_count", lambda: gpus)
        monkeypatch.setattr("torch.cuda.is_bf16_supported", lambda **_: bfloat16)

    return see


@pytest.mark.parametrize("workers", (1, 3, 128))
def test_every_number_of_devices_sees_the_papers_tokens_or_is_refused(workers):
    assert WMT.per_update == 458_752
    if 128 % workers:
        with pytest.raises(RecipeError, match=f"^{workers} devices .* may be 2 or 4$"):
            WMT.update_freq_for(workers)
        with pytest.raises(RecipeError, match="^7 devices .* 4 or 8, or give --device-batch 4096$"):
            WMT.update_freq_for(7)
        assert 7 * WMT.of(4096).update_freq_for(7) * 4096 == WMT.per_update
    else:
        assert workers * WMT.size * WMT.update_freq_for(workers) == WMT.per_update


@pytest.mark.parametrize("size", (3584, 14_336, 224))
def test_an_update_is_the_papers_in_batches_of_any_size(size):
    batch = WMT.of(size)
    assert 8 * size * batch.update_freq_for(8) == batch.per_update == WMT.per_update
    assert Devices(8).explain(batch, False).endswith(f"8 x {size:,} x update-freq {57344 // size}")


@pytest.mark.parametrize(
    ("batch", "size", "message"),
    [
        (WMT, 3000, "does not divide an update of 458,752 tokens evenly; 2048 or 3584 would fit"),
        (Batch(4000, 1, 1), 8000, "does not divide .* 4,000 tokens evenly; 4000 would fit"),
        (Batch(32, 4, 1, "sentences", longest=128), 24, "of 128 sentences evenly; 16 or 32 would"),
        (Batch(3072, 8, 3, longest=3072), 1536, "have up to 3,072 tokens; 3072 would fit"),
        (Batch(3072, 8, 3, longest=99_999), 3072, "have up to 99,999 tokens; nothing would fit"),
        (Batch(3072, 8, 3, longest=3072), 3500, "73,728 tokens evenly; 3072 or 4096 would fit"),
    ],
)
def test_batches_that_cannot_make_the_update_are_refused(batch, size, message):
    with pytest.raises(RecipeError, match=f"^--device-batch {size}: .*{message}"):
        batch.of(size)


@pytest.mark.parametrize("name", RECIPES)
def test_the_advice_for_a_number_of_devices_works(name):
    batch = RECIPES[name].with_batch(None, ()).batch
    for workers in (2, 3, 5, 7, 8, 12, 32, 512):
        with suppress(RecipeError):
            assert batch.size * batch.update_freq_for(workers) * workers == batch.per_update
            continue
        with pytest.raises(RecipeError) as refused:
            batch.update_freq_for(workers)
        for number in re.findall(r"may be (\d+)(?: or (\d+))?", str(refused.value))[0]:
            assert not number or batch.update_freq_for(int(number))
        for size in re.findall(r"--device-batch (\d+)", str(refused.value)):
            other = batch.of(int(size))
            assert other.size * other.update_freq_for(workers) * workers == batch.per_update


@pytest.mark.parametrize(
    ("steps", "nodes", "gpus", "taken"), [(128, 1, 6, 4), (6, 2, 4, 3), (2, 3, 4, 4)]
)
def test_by_default_as_many_train_as_share_an_update(visible, steps, nodes, gpus, taken):
    batch = Batch(4096, workers=1, update_freq=steps)
    visible(gpus)
    devices = choose_devices(None, nodes, False, batch)
    assert devices.gpus == taken
    if steps < nodes:
        with pytest.raises(RecipeError, match="--gpus times --nodes may be 2$"):
            devices.training(batch)
    else:
        assert devices.workers * batch.update_freq_for(devices.workers) == steps


@pytest.mark.parametrize("supported", [True, False])
def test_precision_is_what_the_gpus_compute_in(visible, supported):
    visible(4, supported)
    assert choose_devices(None, 1, False, WMT) == Devices(4, 1, "--bf16" if supported else "--fp16")
    assert choose_devices(2, 1, True, WMT).precision == "--fp16"  # fairseq's sharding
    visible(0)
    assert choose_devices(8, 2, False, WMT).precision == "--fp16"  # of another machine


def test_what_linux_says_of_a_processor(tmp_path):
    (tmp_path / "cpuinfo").write_text("model name\t: x: y\nflags\t\t: fpu amx_bf16\n\n")
    found = devices.processor(tmp_path / "cpuinfo")
    assert (found["model name"], found["flags"]) == ("x: y", "fpu amx_bf16")
    assert devices.processor(tmp_path / "none") == {}
