package doctor

import (
	"context"
	bytes "encoding/binary"
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lenonet/leno/agent/forwarding"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/e2e/lab"
)

// crowded tests a host whose table of connections is full: its agent answers on the socket, its status shows the fault, and
// doctor names the table and nothing about peers. The limit is one of the machine, on which the remedy is typed.
func (p *patient) crowded() error {
	h := p.hosts[0]
	if err := on(0, "iptables-nft -I INPUT 1 -m conntrack --ctstate ESTABLISHED -j ACCEPT")(p); err != nil { // makes the kernel track
		return err
	}
	socket := filepath.Join(h.Dir, "leno.sock")
	if err := p.starts(h, fmt.Sprintf("http {\n  socket = %q\n}\n", socket)); err != nil {
		return err
	}
	if err := p.start(); err != nil {
		return err
	}
	limit, err := fillConnections(h)
	if err != nil {
		return err
	}
	ask := func(ctx context.Context, command string, out any) error {
		text, failed := h.Leno(ctx, command, "-address=unix://"+socket, "-format=json")
		if err := json.Unmarshal([]byte(text), out); err != nil {
			return fmt.Errorf("%w: %w: %s", err, failed, text)
		}
		return nil
	}
	m, seeded := measurement{name: "the table of connections is full"}, time.Now()
	err = lab.WaitFor(p.w.ctx, "the status to show the table of connections", func(ctx context.Context) error {
		text, _ := h.Leno(ctx, "status", "-address=unix://"+socket) // the exit code says that something is wrong
		if plain := strings.Join(strings.Fields(text), " "); !strings.Contains(plain, "the kernel's table of connections is full") {
			return fmt.Errorf("the status is %s", text)
		}
		return nil
	})
	if err != nil {
		return err
	}
	m.shown = time.Since(seeded)
	remedy := ""
	err = lab.WaitFor(p.w.ctx, "doctor to name the table of connections", func(ctx context.Context) error {
		var d api.Diagnosis
		if err := ask(ctx, "doctor", &d); err != nil {
			return err
		}
		isAboutPeers := func(f api.Finding) bool { return f.Peer != "" || f.Check == "peers" || f.Check == "port" }
		found := faults(d)
		i := slices.IndexFunc(found, func(f api.Finding) bool { return f.Check == "conntrack" })
		if i < 0 || slices.ContainsFunc(found, isAboutPeers) {
			return fmt.Errorf("it says %s", lines(d.Findings))
		}
		remedy = found[i].Do
		return nil
	})
	if err != nil {
		return err
	}
	m.named = time.Since(seeded)
	p.w.t.Cleanup(func() { setLimit(p.w, fmt.Sprintf("sysctl -w net.netfilter.nf_conntrack_max=%d", limit)) })
	setLimit(p.w, strings.Split(remedy+"``", "`")[1])
	cured := time.Now()
	if err := p.recovers(); err != nil {
		return err
	}
	m.passing = time.Since(cured)
	p.w.add(m)
	return nil
}

// setLimit runs a command on the machine.
func setLimit(w *ward, command string) {
	if out, err := exec.CommandContext(context.WithoutCancel(w.ctx), "sh", "-euc", command).CombinedOutput(); err != nil {
		w.t.Errorf("%s: %v: %s", command, err, out)
	}
}

// fillConnections fills a host's table of connections with some that the kernel does not give up for others, and returns
// the limit.
func fillConnections(h *lab.Host) (limit int, err error) {
	err = h.Do(func() error {
		s, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
		if err != nil {
			return err
		}
		defer unix.Close(s)
		const batch = 256
		for i := 0; ; i += batch {
			state := forwarding.ReadConnections()
			if limit = state.Max; state.Count >= limit {
				return nil
			}
			if i > 2*limit {
				return fmt.Errorf("the table has %+v after %d new connections", state, i)
			}
			var all []byte
			for j := range batch {
				all = append(all, newConnection(uint32(i+j))...)
			}
			if err := unix.Sendto(s, all, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
				return err
			}
		}
	})
	return limit, err
}

// newConnection returns the message to the kernel that adds connection i, one that was answered.
func newConnection(i uint32) []byte {
	attribute := func(kind uint16, value ...byte) []byte {
		out := bytes.NativeEndian.AppendUint16(nil, uint16(4+len(value)))
		out = append(bytes.NativeEndian.AppendUint16(out, kind), value...)
		return append(out, make([]byte, -len(value)&3)...)
	}
	number := func(n uint32) []byte { return bytes.BigEndian.AppendUint32(nil, n) }
	const nested = unix.NLA_F_NESTED
	tuple := func(kind uint16, from, to uint32, fromPort, toPort uint16) []byte {
		ip := attribute(nested|1, slices.Concat(attribute(1, number(from)...), attribute(2, number(to)...))...)
		ports := slices.Concat(attribute(1, unix.IPPROTO_UDP), attribute(2, bytes.BigEndian.AppendUint16(nil, fromPort)...),
			attribute(3, bytes.BigEndian.AppendUint16(nil, toPort)...))
		return attribute(nested|kind, append(ip, attribute(nested|2, ports...)...)...)
	}
	const server, discard, seenReplyAssuredConfirmed, seconds = 0xc6130001, 9, 2 | 4 | 8, 3600
	from, port := 0xc6120000|i>>16, uint16(i)
	body := slices.Concat([]byte{unix.AF_INET, 0, 0, 0}, tuple(1, from, server, port, discard), tuple(2, server, from, discard, port),
		attribute(3, number(seenReplyAssuredConfirmed)...), attribute(7, number(seconds)...))
	head := bytes.NativeEndian.AppendUint32(nil, uint32(unix.SizeofNlMsghdr+len(body)))
	head = bytes.NativeEndian.AppendUint16(head, unix.NFNL_SUBSYS_CTNETLINK<<8) // IPCTNL_MSG_CT_NEW
	head = bytes.NativeEndian.AppendUint16(head, unix.NLM_F_REQUEST|unix.NLM_F_CREATE)
	return slices.Concat(head, make([]byte, 8), body)
}
