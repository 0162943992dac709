"""Tests with the mark `alone` run in a process of their own: what they break stays there."""
import os
import subprocess
import sys

import pytest

ALONE = "PLUMB_TEST_ALONE"  # set in that process


def pytest_configure(config):
    config.addinivalue_line("markers", "alone: the test runs in a process of its own")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    if ALONE in os.environ or pyfuncitem.get_closest_marker("alone") is None:
        return None
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider",
               f"{pyfuncitem.path}::{pyfuncitem.name}"]
    ended = subprocess.run(command, env=os.environ | {ALONE: "1"}, capture_output=True, text=True,
                           timeout=120)
    if ended.returncode != 0:
        pytest.fail(ended.stdout[-6000:] + ended.stderr[-2000:], pytrace=False)
    return True
