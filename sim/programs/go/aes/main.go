// Encrypts and decrypts a text with AES in counter mode, as FunctionBench's pyaes does, in Go: aes CHARACTERS CALLS
package main

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"os"
	"strconv"

	"programs/measured"
)

const alphabet = "abcdefghijklmnopqrstuvwxyz "

var key = []byte("\xa1\xf6%\x8c\x87}_\xcd\x89dHE8\xbf\xc9,")

func handler(text []byte) []byte {
	secret := newCounterMode(key).encrypt(text)
	if !bytes.Equal(newCounterMode(key).encrypt(secret), text) {
		fmt.Fprintln(os.Stderr, "aes: the encrypted text does not decrypt")
		os.Exit(1)
	}
	return secret
}

func main() {
	characters, err := strconv.Atoi(os.Args[1])
	calls, otherwise := strconv.Atoi(os.Args[2])
	if err != nil || otherwise != nil || calls < 1 {
		fmt.Fprintln(os.Stderr, "usage: aes CHARACTERS CALLS")
		os.Exit(2)
	}
	text := make([]byte, characters)
	for i, number := 0, uint64(1); i < characters; i++ {
		number = number*6364136223846793005 + 1442695040888963407
		text[i] = alphabet[(number>>33)%uint64(len(alphabet))]
	}
	var secret []byte
	measured.Warming()
	for call := 0; call < calls; call++ {
		if call == 1 {
			measured.Measured()
		}
		secret = handler(text)
	}
	if calls == 1 {
		measured.Measured()
	}
	measured.Finished()
	fmt.Printf("aes-go: %d characters, %x\n", characters, sha256.Sum256(secret))
}
