"""The number formats the engine computes in: the accounts' names beside torch's."""

import torch

from helpers.errors import InputError

TORCH_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
"""The accounts' name of each dtype the decoder runs in, and torch's object for it."""


def torch_dtype(dtype: torch.dtype | str) -> torch.dtype:
    """`dtype` as torch's object, given either torch's or the accounts' name (``"bf16"``).

    Raises InputError for a dtype the decoder does not compute in.
    """
    found = TORCH_DTYPES.get(dtype, dtype) if isinstance(dtype, str) else dtype
    if found not in TORCH_DTYPES.values():
        raise InputError(f"the decoder does not compute in {dtype}: choose one of {', '.join(TORCH_DTYPES)}")
    return found


def dtype_name(dtype: torch.dtype | str) -> str:
    """The accounts' name of `dtype`: ``torch.bfloat16`` → ``"bf16"``. Raises InputError as `torch_dtype` does."""
    wanted = torch_dtype(dtype)
    return next(name for name, candidate in TORCH_DTYPES.items() if candidate == wanted)
