"""When an endpoint is left alone: on a clock that the test turns."""

import pytest

from osmosis_ai.providers.breaker import Breaker, BreakerPolicy

POLICY = BreakerPolicy(failures=5, calls=3, first_pause_seconds=1, max_pause_seconds=4, patience_seconds=10)
ENDPOINT = "http://127.0.0.1:8000/v1"


class Clock:
    def __init__(self):
        self.seconds = 0.0

    def __call__(self):
        return self.seconds


@pytest.fixture
def clock():
    return Clock()


def opened(clock, *, answered_before):
    breaker = Breaker(ENDPOINT, POLICY, clock)
    if answered_before:
        breaker.answered()
    for call in range(5):
        breaker.failed("refused", call, probe=False, unreachable=True)
    return breaker


def probe_times(breaker, clock, until):
    """When probes are sent, all of which fail, until the endpoint is down."""
    times = []
    while breaker.down is None and clock.seconds < until:
        clock.seconds += breaker.seconds_to_wait()
        assert breaker.send()
        times.append(clock.seconds)
        breaker.failed("refused", "probe", probe=True, unreachable=True)
    return times


def test_five_failures_in_a_row_open_it_and_an_answer_between_them_does_not(clock):
    breaker = Breaker(ENDPOINT, POLICY, clock)
    for call in range(4):
        breaker.failed("refused", call, probe=False, unreachable=True)
    breaker.answered()
    breaker.failed("refused", 9, probe=False, unreachable=True)
    assert breaker.is_closed
    assert opened(clock, answered_before=True).seconds_to_wait() == 1.0


def test_one_call_that_the_endpoint_cannot_answer_proves_nothing_about_it(clock):
    breaker = Breaker(ENDPOINT, POLICY, clock)
    for _ in range(50):
        breaker.failed("answered 500", "the poisoned row", probe=False)
    breaker.failed("answered 500", "another", probe=False)
    assert breaker.is_closed
    breaker.failed("answered 500", "and a third", probe=False)
    assert not breaker.is_closed


def test_an_endpoint_that_never_answered_is_down_at_the_first_probe(clock):
    assert probe_times(opened(clock, answered_before=False), clock, until=100) == [1]


def test_one_that_has_answered_is_probed_ever_more_rarely_until_patience_ends(clock):
    breaker = opened(clock, answered_before=True)
    assert probe_times(breaker, clock, until=100) == [1, 3, 7, 11]  # pauses 1, 2, 4, and 4 at the most
    assert str(breaker.down) == (
        "http://127.0.0.1:8000/v1 is down: 9 tries in a row failed, the last one: refused. "
        "It is tried again in 4 s at the soonest"
    )


def test_while_a_probe_is_out_nobody_else_is_sent_and_its_answer_closes_the_breaker(clock):
    breaker = opened(clock, answered_before=True)
    clock.seconds = 1.0
    assert (breaker.seconds_to_wait(), breaker.send(), breaker.seconds_to_wait()) == (0.0, True, None)
    breaker.answered()
    assert (breaker.is_closed, breaker.seconds_to_wait(), breaker.send()) == (True, 0.0, False)


def test_a_probe_that_is_cancelled_leaves_its_place_to_the_next(clock):
    breaker = opened(clock, answered_before=True)
    clock.seconds = 1.0
    assert breaker.send()
    breaker.given_up(probe=True)
    assert breaker.seconds_to_wait() == 0.0


def test_calls_that_were_out_before_it_opened_make_the_pause_no_longer(clock):
    breaker = opened(clock, answered_before=True)
    for call in range(60):
        breaker.failed("refused", call, probe=False, unreachable=True)
    assert (breaker.seconds_to_wait(), breaker.down) == (1.0, None)


def test_an_endpoint_that_comes_back_is_down_no_more(clock):
    breaker = opened(clock, answered_before=False)
    probe_times(breaker, clock, until=100)
    assert breaker.down is not None
    clock.seconds += breaker.seconds_to_wait()
    assert breaker.send()
    breaker.answered()
    assert (breaker.down, breaker.is_closed) == (None, True)
