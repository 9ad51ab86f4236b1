package docpages

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/lenonet/leno/agent"
)

// instead maps every setting of flannel that leno has options for to those options.
func instead() map[string]string {
	return map[string]string{
		"Network": "network.ipv4.prefix network.ipv6.prefix", "SubnetLen": "network.ipv4.subnet_len",
		"SubnetMin": "network.ipv4.min network.ipv4.max", "EnableNFTables": "firewall",
		"--etcd-endpoints": "consul.address consul.tls", "--etcd-prefix": "consul.kv_prefix",
		"--iface": "underlay.interfaces underlay.interface_regex underlay.can_reach", "--public-ip": "underlay.public_ip",
		"--ip-masq": "network.ip_masq", "--iptables-forward-rules": "network.forward", "--iptables-resync": "firewall.resync",
		"--subnet-file": "network.subnet_file", "--subnet-lease-renew-margin": "lease.renew_margin",
		"--healthz-ip": "http.address", "-v": "log_level",
		"--kube-subnet-mgr": "kubernetes.net_conf kubernetes.annotation_prefix",
	}
}

// TestDocumentationTableOfFlannel checks that the options that the page gives for flannel's
// settings exist and are complete.
func TestDocumentationTableOfFlannel(t *testing.T) {
	known := map[string]bool{}
	for path := range limits() {
		for parts := strings.Split(path, "."); len(parts) > 0; parts = parts[:len(parts)-1] {
			known[strings.Join(parts, ".")] = true // blocks as well
		}
	}
	told := map[string]string{}
	for _, row := range Rows(t, Path("migrate/flannel"), "Side by side") {
		theirs, ours := Codes(row[0]), Codes(row[1])
		if !strings.HasPrefix(row[0], "`") || strings.ContainsAny(theirs[0], "/.") {
			continue // a file or key, not an option
		}
		if first := theirs[0][0]; first != '-' && first >= 'a' {
			if len(ours) > 0 {
				hasOptions(t, ours[0], ours[1:])
			}
			continue
		}
		var paths []string
		for _, option := range ours {
			if strings.HasPrefix(option, "/") || strings.HasPrefix(option, "backend ") {
				continue
			}
			block, names, inBlock := strings.Cut(strings.NewReplacer(" {}", "", " }", "").Replace(option), " { ")
			if inBlock {
				block += "."
			} else {
				block, names = "", block
			}
			for _, name := range strings.Split(names, ", ") {
				of := slices.IndexFunc([]string{"", "network.", "network.ipv4."}, func(of string) bool { return known[of+block+name] })
				if of < 0 {
					t.Errorf("%s: there is no option %s%s", theirs[0], block, name)
					continue
				}
				paths = append(paths, []string{"", "network.", "network.ipv4."}[of]+block+name)
			}
		}
		if len(paths) > 0 {
			told[theirs[0]] = strings.Join(paths, " ")
		}
	}
	want := instead()
	for _, theirs := range slices.Sorted(maps.Keys(want)) {
		if told[theirs] != want[theirs] {
			t.Errorf("%s: the page gives %q, want %q", theirs, told[theirs], want[theirs])
		}
		delete(told, theirs)
	}
	if len(told) > 0 {
		t.Errorf("which options are these of? %q", told)
	}
}

// hasOptions checks that a backend has the options.
func hasOptions(t *testing.T, backend string, options []string) {
	t.Helper()
	kind, ok := agent.Backends()[backend]
	if !ok {
		t.Errorf("there is no backend %s", backend)
		return
	}
	effective, err := kind.Normalize(nil)
	if err != nil {
		t.Fatal(err)
	}
	var has map[string]any
	if err := json.Unmarshal(effective, &has); err != nil {
		t.Fatal(err)
	}
	for _, option := range options {
		if _, ok := has[option]; !ok {
			t.Errorf("%s has no option %s", backend, option)
		}
	}
}
