// Package agenttest holds what the tests of several packages of the agent have in common.
package agenttest

import (
	"bufio"
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/internal/testkit/waiting"
)

// patience is how long a test waits for something that is to happen.
const patience = 2 * time.Minute

// Eventually polls until check returns nil.
var Eventually = waiting.Eventually

// Lines keeps the lines of a log.
type Lines = waiting.Lines

// FollowLog returns the lines of an agent's log until the test or the stream ends.
func FollowLog(t testing.TB, c *api.Client, m api.Monitor) <-chan string {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	stream, err := c.Monitor(ctx, m)
	if err != nil {
		cancel()
		t.Fatal(err)
	}
	lines := make(chan string)
	go func() {
		defer close(lines)
		for scanner := bufio.NewScanner(stream); scanner.Scan(); {
			select {
			case lines <- scanner.Text():
			case <-ctx.Done():
				return
			}
		}
	}()
	t.Cleanup(func() {
		cancel()
		for range lines {
		}
		if err := stream.Close(); err != nil {
			t.Error(err)
		}
	})
	return lines
}

// AwaitLine returns the first line that contains all words.
func AwaitLine(t testing.TB, lines <-chan string, words ...string) string {
	t.Helper()
	limit := time.After(patience)
	for {
		select {
		case line, ok := <-lines:
			if !ok {
				t.Fatalf("the stream ended before %q", words)
			}
			if !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(line, w) }) {
				return line
			}
		case <-limit:
			t.Fatalf("no line with %q", words)
		}
	}
}

// WantCode checks that err is an error of the API with the given status, and that its message contains all words.
func WantCode(t testing.TB, what string, err error, code int, words ...string) {
	t.Helper()
	var refused *api.Error
	if !errors.As(err, &refused) || refused.Code != code {
		t.Errorf("%s: %v, want %d", what, err, code)
		return
	}
	for _, w := range words {
		if !strings.Contains(refused.Message, w) {
			t.Errorf("%s: %q does not name %s", what, refused.Message, w)
		}
	}
}

// OpenAPI returns the API's description after checking that it is valid.
func OpenAPI(t testing.TB) *openapi3.T {
	t.Helper()
	doc, err := openapi3.NewLoader().LoadFromData([]byte(api.OpenAPI))
	if err != nil {
		t.Fatal(err)
	}
	if err := doc.Validate(context.Background()); err != nil {
		t.Fatal(err)
	}
	return doc
}
