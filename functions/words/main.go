// The most frequent words of a text, with the runtime that AWS publishes for Go.
package main

import (
	"context"
	"errors"
	"sort"
	"strings"

	"github.com/aws/aws-lambda-go/lambda"
	"github.com/aws/aws-lambda-go/lambdacontext"
)

type question struct {
	Text string `json:"text"`
	Most int    `json:"most"`
}

type answer struct {
	Words   []string `json:"words"`
	Request string   `json:"request"`
}

func handle(ctx context.Context, wanted question) (*answer, error) {
	if wanted.Most < 1 {
		return nil, errors.New("most must be at least 1")
	}
	counts := map[string]int{}
	for _, word := range strings.Fields(strings.ToLower(wanted.Text)) {
		counts[word]++
	}
	words := make([]string, 0, len(counts))
	for word := range counts {
		words = append(words, word)
	}
	sort.Slice(words, func(a, b int) bool {
		first, second := counts[words[a]], counts[words[b]]
		return first > second || first == second && words[a] < words[b]
	})
	known, _ := lambdacontext.FromContext(ctx)
	return &answer{words[:min(wanted.Most, len(words))], known.AwsRequestID}, nil
}

func main() {
	lambda.Start(handle)
}
