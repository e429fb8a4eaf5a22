"""The evidence table: its weights are those checked on public threads, what was added since is marked."""

import pytest

from helpers.accounts.causes import CAUSES
from helpers.accounts.evidence import CONTRADICTIONS, EVIDENCE, TOGGLE_BITS, item
from helpers.errors import InputError


def test_weights_are_those_of_the_checked_table(facts):
    meta = facts("diagnosis-cases.json")["meta"]
    ours = {name: dict(one.bits) for name, one in EVIDENCE.items() if not one.added}
    theirs = {
        name: {cause: bits for cause, bits in row["bits"].items() if bits}
        for name, row in meta["evidence_vocabulary"].items()
    }
    assert ours == theirs
    assert meta["toggle_item"]["bits"] == TOGGLE_BITS


def test_added_items_are_few_and_marked():
    added = {name for name, one in EVIDENCE.items() if one.added}
    assert {"refused", "client_busy", "server_agrees"} <= added and len(added) <= 15


def test_every_item_bears_on_causes_that_exist():
    for one in EVIDENCE.values():
        assert one.bits and set(one.bits) <= set(CAUSES) and one.says.endswith(".") and one.counter, one.id


def test_items_of_one_gauge_share_its_counter():
    for one, other in CONTRADICTIONS:
        assert EVIDENCE[one].counter == EVIDENCE[other].counter
    assert EVIDENCE["kv_demand_gt_pool"].counter == EVIDENCE["kv_ge95"].counter
    assert EVIDENCE["tput_flat_C_up"].counter == EVIDENCE["ttft_up_tpot_flat"].counter  # Little's law: the same fact.


def test_a_toggle_is_an_item_of_its_cause_alone():
    assert dict(item("ab:tp_comm").bits) == {"tp_comm": TOGGLE_BITS}


@pytest.mark.parametrize("name", ["ab:gremlins", "ab:", "waiting", "", None, "ab:unresolved"])
def test_an_unknown_item_is_refused_by_name(name):
    with pytest.raises(InputError, match="not known"):
        item(name)
