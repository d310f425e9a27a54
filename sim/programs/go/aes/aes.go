package main

// AES in counter mode as pyaes has it, ported as it is: tables of 32-bit words, and a new slice for each block.

var (
	sbox   [256]byte
	tables [4][256]uint32
)

func double(a byte) byte { return a<<1 ^ a>>7*0x1b }

func init() {
	// The S-box by its definition: inverses in GF(2^8), by powers of 3, and an affine map.
	p, q := byte(1), byte(1)
	for {
		p ^= double(p)
		q ^= q << 1
		q ^= q << 2
		q ^= q << 4
		q ^= q >> 7 * 0x09
		sbox[p] = q ^ (q<<1 | q>>7) ^ (q<<2 | q>>6) ^ (q<<3 | q>>5) ^ (q<<4 | q>>4) ^ 0x63
		if p == 1 {
			break
		}
	}
	sbox[0] = 0x63
	for i, s := range sbox {
		word := uint32(double(s))<<24 | uint32(s)<<16 | uint32(s)<<8 | uint32(double(s)^s)
		for t := range tables {
			tables[t][i] = word>>(8*t) | word<<(32-8*t)
		}
	}
}

type cipher struct{ keys [][]uint32 }

func word(bytes []byte) uint32 {
	return uint32(bytes[0])<<24 | uint32(bytes[1])<<16 | uint32(bytes[2])<<8 | uint32(bytes[3])
}

func substituted(w uint32) uint32 {
	return uint32(sbox[w>>24])<<24 | uint32(sbox[w>>16&255])<<16 | uint32(sbox[w>>8&255])<<8 | uint32(sbox[w&255])
}

func newCipher(key []byte) *cipher {
	inKey := len(key) / 4
	words := make([]uint32, 4*(inKey+7))
	constant := byte(1)
	for i := range words {
		switch {
		case i < inKey:
			words[i] = word(key[4*i:])
			continue
		case i%inKey == 0:
			last := words[i-1]
			words[i] = substituted(last<<8|last>>24) ^ uint32(constant)<<24
			constant = double(constant)
		case inKey > 6 && i%inKey == 4:
			words[i] = substituted(words[i-1])
		default:
			words[i] = words[i-1]
		}
		words[i] ^= words[i-inKey]
	}
	made := &cipher{}
	for ; len(words) > 0; words = words[4:] {
		made.keys = append(made.keys, words[:4])
	}
	return made
}

func (c *cipher) encrypt(block []byte) []byte {
	rounds := len(c.keys) - 1
	t := make([]uint32, 4)
	for i := range t {
		t[i] = word(block[4*i:]) ^ c.keys[0][i]
	}
	for round := 1; round < rounds; round++ {
		a := make([]uint32, 4)
		for i := range a {
			a[i] = tables[0][t[i]>>24] ^ tables[1][t[(i+1)%4]>>16&255] ^ tables[2][t[(i+2)%4]>>8&255] ^
				tables[3][t[(i+3)%4]&255] ^ c.keys[round][i]
		}
		t = a
	}
	result := []byte{}
	for i, key := range c.keys[rounds] {
		result = append(result, sbox[t[i]>>24]^byte(key>>24), sbox[t[(i+1)%4]>>16&255]^byte(key>>16),
			sbox[t[(i+2)%4]>>8&255]^byte(key>>8), sbox[t[(i+3)%4]&255]^byte(key))
	}
	return result
}

type counterMode struct {
	cipher    *cipher
	counter   []byte
	remaining []byte
}

// As pyaes: the counter begins at 1.
func newCounterMode(key []byte) *counterMode {
	counter := make([]byte, 16)
	counter[15] = 1
	return &counterMode{cipher: newCipher(key), counter: counter}
}

func (m *counterMode) encrypt(text []byte) []byte {
	for len(m.remaining) < len(text) {
		m.remaining = append(m.remaining, m.cipher.encrypt(m.counter)...)
		for i := 15; i >= 0; i-- {
			if m.counter[i]++; m.counter[i] != 0 {
				break
			}
		}
	}
	encrypted := make([]byte, len(text))
	for i, plain := range text {
		encrypted[i] = plain ^ m.remaining[i]
	}
	m.remaining = m.remaining[len(text):]
	return encrypted
}
