"""The recipe of python/README.md, or none, by MAYFLY_BENCH_METHOD; each worker prints a line when
it is ready, and when it shares."""

import os


def post_worker_init(worker):
    print("worker ready", flush=True)


def share():
    import app
    import mayfly

    app.model = mayfly.pack(app.model)
    if os.environ["MAYFLY_BENCH_METHOD"] == "process":
        mayfly.advise_process()
    else:
        mayfly.advise(app.model)
    print("worker shares", flush=True)


def post_request(worker, request):
    if os.environ["MAYFLY_BENCH_METHOD"] != "plain":
        import mayfly

        mayfly.later(share)
