package telemetry

import (
	"context"
	"fmt"
	"net"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"go.uber.org/goleak"
)

// TestMain checks for leaked goroutines, except those of dogstatsd clients: a client has two, and
// its Close ends only one.
func TestMain(m *testing.M) {
	const client = "github.com/DataDog/datadog-go/statsd.(*Client)"
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction(client+".watch"), goleak.IgnoreTopFunction(client+".telemetry"))
}

// TestTable checks that every row is valid for every format.
func TestTable(t *testing.T) {
	names, exposed := map[string]bool{}, map[string]bool{}
	for _, m := range Table() {
		if names[m.Name] || exposed[m.Exposed()] {
			t.Errorf("%s stands twice", m.Name)
		}
		names[m.Name], exposed[m.Exposed()] = true, true
		if !regexp.MustCompile(`^[a-z]+\.[a-z_]+$`).MatchString(m.Name) {
			t.Errorf("name %q", m.Name)
		}
		if !slices.Contains([]Kind{Counter, Gauge, Timer}, m.Kind) {
			t.Errorf("%s: kind %q", m.Name, m.Kind)
		}
		if !strings.HasSuffix(m.Help, ".") || strings.ContainsAny(m.Help, "\n|\"\\") {
			t.Errorf("%s: help %q", m.Name, m.Help)
		}
	}
	for want, m := range map[string]Metric{
		"leno_lease_renewals_total":       {Name: LeaseRenewals, Kind: Counter},
		"leno_lease_lapse_seconds":        {Name: LeaseLapse, Kind: Gauge},
		"leno_reconcile_duration_seconds": {Name: ReconcileDuration, Kind: Timer},
		"go_goroutines":                   {Name: RuntimeGoroutines, Kind: Gauge, Standard: "go_goroutines"},
	} {
		if m.Exposed() != want {
			t.Errorf("%s, want %s", m.Exposed(), want)
		}
	}
}

func exposed(t *testing.T, m *Telemetry) string {
	t.Helper()
	w := httptest.NewRecorder()
	if err := m.Expose(w, httptest.NewRequest("GET", "/", nil)); err != nil {
		t.Fatal(err)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	if _, err := parser.TextToMetricFamilies(strings.NewReader(w.Body.String())); err != nil {
		t.Fatal(err)
	}
	return w.Body.String()
}

func quiet(c Config, source func(*Reading)) *Telemetry {
	return New(c, hclog.NewNullLogger(), source)
}

// TestNothing checks that all methods work on nil.
func TestNothing(t *testing.T) {
	var none *Telemetry
	none.Count(LeaseRenewals, 1, "n", OK)
	none.Time(LeaseRenewal, time.Second, "n")
	none.Reconfigure(Config{})
	if got := none.Recent(); got.Gauges == nil || len(got.Gauges) > 0 {
		t.Errorf("%+v", got)
	}
	if err := none.Expose(httptest.NewRecorder(), nil); err != ErrOff {
		t.Error(err)
	}
}

// TestTotals checks that counts kept elsewhere form one counter, whatever happens to its parts.
func TestTotals(t *testing.T) {
	parts := map[string]uint64{}
	m := quiet(Config{Retention: time.Hour}, func(to *Reading) {
		for part, n := range parts {
			to.Total(TrafficBytes, part, n, "n", "rx")
		}
	})
	const large = 1<<40 + 12345
	for _, step := range []struct {
		name string
		set  map[string]uint64
		want string
	}{
		{"before the agent", map[string]uint64{"a": 100}, "100"},
		{"grown", map[string]uint64{"a": 150}, "150"},
		{"the same", map[string]uint64{"a": 150}, "150"},
		{"another part", map[string]uint64{"a": 150, "b": 50}, "200"},
		{"one gone", map[string]uint64{"b": 60}, "210"},
		{"back from 0", map[string]uint64{"a": 10, "b": 60}, "220"},
		{"begun again", map[string]uint64{"a": 5, "b": 60}, "225"},
		{"more than a float32 can tell apart", map[string]uint64{"a": 5 + large, "b": 60}, "1.099511640346e+12"},
	} {
		parts = step.set
		if text, want := exposed(t, m), `leno_traffic_bytes_total{direction="rx",network="n"} `+step.want+"\n"; !strings.Contains(text, want) {
			t.Errorf("%s: no %s in\n%s", step.name, want, text)
		}
	}
	sum := 0.0
	for _, interval := range m.memory.Data() { // two, if one ended during the test
		for _, c := range sampled(interval.Counters) {
			sum += c.Sum
		}
	}
	if want := float64(50 + 10 + 10 + 5 + large); sum != want { // the time of each part's first reading is unknown
		t.Errorf("JSON has %v, want %v", sum, want)
	}
}

// TestForgetting checks that a total that is no longer counted is forgotten.
func TestForgetting(t *testing.T) {
	n := 0
	m := quiet(Config{Retention: time.Hour}, func(to *Reading) {
		to.Total(TrafficBytes, fmt.Sprint("host-", n), 1, "n", "rx")
		n++
	})
	for range 5 * oblivion {
		m.push()
	}
	if len(m.totals) > 2*oblivion {
		t.Errorf("%d totals", len(m.totals))
	}
}

// receiver returns a UDP socket that keeps the lines it receives.
func receiver(t *testing.T) (address string, lines func() []string) {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var all []string
	var reading sync.WaitGroup
	reading.Go(func() {
		buffer := make([]byte, 65536)
		for {
			n, _, err := conn.ReadFrom(buffer)
			if err != nil {
				return
			}
			mu.Lock()
			all = append(all, strings.Split(strings.TrimSpace(string(buffer[:n])), "\n")...)
			mu.Unlock()
		}
	})
	t.Cleanup(func() {
		_ = conn.Close()
		reading.Wait()
	})
	return conn.LocalAddr().String(), func() []string {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(all)
	}
}

func arrives(t *testing.T, lines func() []string, want ...string) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for _, w := range want {
		for !slices.Contains(lines(), w) {
			if time.Now().After(deadline) {
				t.Fatalf("%q did not arrive, but\n%s", w, strings.Join(lines(), "\n"))
			}
			<-time.After(5 * time.Millisecond)
		}
	}
}

