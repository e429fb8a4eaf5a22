"""The table of request lengths against the traces it was made from, and requests drawn from it."""

import pytest

from helpers.accounts import InputError
from helpers.accounts.lengths import length_distribution, length_distribution_names, quantiles
from tests.accounts.test_admission import SERVICES, whole_trace


@pytest.mark.parametrize("name", SERVICES)
def test_the_table_is_that_of_the_public_trace(shared, name):
    trace = whole_trace(shared, name)
    found = length_distribution(name)
    assert found.requests == len(trace)
    assert found.prompt_tokens == quantiles((r.prompt_tokens for r in trace), found.probabilities)
    assert found.output_tokens == quantiles((r.output_tokens for r in trace), found.probabilities)


@pytest.mark.parametrize("name", SERVICES)
def test_drawn_requests_have_the_mean_and_the_quantiles_of_the_trace(shared, name):
    trace = whole_trace(shared, name)
    found = length_distribution(name)
    drawn = found.sample(20_000)
    for field in ("prompt_tokens", "output_tokens"):
        real, ours = ([getattr(request, field) for request in requests] for requests in (trace, drawn))
        assert sum(ours) / len(ours) == pytest.approx(sum(real) / len(real), rel=0.05)
        for probability in (0.1, 0.5, 0.9):
            (wanted,), (got,) = quantiles(real, [probability]), quantiles(ours, [probability])
            assert got == pytest.approx(wanted, rel=0.1, abs=2)


@pytest.mark.parametrize("name", SERVICES)
def test_prompt_and_output_of_the_traces_are_all_but_independent(shared, name):
    trace = whole_trace(shared, name)

    def ranks(values):
        order = {value: rank for rank, value in enumerate(sorted(values))}
        return [order[value] for value in values]

    a, b = ranks([r.prompt_tokens for r in trace]), ranks([r.output_tokens for r in trace])
    mean_a, mean_b = sum(a) / len(a), sum(b) / len(b)
    covariance = sum((x - mean_a) * (y - mean_b) for x, y in zip(a, b, strict=True))
    spread = (sum((x - mean_a) ** 2 for x in a) * sum((y - mean_b) ** 2 for y in b)) ** 0.5
    assert abs(covariance / spread) < 0.1


def test_every_distribution_names_its_source_and_licence():
    assert set(length_distribution_names()) == set(SERVICES)
    for name in length_distribution_names():
        found = length_distribution(name)
        assert "github.com/" in found.source and "commit" in found.source
        assert found.licence in ("CC-BY 4.0", "Apache-2.0")
        assert found.probabilities[0] == 0 and found.probabilities[-1] == 1
        for table in (found.probabilities, found.prompt_tokens, found.output_tokens):
            assert len(table) == len(found.probabilities) and list(table) == sorted(table)


def test_the_same_seed_draws_the_same_requests_and_another_seed_others():
    found = length_distribution("azure-code")
    assert found.sample(50, seed=1) == found.sample(50, seed=1) != found.sample(50, seed=2)
    assert found.sample(0) == ()


def test_quantiles_of_the_table_are_given_back_and_others_lie_between():
    found = length_distribution("azure-conversation")
    for probability, tokens in zip(found.probabilities, found.prompt_tokens, strict=True):
        assert found.prompt_quantile(probability) == tokens
    assert found.output_quantile(0.5) <= found.output_quantile(0.505) <= found.output_quantile(0.51)


def test_unknown_names_and_impossible_shares_are_refused():
    with pytest.raises(InputError, match="'azure' is not known: choose one of azure-conversation"):
        length_distribution("azure")
    with pytest.raises(InputError, match="between 0 and 1"):
        length_distribution("azure-code").prompt_quantile(99)
    with pytest.raises(InputError, match="requests must be a whole number"):
        length_distribution("azure-code").sample(-1)
    with pytest.raises(InputError, match="no values"):
        quantiles([], [0.5])
