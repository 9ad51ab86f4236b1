package main

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lenonet/leno/e2e/probe"
)

// sample returns a result of three rounds in which a contender's figures are all the same, except
// for the given ones.
func sample(t *testing.T) *result {
	t.Helper()
	r := newResult(&probe.Machine{Date: "2026-01-02", CPUs: 2, Kernel: "6.18.44-local"}, options{rounds: 3, seconds: 4, pings: 500}, []*contender{
		{name: raw, mtu: 1500}, {name: vxlan, mtu: 1450}, {name: udp, mtu: 1472}, {name: "other", mtu: 1400, command: "run <it> & more"},
	})
	for _, c := range r.Contenders {
		for round := range 3 {
			got := values{}
			for _, f := range r.Figures {
				if !f.agent || c.Name != raw {
					got[f.Key] = 10
				}
			}
			switch c.Name {
			case vxlan:
				got[tcp(1)] = []float64{16, 12, 13}[round]
			case udp:
				got[tcp(1)] = []float64{6.5, 5, 8}[round]
				got[tcp(4)] = 3
				got[udpReceived(64)] = 84.9
				got["ping_average"] = 151
				got[meanCPU(1)] = 0.9
			}
			r.add(c.Name, got)
		}
	}
	r.finish()
	return r
}

func TestAims(t *testing.T) {
	r := sample(t)
	got := map[string]string{}
	for _, f := range r.Figures {
		if text := r.aimsOf(f); text != "" {
			got[f.Key] = text
		}
	}
	want := map[string]string{
		tcp(1):          "udp ≥ 0.45 of vxlan: reached, udp ≥ 5.55: reached",
		tcp(4):          "udp ≥ 0.40 of vxlan: missed",
		udpReceived(64): "udp ≥ 85: missed",
		"ping_average":  "udp ≤ 150: missed",
		meanCPU(1):      "udp ≤ 0.9: reached",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}

	alone := newResult(&probe.Machine{}, options{}, []*contender{{name: udp}})
	v := values{}
	for _, f := range alone.Figures {
		v[f.Key] = 100
	}
	alone.add(udp, v)
	alone.finish()
	if got, want := alone.aimsOf(alone.Figures[0]), "udp ≥ 0.45 of vxlan: not compared, udp ≥ 5.55: reached"; got != want {
		t.Errorf("without vxlan: %q, want %q", got, want)
	}
	encrypted := newResult(&probe.Machine{}, options{}, []*contender{{name: wg}, {name: library}})
	for name, gbits := range map[string]float64{wg: 2.9, library: 2.8} {
		v := maps.Clone(v)
		v[tcp(1)] = gbits
		encrypted.add(name, v)
	}
	encrypted.finish()
	if got, want := encrypted.aimsOf(encrypted.Figures[0]), "wireguard ≥ 3: missed, wireguard ≥ 1.00 of wireguard-go: reached"; got != want {
		t.Errorf("of wireguard: %q, want %q", got, want)
	}
	none := newResult(&probe.Machine{}, options{}, []*contender{{name: raw}})
	none.add(raw, v)
	none.finish()
	if len(none.Aims) > 0 || len(none.grids()) != 2 {
		t.Errorf("without udp and wireguard there are %d aims, %d tables", len(none.Aims), len(none.grids()))
	}
}

