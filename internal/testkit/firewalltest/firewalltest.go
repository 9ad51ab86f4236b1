// Package firewalltest gives tests of firewall rules programs of their own, and loads rules.
package firewalltest

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/lenonet/leno/internal/testkit/nstest"
)

// Programs are in a directory that comes first in PATH.
type Programs struct {
	t   testing.TB
	Dir string
}

// NewPrograms returns an empty directory, in PATH until the test ends.
func NewPrograms(t *testing.T) Programs {
	p := Programs{t, t.TempDir()}
	t.Setenv("PATH", p.Dir+":"+os.Getenv("PATH"))
	return p
}

// Script creates a program, or replaces it atomically by another file. text is for the shell.
func (p Programs) Script(name, text string) {
	p.t.Helper()
	path := filepath.Join(p.Dir, name)
	if err := os.WriteFile(path+".new", []byte("#!/bin/sh\n"+text+"\n"), 0o755); err != nil {
		p.t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		p.t.Fatal(err)
	}
}

// Prefer makes iptables and ip6tables be of this variant, nft or legacy.
func (p Programs) Prefer(variant string) {
	p.t.Helper()
	for _, command := range []string{"iptables", "ip6tables"} {
		for _, suffix := range []string{"", "-save", "-restore"} {
			program, err := exec.LookPath(command + "-" + variant + suffix)
			if err != nil {
				p.t.Fatal(err)
			}
			link := filepath.Join(p.Dir, command+suffix)
			if err := errors.Join(os.Symlink(program, link+".new"), os.Rename(link+".new", link)); err != nil {
				p.t.Fatal(err)
			}
		}
	}
}

// Load loads rules in the notation of the program nft.
func Load(t testing.TB, ns *nstest.NS, ruleset string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "ruleset")
	if err := os.WriteFile(file, []byte(ruleset), 0o600); err != nil {
		t.Fatal(err)
	}
	ns.Sh("nft -f " + file)
}

// changing matches comments and packet counters.
var changing = regexp.MustCompile(`(?m)^#.*\n|\[\d+:\d+\]`)

// Settled returns what iptables-save printed without the parts that change by themselves.
func Settled(saved string) string { return changing.ReplaceAllString(saved, "") }

// ForeignRules returns a script that creates rules of another program in every table that leno writes, in both
// families, with names similar to ours.
func ForeignRules(variant string) string {
	var out strings.Builder
	for _, command := range []string{"iptables-", "ip6tables-"} {
		out.WriteString(strings.ReplaceAll(`
			IPT -t nat -N THEIRS
			IPT -t nat -A THEIRS -p tcp --dport 80 -m comment --comment "they're \"theirs\"" -j RETURN
			IPT -t nat -A POSTROUTING -j THEIRS
			IPT -N MINE-NOT-LENO-
			IPT -A FORWARD -i eth8 -j DROP
			IPT -A FORWARD -i eth7 -j MINE-NOT-LENO-
			IPT -P FORWARD DROP`, "IPT", command+variant))
	}
	out.WriteString("\niptables-" + variant + " -t nat -I POSTROUTING -o eth6 -j SNAT --to-source 192.0.2.9\n")
	return out.String()
}
