"""Numbers in sentences: milliseconds and ratios as people read them."""


def ms(milliseconds: float) -> str:
    """``0.4`` → "0.40 ms", ``58.3`` → "58 ms", ``1250`` → "1.25 s"."""
    if milliseconds >= 1000:
        return f"{milliseconds / 1000:.2f} s"
    return (
        f"{milliseconds:.0f} ms"
        if milliseconds >= 20
        else f"{milliseconds:.1f} ms"
        if milliseconds >= 1
        else f"{milliseconds:.2f} ms"
    )


def times(ratio: float) -> str:
    """``2.53`` → "2.5 times"."""
    return f"{ratio:.1f} times" if ratio < 20 else f"{ratio:.0f} times"


def percent(share: float) -> str:
    """``0.876`` → "88 %"."""
    return f"{100 * share:.0f} %"


def plural(number: float, one: str) -> str:
    """``plural(2, "request")`` → "2 requests"."""
    return f"{number:g} {one}" + ("" if number == 1 else "s")
