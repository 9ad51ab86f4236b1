// Package plural writes numbers of things in messages.
package plural

import "fmt"

// Count returns a number with its noun: "1 host", "2 hosts".
func Count(n int, noun string) string { return fmt.Sprintf("%d %s", n, Form(n, noun, noun+"s")) }

// Form returns the form of a word for a number: one for 1, otherwise many.
func Form(n int, one, many string) string {
	if n == 1 {
		return one
	}
	return many
}
