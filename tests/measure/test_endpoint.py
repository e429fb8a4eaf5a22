"""Base URLs and key variables that cannot be meant are refused, and no message repeats what may be a key."""

import pytest

from helpers.errors import InputError
from helpers.measure.arrivals import ClosedLoop
from helpers.measure.endpoint import key_from, parse_endpoint
from helpers.measure.load import Plan


@pytest.mark.parametrize("pasted", ["sk-live-0123456789", "two words", "", "1KEY", "KEY\n"])
def test_a_key_pasted_as_the_name_of_its_variable_is_refused_and_not_repeated(pasted):
    with pytest.raises(InputError, match="name of an environment variable") as refusal:
        key_from(pasted)
    assert not pasted or pasted not in str(refusal.value)


def test_a_key_comes_from_the_variable_that_is_named(monkeypatch):
    monkeypatch.setenv("LAB_KEY_2", "sk-live-0123456789")
    assert key_from("LAB_KEY_2") == "sk-live-0123456789"
    assert key_from(None) is None


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions/"])
def test_the_address_of_a_route_is_no_base_url(path):
    with pytest.raises(InputError, match="must end before"):
        parse_endpoint("http://127.0.0.1:8000" + path)
    assert parse_endpoint("http://127.0.0.1:8000/v1/").path == "/v1"


@pytest.mark.parametrize("model", [None, "", 3])
def test_a_plan_names_its_model(model):
    with pytest.raises(InputError, match="model must be the model's name"):
        Plan("http://127.0.0.1:8000/v1", model, ClosedLoop(1), requests=1, prompt_tokens=8, output_tokens=8)
