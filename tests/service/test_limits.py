"""Every limit of a request's fields is a setting, and reaches the service."""

from __future__ import annotations

from dataclasses import fields

from respsd.service.limits import Limits
from respsd.serving import limits_of
from respsd.settings import LimitSettings, Settings

NOT_SETTINGS = {"largest_action"}
"""The machine's action table bounds it."""


def test_each_limit_is_a_setting_with_the_same_default_and_is_carried_over():
    changed = {name: getattr(LimitSettings(), name) * 2 for name in LimitSettings.model_fields}
    usual = Settings()
    other = usual.model_copy(update={"limits": LimitSettings(**changed)})
    largest = Limits().largest_action
    default, carried = limits_of(usual, largest), limits_of(other, largest)
    for field in fields(Limits):
        if field.name in NOT_SETTINGS:
            continue
        if field.name in changed:
            assert getattr(default, field.name) == field.default
            assert getattr(carried, field.name) == changed[field.name]
        else:
            assert field.name in type(usual.admission).model_fields
