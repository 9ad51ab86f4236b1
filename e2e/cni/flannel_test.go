package cni

import (
	"bufio"
	"fmt"
	"net"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/lenonet/leno/agent/state"
)

// asPlugin reads a subnet file in the documented format of flannel's CNI plugin
// (flannel-io/cni-plugin, README: "subnetFile"): one KEY=value per line, ranges and subnets as
// CIDR, several ranges separated by commas, the MTU as a decimal number, FLANNEL_IPMASQ true or
// false. A range, the MTU and FLANNEL_IPMASQ are required, and each family needs the subnet
// together with its range. Every other key is ignored.
func asPlugin(t *testing.T, text string, want state.SubnetFile) {
	t.Helper()
	got := map[string]string{}
	lines := bufio.NewScanner(strings.NewReader(text))
	for lines.Scan() {
		parts := strings.SplitN(lines.Text(), "=", 2)
		if len(parts) != 2 {
			t.Errorf("not KEY=value: %q", lines.Text())
			continue
		}
		key, value := parts[0], parts[1]
		if strings.HasPrefix(key, "FLANNEL_") {
			if _, twice := got[key]; twice {
				t.Errorf("%s stands there twice", key)
			}
			got[key] = value
		}
	}
	known := []string{"FLANNEL_NETWORK", "FLANNEL_SUBNET", "FLANNEL_IPV6_NETWORK", "FLANNEL_IPV6_SUBNET", "FLANNEL_MTU", "FLANNEL_IPMASQ"}
	for key := range got {
		if !slices.Contains(known, key) {
			t.Errorf("%s is no key of the format", key)
		}
	}
	var subnets []string
	for _, family := range []string{"", "IPV6_"} {
		network, subnet := got["FLANNEL_"+family+"NETWORK"], got["FLANNEL_"+family+"SUBNET"]
		if (network == "") != (subnet == "") {
			t.Errorf("range %q and subnet %q of one family", network, subnet)
		}
		if subnet == "" {
			continue
		}
		_, n, err := net.ParseCIDR(subnet)
		must(t, err)
		subnets = append(subnets, n.String())
		inside := false
		for _, pool := range strings.Split(network, ",") {
			_, p, err := net.ParseCIDR(pool)
			must(t, err)
			inside = inside || p.Contains(n.IP)
		}
		if !inside {
			t.Errorf("%s is not in %s", subnet, network)
		}
	}
	var wanted []string
	for _, s := range want.Subnets() {
		wanted = append(wanted, s.String())
	}
	if !slices.Equal(subnets, wanted) {
		t.Errorf("subnets %v, want %v", subnets, wanted)
	}
	if mtu, err := strconv.ParseUint(got["FLANNEL_MTU"], 10, 32); err != nil || int(mtu) != want.MTU {
		t.Errorf("FLANNEL_MTU=%s: %v", got["FLANNEL_MTU"], err)
	}
	if got["FLANNEL_IPMASQ"] != strconv.FormatBool(want.IPMasq) {
		t.Errorf("FLANNEL_IPMASQ=%s", got["FLANNEL_IPMASQ"])
	}
}

// asScript reads the file as mk-docker-opts.sh does: the shell sources it, and FLANNEL_SUBNET
// becomes --bip, FLANNEL_MTU becomes --mtu, and FLANNEL_IPMASQ, inverted, becomes --ip-masq.
func asScript(t *testing.T, path string, want state.SubnetFile) {
	t.Helper()
	out, err := exec.Command("sh", "-euc", `
		. "$1"
		test -z "${FLANNEL_SUBNET:-}" || printf -- "--bip=%s " "$FLANNEL_SUBNET"
		test -z "${FLANNEL_IPMASQ:-}" || if test "$FLANNEL_IPMASQ" = true; then printf -- "--ip-masq=false "; else printf -- "--ip-masq=true "; fi
		test -z "${FLANNEL_MTU:-}" || printf -- "--mtu=%s" "$FLANNEL_MTU"`, "sh", path).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	wanted := fmt.Sprintf("--ip-masq=%t --mtu=%d", !want.IPMasq, want.MTU)
	if g := want.Gateways[0]; g.Addr().Is4() {
		wanted = fmt.Sprintf("--bip=%s %s", g, wanted)
	}
	if string(out) != wanted {
		t.Errorf("%q, want %q", out, wanted)
	}
}
