import dataclasses
import math

import pytest

from helpers.accounts import CONDITIONS, ImprovementClaim, claimed_factor, missing_conditions
from helpers.errors import InputError

COMPLETE = ImprovementClaim("twice as fast", 2.0, **dict.fromkeys(CONDITIONS, "stated"))


def test_a_bare_claim_lacks_every_condition_and_its_number_is_refused():
    bare = ImprovementClaim("ten times in a year", 10)
    assert missing_conditions(bare) == tuple(CONDITIONS)
    with pytest.raises(InputError, match=r"ten times in a year.*benchmark.*load"):
        claimed_factor(bare)


def test_a_complete_claim_gives_its_number():
    assert missing_conditions(COMPLETE) == ()
    assert claimed_factor(COMPLETE) == 2.0


@pytest.mark.parametrize("name", list(CONDITIONS))
@pytest.mark.parametrize("empty", [None, "", "  "])
def test_each_condition_left_out_or_blank_is_named_and_refused(name, empty):
    claim = dataclasses.replace(COMPLETE, **{name: empty})
    assert missing_conditions(claim) == (name,)
    with pytest.raises(InputError, match=f"does not state its {name}"):
        claimed_factor(claim)


def test_every_condition_is_a_field_of_a_claim():
    assert set(CONDITIONS) == {f.name for f in dataclasses.fields(ImprovementClaim)} - {"statement", "factor"}


@pytest.mark.parametrize("factor", [0, -2, math.nan, math.inf, True, "10x"])
def test_a_factor_that_is_no_positive_number_is_refused(factor):
    with pytest.raises(InputError, match="factor"):
        claimed_factor(dataclasses.replace(COMPLETE, factor=factor))


def test_a_condition_that_is_no_text_is_refused():
    with pytest.raises(InputError, match="benchmark"):
        missing_conditions(dataclasses.replace(COMPLETE, benchmark=0))
