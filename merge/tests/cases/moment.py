"""What other threads do with memory at the very moment at which it is advised (programs/moment.c)."""

import subprocess

from store import Store, check, status_text


def moment(case):
    def test(built, options):
        late = built.program("late", "-shared", "-fPIC")
        with Store(built) as store:
            done = subprocess.run(
                [built.program("moment"), case],
                env=built.environment(store.socket, LD_PRELOAD=str(late)),
                capture_output=True,
                text=True,
                timeout=300,
            )
            check(done.returncode == 0, f"{status_text(done.returncode)}: {done.stderr.strip()[-300:]}")
            store.alive(f"after `{case}`")
            store.empty(f"after `{case}`")
            return done.stdout.strip()

    return test


TESTS = {
    case: moment(case)
    for case in ("dropping", "growing", "growing again", "reallocating", "many times", "droppers")
}
