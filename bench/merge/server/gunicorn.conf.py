"""The recipe of python/README.md, or none, by MAYFLY_BENCH_METHOD; each worker says when it is ready."""

import os


def post_worker_init(worker):
    import app

    method = os.environ["MAYFLY_BENCH_METHOD"]
    if method == "pack":
        import mayfly

        app.model = mayfly.pack(app.model)
        mayfly.advise(app.model)
    if method == "process":
        import mayfly

        app.model = mayfly.pack(app.model)
        app.answer(0)  # warm
        mayfly.advise_process()
    print("worker ready", flush=True)
