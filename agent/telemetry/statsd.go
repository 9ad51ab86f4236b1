package telemetry

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"
)

// maxDatagram is the size of a datagram up to which lines are joined. It fits into the MTU of every network.
const maxDatagram = 1400

// sender sends lines to statsd or dogstatsd. What cannot be sent is lost, as everything that is sent with UDP may be.
type sender struct {
	conn net.Conn
	tags bool   // dogstatsd: labels are tags
	host string // in the names of gauges, "" to leave it out
}

// newSenders returns a sender for each address.
func newSenders(c Config) (out []*sender, err error) {
	if c.Statsd != "" {
		conn, err := net.Dial("udp", c.Statsd)
		if err != nil {
			return nil, err
		}
		host := ""
		if c.Host != "" {
			host = plain(c.Host)
		}
		out = append(out, &sender{conn: conn, host: host})
	}
	if c.Dogstatsd != "" {
		conn, err := net.Dial("udp", c.Dogstatsd)
		if err != nil {
			return out, err
		}
		out = append(out, &sender{conn: conn, tags: true})
	}
	return out, nil
}

// line returns a line such as leno.lease.held.default:1|g or, with tags, leno.lease.held:1|g|#network:default.
func (s *sender) line(m *metric, values []string, v float64, kind string) string {
	parts := []string{Prefix}
	if s.host != "" && kind == "g" {
		parts = append(parts, s.host)
	}
	parts = append(parts, m.Name)
	tags := ""
	for i, label := range m.Labels {
		switch {
		case !s.tags:
			parts = append(parts, plain(values[i]))
		case tags == "":
			tags = "|#" + tag(label, values[i])
		default:
			tags += "," + tag(label, values[i])
		}
	}
	return fmt.Sprintf("%s:%s|%s%s", strings.Join(parts, "."), strconv.FormatFloat(v, 'f', -1, 64), kind, tags)
}

// tag returns a tag without what ends one.
func tag(label, value string) string {
	return label + ":" + strings.NewReplacer(",", "_", "|", "_", "\n", "_").Replace(value)
}

// write sends lines, several in one datagram.
func (s *sender) write(lines []string) {
	for len(lines) > 0 {
		n, size := 1, len(lines[0])
		for n < len(lines) && size+1+len(lines[n]) <= maxDatagram {
			size += 1 + len(lines[n])
			n++
		}
		_, _ = s.conn.Write([]byte(strings.Join(lines[:n], "\n")))
		lines = lines[n:]
	}
}

// emit sends one line at once.
func (t *Telemetry) emit(line func(*sender) string) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	for _, s := range t.senders {
		s.write([]string{line(s)})
	}
}

// send sends gauges until ctx ends. It connects again after a change of the configuration, and if a name could not be
// resolved.
func (t *Telemetry) send(ctx context.Context) error {
	defer t.replaceSenders(nil)
	for failed := false; ctx.Err() == nil; {
		c, _, changed := t.config.Get()
		senders, err := newSenders(c)
		if err != nil && !failed {
			t.log.Warn("metrics cannot be sent, trying again", "error", err)
		}
		failed = err != nil
		t.replaceSenders(senders)
		t.sendGauges(ctx, changed, err != nil)
	}
	return ctx.Err()
}

// sendGauges sends the gauges after each Interval until the configuration changes or, if once is set, one time.
func (t *Telemetry) sendGauges(ctx context.Context, changed <-chan struct{}, once bool) {
	ticker := time.NewTicker(Interval)
	defer ticker.Stop()
	for {
		if gauges := t.read(); len(t.senders) > 0 {
			for _, s := range t.senders { // which only this goroutine replaces
				var lines []string
				for _, g := range gauges {
					lines = append(lines, s.line(g.metric, g.values, g.value, "g"))
				}
				s.write(lines)
			}
		}
		select {
		case <-ticker.C:
			if once {
				return
			}
		case <-changed:
			return
		case <-ctx.Done():
			return
		}
	}
}

// replaceSenders closes the existing senders.
func (t *Telemetry) replaceSenders(senders []*sender) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, s := range t.senders {
		_ = s.conn.Close()
	}
	t.senders = senders
}

// plain turns a word into a valid part of a statsd name: there dots separate parts, and colons and bars end the name.
func plain(s string) string {
	if s == "" {
		return "_" // no network has this name
	}
	return strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '-', r == '_':
			return r
		}
		return '_'
	}, s)
}
