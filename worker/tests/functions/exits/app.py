"""Exits while it is loaded."""

import os

print("about to end")
os._exit(7)
