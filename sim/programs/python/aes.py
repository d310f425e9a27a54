"""Encrypts and decrypts a text with AES in counter mode, in pure Python, as FunctionBench's pyaes does: so
many times in a call. aes.py CHARACTERS TIMES"""

import hashlib
import random
import sys

import pyaes
from measured import called

length, rounds = int(sys.argv[1]), int(sys.argv[2])
numbers = random.Random(1)
text = "".join(numbers.choices("abcdefghijklmnopqrstuvwxyz ", k=length))
key = b"\xa1\xf6%\x8c\x87}_\xcd\x89dHE8\xbf\xc9,"


def handler():
    for _ in range(rounds):
        secret = pyaes.AESModeOfOperationCTR(key).encrypt(text)
        assert pyaes.AESModeOfOperationCTR(key).decrypt(secret).decode() == text
    return secret


secret = called(handler)
print(f"pyaes: {length} characters, {hashlib.sha256(secret).hexdigest()}")
