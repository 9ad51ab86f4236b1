package telemetry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"go.uber.org/goleak"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/internal/testkit/agenttest"
	"github.com/lenonet/leno/internal/testkit/ports"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

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
	_ = none.Reconfigure(Config{})
	if got, err := none.Now(); err != nil || got.Gauges == nil || len(got.Gauges) > 0 {
		t.Errorf("%+v, %v", got, err)
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
}

// TestForgetting checks that a total that is no longer counted is forgotten.
func TestForgetting(t *testing.T) {
	n := 0
	m := quiet(Config{Retention: time.Hour}, func(to *Reading) {
		to.Total(TrafficBytes, fmt.Sprint("host-", n), 1, "n", "rx")
		n++
	})
	for range 5 * oblivion {
		m.read()
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
	for _, w := range want {
		agenttest.Eventually(t, func() error {
			if got := lines(); !slices.Contains(got, w) {
				return fmt.Errorf("%q did not arrive, but\n%s", w, strings.Join(got, "\n"))
			}
			return nil
		})
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
	running.Go(func() { _ = m.Run(ctx, hosts{}) })
	defer running.Wait()
	defer cancel()
	arrives(t, toStatsd, "leno.host_a.lease.lapse_seconds.de_v:90.5|g", "leno.host_a.health.check._.registry:1|g")
	arrives(t, toDogstatsd, "leno.lease.lapse_seconds:90.5|g|#network:de.v", "leno.health.check:1|g|#network:,check:registry")
	m.Count(DriftRepairs, 2, "de.v", "device was down")
	m.Time(LeaseRenewal, 1500*time.Microsecond, "de.v")
	arrives(t, toStatsd, "leno.drift.repairs.de_v.device_was_down:2|c", "leno.lease.renewal.de_v:1.5|ms")
	arrives(t, toDogstatsd, "leno.drift.repairs:2|c|#network:de.v,fault:device_was_down", "leno.lease.renewal:1.5|ms|#network:de.v")
	if i := slices.IndexFunc(toStatsd(), func(l string) bool { return strings.Contains(l, "watch.failures") }); i >= 0 {
		t.Errorf("sent %s", toStatsd()[i])
	}

	other, toOther := receiver(t)
	_ = m.Reconfigure(Config{Statsd: other})
	arrives(t, toOther, "leno.lease.lapse_seconds.de_v:90.5|g") // the senders are replaced
	m.Count(DriftRepairs, 3, "de.v", "device was down")
	arrives(t, toOther, "leno.drift.repairs.de_v.device_was_down:3|c")
	for name, lines := range map[string]func() []string{"statsd": toStatsd, "dogstatsd": toDogstatsd} {
		if slices.ContainsFunc(lines(), func(l string) bool { return strings.Contains(l, ":3") }) {
			t.Errorf("%s still gets what happens", name)
		}
	}
}

// TestNegativeGauge: statsd takes a gauge with a sign for a difference, dogstatsd for the value.
func TestNegativeGauge(t *testing.T) {
	statsd, toStatsd := receiver(t)
	dogstatsd, toDogstatsd := receiver(t)
	m := quiet(Config{Statsd: statsd, Dogstatsd: dogstatsd}, func(to *Reading) {
		to.Gauge(LeaseLapse, -12.5, "a")
		to.Gauge(LeaseLapse, 12.5, "b")
	})
	senders, err := newSenders(t.Context(), m.currentConfig())
	if err != nil {
		t.Fatal(err)
	}
	m.replaceSenders(senders)
	defer m.replaceSenders(nil)
	if err := m.sendGauges(); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		lines func() []string
		want  []string
	}{
		{toStatsd, []string{"leno.lease.lapse_seconds.a:0|g", "leno.lease.lapse_seconds.a:-12.5|g", "leno.lease.lapse_seconds.b:12.5|g"}},
		{toDogstatsd, []string{"leno.lease.lapse_seconds:-12.5|g|#network:a", "leno.lease.lapse_seconds:12.5|g|#network:b"}},
	} {
		arrives(t, tt.lines, tt.want...)
		if got := tt.lines(); !slices.Equal(got, tt.want) {
			t.Errorf("got %q, want %q", got, tt.want)
		}
	}
}

// TestUnresolved checks that an unknown address stops nothing else.
func TestUnresolved(t *testing.T) {
	m := quiet(Config{Retention: time.Hour, Dogstatsd: "nobody.invalid:8125", Statsd: "nobody.invalid:8125"}, nil)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- m.Run(ctx, hosts{}) }()
	m.Count(Reloads, 1, OK)
	if text := exposed(t, m); !strings.Contains(text, `leno_agent_reloads_total{result="ok"} 1`) {
		t.Error(text)
	}
	cancel()
	<-done
}

