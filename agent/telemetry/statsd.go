package telemetry

import (
	"context"
	"errors"
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

// newSenders returns a sender for each address whose name can be resolved.
func newSenders(ctx context.Context, c Config) (out []*sender, err error) {
	host := ""
	if c.Host != "" {
		host = plain(c.Host)
	}
	for _, to := range []struct {
		address string
		sender  sender
	}{{c.Statsd, sender{host: host}}, {c.Dogstatsd, sender{tags: true}}} {
		if to.address == "" {
			continue
		}
		var failure error
		if to.sender.conn, failure = (&net.Dialer{}).DialContext(ctx, "udp", to.address); failure == nil {
			out = append(out, &to.sender)
		}
		err = errors.Join(err, failure)
	}
	return out, err
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

// write sends lines, several in one datagram. An error may be about an earlier datagram.
func (s *sender) write(lines []string) (err error) {
	for len(lines) > 0 {
		n, size := 1, len(lines[0])
		for n < len(lines) && size+1+len(lines[n]) <= maxDatagram {
			size += 1 + len(lines[n])
			n++
		}
		if _, failure := s.conn.Write([]byte(strings.Join(lines[:n], "\n"))); failure != nil {
			err = failure
		}
		lines = lines[n:]
	}
	return err
}

// emit sends lines at once. The next gauges notice what is wrong with a connection.
func (t *Telemetry) emit(lines func(*sender) []string) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	for _, s := range t.senders {
		_ = s.write(lines(s))
	}
}

// send sends gauges after each Interval until ctx ends. It connects again after a change of the configuration, and
// while a name cannot be resolved or a datagram cannot be sent: the name may have another address now, or this host.
func (t *Telemetry) send(ctx context.Context) error {
	defer t.replaceSenders(nil)
	ticker := time.NewTicker(Interval)
	defer ticker.Stop()
	for failed := false; ; {
		c, _, changed := t.config.Get()
		senders, err := newSenders(ctx, c)
		t.replaceSenders(senders)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil && !failed:
			t.log.Warn("metrics cannot be sent, trying again", "error", err)
		case err == nil && failed:
			t.log.Info("metrics are sent again")
		}
		failed = err != nil
		for connected := true; connected; {
			connected = t.sendGauges() == nil && !failed
			select {
			case <-ticker.C:
			case <-changed:
				connected = false
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
}

// sendGauges sends the gauges once.
func (t *Telemetry) sendGauges() (err error) {
	gauges := t.read()
	for _, s := range t.senders { // which only this goroutine replaces
		var lines []string
		for _, g := range gauges {
			line := s.line(g.metric, g.values, g.value, "g")
			if g.value < 0 && !s.tags { // statsd subtracts a gauge with a minus sign from the one before
				line = s.line(g.metric, g.values, 0, "g") + "\n" + line
			}
			lines = append(lines, line)
		}
		err = errors.Join(err, s.write(lines))
	}
	return err
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
