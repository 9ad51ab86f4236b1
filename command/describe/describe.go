// Package describe contains the texts of several commands for objects of the API.
package describe

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/command/cli"
	"github.com/lenonet/leno/internal/plural"
)

// BackendType returns the "type" of a backend object.
func BackendType(object json.RawMessage) string {
	var head struct {
		Type string `json:"type"`
	}
	if json.Unmarshal(object, &head) != nil || head.Type == "" {
		return "?"
	}
	return head.Type
}

// backendOptions returns a backend object without its type: values as compact JSON, strings
// without quotes.
func backendOptions(object json.RawMessage) map[string]string {
	var members map[string]json.RawMessage
	if json.Unmarshal(object, &members) != nil {
		return nil
	}
	options := map[string]string{}
	for name, value := range members {
		var text string
		switch {
		case name == "type":
		case json.Unmarshal(value, &text) == nil && string(value) != "null":
			options[name] = text
		default:
			options[name] = string(value)
		}
	}
	return options
}

// BackendPairs returns the type and the options of a backend object.
func BackendPairs(object json.RawMessage) []cli.Pair {
	list := []cli.Pair{{"Backend", BackendType(object)}}
	options := backendOptions(object)
	for _, name := range slices.Sorted(maps.Keys(options)) {
		list = append(list, cli.Pair{"  " + name, options[name]})
	}
	return list
}

// poolText returns a text such as "10.5.0.0/16, a /24 each, from 10.5.1.0 to 10.5.255.0".
func poolText(p api.Pool) string {
	text := p.Prefix.String()
	if p.SubnetLen > 0 {
		text += fmt.Sprintf(", a /%d each", p.SubnetLen)
	}
	if p.Min.IsValid() && p.Max.IsValid() {
		text += fmt.Sprintf(", from %s to %s", p.Min, p.Max)
	}
	return text
}

// PoolPairs returns each pool with its family.
func PoolPairs(pools []api.Pool) []cli.Pair {
	var list []cli.Pair
	for _, p := range pools {
		list = append(list, cli.Pair{backend.Family(p.Prefix.Addr()), poolText(p)})
	}
	return list
}

// PoolPrefixes returns the prefixes of pools as one text.
func PoolPrefixes(pools []api.Pool) string {
	var list []netip.Prefix
	for _, p := range pools {
		list = append(list, p.Prefix)
	}
	return cli.Join(list)
}

// First returns the first of a list, "-" if there is none.
func First[T fmt.Stringer](list []T) string {
	if len(list) == 0 {
		return "-"
	}
	return list[0].String()
}

// Underlay returns a text such as "eth0, 192.0.2.1, MTU 1500: the default route leaves through it", "" for none.
func Underlay(u api.Underlay) string {
	if u.Interface == "" {
		return ""
	}
	parts := []string{u.Interface}
	if len(u.Addresses) > 0 {
		parts = append(parts, cli.Join(u.Addresses)+ownAddressNote(u.Own))
	}
	for _, port := range slices.Sorted(maps.Keys(u.PublicPorts)) {
		parts = append(parts, fmt.Sprintf("public port %d for %d", u.PublicPorts[port], port))
	}
	text := strings.Join(append(parts, fmt.Sprintf("MTU %d", u.MTU)), ", ")
	if u.Reason != "" {
		text += ": " + u.Reason
	}
	return text
}

// ownAddressNote returns the host's own addresses behind public ones.
func ownAddressNote(own []netip.Addr) string {
	list := slices.DeleteFunc(slices.Clone(own), func(a netip.Addr) bool { return !a.IsValid() })
	if len(list) == 0 {
		return ""
	}
	return " from " + cli.Join(list)
}

// Number returns a number, "" for 0.
func Number(n int) string {
	if n == 0 {
		return ""
	}
	return strconv.Itoa(n)
}

// LeaseState returns "held", or how long ago the lease lapsed.
func LeaseState(l api.Lease) string {
	if l.Held {
		return "held"
	}
	return "lapsed " + cli.Age(time.Duration(l.LapsedSeconds)*time.Second)
}

// WriteNotes prints notes, with an empty line before them.
func WriteNotes(w io.Writer, notes []string) {
	if len(notes) > 0 {
		fmt.Fprintln(w)
	}
	for _, text := range notes {
		cli.WriteNote(w, "", text)
	}
}

// maxSkipped is how many unusable records a table names: a writer to the store must not be able to
// make it scroll forever.
const maxSkipped = 100

// WriteSkipped names the first of the records that could not be used.
func WriteSkipped(w io.Writer, skipped []api.Skipped) {
	if len(skipped) == 0 {
		return
	}
	fmt.Fprintf(w, "\nSkipped %s:\n", plural.Count(len(skipped), "unusable record"))
	for _, s := range skipped[:min(len(skipped), maxSkipped)] {
		cli.WriteNote(w, "  ", s.Key+": "+s.Reason)
	}
	if more := len(skipped) - maxSkipped; more > 0 {
		fmt.Fprintf(w, "  and %d more: -format=json names all\n", more)
	}
}
