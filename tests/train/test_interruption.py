"""Signals wait until the step is over."""

import os
import signal

import pytest

from skipless.train.process import Interruption


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_remembered_and_a_second_one_acts(number: signal.Signals) -> None:
    acted: list[int] = []
    before = signal.signal(number, lambda one, _: acted.append(one))
    try:
        with Interruption() as interruption:
            assert not interruption.requested
            os.kill(os.getpid(), number)
            assert interruption.requested
            assert acted == []
            os.kill(os.getpid(), number)
            assert acted == [number]
    finally:
        signal.signal(number, before)


def test_one_that_is_patient_waits_whatever_comes() -> None:
    with Interruption(ignore_repeats=True) as interruption:
        for number in (signal.SIGINT, signal.SIGINT, signal.SIGTERM):
            os.kill(os.getpid(), number)
        assert interruption.requested


def test_afterwards_signals_act_as_before() -> None:
    before = [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)]
    with Interruption():
        pass
    assert [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)] == before