// TestSenders checks what statsd and dogstatsd receive, and what happens when they change while the agent runs.
func TestSenders(t *testing.T) {
	statsd, toStatsd := receiver(t)
	dogstatsd, toDogstatsd := receiver(t)
	m := quiet(Config{Statsd: statsd, Dogstatsd: dogstatsd, Host: "host.a"}, func(to *Reading) {
		to.Gauge(LeaseLapse, 90.5, "de.v")
		to.Flag(HealthCheck, true, "", "registry")
		to.Exists(WatchFailures, "de.v") // nothing happened
	})
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { _ = m.Run(ctx) })
	defer running.Wait()
	defer cancel()
	arrives(t, toStatsd, "leno.host_a.lease.lapse_seconds.de_v:90.500000|g", "leno.host_a.health.check._.registry:1.000000|g")
	arrives(t, toDogstatsd, "leno.lease.lapse_seconds:90.5|g|#network:de.v", "leno.health.check:1|g|#network,check:registry")
	m.Count(DriftHealed, 2, "de.v", "device was down")
	m.Time(LeaseRenewal, 1500*time.Microsecond, "de.v")
	arrives(t, toStatsd, "leno.drift.healed.de_v.device_was_down:2.000000|c", "leno.lease.renewal.de_v:1.500000|ms")
	arrives(t, toDogstatsd, "leno.drift.healed:2|c|#network:de.v,fault:device_was_down", "leno.lease.renewal:1.500000|ms|#network:de.v")
	if i := slices.IndexFunc(toStatsd(), func(l string) bool { return strings.Contains(l, "watch.failures") }); i >= 0 {
		t.Errorf("sent %s", toStatsd()[i])
	}

	other, toOther := receiver(t)
	m.Reconfigure(Config{Statsd: other})
	m.Count(DriftHealed, 3, "de.v", "device was down")
	arrives(t, toOther, "leno.drift.healed.de_v.device_was_down:3.000000|c")
	for name, lines := range map[string]func() []string{"statsd": toStatsd, "dogstatsd": toDogstatsd} {
		if slices.ContainsFunc(lines(), func(l string) bool { return strings.Contains(l, ":3") }) {
			t.Errorf("%s still gets what happens", name)
		}
	}
}

// TestUnresolved checks that an unknown address stops nothing else.
func TestUnresolved(t *testing.T) {
	m := quiet(Config{Retention: time.Hour, Dogstatsd: "nobody.invalid:8125", Statsd: "nobody.invalid:8125"}, nil)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- m.Run(ctx) }()
	m.Count(Reloads, 1, OK)
	if text := exposed(t, m); !strings.Contains(text, `leno_agent_reloads_total{result="ok"} 1`) {
		t.Error(text)
	}
	cancel()
	<-done
}

// TestRetention checks that a counter without events disappears, unless it still exists.
func TestRetention(t *testing.T) {
	const retention = 300 * time.Millisecond
	m := quiet(Config{Retention: retention}, func(to *Reading) { to.Exists(DriftHealed, "here", "device was down") })
	m.Count(DriftHealed, 1, "here", "device was down")
	m.Count(DriftHealed, 1, "left", "device was down")
	deadline := time.Now().Add(time.Minute)
	for strings.Contains(exposed(t, m), `network="left"`) {
		if time.Now().After(deadline) {
			t.Fatal("it stays")
		}
		<-time.After(10 * time.Millisecond)
	}
	if text := exposed(t, m); !strings.Contains(text, `leno_drift_healed_total{fault="device was down",network="here"} 1`) {
		t.Error(text)
	}
	m.Reconfigure(Config{})
	if err := m.Expose(httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil)); err != ErrOff {
		t.Error(err)
	}
	m.Reconfigure(Config{Retention: time.Hour})
	exposed(t, m)
}

// TestAtOnce runs everything concurrently, for the race detector.
func TestAtOnce(t *testing.T) {
	address, _ := receiver(t)
	m := quiet(Config{Retention: time.Hour, Statsd: address}, func(to *Reading) { to.Gauge(AgentReady, 1) })
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	all.Go(func() { _ = m.Run(ctx) })
	for i := range 4 {
		all.Go(func() {
			for range 50 {
				m.Count(ReconcileWrites, 1, "n")
				m.Time(LeaseRenewal, time.Millisecond, "n")
				if i == 0 {
					m.Reconfigure(Config{Retention: time.Hour, Statsd: address})
					m.Reconfigure(Config{Retention: time.Hour})
				}
				exposed(t, m)
				m.Recent()
			}
		})
	}
	defer all.Wait()
	defer cancel()
}

// BenchmarkLook measures the counting for one look at a datapath.
func BenchmarkLook(b *testing.B) {
	m := quiet(Config{Retention: time.Hour}, nil)
	for b.Loop() {
		m.Time(ReconcileDuration, time.Millisecond, "default")
		m.Count(ReconcileRuns, 1, "default", OK)
		m.Count(ReconcileWrites, 0, "default")
	}
}
