package bundle

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// kernelTimeout bounds one program, because another process may hold a table's lock.
const kernelTimeout = 10 * time.Second

// Kernel returns the captures of this host's kernel: its tables, and its version. links are the
// devices whose offloads are captured.
func Kernel(links []string) []Capture {
	out := []Capture{
		program("kernel/links.txt", "ip", "-details", "-statistics", "link", "show"),
		program("kernel/addresses.txt", "ip", "addr", "show"),
		program("kernel/routes4.txt", "ip", "-4", "-details", "route", "show", "table", "all"),
		program("kernel/routes6.txt", "ip", "-6", "-details", "route", "show", "table", "all"),
		program("kernel/rules4.txt", "ip", "-4", "rule", "show"),
		program("kernel/rules6.txt", "ip", "-6", "rule", "show"),
		program("kernel/neighbours.txt", "ip", "-statistics", "neigh", "show"),
		program("kernel/fdb.txt", "bridge", "fdb", "show"),
		program("kernel/nftables.txt", "nft", "list", "ruleset"),
		program("kernel/sockets.txt", "ss", "-lntup"),
		files("kernel/sysctl.txt", sysctls()...),
		files("kernel/counters.txt", "/proc/net/snmp", "/proc/net/snmp6", "/proc/net/netstat", "/proc/net/softnet_stat",
			"/proc/net/dev"),
		files("host/system.txt", "/proc/version", "/etc/os-release", "/proc/uptime", "/proc/loadavg", "/proc/meminfo",
			"/proc/modules"),
	}
	for _, family := range []string{"iptables", "ip6tables"} {
		for _, variant := range []string{"", "-nft", "-legacy"} {
			out = append(out, program("kernel/"+family+variant+".txt", family+variant+"-save", "-c"))
		}
	}
	links = slices.Clone(links)
	slices.Sort(links)
	for _, link := range slices.Compact(links) {
		if link != "" && !strings.HasPrefix(link, "-") {
			out = append(out, program("kernel/offloads-"+FileName(link)+".txt", "ethtool", "-k", link))
		}
	}
	return out
}

// program captures the output of a program.
func program(file, name string, args ...string) Capture {
	return Within(kernelTimeout, Capture{file, strings.Join(append([]string{name}, args...), " "),
		func(ctx context.Context, w io.Writer) error {
			path, err := exec.LookPath(name)
			if err != nil {
				return fmt.Errorf("%s is not installed here", name)
			}
			var said limitedBuffer
			cmd := exec.CommandContext(ctx, path, args...)
			cmd.Stdout, cmd.Stderr = w, &said
			cmd.WaitDelay = time.Second
			cmd.Env = append(os.Environ(), "LC_ALL=C", "LANG=C")
			if err := cmd.Run(); err != nil {
				text := strings.TrimSpace(string(said.data()))
				return fmt.Errorf("%w: %s", err, text[:min(len(text), 500)])
			}
			return nil
		}})
}

// files captures small files, each under its name, one after the other. Missing files are skipped.
func files(file string, patterns ...string) Capture {
	return Capture{file, strings.Join(patterns, ", "), func(_ context.Context, w io.Writer) error {
		var errs []error
		for _, pattern := range patterns {
			paths, err := filepath.Glob(pattern)
			errs = append(errs, err)
			for _, path := range paths {
				text, err := os.ReadFile(path)
				switch {
				case errors.Is(err, os.ErrNotExist):
				case err != nil:
					errs = append(errs, err)
				case strings.Count(string(text), "\n") <= 1:
					_, err = fmt.Fprintf(w, "%s = %s\n", path, strings.TrimSpace(string(text)))
					errs = append(errs, err)
				default:
					_, err = fmt.Fprintf(w, "== %s ==\n%s\n", path, text)
					errs = append(errs, err)
				}
			}
		}
		return errors.Join(errs...)
	}}
}

// sysctls returns the sysctl files that affect packets of containers.
func sysctls() []string {
	const net = "/proc/sys/net/"
	out := []string{net + "ipv4/ip_forward", net + "ipv4/ip_no_pmtu_disc", net + "ipv4/fwmark_reflect",
		net + "bridge/bridge-nf-call-*",
		net + "netfilter/nf_conntrack_count", net + "netfilter/nf_conntrack_max", net + "netfilter/nf_conntrack_checksum",
		net + "core/rmem_max", net + "core/wmem_max", net + "core/netdev_max_backlog"}
	for _, name := range []string{"forwarding", "rp_filter", "accept_local", "src_valid_mark", "proxy_arp", "arp_ignore",
		"arp_announce", "route_localnet"} {
		out = append(out, net+"ipv4/conf/*/"+name)
	}
	for _, name := range []string{"forwarding", "disable_ipv6", "accept_ra", "proxy_ndp"} {
		out = append(out, net+"ipv6/conf/*/"+name)
	}
	for _, family := range []string{"ipv4", "ipv6"} {
		out = append(out, net+family+"/neigh/default/gc_thresh*")
	}
	return out
}
