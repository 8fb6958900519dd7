"""Mixers where tensors are on a device that is not the CPU."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize("which", ["not slow", pytest.param("slow", marks=pytest.mark.slow)])
def test_mixers_stay_on_their_device_and_do_not_wait_for_it(which):
    tests = Path(__file__).with_name("other_devices.py")  # the device is there for good
    quiet = ("-q", "-p", "no:cacheprovider", "-n", "0", "-m", which)
    command = [sys.executable, "-m", "pytest", *quiet, str(tests)]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout[-4000:]
    if "passed" not in run.stdout:
        pytest.skip("this PyTorch knows no devices written in Python")