// TestTables looks for lines in the tables of the sample.
func TestTables(t *testing.T) {
	r := sample(t)
	var text, markdown bytes.Buffer
	if err := errors.Join(r.table(&text), r.markdown(&markdown)); err != nil {
		t.Fatal(err)
	}
	lines := map[string]bool{}
	for line := range strings.Lines(text.String()) {
		lines[strings.Join(strings.Fields(line), " ")] = true
	}
	for _, want := range []string{
		"What raw, MTU 1500 vxlan, MTU 1450 udp, MTU 1472 other, MTU 1400 aim",
		"TCP, 1 stream, Gb/s 10.00 (10.00–10.00) 13.00 (12.00–16.00) 6.50 (5.00–8.00) 10.00 (10.00–10.00) udp ≥ 0.45 of vxlan: reached, udp ≥ 5.55: reached",
		"UDP, 1,400 bytes, lost, % 10.0 (10.0–10.0) 10.0 (10.0–10.0) 10.0 (10.0–10.0) 10.0 (10.0–10.0)",
		"agent, resident, MiB – 10.0 (10.0–10.0) 10.0 (10.0–10.0) 10.0 (10.0–10.0)",
		"In relation to vxlan raw vxlan udp other",
		"TCP, 1 stream 0.77 1.00 0.50 0.77",
		"In relation to raw raw vxlan udp other",
		"TCP, 1 stream 1.00 1.30 0.65 1.00",
		"other: run <it> & more",
	} {
		if !lines[want] {
			t.Errorf("no line %q", want)
		}
	}
	if t.Failed() {
		t.Log(text.String())
	}
	for _, want := range []string{
		"These figures are of 2026-01-02, on a machine with 2 CPUs, Linux 6.18,",
		"| what | raw, MTU 1500 | vxlan, MTU 1450 | udp, MTU 1472 | other, MTU 1400 | aim |\n|---|---|---|---|---|---|\n| TCP, 1 stream, Gb/s | 10.00 (",
		"| in relation to vxlan | raw | vxlan | udp | other |\n|---|---|---|---|---|\n| TCP, 1 stream | 0.77 | 1.00 | 0.50 | 0.77 |\n",
	} {
		if !strings.Contains(markdown.String(), want) {
			t.Errorf("the page lacks %q:\n%s", want, markdown.String())
		}
	}
}

func TestSave(t *testing.T) {
	r, dir := sample(t), filepath.Join(t.TempDir(), "a", "b")
	if err := r.save(dir); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(dir, "result.json"))
	if err != nil {
		t.Fatal(err)
	}
	var back struct {
		Kernel     string
		Contenders []struct {
			Name   string
			Values map[string]struct {
				Median  float64
				ToVXLAN float64 `json:"to_vxlan"`
				Rounds  []float64
			}
		}
		Aims []struct {
			Figure  string
			Got     float64
			Reached bool
		}
	}
	if err := json.Unmarshal(text, &back); err != nil {
		t.Fatal(err)
	}
	c := back.Contenders[2]
	if v := c.Values["tcp_1"]; back.Kernel != "6.18.44-local" || c.Name != udp || v.Median != 6.5 || v.ToVXLAN != 0.5 || !cmp.Equal(v.Rounds, []float64{6.5, 5, 8}) {
		t.Errorf("%+v", c)
	}
	if a := back.Aims[0]; a.Figure != "tcp_1" || a.Got != 0.5 || !a.Reached {
		t.Errorf("%+v", a)
	}
	for _, name := range []string{"result.txt", "result.md", "result.svg"} {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Size() == 0 {
			t.Errorf("%s: %v, %v", name, info, err)
		}
	}
}

// TestPlot parses the plot as XML and checks its bars and words.
func TestPlot(t *testing.T) {
	r := sample(t)
	var out bytes.Buffer
	if err := r.plot(&out); err != nil {
		t.Fatal(err)
	}
	var widths, words []string
	decoder := xml.NewDecoder(&out)
	for {
		token, err := decoder.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		switch token := token.(type) {
		case xml.StartElement:
			for _, a := range token.Attr {
				if token.Name.Local == "rect" && a.Name.Local == "width" {
					widths = append(widths, a.Value)
				}
			}
		case xml.CharData:
			if word := strings.TrimSpace(string(token)); word != "" {
				words = append(words, word)
			}
		}
	}
	// The background, then TCP with 1 stream: the longest range ends at 180.
	if diff := cmp.Diff([]string{"100%", "112.5", "146.2", "73.1", "112.5"}, widths[:5]); diff != "" {
		t.Errorf("bars (-want +got):\n%s", diff)
	}
	if got, want := len(widths), 1+len(plotted())*len(r.Contenders); got != want {
		t.Errorf("%d bars, want %d", got, want)
	}
	if diff := cmp.Diff([]string{"TCP, 1 stream, Gb/s", raw, "10.00", vxlan, "13.00", udp, "6.50", "other", "10.00", "TCP, 4 streams, Gb/s"}, words[1:11]); diff != "" {
		t.Errorf("words (-want +got):\n%s", diff)
	}
	titles := 0
	for _, f := range r.Figures {
		for _, word := range words {
			if word == f.Name+", "+f.Unit {
				titles++
			}
		}
	}
	if titles != len(plotted()) {
		t.Errorf("%d titles of %d panels: a figure's key is not known", titles, len(plotted()))
	}
}
