"""Faults planted on a local server are named with their mechanism, and nothing is named where nothing is wrong.

On a busy machine a fault may stay undecided, which is tried once more; another cause than the planted one is never
named, however busy it is.
"""

import json

import pytest

from helpers.accounts.judgement import Verdict
from helpers.accounts.verdict import verdict
from helpers.measure.observe import observation_json, parse_observation
from tests.judge.planting import HEALTHY, PLANTS, TWO, Plant, config_file, observe

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    return config_file(tmp_path_factory.mktemp("planted"))


def judged(plant: Plant, config) -> Verdict:
    """The verdict on a plant, from the observation's JSON as a reader of a saved one gets it."""
    seen = parse_observation(json.loads(json.dumps(observation_json(observe(plant, config)))))
    answer = verdict(seen)
    told = [answer.cause] if answer.says == "named" else []
    if answer.second is not None and answer.second.says == "named":
        told.append(answer.second.cause)
    assert set(told) <= {plant.cause, plant.also}, answer.sentence
    assert answer.says != "void", answer.sentence
    return answer


def until(right, plant: Plant, config) -> Verdict:
    """The first verdict of two tries for which `right` holds, else the last."""
    for _ in range(2):
        answer = judged(plant, config)
        if right(answer):
            break
    return answer


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.name)
def test_a_planted_fault_is_told_with_its_mechanism(plant, config, told):
    answer = until(lambda v: (v.cause, v.mechanism) == (plant.cause, plant.mechanism), plant, config)
    told(f"planted {plant.name}: {answer.says} {answer.cause}, {answer.mechanism}")
    assert (answer.cause, answer.mechanism) == (plant.cause, plant.mechanism), answer.sentence
    assert answer.says in ("named", "leading")
    if answer.says == "leading":
        assert answer.next_measurement is not None


@pytest.mark.parametrize("plant", HEALTHY, ids=lambda plant: plant.name)
def test_nothing_is_named_where_nothing_is_wrong(plant, config, told):
    answer = until(lambda v: v.says == "no fault found", plant, config)
    told(f"healthy {plant.name}: {answer.says}")
    assert answer.cause is None and answer.says == "no fault found", answer.sentence


def test_of_two_faults_the_second_is_told_too(config):
    def both(answer: Verdict) -> set[str | None]:
        return {answer.cause, answer.second and answer.second.cause}

    answer = until(lambda v: both(v) == {TWO.cause, TWO.also}, TWO, config)
    assert both(answer) == {TWO.cause, TWO.also}, answer.sentence
