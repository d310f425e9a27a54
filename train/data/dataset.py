"""The dataset (LLAMA §5.1): labelled contexts from profiles, as one Ibis expression, so that DuckDB computes
it on one machine and Spark on many. All sums are of integers, so both give the same rows."""

import ibis
import ibis.expr.types as ir

from train.data.profiles import FREED, LEFT

CLASS_NAMES = ("10ms", "100ms", "1s", "10s", "100s", "1000s", "inf")
"""Lifetime class c holds objects that die within 10^(c+1) ms, the last one those that die later than 1000 s
or never (§5.1)."""

LAST = len(CLASS_NAMES) - 1
WHOLE = 1_000_000
"""The whole of which shares are parts: with integers, rounded down, every engine computes the same."""

TENTHS = 10
"""The number of parts, of about the same size, that contexts fall into, so that some can be held out of
training."""


def labelled_contexts(profiles: ir.Table) -> ir.Table:
    """A row for each distinct context whose lifetimes are known, by `stack`.

    `label` is the smallest class by which 95% of its objects died (T95), by the survival estimate of Kaplan
    and Meier. Objects that were alive when their process ended never died. Objects that were left while it
    ran on live at least as long as they were observed; longer observed lives show how long such objects live.
    Where no profile observed so long, the label is the longest class that was observed.

    `weight` is the allocations it stands for, `bytes` theirs, `samples` the objects that were watched.
    `tenth` is a function of the stack alone: the same context falls into the same part in every profile, run
    and engine.
    """
    t = profiles
    counts = {f"dead_{number}": t[column] for number, column in enumerate(FREED)}
    counts |= {f"left_{number}": t[column] for number, column in enumerate(LEFT)}
    counts[f"dead_{LAST}"] += t.live - sum((t[column] for column in LEFT), ibis.literal(0, "int64"))
    grouped = t.group_by("stack").aggregate(
        **{name: count.sum() for name, count in counts.items()},
        weight=t.allocations.round().cast("int64").sum(),
        bytes=t.bytes.round().cast("int64").sum(),
    )
    samples = sum((grouped[name] for name in counts), ibis.literal(0, "int64"))
    known = _surviving(grouped.mutate(samples=samples).filter(lambda g: g.samples > 0))
    return known.select(
        "stack",
        label=_t95(known),
        weight=ibis.greatest(known.weight, 1),
        bytes=ibis.greatest(known.bytes, 1),
        samples=known.samples,
        tenth=_tenth(known.stack),
    ).order_by("stack")


def _surviving(counted: ir.Table) -> ir.Table:
    """Adds the share of the objects, in millionths, that outlives each class, and how many are known to. Of
    those that live into a class some die in it, and some were left alive in it, on average in its middle:
    those count half."""
    t = counted.mutate(living=counted.samples, share=ibis.literal(WHOLE, "int64"))
    for number in range(LAST):
        dead, left = t[f"dead_{number}"], t[f"left_{number}"]
        twice = ibis.greatest(2 * t.living - left, 1)
        t = t.mutate(
            share=t.share * (twice - 2 * dead) // twice,
            living=t.living - dead - left,
        ).mutate(**{f"share_{number}": lambda t: t.share})
    return t


def _t95(t: ir.Table) -> ir.IntegerValue:
    """The smallest class by which 95% have died; the last one, if some are known to have lived into it; else
    the longest in which any was observed."""
    died = [(t[f"share_{number}"] * 20 <= WHOLE, number) for number in range(LAST)]
    longest = [(t[f"left_{number}"] > 0, number) for number in reversed(range(LAST))]
    branches = [*died, (t.living > 0, LAST), *longest]
    cases = [(condition, ibis.literal(number, "int64")) for condition, number in branches]
    return ibis.cases(*cases, else_=ibis.literal(LAST, "int64"))


def _tenth(stack: ir.StringValue) -> ir.IntegerValue:
    """0 to 9, by the first byte of a hash in hexadecimal."""
    digest = stack.hexdigest("md5").lower()
    branches = [
        (digest[0:2] < f"{256 * (n + 1) // TENTHS:02x}", ibis.literal(n, "int64")) for n in range(TENTHS - 1)
    ]
    return ibis.cases(*branches, else_=ibis.literal(TENTHS - 1, "int64"))
