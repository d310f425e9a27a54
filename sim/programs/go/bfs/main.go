// Breadth-first search of a random graph with preferential attachment, as SeBS's graph-bfs does by igraph, in Go:
// bfs VERTICES CALLS
package main

import (
	"encoding/json"
	"fmt"
	"math/rand"
	"os"
	"strconv"

	"programs/measured"
)

// Edges that each new vertex brings, as SeBS has it.
const edges = 10

type event struct{ Size, Seed int }

type answer struct {
	Visited   int `json:"visited"`
	Depth     int `json:"depth"`
	Last      int `json:"last"`
	ItsParent int `json:"its_parent"`
}

type graph struct{ neighbours [][]int }

func (g *graph) connect(a, b int) {
	g.neighbours[a] = append(g.neighbours[a], b)
	g.neighbours[b] = append(g.neighbours[b], a)
}

// Barabási and Albert's: a vertex is chosen as often as it has edges.
func barabasi(size int, numbers *rand.Rand) *graph {
	made := &graph{make([][]int, size)}
	ends := []int{0}
	for vertex := 1; vertex < size; vertex++ {
		chosen := make([]int, 0, edges)
		for len(chosen) < edges && len(chosen) < vertex {
			chosen = append(chosen, ends[numbers.Intn(len(ends))])
		}
		for _, other := range chosen {
			made.connect(vertex, other)
			ends = append(ends, other)
		}
		ends = append(ends, vertex)
	}
	return made
}

// Vertices in the order of their visit, where layers start in it, and each one's parent.
func (g *graph) search(from int) (order, layers, parents []int) {
	parents = make([]int, len(g.neighbours))
	for vertex := range parents {
		parents[vertex] = -1
	}
	parents[from] = from
	for layer := []int{from}; len(layer) > 0; {
		layers = append(layers, len(order))
		order = append(order, layer...)
		var next []int
		for _, vertex := range layer {
			for _, other := range g.neighbours[vertex] {
				if parents[other] < 0 {
					parents[other] = vertex
					next = append(next, other)
				}
			}
		}
		layer = next
	}
	return order, layers, parents
}

func handler(request []byte) ([]byte, error) {
	var wanted event
	if err := json.Unmarshal(request, &wanted); err != nil {
		return nil, err
	}
	made := barabasi(wanted.Size, rand.New(rand.NewSource(int64(wanted.Seed))))
	order, layers, parents := made.search(0)
	last := order[len(order)-1]
	return json.Marshal(answer{len(order), len(layers) - 1, last, parents[last]})
}

func main() {
	size, err := strconv.Atoi(os.Args[1])
	calls, otherwise := strconv.Atoi(os.Args[2])
	if err != nil || otherwise != nil || size < 2 || calls < 1 {
		fmt.Fprintln(os.Stderr, "usage: bfs VERTICES CALLS")
		os.Exit(2)
	}
	var result []byte
	measured.Warming()
	for call := 0; call < calls; call++ {
		if call == 1 {
			measured.Measured()
		}
		if result, err = handler([]byte(fmt.Sprintf(`{"size": %d, "seed": 1}`, size))); err != nil {
			fmt.Fprintln(os.Stderr, "bfs:", err)
			os.Exit(1)
		}
	}
	if calls == 1 {
		measured.Measured()
	}
	measured.Finished()
	fmt.Printf("bfs-go: %d calls, %s\n", calls, result)
}
