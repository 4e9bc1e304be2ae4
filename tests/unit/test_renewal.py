"""The succession of a run's authorities over years, by a clock that is passed in."""

from __future__ import annotations

import datetime

from hypothesis import given
from hypothesis import strategies as st

from atoll_operator.certificates.rotation import AUTHORITY_LIFE, DELIVERY, LEAF_LIFE, Life, succession

START = datetime.datetime(2026, 11, 21, tzinfo=datetime.UTC)


def test_a_certificate_is_due_when_a_third_of_its_life_is_left() -> None:
    life = Life(START, START + datetime.timedelta(days=90))
    assert not life.due(START + datetime.timedelta(days=59))
    assert life.due(START + datetime.timedelta(days=60))
    assert life.due(START + datetime.timedelta(days=91))


def test_a_new_run_gets_an_authority_that_signs_at_once() -> None:
    plan = succession([], START)
    assert (plan.trusted, plan.signer, plan.successor) == ((), None, True)
    only = succession([Life(START, START + AUTHORITY_LIFE)], START)
    assert (only.trusted, only.signer, only.successor) == ((0,), 0, False)


def test_a_successor_is_trusted_a_day_before_it_signs() -> None:
    due = START + 2 * AUTHORITY_LIFE / 3
    lives = [Life(START, START + AUTHORITY_LIFE)]
    assert succession(lives, due).successor
    lives.append(Life(due, due + AUTHORITY_LIFE))
    soon, later = succession(lives, due), succession(lives, due + DELIVERY)
    assert (soon.trusted, soon.signer, soon.successor) == ((0, 1), 0, False)
    assert (later.trusted, later.signer) == ((0, 1), 1)
    assert succession(lives, START + AUTHORITY_LIFE).trusted == (1,)


@given(st.lists(st.floats(min_value=0.01, max_value=29.0), min_size=1, max_size=400))
def test_no_certificate_in_use_is_ever_without_its_authority(pauses: list[float]) -> None:
    """An operator looks at random moments, never more than 29 days apart; a leaf is signed at each where it is due."""
    now, authorities = START, [Life(START, START + AUTHORITY_LIFE)]
    leaf, signer = Life(START, START + LEAF_LIFE), authorities[0]
    known = [authorities[0]]  # what a pod trusted a day ago
    for pause in pauses:
        now += datetime.timedelta(days=pause)
        assert leaf.ends > now and signer.ends > now
        plan = succession(authorities, now)
        authorities = [authorities[place] for place in plan.trusted]
        if plan.successor:
            authorities.append(Life(now, now + AUTHORITY_LIFE))
        assert signer in authorities and len(authorities) <= 2
        if leaf.due(now):
            assert plan.signer is not None
            signer = authorities[plan.signer]
            assert signer.begins + DELIVERY <= now or signer in known
            leaf = Life(now, min(now + LEAF_LIFE, signer.ends))
        known = authorities
