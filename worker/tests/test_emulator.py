"""The worker beside AWS' own runtime interface emulator: the same functions, the same requests."""

import concurrent.futures

import pytest
from calls import PYTHON, open_folder, until
from conftest import Worker
from emulator import Emulator, Missing, program, runtimes, send
from emulator.situations import LANGUAGES, compared, differences, lines, read, shown, write_template
from test_nodejs import RUNTIME, version

SITUATIONS = [situation for language in LANGUAGES for situation in read(language)]
DIFFERENCES = differences()
# Where the worker has the runtime clients.
OURS = {"/var/mayfly/bootstrap.mjs": "CLIENT"}


@pytest.fixture(scope="module")
def emulator():
    """The emulator's program, and the runtimes that it can start."""
    try:
        return program(), runtimes()
    except Missing as why:
        pytest.skip(str(why))


@pytest.fixture(scope="module")
def served(emulator, tmp_path_factory):
    """A folder with the code of all situations, and a worker that serves it."""
    folder = open_folder(tmp_path_factory, "situations")
    can_run = [situation for situation in SITUATIONS if situation.language == "python" or version()]
    template = write_template(folder, can_run, {"python": PYTHON, "nodejs": RUNTIME})
    with Worker(str(template)) as running:
        yield folder, running


@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda situation: situation.function)
def test_worker_answers_as_the_emulator(situation, emulator, served):
    path, clients = emulator
    if isinstance(clients[situation.language], str):
        pytest.skip(clients[situation.language])
    if situation.language == "nodejs" and version() not in ("20", "22"):
        pytest.skip("the client of Node.js 24 has no callbacks, and this host has no other Node.js")
    command, client, environment = clients[situation.language]
    folder, running = served
    code = folder / situation.function
    # Node.js' client is one file, Python's a package that the worker has below /var/runtime.
    theirs_in = {code: "/var/task", client / "dist/index.mjs": "CLIENT", client: "/var/runtime"}

    def ask_the_worker():
        return [send("127.0.0.1", running.port, situation.function, *it) for it in situation.requests()]

    with (
        Emulator(
            path, [*command, situation.handler], code, {**environment, **situation.emulated()}
        ) as emulated,
        concurrent.futures.ThreadPoolExecutor(1) as thread,
    ):
        asked = thread.submit(ask_the_worker)
        theirs = [emulated.send(*request) for request in situation.requests()]
        ours = asked.result()
        their_log = emulated.log()

    used = set()
    for number, (their, our) in enumerate(zip(theirs, ours, strict=True)):
        assert not [name for name in their.headers if name.lower().startswith("x-amz")], (
            "it has none of the API's"
        )
        one, other = compared(their, theirs_in), compared(our, OURS)
        for part in one:
            if one[part] == other[part]:
                continue
            named = [
                name for name in situation.differs if DIFFERENCES[name].explains(part, one[part], other[part])
            ]
            assert named, f"call {number}, {part}:\n{shown(one[part])[:2000]}\n{shown(other[part])[:2000]}"
            used.update(named)
        if our.status == 200:
            fails = situation.fails and isinstance(other["body"], dict)
            assert our.headers.get("X-Amz-Function-Error") == ("Unhandled" if fails else None)
            assert our.headers["X-Amz-Executed-Version"] == "$LATEST"
            assert our.headers["Content-Type"] == "application/json"
    assert used == set(situation.differs), "it does not differ in all that it names"
    if situation.log:
        wanted = lines(their_log, theirs_in)

        def own():
            return lines(running.get(f"/log?function={situation.function}"), OURS)

        until(lambda: own() == wanted, lambda: f"{wanted}\n{own()}", seconds=20)


def test_list_has_thirty_situations_a_language_and_no_unused_difference():
    for language in LANGUAGES:
        assert len([situation for situation in SITUATIONS if situation.language == language]) >= 30
    named = {name for situation in SITUATIONS for name in situation.differs}
    assert named == set(DIFFERENCES)
    assert all(
        known.why and known.source.startswith("https://docs.aws.amazon.com/")
        for known in DIFFERENCES.values()
    )
