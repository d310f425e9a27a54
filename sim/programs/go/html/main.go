// Renders a page of random numbers from a template, as SeBS's dynamic-html does, in Go: html PAGES [GOGC]
package main

import (
	"bytes"
	"crypto/sha256"
	_ "embed"
	"fmt"
	"html/template"
	"math/rand"
	"os"
	"runtime/debug"
	"strconv"

	"programs/measured"
)

//go:embed page.html
var text string

type page struct {
	Username string
	Time     string
	Numbers  []string
}

func main() {
	pages, err := strconv.Atoi(os.Args[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, "html:", err)
		os.Exit(2)
	}
	if len(os.Args) > 2 {
		percent, err := strconv.Atoi(os.Args[2])
		if err != nil {
			fmt.Fprintln(os.Stderr, "html:", err)
			os.Exit(2)
		}
		debug.SetGCPercent(percent)
	}
	parsed := template.Must(template.New("page").Parse(text))
	numbers := rand.New(rand.NewSource(1))
	digest := sha256.New()
	// The first half of the pages is the first call, the other half a warm one.
	measured.Warming()
	for i := 0; i < pages; i++ {
		if i == pages/2 {
			measured.Measured()
		}
		data := page{Username: "<user " + strconv.Itoa(i) + ">", Time: "2024-01-01 00:00:00"}
		for n := 0; n < 500; n++ {
			data.Numbers = append(data.Numbers, strconv.Itoa(numbers.Intn(1000000)))
		}
		var out bytes.Buffer
		if err := parsed.Execute(&out, data); err != nil {
			fmt.Fprintln(os.Stderr, "html:", err)
			os.Exit(1)
		}
		digest.Write(out.Bytes())
	}
	measured.Finished()
	fmt.Printf("html-go: %d pages, %x\n", pages, digest.Sum(nil))
}
