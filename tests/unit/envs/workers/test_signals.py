"""Waiting for a byte: awake at first, then asleep, the same answer either way."""

import socket
import threading

import pytest

from rltrainer.envs.workers.signals import AWAKE, Inbox


@pytest.mark.parametrize("stays_awake", [False, True])
def test_bytes_come_in_order_and_the_end_of_a_connection_is_an_empty_one(stays_awake: bool) -> None:
    here, there = socket.socketpair()
    inbox = Inbox(here, stays_awake)
    there.send(b"ab")
    assert inbox.wait()
    assert inbox.receive() == b"a"
    assert inbox.receive() == b"b"
    there.close()
    assert inbox.receive() == b""
    here.close()


@pytest.mark.parametrize("stays_awake", [False, True])
def test_a_byte_that_comes_late_is_waited_for(stays_awake: bool) -> None:
    here, there = socket.socketpair()
    timer = threading.Timer(20 * AWAKE, there.send, (b"x",))
    timer.start()
    assert Inbox(here, stays_awake).receive() == b"x"
    timer.join()
    here.close()
    there.close()


@pytest.mark.parametrize("stays_awake", [False, True])
def test_the_time_out_holds(stays_awake: bool) -> None:
    here, there = socket.socketpair()
    inbox = Inbox(here, stays_awake, timeout=5 * AWAKE)
    assert not inbox.wait()
    there.close()
    assert inbox.wait(), "the end of a connection is something to hear"
    here.close()
