// Keeps objects that a collector can get wrong: trees, rings, maps, channels, closures, strings in the middle of others, and
// goroutines that hold objects on their stacks, while much else dies. Each part checks what it kept: heap ROUNDS
package main

import (
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
)

type node struct {
	left, right *node
	value       uint64
	name        []byte
}

type ring struct {
	next  *ring
	owner func() uint64
	pad   [11]uint64
}

var garbage []byte

func tree(depth int, value uint64) *node {
	n := &node{value: value, name: []byte(strconv.FormatUint(value, 10))}
	garbage = make([]byte, int(value%512)+1)
	if depth > 0 {
		n.left, n.right = tree(depth-1, value*2), tree(depth-1, value*2+1)
	}
	return n
}

func (n *node) sum() uint64 {
	if n == nil {
		return 0
	}
	if string(n.name) != strconv.FormatUint(n.value, 10) {
		fail("a node of %d is called %q", n.value, n.name)
	}
	return n.value + n.left.sum() + n.right.sum()
}

func fail(format string, values ...any) {
	fmt.Printf("heap: "+format+"\n", values...)
	os.Exit(1)
}

// New memory is zero, even if another process had it before.
func zero(bytes int) {
	b := make([]byte, bytes)
	p := make([]*int, bytes/8+1)
	for i := range b {
		if b[i] != 0 {
			fail("byte %d of %d new ones is %d", i, bytes, b[i])
		}
		b[i] = 0xa5
	}
	for i := range p {
		if p[i] != nil {
			fail("pointer %d of %d new ones is %p", i, len(p), p[i])
		}
		p[i] = new(int)
	}
	garbage = b
}

func rings(many int) uint64 {
	first := &ring{owner: func() uint64 { return 1 }}
	last := first
	for i := 2; i <= many; i++ {
		mine := uint64(i)
		last.next = &ring{owner: func() uint64 { return mine }}
		last = last.next
		zero(i % 520)
	}
	last.next = first
	sum := first.owner()
	for r := first.next; r != first; r = r.next {
		sum += r.owner()
	}
	return sum
}

func words(many int) uint64 {
	text := strings.Repeat("one two three ", many)
	kept := map[string][]string{}
	for i, word := range strings.Fields(text) {
		key := word + strconv.Itoa(i%97)
		kept[key] = append(kept[key], word[1:]) // an inner pointer
		if i%3 == 0 {
			delete(kept, "two"+strconv.Itoa(i%89))
		}
	}
	sum := uint64(0)
	for key, all := range kept {
		for _, word := range all {
			if !strings.HasPrefix(key[1:], word) {
				fail("%q holds %q", key, word)
			}
			sum += uint64(len(word))
		}
	}
	return sum
}

func main() {
	rounds, err := strconv.Atoi(os.Args[1])
	if err != nil || rounds < 1 {
		fail("%q rounds", os.Args[1])
	}
	debug.SetGCPercent(2)
	kept := tree(12, 1)
	var group sync.WaitGroup
	sums := make(chan uint64, 4*rounds)
	for worker := 0; worker < 4; worker++ {
		group.Add(1)
		go func(worker int) {
			defer group.Done()
			for round := 0; round < rounds; round++ {
				mine := tree(7, uint64(worker+round+1)) // on the stack alone
				sums <- rings(300) + words(200) + mine.sum()
			}
		}(worker)
	}
	group.Wait()
	close(sums)
	total := uint64(0)
	for sum := range sums {
		total += sum
	}
	runtime.GC()
	var statistics runtime.MemStats
	runtime.ReadMemStats(&statistics)
	if statistics.NumGC < 10 {
		fail("%d collections only", statistics.NumGC)
	}
	fmt.Printf("heap: %d rounds, %d, %d\n", rounds, kept.sum(), total)
}
