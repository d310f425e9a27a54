"""A server of processes that each build the same dictionary of small objects: the parent prints its pid and
those of its workers once all are built (and advised, with the word `advise`), and ends with its input."""

import multiprocessing
import os
import sys
import time

OBJECTS = 200_000
WORKERS = 4


def build():
    return {f"key {number}": (number, str(number)) for number in range(OBJECTS)}


def work(ready, end, advises):
    table = build()
    time.sleep(0.2)
    if advises:
        import mayfly

        mayfly.advise_process()
    ready.release()
    end.wait()
    assert table == build()


def main():
    # Each worker is a program of its own, as uvicorn's are: a forked one would have its parent's layout.
    # A worker's command line has the number of its pipe: of one length for all, or the first one's objects
    # lie elsewhere.
    _below_ten = [os.open(os.devnull, os.O_RDONLY) for _ in range(10)]
    context = multiprocessing.get_context("spawn")
    ready, end = context.Semaphore(0), context.Event()
    workers = [
        context.Process(target=work, args=(ready, end, "advise" in sys.argv[1:])) for _ in range(WORKERS)
    ]
    for worker in workers:
        worker.start()
    for _ in workers:
        ready.acquire()
    print(os.getpid(), *(worker.pid for worker in workers), flush=True)
    sys.stdin.read()
    end.set()
    for worker in workers:
        worker.join()
    sys.exit(sum(worker.exitcode != 0 for worker in workers))


if __name__ == "__main__":
    main()
