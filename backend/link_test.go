package backend

import (
	"fmt"
	"strings"
	"testing"
)

func TestLinkName(t *testing.T) {
	for network, want := range map[string]string{
		"default":                 "leno-default",
		"a":                       "leno-a",
		"0123456789":              "leno-0123456789",
		"01234567890":             "leno-0123~tokum",
		"production-eu-central-1": "leno-prod~iun2j",
		"production-eu-central-2": "leno-prod~i78bo",
	} {
		if got := LinkName(network); got != want {
			t.Errorf("LinkName(%q) = %q, want %q", network, got, want)
		}
	}
}

func TestLinkNamesFitAndDiffer(t *testing.T) {
	seen := map[string]string{}
	for i := range 2000 {
		network := fmt.Sprintf("a-long-network-name-%d", i)
		link := LinkName(network)
		if len(link) > 15 {
			t.Fatalf("LinkName(%q) = %q is longer than 15 bytes", network, link)
		}
		if other, ok := seen[link]; ok {
			t.Fatalf("%q and %q share %q", network, other, link)
		}
		seen[link] = network
	}
}

func TestOtherFamilyLinkName(t *testing.T) {
	seen := map[string]string{}
	for network, want := range map[string]string{
		"default":                 "leno-default~2",
		"a":                       "leno-a~2",
		"01234567":                "leno-01234567~2",
		"012345678":               "leno-01~6rqgi~2",
		"production-eu-central-1": "leno-pr~iun2j~2",
		"production-eu-central-2": "leno-pr~i78bo~2",
	} {
		if got := OtherFamilyLinkName(network); got != want || len(got) > 15 {
			t.Errorf("OtherFamilyLinkName(%q) = %q, want %q", network, got, want)
		}
		if got, want := LinkNameB(network), strings.TrimSuffix(want, "2")+"b"; got != want {
			t.Errorf("LinkNameB(%q) = %q, want %q", network, got, want)
		}
		for _, link := range []string{LinkName(network), OtherFamilyLinkName(network), LinkNameB(network)} {
			if other, taken := seen[link]; taken {
				t.Errorf("%q and %q share %q", network, other, link)
			}
			seen[link] = network
		}
		for _, alias := range []string{LinkAlias(network), OtherFamilyLinkAlias(network), LinkAliasB(network)} {
			if got, ok := NetworkOfAlias(alias); !ok || got != network {
				t.Errorf("NetworkOfAlias(%q) = %q, %t", alias, got, ok)
			}
		}
	}
	if network, ok := NetworkOfAlias("uplink"); ok {
		t.Errorf("an alias of another program's is that of network %q", network)
	}
}
