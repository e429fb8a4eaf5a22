"""The time one expert takes, t(M) for M tokens, measured or at its floor: with it any skew is predicted as a sum."""

from bisect import bisect_left
from collections.abc import Callable, Mapping

from helpers.accounts.devices import Device
from helpers.accounts.units import dtype_bytes, positive_int
from helpers.errors import InputError


def expert_seconds(measured: Mapping[int, float]) -> Callable[[float], float]:
    """t(M), straight lines between the measured points {tokens: seconds}, the last line continued beyond them.

    Below the first point its own time is returned: an expert that runs at all is read whole. For `rank_seconds`, whose
    sum over the experts of a layer leaves out sorting, gathering and adding up the tokens.

    Raises InputError for fewer than two points, or one that is not above zero.
    """
    points = sorted(measured.items())
    if len(points) < 2:
        raise InputError(f"t(M) needs at least two measured points, not {len(points)}")
    for tokens, seconds in points:
        if not (tokens > 0 and 0 < seconds < float("inf")):
            raise InputError(f"t(M): the point {tokens}: {seconds} must have tokens and seconds above zero")
    sizes = [tokens for tokens, _ in points]

    def at(tokens: float) -> float:
        if tokens <= sizes[0]:
            return points[0][1]
        right = min(bisect_left(sizes, tokens), len(points) - 1)
        (before, fast), (after, slow) = points[right - 1], points[right]
        # A noisy last pair may fall; more tokens never take less time than those measured.
        return max(fast + (slow - fast) * (tokens - before) / (after - before), min(fast, slow))

    return at


def expert_floor_seconds(hidden: int, width: int, device: Device, dtype: str = "bf16") -> Callable[[float], float]:
    """t(M) of a SwiGLU expert at the ceilings of a device: max(2 · P · M / FLOP/s, P · bytes / bytes/s), P = 3 · H · F.

    `hidden` H and `width` F in numbers. Left out: activations, launching kernels, and that few tokens reach less.
    """
    params = 3 * positive_int(hidden, "hidden") * positive_int(width, "width")
    reading_s = params * dtype_bytes(dtype) / device.bandwidth_bytes_per_s
    token_s = 2 * params / device.peak(dtype)
    return lambda tokens: max(reading_s, token_s * tokens)
