"""Curves in a terminal, in Braille characters: each holds 2 x 4 dots."""

from collections.abc import Sequence

# The bit of each dot in a Braille character, by row and column.
DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))

Curve = Sequence[tuple[float, float]]


def plot(curves: dict[str, Curve], width: int = 64, height: int = 10, unit: str = "MiB") -> str:
    """One panel for each curve, all to one scale, with the time axis below."""
    last = max(x for curve in curves.values() for x, _ in curve) or 1
    top = nice_limit(max(y for curve in curves.values() for _, y in curve))
    lines = []
    for name, curve in curves.items():
        lines.append(f"{'':8}{name}")
        for n, row in enumerate(panel(curve, last, top, width, height)):
            label = f"{top:.0f}" if n == 0 else "0" if n == height - 1 else unit if n == height // 2 else ""
            lines.append(f"{label:>6} ▏{row}")
    lines.append(f"{'':8}0{f'{last:.0f} s':>{width - 1}}")
    return "\n".join(lines)


def nice_limit(value: float) -> float:
    """The next round number above."""
    size = 1.0
    while size * 10 <= value:
        size *= 10
    return next(size * step for step in (1, 1.5, 2, 3, 4, 5, 6, 8, 10) if size * step >= value)


def panel(curve: Curve, last: float, top: float, width: int, height: int) -> list[str]:
    """The area under one curve, filled with dots."""
    columns, rows = width * 2, height * 4
    level = [0.0] * columns
    for (x, y), (following, _) in zip(curve, [*curve[1:], (last, 0)], strict=True):
        # A sample holds until the next one; where several fall into a column, the highest is shown.
        first = min(columns - 1, int(x / last * columns))
        for column in range(first, max(first, min(columns - 1, int(following / last * columns))) + 1):
            level[column] = max(level[column], y) if column == first else y
    cells = [[0] * width for _ in range(height)]
    for column, y in enumerate(level):
        for dot in range(min(rows, round(y / top * rows))):
            row = rows - 1 - dot
            cells[row // 4][column // 2] |= DOTS[row % 4][column % 2]
    return ["".join(chr(0x2800 + cell) for cell in row) for row in cells]
