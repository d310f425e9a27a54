"""A user learns nothing about another user's pages, by content or by time."""

import os
import random
import time

import pytest
from attack import as_user, attacked
from store import NOBODY, check
from wire import (
    NO_SEGMENT,
    REFUSED,
    TAKEN,
    Wire,
    index_entries,
    memory,
    page,
    words,
)


def test_other_domains(built):
    """Contents: no request reveals another user's pages."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to be two users")
    secret = b"".join(page(n, b"secret") for n in range(600))
    with attacked(built, grown_kib=32768) as (store, witness), Wire(store) as owner:
        check((said := owner.offer(secret))[0] == TAKEN, f"the owner's offer: {said}")
        number = said[1][1]

        def spy():
            with Wire(store) as wire:
                own_files = len(wire.files)
                found, elsewhere = index_entries(wire.files[0])
                check(not found and not elsewhere, f"another's index shows: {len(found)} pages")
                for segment in [*range(1, 64), number]:
                    kind, body = wire.attach(segment)
                    check(
                        kind == REFUSED and body[:4] == words(NO_SEGMENT),
                        f"another's segment {segment}: {kind} {body!r}",
                    )
                check(len(wire.files) == own_files, "a file came with a refusal")
                kind, (new, *_) = wire.offer(secret)
                check(kind == TAKEN and new == 600, f"another's pages are known: {new} of 600 new")
                kind, body = wire.status()
                text = body.decode()
                return text, wire.secret

        text, theirs = as_user(NOBODY, spy)
        check(theirs != owner.secret, "two domains hash with the same secret")
        check(
            'uid 0"' not in text and '"0"' not in text, f"status shows root's store to another user: {text}"
        )
        kind, body = owner.offer(secret)
        check(kind == TAKEN and body[0] == 0, f"the owner's pages offered again: {body}")


def test_inference_by_time(built, options):
    """Offering a page takes the same time whether or not another domain has it."""
    if os.geteuid() != 0 or not options.soak:
        pytest.skip("needs root and a quiet machine: only with --soak")
    with attacked(built, grown_kib=65536) as (store, _), Wire(store) as owner:
        rounds = 150
        kind, _ = owner.offer(b"".join(page(n, b"held") for n in range(600 + rounds * 16)))
        check(kind == TAKEN, f"{kind}")

        def spy():
            times = {b"held": [], b"not held": []}
            with Wire(store) as wire:
                for n in range(rounds):
                    for word in random.sample(list(times), 2):
                        file = memory(b"".join(page(600 + n * 16 + i, word) for i in range(16)))
                        start = time.perf_counter()
                        wire.offer_file(file, 16)
                        times[word].append(time.perf_counter() - start)
                        os.close(file)
                        wire.drop()
            return {word: sorted(list_)[rounds // 2] for word, list_ in times.items()}

        for _ in range(3):  # other load may distort one round, not every one
            medians = as_user(NOBODY, spy)
            ratio = medians[b"held"] / medians[b"not held"]
            if 0.8 < ratio < 1.25:
                break
        else:
            check(False, f"the time reveals it: {ratio:.2f}")
        print(f"median ratio {ratio:.3f}")
