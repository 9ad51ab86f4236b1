package health

import (
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"
)

// TestActiveFaults checks that a fault is logged when it begins and when it ends, and again when it returns.
func TestActiveFaults(t *testing.T) {
	var lines strings.Builder
	log := hclog.New(&hclog.LoggerOptions{Output: &lines, DisableTime: true})
	var f ActiveFaults
	f.Recovered(log, Firewall)
	for range 2 {
		for range 3 {
			f.Failing(log, Firewall, "the lock is held")
			f.Failing(log, DataDir, "no space left")
		}
		for range 2 {
			f.Recovered(log, Firewall)
		}
	}
	const began = "[ERROR] operation failed on this host, retrying: check=firewall error=\"the lock is held\"\n"
	const other = "[ERROR] operation failed on this host, retrying: check=data_dir error=\"no space left\"\n"
	const ended = "[INFO]  operation works again: check=firewall\n"
	want := began + other + ended + began + ended
	if lines.String() != want {
		t.Errorf("logged was\n%s", lines.String())
	}
	if !f.Begin("a setting") || f.Begin("a setting") || !f.End("a setting") || f.End("a setting") {
		t.Error("a fault is new more than once, or ends more than once")
	}
}
