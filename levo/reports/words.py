"""Numbers as the page says them. Knows no report."""

from levo.pace import duration

__all__ = ["clock", "count", "decibels", "duration", "figure", "percent", "share"]

NONE = "–"
MINUS = "\N{MINUS SIGN}"


def figure(value: float | None) -> str:
    """About three significant digits, whole numbers whole: 0.0123, 4.56, 78.9, 1,234."""
    if value is None:
        return NONE
    size = abs(value)
    if size >= 100 or isinstance(value, int) or not size:
        text = f"{size:,.0f}"
    elif size >= 10:
        text = f"{size:.1f}"
    elif size >= 0.1:
        text = f"{size:.2f}"
    else:
        text = f"{size:.2g}" if size >= 1e-4 else f"{size:.1e}"
    return (MINUS if value < 0 else "") + text


def count(n: int, one: str, many: str | None = None) -> str:
    """1 song, 2 songs."""
    return f"{n:,} {one if n == 1 else many or one + 's'}"


def clock(seconds: float | None) -> str:
    """m:ss, whole seconds passed, as players show it."""
    if seconds is None:
        return NONE
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes}:{rest:02d}"


def percent(share: float | None) -> str:
    """A share in percent."""
    return NONE if share is None else f"{100 * share:.0f} %"


def share(value: float | None) -> str:
    """A share in percent, with one decimal: what is compared here differs by little."""
    return NONE if value is None else f"{100 * value:.1f} %"


def decibels(value: float | None) -> str:
    """One decimal, with a real minus."""
    return NONE if value is None else f"{value:.1f}".replace("-", MINUS)