// TestOneUnresolved: an address that cannot be resolved keeps metrics from no other one, and cancelling ends the
// search.
func TestOneUnresolved(t *testing.T) {
	dogstatsd, _ := receiver(t)
	senders, err := newSenders(t.Context(), Config{Statsd: "nobody.invalid:8125", Dogstatsd: dogstatsd})
	if err == nil || len(senders) != 1 || !senders[0].tags {
		t.Errorf("%d senders, %v", len(senders), err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := newSenders(ctx, Config{Statsd: "nobody.invalid:8125"}); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

// TestBrokenSender: a connection that can no longer send is noticed with the next gauges.
func TestBrokenSender(t *testing.T) {
	statsd, toStatsd := receiver(t)
	m := quiet(Config{Statsd: statsd}, func(to *Reading) { to.Gauge(LeaseLapse, 90.5, "n") })
	senders, err := newSenders(t.Context(), m.currentConfig())
	if err != nil {
		t.Fatal(err)
	}
	m.replaceSenders(senders)
	if err := m.sendGauges(); err != nil {
		t.Error(err)
	}
	arrives(t, toStatsd, "leno.lease.lapse_seconds.n:90.5|g")
	if err := senders[0].conn.Close(); err != nil {
		t.Fatal(err)
	}
	if err := m.sendGauges(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("a closed connection: %v", err)
	}
}

// TestRisesTogether: the counts of many peers, which are shown as one, are sent as one.
func TestRisesTogether(t *testing.T) {
	statsd, toStatsd := receiver(t)
	count := uint64(1)
	m := quiet(Config{Statsd: statsd}, func(to *Reading) {
		for peer := range 2000 {
			to.Total(TrafficPackets, fmt.Sprint(peer), count, "n", "rx")
		}
	})
	senders, err := newSenders(t.Context(), m.currentConfig())
	if err != nil {
		t.Fatal(err)
	}
	m.replaceSenders(senders)
	defer m.replaceSenders(nil)
	m.read()
	count = 4
	m.read()
	arrives(t, toStatsd, "leno.traffic.packets.n.rx:6000|c")
	if lines := toStatsd(); len(lines) != 1 {
		t.Errorf("%d lines", len(lines))
	}
}

// TestRetention: the metrics of a network that the host left disappear, and those of the others and of the agent stay.
func TestRetention(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		joined := []string{"here", "left"}
		m := quiet(Config{Retention: time.Minute}, func(to *Reading) {
			for _, n := range joined {
				to.Exists(DriftRepairs, n, "device was down")
			}
		})
		m.Count(DriftRepairs, 1, "here", "device was down")
		m.Count(Reloads, 1, OK)
		m.Time(LeaseRenewal, time.Second, "left")
		exposed(t, m)
		joined = joined[:1]
		time.Sleep(time.Minute)
		if text := exposed(t, m); !strings.Contains(text, `network="left"`) {
			t.Errorf("it is gone at once:\n%s", text)
		}
		time.Sleep(time.Second)
		text := exposed(t, m)
		if strings.Contains(text, `network="left"`) {
			t.Errorf("it stays:\n%s", text)
		}
		for _, want := range []string{`leno_drift_repairs_total{fault="device_was_down",network="here"} 1`, `leno_agent_reloads_total{result="ok"} 1`} {
			if !strings.Contains(text, want) {
				t.Errorf("%s is not in\n%s", want, text)
			}
		}
		_ = m.Reconfigure(Config{})
		if err := m.Expose(httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil)); err != ErrOff {
			t.Error(err)
		}
	})
}

