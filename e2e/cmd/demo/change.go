package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/e2e/lab"
	"github.com/lenonet/leno/e2e/world"
)

// change switches the network to another backend while packets flow.
func (d *demo) change(ctx context.Context) error {
	to := "wireguard"
	if d.backend == to {
		to = "vxlan"
	}
	d.title("The network is switched from %s to %s: packets flow", d.backend, to)
	first, file := d.Hosts[0], to+".hcl"
	path := filepath.Join(first.Dir, file)
	if err := os.WriteFile(path, fmt.Appendf(nil, "network %q {\n%s}\n", network, definition(to)), 0o644); err != nil {
		return err
	}
	plan, err := first.Leno(ctx, "network", "plan", path)
	if err != nil {
		return err
	}
	effect := paragraph(plan, "> "+first.Name)
	if effect == "" {
		return fmt.Errorf("the plan does not mention %s:\n%s", first.Name, plan)
	}
	d.on(first.Name, fmt.Sprintf("leno network plan %s | grep -A %d %s", file, strings.Count(effect, "\n")-1, first.Name), effect)
	return d.underPing(ctx, true, func() error {
		if out, err := first.Leno(ctx, "network", "apply", path); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		d.on(first.Name, "leno network apply "+file, "")
		start := time.Now()
		for _, h := range d.Hosts {
			err := lab.WaitFor(ctx, h.Name+" to send over "+to, func(ctx context.Context) error { return d.sendsOver(ctx, h, to) })
			if err != nil {
				return err
			}
		}
		d.say("all three send to each other over %s after %.1f s", to, time.Since(start).Seconds())
		for _, h := range d.Hosts {
			err := lab.WaitFor(ctx, h.Name+" to end the switch", func(ctx context.Context) error { return d.alone(ctx, h, to) })
			if err != nil {
				return err
			}
		}
		routes, err := first.Exec(ctx, "ip", "route", "show", "proto", "108", "type", "unicast")
		if err != nil {
			return err
		}
		d.on(first.Name, "ip route show proto 108 type unicast", routes)
		d.well("nothing of %s is left after %.1f s", d.backend, time.Since(start).Seconds())
		return d.healthy(ctx)
	})
}

// paragraph returns the first line with a word, and the more deeply indented lines after it, which continue it.
func paragraph(text, word string) string {
	indent := func(line string) int { return len(line) - len(strings.TrimLeft(line, " ")) }
	lines := strings.SplitAfter(text, "\n")
	first := slices.IndexFunc(lines, func(line string) bool { return strings.Contains(line, word) })
	if first < 0 {
		return ""
	}
	end := first + 1
	for end < len(lines) && indent(lines[end]) > indent(lines[first]) {
		end++
	}
	return strings.Join(lines[first:end], "")
}

// sendsOver returns nil when a host sends to all others over a backend, or the switch to it has ended.
func (d *demo) sendsOver(ctx context.Context, h *lab.Host, to string) error {
	now, err := d.partOf(ctx, h)
	if err != nil || now.Switch == nil && now.Backend == to {
		return err
	}
	if s := now.Switch; s == nil || s.To != to || s.Moved < len(d.Hosts)-1 {
		return fmt.Errorf("%+v", s)
	}
	return nil
}

// alone returns nil when a host has the network in one backend only, without the device of the former one.
func (d *demo) alone(ctx context.Context, h *lab.Host, to string) error {
	now, err := d.partOf(ctx, h)
	if err != nil {
		return err
	}
	links, err := h.Exec(ctx, "ip", "-oneline", "link", "show")
	if err == nil && (now.Switch != nil || now.Backend != to || strings.Contains(links, " "+backend.LinkName(network)+":")) {
		err = fmt.Errorf("backend %s, %+v, %s", now.Backend, now.Switch, links)
	}
	return err
}

// partOf returns a host's part in the network.
func (d *demo) partOf(ctx context.Context, h *lab.Host) (api.Local, error) {
	var n api.Network
	if err := world.GetJSON(ctx, h, "/v1/network/"+network, &n); err != nil {
		return api.Local{}, err
	}
	if n.Local == nil {
		return api.Local{}, errors.New("it has no part in the network")
	}
	return *n.Local, nil
}
