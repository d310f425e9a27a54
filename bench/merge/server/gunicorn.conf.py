"""The recipe of python/README.md, or none, by MAYFLY_BENCH_METHOD; each worker says when it is ready."""

import functools
import os


def post_worker_init(worker):
    print("worker ready", flush=True)


@functools.cache  # once in each worker
def share():
    import app

    method = os.environ["MAYFLY_BENCH_METHOD"]
    if method == "plain":
        return
    import mayfly

    app.model = mayfly.pack(app.model)
    if method == "process":
        mayfly.advise_process()
    else:
        mayfly.advise(app.model)


def post_request(worker, request):
    share()
