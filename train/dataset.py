"""The dataset (LLAMA §5.1): profiles become labelled contexts, as one Ibis expression, so that DuckDB
computes it on one machine and Spark on many. Everything that is added up is an integer, so both give the
same rows."""

import ibis
import ibis.expr.types as ir

from train.profiles import FREED

CLASS_NAMES = ("10ms", "100ms", "1s", "10s", "100s", "1000s", "inf")
"""Lifetime class c holds what dies within 10^(c+1) ms, the last one what does not within 1000 s, or never
(§5.1)."""

TENTHS = 10
"""Parts of about the same size that contexts fall into, so that some can be held out of training."""


def labelled_contexts(profiles: ir.Table) -> ir.Table:
    """A row for each distinct context whose lifetimes are known, by `stack`.

    `label` is the smallest class by which 95% of its objects died (T95); those that lived at the end never
    did. `weight` is the allocations it stands for, `bytes` theirs, `samples` the objects whose lifetimes
    were seen. `tenth`
    is a function of the stack alone: the same context falls into the same part in every profile, run and
    engine.
    """
    t = profiles
    classes = {f"class_{number}": t[column] for number, column in enumerate(FREED)}
    classes["class_6"] += t.live
    grouped = t.group_by("stack").aggregate(
        **{name: counts.sum() for name, counts in classes.items()},
        weight=t.allocations.round().cast("int64").sum(),
        bytes=t.bytes.round().cast("int64").sum(),
    )
    samples = sum((grouped[name] for name in classes), ibis.literal(0))
    known = grouped.mutate(samples=samples).filter(lambda g: g.samples > 0)
    return known.select(
        "stack",
        label=_t95(known, list(classes)),
        weight=ibis.greatest(known.weight, 1),
        bytes=ibis.greatest(known.bytes, 1),
        samples=known.samples,
        tenth=_tenth(known.stack),
    ).order_by("stack")


def _t95(counted: ir.Table, classes: list[str]) -> ir.IntegerValue:
    """The smallest class by which 95% of `samples` have died."""
    dead, branches = ibis.literal(0), []
    for number, name in enumerate(classes[:-1]):
        dead = dead + counted[name]
        branches.append((dead * 100 >= counted.samples * 95, ibis.literal(number, "int64")))
    return ibis.cases(*branches, else_=ibis.literal(len(classes) - 1, "int64"))


def _tenth(stack: ir.StringValue) -> ir.IntegerValue:
    """0 to 9, by the first byte of a hash in hexadecimal."""
    digest = stack.hexdigest("md5").lower()
    branches = [
        (digest[0:2] < f"{256 * (n + 1) // TENTHS:02x}", ibis.literal(n, "int64")) for n in range(TENTHS - 1)
    ]
    return ibis.cases(*branches, else_=ibis.literal(TENTHS - 1, "int64"))
