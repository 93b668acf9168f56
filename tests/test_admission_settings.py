"""The admission settings reach the parts that hold to them."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from respsd.control.action import Action
from respsd.serving import limits_of
from respsd.settings import Settings
from respsd.settings_admission import AdmissionSettings
from respsd.settings_reload import changes

LARGEST = Action(128, 8, 32)


def test_limits_that_may_be_lifted_are_lifted_in_words():
    lifted = AdmissionSettings(
        max_queue_seconds="unlimited", max_client_requests="unlimited", max_waiting_tokens="auto"
    )  # type: ignore[arg-type]
    assert (lifted.max_queue_seconds, lifted.max_client_requests, lifted.max_waiting_tokens) == (None, None, None)


@pytest.mark.parametrize(
    ("name", "value"),
    [("max_queue_seconds", 0), ("max_client_requests", 0), ("max_waiting_tokens", 0), ("priority_head_start", -1)],
)
def test_limits_that_would_let_nobody_in_are_refused(name, value):
    with pytest.raises(ValidationError, match=name):
        AdmissionSettings(**{name: value})


def test_the_services_limits_come_from_their_settings_and_change_live():
    old = Settings(listen="127.0.0.1:0")
    admission = AdmissionSettings(max_in_flight=7, max_client_requests=3, max_queue_seconds=5.0)
    new = old.model_copy(update={"admission": admission})
    limits = limits_of(new, LARGEST)
    assert (limits.max_in_flight, limits.max_client_requests, limits.largest_action) == (7, 3, LARGEST)
    found = changes(old, new)
    assert set(found.live) == {"admission.max_in_flight", "admission.max_client_requests"}
    assert set(found.waiting) == {"admission.max_queue_seconds"}
