"""The table of causes is whole, in its own words, and its weights are those that were checked on public threads."""

from helpers.accounts.causes import CAUSES, OTHER_PRIOR_BITS, TRAITS

PLACES = {"measurement", "client", "path", "front end", "engine", "settings", "workload"}
COSTS = {0, 1, 2, 5, 10, 20}


def test_causes_priors_and_effects_are_those_of_the_checked_table(facts):
    meta = facts("diagnosis-cases.json")["meta"]
    assert set(CAUSES) == set(meta["causes"]) - {"unresolved"}
    assert {**{name: cause.prior_bits for name, cause in CAUSES.items()}, "other": OTHER_PRIOR_BITS} == meta[
        "prior_bits"
    ]
    assert {name: cause.needs for name, cause in CAUSES.items() if cause.needs} == meta["preconditions"]
    largest = {name: max(row["max_ratio"] for row in rows) for name, rows in meta["effect_seen"].items()}
    assert {name: cause.largest_effect for name, cause in CAUSES.items() if cause.largest_effect} == largest


def test_every_cause_says_what_where_and_what_would_decide():
    for cause in CAUSES.values():
        assert cause.place in PLACES and cause.test_cost in COSTS, cause.id
        for sentence in (cause.says, cause.ruled_out_by, cause.test):
            assert sentence[-1] in ".?" and sentence[0].isupper() and len(sentence) < 130, cause.id


def test_sentences_are_not_shared_between_causes():
    for field in ("says", "ruled_out_by"):
        assert len({getattr(cause, field) for cause in CAUSES.values()}) == len(CAUSES)


def test_traits_are_what_causes_need():
    assert "cfg_tp_gt1" in TRAITS and all(name.startswith("cfg_") for name in TRAITS)
