"""Runs a function of a container image with the image's own runtime client. The bootstrap asks for work in
its place if it can. Python of any version reads this file."""

import os
import sys


def can_rest():
    # The libraries for resting need glibc: musl's loader might load them, and they would fail.
    if "CS_GNU_LIBC_VERSION" not in os.confstr_names or sys.version_info < (3, 8):
        return False
    try:
        import runtime_client
    except ImportError:
        return False
    return hasattr(runtime_client, "next") and hasattr(runtime_client, "post_invocation_result")


# Processes that the function spawns import this, too.
if __name__ == "__main__":
    if can_rest():
        from . import __main__  # noqa: F401
    else:
        from awslambdaric import __main__ as client

        client.main(sys.argv)
