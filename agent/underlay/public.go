package underlay

import (
	"fmt"
	"net/netip"
	"strings"

	sockaddr "github.com/hashicorp/go-sockaddr/template"
)

// Public holds the configured public addresses after evaluation. The zero Addr stands for the interface's own.
type Public struct {
	IPv4, IPv6 netip.Addr
}

// evaluate returns the value of a go-sockaddr template on this host; it returns any other string unchanged.
func evaluate(value string) (string, error) {
	if !strings.Contains(value, "{{") {
		return value, nil
	}
	text, err := sockaddr.Parse(value)
	if err != nil {
		return "", err
	}
	return text, nil
}

func parsePublic(text string, v6 bool) (netip.Addr, error) {
	family := map[bool]string{false: "IPv4", true: "IPv6"}[v6]
	a, err := netip.ParseAddr(strings.TrimSpace(text))
	switch {
	case err != nil:
		return netip.Addr{}, fmt.Errorf("its value on this host is %q, not one %s address", text, family)
	case a.Is4() == v6 || a.Is4In6() || !a.IsGlobalUnicast():
		return netip.Addr{}, fmt.Errorf("its value on this host is %s, not an %s address that other hosts can send to", a,
			family)
	}
	return a, nil
}
