package telemetry

import (
	"strings"
	"time"

	"github.com/hashicorp/go-metrics"
	"github.com/hashicorp/go-metrics/datadog"
)

// silent reports whether senders are configured but missing.
func (t *Telemetry) silent(c Config) bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return len(t.senders) == 0 && (c.Statsd != "" || c.Dogstatsd != "")
}

// send closes the existing senders and makes those of c. A sender that cannot be made is retried later: its host name
// may not resolve yet.
func (t *Telemetry) send(c Config) {
	senders, err := newSenders(c)
	t.mu.Lock()
	before, again := t.senders, t.unsent
	t.senders, t.unsent = senders, err != nil
	for _, o := range before {
		o.closed = true
		o.shutdown()
	}
	t.mu.Unlock()
	switch {
	case err != nil && !again:
		t.log.Warn("metrics cannot be sent, trying again", "address", c.Dogstatsd, "error", err)
	case err == nil && again:
		t.log.Info("metrics are sent again")
	}
}

// newSenders makes all senders that can be made.
func newSenders(c Config) (senders []*outlet, err error) {
	if c.Statsd != "" {
		sink, err := metrics.NewStatsdSink(c.Statsd)
		if err != nil {
			return nil, err
		}
		o := newOutlet(sink, plain(c.Host), time.Millisecond)
		o.value, o.shutdown = plain, sink.Shutdown
		senders = append(senders, o)
	}
	if c.Dogstatsd != "" {
		sink, err := datadog.NewDogStatsdSink(c.Dogstatsd, "")
		if err != nil {
			return senders, err
		}
		o := newOutlet(sink, "", time.Millisecond)
		o.shutdown = sink.Shutdown
		senders = append(senders, o)
	}
	return senders, nil
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
