"""The recipe of python/README.md, or none, by MAYFLY_BENCH_METHOD, for the module MAYFLY_BENCH_MODULE; each
worker prints a line when it is ready, and when it shares."""

import importlib
import os


def post_worker_init(worker):
    print("worker ready", flush=True)


def share():
    import mayfly

    served = importlib.import_module(os.environ["MAYFLY_BENCH_MODULE"])
    served.model = mayfly.pack(served.model)
    if os.environ["MAYFLY_BENCH_METHOD"] == "process":
        mayfly.advise_process()
    else:
        mayfly.advise(served.model)
    print("worker shares", flush=True)


def post_request(worker, request):
    if os.environ["MAYFLY_BENCH_METHOD"] != "plain":
        import mayfly

        mayfly.later(share)