// TestHistograms: times are histograms, with buckets for those who do not take native ones.
func TestHistograms(t *testing.T) {
	m := quiet(Config{Retention: time.Hour}, nil)
	m.Time(LeaseRenewal, 50*time.Millisecond, "n")
	text := exposed(t, m)
	for _, want := range []string{`_bucket{network="n",le="0.01"} 0`, `_bucket{network="n",le="0.1"} 1`, `_count{network="n"} 1`, `_sum{network="n"} 0.05`} {
		if !strings.Contains(text, "leno_lease_renewal_seconds"+want) {
			t.Errorf("%s is not in\n%s", want, text)
		}
	}
	families, err := m.gatherer().Gather()
	i := slices.IndexFunc(families, func(f *dto.MetricFamily) bool { return f.GetName() == "leno_lease_renewal_seconds" })
	if err != nil || i < 0 || families[i].GetMetric()[0].GetHistogram().GetSchema() == 0 {
		t.Errorf("no native histogram: %v, %v", families, err)
	}
	got, err := m.Now()
	i = slices.IndexFunc(got.Times, func(m api.MetricTime) bool { return m.Name == "leno_lease_renewal_seconds" })
	if err != nil || i < 0 || got.Times[i].Count != 1 || got.Times[i].Sum != 0.05 || got.Times[i].Labels["network"] != "n" {
		t.Errorf("%+v, %v", got.Times, err)
	}
}

// hosts are addresses and web1.
type hosts struct{}

func (hosts) Check(host string) error {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	if host == "web1" || net.ParseIP(host) != nil {
		return nil
	}
	return fmt.Errorf("%s is no name of this host", host)
}

func (hosts) Learn(ctx context.Context, _ net.Addr, _ bool) { <-ctx.Done() }

// TestListener: the listener serves /metrics and nothing else, moves to another address, and ends.
func TestListener(t *testing.T) {
	all, err := ports.Free(2)
	if err != nil {
		t.Fatal(err)
	}
	at := func(i int) string { return fmt.Sprint("127.0.0.1:", all[i]) }
	get := func(address, path string) (int, string, error) {
		client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: time.Minute}
		r, err := client.Get("http://" + address + path)
		if err != nil {
			return 0, "", err
		}
		defer r.Body.Close()
		body, err := io.ReadAll(r.Body)
		return r.StatusCode, string(body), err
	}
	serves := func(address string, want bool) {
		t.Helper()
		agenttest.Eventually(t, func() error {
			code, text, err := get(address, MetricsPath)
			if (err == nil && code == http.StatusOK && strings.Contains(text, "go_goroutines ")) != want {
				return fmt.Errorf("%s: %d %.200s, %v; want it served: %t", address, code, text, err, want)
			}
			return nil
		})
	}
	m := quiet(Config{Retention: time.Hour, Address: at(0)}, nil)
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { _ = m.Run(ctx, hosts{}) })
	defer running.Wait()
	defer cancel()
	serves(at(0), true)
	for _, path := range []string{"/", "/v1/agent/self", "/debug/pprof/"} {
		if code, text, err := get(at(0), path); code != http.StatusNotFound {
			t.Errorf("%s: %d %s, %v", path, code, text, err)
		}
	}
	for host, want := range map[string]int{"web1": http.StatusOK, "evil.example": http.StatusMisdirectedRequest} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+at(0)+MetricsPath, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Host, r.Close = host, true
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = answer.Body.Close()
		if answer.StatusCode != want {
			t.Errorf("a request for %s: %s, want %d", host, answer.Status, want)
		}
	}
	_ = m.Reconfigure(Config{Retention: time.Hour, Address: at(1)})
	serves(at(1), true)
	serves(at(0), false)
	taken, err := net.Listen("tcp", at(0))
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second time with the same configuration
		if err := m.Reconfigure(Config{Retention: time.Hour, Address: at(0)}); err == nil || !strings.Contains(err.Error(), "address already in use") {
			t.Errorf("an address in use: %v", err)
		}
	}
	if err := errors.Join(taken.Close(), m.Reconfigure(Config{Retention: time.Hour, Address: at(0)})); err != nil {
		t.Error(err)
	}
	serves(at(0), true)
	_ = m.Reconfigure(Config{Retention: time.Hour})
	serves(at(0), false)
}

// TestAtOnce runs everything concurrently, for the race detector.
func TestAtOnce(t *testing.T) {
	address, _ := receiver(t)
	m := quiet(Config{Retention: time.Hour, Statsd: address}, func(to *Reading) { to.Gauge(AgentReady, 1) })
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	all.Go(func() { _ = m.Run(ctx, hosts{}) })
	for i := range 4 {
		all.Go(func() {
			for range 50 {
				m.Count(ReconcileWrites, 1, "n")
				m.Time(LeaseRenewal, time.Millisecond, "n")
				if i == 0 {
					_ = m.Reconfigure(Config{Retention: time.Hour, Statsd: address})
					_ = m.Reconfigure(Config{Retention: time.Hour})
				}
				exposed(t, m)
				_, _ = m.Now()
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
