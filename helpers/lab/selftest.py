"""Is an exercise defined well enough to teach with: the reference passes, every planted mistake is told apart."""

from helpers.lab.check import CORRECT, NOT_DONE, NOT_YET, evaluate, format_value, matches
from helpers.lab.exercise import Exercise


def definition_problems(exercise: Exercise) -> list[str]:
    """What is wrong with a definition, one sentence each; [] for a sound one.

    Sound: the reference passes; a blank is "not done"; the first expected answer as a constant is rejected, but for an
    exercise without arguments; there are at least three mistakes, each rejected with its own message, so each differs
    from the reference and the others.
    """
    problems = []
    if not 1 <= exercise.difficulty <= 5:
        problems.append(f"difficulty {exercise.difficulty} is not 1 to 5")
    if exercise.minutes <= 0:
        problems.append(f"minutes {exercise.minutes} is not positive")
    if not exercise.why.strip() or not exercise.title.strip():
        problems.append("title or why is empty")
    if len(exercise.hints) < 2:
        problems.append("fewer than two hints")
    if len(exercise.mistakes) < 3:
        problems.append(f"only {len(exercise.mistakes)} mistakes; at least 3 are needed")
    if not matches(exercise.all_cases(), exercise.all_cases(), 0):
        problems.append("the cases differ from run to run")

    if evaluate(exercise, exercise.reference).state != CORRECT:
        problems.append(f"the reference is rejected: {evaluate(exercise, exercise.reference).text}")
    if evaluate(exercise, _blank).state != NOT_DONE:
        problems.append("a blank is not reported as not done")
    constant = _constant(exercise)
    # An exercise without arguments asks what was found out: its answer is a constant.
    if exercise.cases[0] and evaluate(exercise, constant).state != NOT_YET:
        problems.append(f"the constant {format_value(constant())} passes as an answer")

    messages = [mistake.message for mistake in exercise.mistakes]
    if len(set(messages)) < len(messages) or len({m.name for m in exercise.mistakes}) < len(messages):
        problems.append("two mistakes share a name or a message")
    for mistake in exercise.mistakes:
        result = evaluate(exercise, mistake.function)
        if result.state != NOT_YET:
            problems.append(f"mistake {mistake.name!r} is reported as {result.state}")
        elif not result.text.endswith(f": {mistake.message}."):
            problems.append(f"mistake {mistake.name!r} gets another message: {result.text}")
    return problems


def _blank(*arguments):
    raise NotImplementedError


def _constant(exercise: Exercise):
    answer = exercise.reference(*exercise.all_cases()[0])
    return lambda *arguments: answer
