package telemetry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	consul "github.com/hashicorp/consul/api"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"go.yaml.in/yaml/v2"

	"github.com/lenonet/leno/agent/telemetry"
	"github.com/lenonet/leno/e2e/docpages"
	"github.com/lenonet/leno/e2e/lab"
	"github.com/lenonet/leno/e2e/world"
)

// An expression is one piece of PromQL and the place where it was found.
type expression struct{ place, text string }

// expressions returns all expressions in the examples, with the dashboard's variables set to
// everything.
func expressions(t *testing.T) []expression {
	t.Helper()
	var rules struct {
		Groups []struct {
			Rules []struct{ Alert, Expr string }
		}
	}
	if err := yaml.Unmarshal([]byte(docpages.Source(t, "examples/prometheus/leno.rules.yml")), &rules); err != nil {
		t.Fatal(err)
	}
	var out []expression
	for _, g := range rules.Groups {
		for _, r := range g.Rules {
			out = append(out, expression{"alert " + r.Alert, r.Expr})
		}
	}
	alerts := len(out)
	var board struct {
		Templating struct {
			List []struct{ Name, Definition string }
		}
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal([]byte(docpages.Source(t, "examples/grafana/leno.json")), &board); err != nil {
		t.Fatal(err)
	}
	chosen := strings.NewReplacer("$network", ".*", "$host", ".*", "$__rate_interval", "1m")
	for _, v := range board.Templating.List {
		if m := regexp.MustCompile(`^label_values\((.*), (\w+)\)$`).FindStringSubmatch(v.Definition); m != nil {
			out = append(out, expression{"variable " + v.Name, "count by (" + m[2] + ") (" + m[1] + ")"})
		}
	}
	for _, p := range board.Panels {
		for _, target := range p.Targets {
			if strings.Contains(target.Expr, `leno_health_check{network=~"$network",`) {
				t.Errorf("panel %s leaves out the checks of the whole agent, whose network is empty, once one is picked", p.Title)
			}
			out = append(out, expression{"panel " + p.Title, chosen.Replace(target.Expr)})
		}
	}
	if alerts < 10 || len(out) < alerts+30 {
		t.Fatalf("only %d alerts and %d expressions: are they still found?", alerts, len(out))
	}
	return out
}

var (
	grouping = regexp.MustCompile(`\b(?:by|on|group_left)\s*\(([^)]*)\)`)
	selector = regexp.MustCompile(`\b((?:leno|go|process)_\w+|up)\b(\{[^}]*\})?`)
	matcher  = regexp.MustCompile(`(\w+)\s*(?:=~|!~|!=|=)\s*"`)
	names    = regexp.MustCompile(`\w+`)
)

// TestTelemetryExamples checks that Prometheus accepts the examples, that their alerts behave as
// their tests say, and that they use only metrics that agents have.
func TestTelemetryExamples(t *testing.T) {
	known := map[string][]string{"up": {"job"}}
	for _, m := range telemetry.Table() {
		name := m.Exposed()
		known[name] = append(m.Labels, "job")
		if m.Kind == telemetry.Timer {
			known[name+"_sum"], known[name+"_count"], known[name+"_bucket"] = known[name], known[name], append(known[name], "le")
		}
	}
	for _, standard := range []string{"process_resident_memory_bytes", "process_cpu_seconds_total"} {
		known[standard] = []string{"job"}
	}
	for _, e := range expressions(t) {
		labels := []string{"host", "instance"}
		for _, s := range selector.FindAllStringSubmatch(e.text, -1) {
			has, ok := known[s[1]]
			if !ok {
				t.Errorf("%s: no agent exposes %s", e.place, s[1])
			}
			labels = append(labels, has...)
			for _, m := range matcher.FindAllStringSubmatch(s[2], -1) {
				if !slices.Contains(has, m[1]) && m[1] != "host" {
					t.Errorf("%s: %s has no label %s", e.place, s[1], m[1])
				}
			}
		}
		for _, g := range grouping.FindAllStringSubmatch(e.text, -1) {
			for _, label := range names.FindAllString(g[1], -1) {
				if !slices.Contains(labels, label) {
					t.Errorf("%s: nothing in it has a label %s", e.place, label)
				}
			}
		}
	}
	// Texts for people are filled from labels as well.
	for _, m := range regexp.MustCompile(`\$labels\.(\w+)`).FindAllStringSubmatch(docpages.Source(t, "examples/prometheus/leno.rules.yml"), -1) {
		if !slices.Contains([]string{"host", "network", "check", "direction"}, m[1]) {
			t.Errorf("a summary with the label %s", m[1])
		}
	}

	dir := prometheusFiles(t, nil)
	promtool := filepath.Join(filepath.Dir(prometheus(t)), "promtool")
	for _, args := range [][]string{{"check", "config", "prometheus.yml"}, {"check", "rules", "leno.rules.yml"}, {"test", "rules", "leno.rules.test.yml"}} {
		cmd := exec.CommandContext(t.Context(), promtool, args...)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
}

func prometheus(t *testing.T) string {
	t.Helper()
	path, err := lab.FindPrometheus()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// prometheusFiles returns a directory with the examples adapted for a Prometheus without service
// discovery by Consul, like Debian's: its targets are in a file, with the labels that Consul's
// would have. It scrapes once a second.
func prometheusFiles(t *testing.T, targets any) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"prometheus.yml", "leno.rules.yml", "leno.rules.test.yml"} {
		text := docpages.Source(t, "examples/prometheus/"+name)
		if name == "prometheus.yml" {
			discovery := "consul_sd_configs:\n      - server: 127.0.0.1:8500\n        services: [leno]\n"
			if !strings.Contains(text, discovery) {
				t.Fatal("prometheus.yml is not as this test knows it")
			}
			text = strings.Replace(text, discovery, "file_sd_configs:\n      - files: [targets.json]\n", 1)
			text = strings.ReplaceAll(text, "_interval: 15s", "_interval: 1s")
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	list, err := json.Marshal(targets)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "targets.json"), list, 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestPrometheus runs a real Prometheus that scrapes real agents at the addresses in Consul's
// catalogue. Every expression of alerts and dashboard must return data, and a killed agent and a
// refused reload must raise their alerts.
func TestPrometheus(t *testing.T) {
	w := newWorld(t, lab.Options{Hosts: 2})
	a, b := w.Hosts[0], w.Hosts[1]
	for _, h := range w.Hosts {
		w.Must(h.StartConsul(w.Ctx))
	}
	blue := strings.NewReplacer("10.5.", "10.6.", "fd00:5:", "fd00:6:").Replace(world.Plan("udp"))
	w.Start(func(h *lab.Host) []string {
		return []string{world.ShortLease, "http {\n  address = \"0.0.0.0:5366\"\n}\n", h.Network("default", world.Plan("vxlan")), h.Network("blue", blue)}
	})
	w.Settle("default")
	w.Settle("blue")
	w.Eventually("the paths to be tested", func(ctx context.Context) error {
		_, metrics, err := a.Get(ctx, "/v1/agent/metrics?format=prometheus")
		for _, n := range []string{"blue", "default"} {
			if reached := fmt.Sprintf("network=%q,state=\"reached\"} 1", n); err == nil && !strings.Contains(metrics, reached) {
				err = fmt.Errorf("no metric with %s", reached)
			}
		}
		return err
	})
	w.exposesTheTable(a)
	w.countsTraffic(a, b)

	server := &observer{w: w, host: a}
	dir := prometheusFiles(t, w.targets())
	_, err := a.Start(prometheus(t), "--config.file="+filepath.Join(dir, "prometheus.yml"), "--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address=127.0.0.1:9090")
	w.Must(err)
	w.Eventually("both agents to be read twice", func(ctx context.Context) error {
		found, err := server.query(ctx, `count_over_time(up{job="leno"}[1m]) > 1 and up{job="leno"} == 1`)
		if err == nil && len(found) != 2 {
			err = fmt.Errorf("%v", found)
		}
		return err
	})
	for _, e := range expressions(t) {
		if _, err := server.query(w.Ctx, e.text); err != nil {
			t.Errorf("%s: %v", e.place, err)
		}
		for _, s := range selector.FindAllString(e.text, -1) {
			server.selects(e, s)
		}
	}

	w.Must(b.KillAgent())
	w.Must(os.WriteFile(a.ConfigFile(), []byte("nonsense"), 0o600))
	if out, err := a.Leno(w.Ctx, "reload"); err == nil {
		t.Errorf("a broken file was taken over: %s", out)
	}
	for alert, want := range map[string]struct{ state, host string }{
		"LenoAgentDown":     {"pending", b.Name},
		"LenoReloadRefused": {"firing", a.Name},
	} {
		w.Eventually(alert, func(ctx context.Context) error {
			found, err := server.query(ctx, fmt.Sprintf("ALERTS{alertname=%q,alertstate=%q,host=%q}", alert, want.state, want.host))
			if err == nil && len(found) != 1 {
				err = fmt.Errorf("%v", found)
			}
			return err
		})
	}
}

// targets returns the agents in Consul's catalogue as entries of a target file.
func (w *testWorld) targets() (out []map[string]any) {
	w.T.Helper()
	w.Eventually("both agents in the catalogue", func(ctx context.Context) error {
		entries, _, err := w.Consul.Client().Catalog().Service("leno", "", (&consul.QueryOptions{}).WithContext(ctx))
		if err == nil && len(entries) != len(w.Hosts) {
			err = fmt.Errorf("%d of them", len(entries))
		}
		out = nil
		for _, e := range entries {
			addr, parseErr := netip.ParseAddr(e.ServiceAddress)
			if parseErr != nil {
				return parseErr
			}
			out = append(out, map[string]any{
				"targets": []string{netip.AddrPortFrom(addr, uint16(e.ServicePort)).String()},
				"labels":  map[string]string{"__meta_consul_service_metadata_node": e.ServiceMeta["node"]},
			})
		}
		return err
	})
	return out
}

// exposesTheTable checks that a real agent exposes only metrics of the table, and all of its
// counters and gauges.
func (w *testWorld) exposesTheTable(h *lab.Host) {
	w.T.Helper()
	status, body, err := h.Get(w.Ctx, "/v1/agent/metrics?format=prometheus")
	w.Must(err)
	if status != http.StatusOK {
		w.T.Fatalf("%d: %s", status, body)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(body))
	w.Must(err)
	known := map[string]telemetry.Metric{}
	for _, m := range telemetry.Table() {
		known[m.Exposed()] = m
		if families[m.Exposed()] == nil && m.Kind != telemetry.Timer {
			w.T.Errorf("%s is not there", m.Exposed())
		}
	}
	for name, f := range families {
		m, ok := known[name]
		if !ok && !strings.HasPrefix(name, "go_") && !strings.HasPrefix(name, "process_") {
			w.T.Errorf("%s is in no table", name)
		}
		for _, series := range f.GetMetric() {
			for _, l := range series.GetLabel() {
				if ok && !slices.Contains(m.Labels, l.GetName()) {
					w.T.Errorf("%s has a label %s", name, l.GetName())
				}
			}
		}
	}
}

// countsTraffic checks that traffic between containers advances vxlan's counters, which are the
// device's, and udp's counters by exactly what passed, and that a stranger's datagram counts as a
// drop.
func (w *testWorld) countsTraffic(a, b *lab.Host) {
	w.T.Helper()
	value := func(ctx context.Context, metric, network, label string) (sum float64) {
		_, body, err := a.Get(ctx, "/v1/agent/metrics?format=prometheus")
		w.Must(err)
		parser := expfmt.NewTextParser(model.UTF8Validation)
		families, err := parser.TextToMetricFamilies(strings.NewReader(body))
		w.Must(err)
		for _, series := range families[metric].GetMetric() {
			if labels := series.String(); strings.Contains(labels, fmt.Sprintf("value:%q", network)) && strings.Contains(labels, fmt.Sprintf("value:%q", label)) {
				sum += series.GetCounter().GetValue()
			}
		}
		return sum
	}
	const packets, size = 200, 1028 // bytes, including both headers
	for _, network := range []string{"default", "blue"} {
		from, to := w.Container(a, network), w.Container(b, network)
		w.Linked([]*lab.Container{from, to}) // neighbours are known, and pings are not lost
		all := func(ctx context.Context) (out [4]float64) {
			for i, direction := range []string{"rx", "tx"} {
				out[i] = value(ctx, "leno_traffic_packets_total", network, direction)
				out[2+i] = value(ctx, "leno_traffic_bytes_total", network, direction)
			}
			return out
		}
		passed := w.deviceCounters(w.Ctx, a, "leno-"+network)
		before := all(w.Ctx)
		// An answer that arrives after ping has ended looks lost, but it is counted.
		_, err := from.Ping(w.Ctx, to.Addrs[0], lab.PingOptions{Count: packets, Interval: 10 * time.Millisecond, Size: size - 28})
		w.Must(err)
		// udp counts a packet after it has delivered it. The agents' own tests pass the device too, for as long as this takes.
		w.Eventually("the packets of "+network+" to be counted", func(ctx context.Context) error {
			now := all(ctx)
			most := w.deviceCounters(ctx, a, "leno-"+network)
			for i, least := range []float64{packets, packets, packets * size, packets * size} {
				if grown := now[i] - before[i]; grown < least {
					return fmt.Errorf("grown by %v, want %v", grown, least)
				} else if most := most[i] - passed[i]; grown > most+least/2 { // udp may join packets that the device counts as one
					w.T.Errorf("%s: grown by %v, the device's by %v", network, grown, most)
				}
			}
			return nil
		})
	}
	if _, err := w.Consul.Namespace.Exec(w.Ctx, "bash", "-c", "echo stranger > /dev/udp/"+a.Addrs[0].String()+"/8285"); err != nil {
		w.T.Fatal(err)
	}
	w.Eventually("a stranger's packet to be counted", func(ctx context.Context) error {
		if n := value(ctx, "leno_traffic_drops_total", "blue", "rx_unknown_peer"); n != 1 {
			return fmt.Errorf("%v", n)
		}
		return nil
	})
}

// deviceCounters returns the packets received and sent, and the bytes of both, that a device has counted.
func (w *testWorld) deviceCounters(ctx context.Context, h *lab.Host, link string) (out [4]float64) {
	w.T.Helper()
	text, err := h.Exec(ctx, "ip", "-json", "-statistics", "link", "show", "dev", link)
	w.Must(err)
	type flow struct{ Packets, Bytes float64 }
	var links []struct {
		Stats64 struct{ RX, TX flow }
	}
	w.Must(json.Unmarshal([]byte(text), &links))
	for i, f := range []flow{links[0].Stats64.RX, links[0].Stats64.TX} {
		out[i], out[2+i] = f.Packets, f.Bytes
	}
	return out
}

// An observer is a Prometheus on a host.
type observer struct {
	w    *testWorld
	host *lab.Host
}

// selects waits until there are series for a selector of an expression. All of them must be of hosts of the lab.
func (o *observer) selects(e expression, selector string) {
	o.w.T.Helper()
	o.w.Eventually(e.place+": "+selector, func(ctx context.Context) error {
		found, err := o.query(ctx, selector)
		if err == nil && len(found) == 0 {
			err = errors.New("nothing is selected")
		}
		for _, labels := range found {
			if o.w.Host(labels["host"]) == nil {
				o.w.T.Errorf("%s: host %q of %s", e.place, labels["host"], selector)
			}
		}
		return err
	})
}

// query returns the labels of each series that an expression selects.
func (o *observer) query(ctx context.Context, text string) ([]map[string]string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://127.0.0.1:9090/api/v1/query?query="+url.QueryEscape(text), nil)
	if err != nil {
		return nil, err
	}
	response, err := o.host.HTTP().Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	var answer struct {
		Status, Error string
		Data          struct {
			Result []struct{ Metric map[string]string }
		}
	}
	if err := json.NewDecoder(response.Body).Decode(&answer); err != nil || answer.Status != "success" {
		return nil, fmt.Errorf("%d %s: %s, %w", response.StatusCode, text, answer.Error, err)
	}
	var out []map[string]string
	for _, r := range answer.Data.Result {
		out = append(out, r.Metric)
	}
	return out, nil
}
