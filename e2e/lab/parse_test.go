package lab

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestParsePing(t *testing.T) {
	wrapped := new(strings.Builder)
	for i := 1; i <= 65540; i++ {
		fmt.Fprintf(wrapped, "[%d.500000] 64 bytes from 10.5.2.2: icmp_seq=%d ttl=62 time=0.05 ms\n", i, i%65536)
	}
	wrapped.WriteString("65540 packets transmitted, 65540 received, 0% packet loss, time 9ms\n")
	cases := []struct {
		name, output string
		want         PingResult
		err          bool
	}{
		{name: "all answered", output: "PING 10.5.2.2 (10.5.2.2) 56(84) bytes of data.\n" +
			"[1700000000.000000] 64 bytes from 10.5.2.2: icmp_seq=1 ttl=62 time=0.044 ms\n" +
			"[1700000000.250000] 64 bytes from 10.5.2.2: icmp_seq=2 ttl=62 time=0.036 ms\n\n" +
			"--- 10.5.2.2 ping statistics ---\n2 packets transmitted, 2 received, 0% packet loss, time 10ms\n" +
			"rtt min/avg/max/mdev = 0.036/0.040/0.044/0.004 ms\n",
			want: PingResult{Sent: 2, Received: 2, RTT: 40 * time.Microsecond, Gap: 250 * time.Millisecond}},
		{name: "one missing", output: "[1.0] 64 bytes from fd00:5:0:2::2: icmp_seq=1 ttl=62 time=0.044 ms\n" +
			"[2.0] From 192.0.2.11 icmp_seq=2 Destination Host Unreachable\n" +
			"[3.0] 64 bytes from fd00:5:0:2::2: icmp_seq=3 ttl=62 time=0.044 ms\n" +
			"3 packets transmitted, 2 received, +1 errors, 33% packet loss, time 10ms\n",
			want: PingResult{Sent: 3, Received: 2, Missing: []int{2}, MissingAt: []time.Time{time.Unix(2, 0)}, Gap: 2 * time.Second}},
		{name: "refused on the way", output: "[1.0] From 10.5.1.1 icmp_seq=1 Frag needed and DF set (mtu = 1450)\n" +
			"1 packets transmitted, 0 received, +1 errors, 100% packet loss, time 0ms\n",
			want: PingResult{Sent: 1, Missing: []int{1}, MTU: 1450}},
		{name: "refused by the own host", output: "ping: local error: message too long, mtu=1400\n" +
			"1 packets transmitted, 0 received, +1 errors, 100% packet loss, time 0ms\n",
			want: PingResult{Sent: 1, Missing: []int{1}, MTU: 1400}},
		{name: "refused by the own host, IPv6", output: "ping: local error: message too long, mtu: 1400\n" +
			"1 packets transmitted, 0 received, +1 errors, 100% packet loss, time 0ms\n",
			want: PingResult{Sent: 1, Missing: []int{1}, MTU: 1400}},
		{name: "numbers begin again", output: wrapped.String(),
			want: PingResult{Sent: 65540, Received: 65540, Gap: time.Second}},
		{name: "no summary", output: "ping: connect: Network is unreachable\n", err: true},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			got, err := parsePing(c.output)
			if (err != nil) != c.err {
				t.Fatalf("error %v", err)
			}
			if c.err {
				return
			}
			if len(got.RTTs) != got.Received {
				t.Errorf("%d round-trip times of %d answers", len(got.RTTs), got.Received)
			}
			if want := 36 * time.Microsecond; c.name == "all answered" && got.RTTs[1] != want {
				t.Errorf("the second answer after %s, want %s", got.RTTs[1], want)
			}
			got.Output, got.RTTs = "", nil
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestParseIperf(t *testing.T) {
	good := `{"end":{"sum_sent":{"retransmits":3},"sum_received":{"bytes":1000,"bits_per_second":8000.5}}}`
	if got, err := parseIperf(good); err != nil || got != (Throughput{8000.5, 1000, 3}) {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := parseIperf(`{"error":"unable to connect"}`); err == nil || !strings.Contains(err.Error(), "unable to connect") {
		t.Errorf("an error of iperf3: %v", err)
	}
	if _, err := parseIperf(""); err == nil {
		t.Error("no report: no error")
	}
}

func TestParseDatagrams(t *testing.T) {
	cases := []struct {
		name, output string
		want         Datagrams
		err          string
	}{
		{name: "some lost", output: `{"end":{
			"sum":{"packets":1000,"lost_packets":40,"lost_percent":4},
			"sum_sent":{"seconds":1.0,"bytes":64000,"packets":1000,"lost_packets":0},
			"sum_received":{"seconds":1.25,"bytes":60800,"packets":990,"lost_packets":40}}}`,
			want: Datagrams{Sent: 1000, Received: 950, Duration: 1250 * time.Millisecond}},
		{name: "all lost", output: `{"end":{"sum_sent":{"seconds":1,"packets":7},"sum_received":{"seconds":0,"bytes":0}}}`,
			want: Datagrams{Sent: 7, Duration: time.Second}},
		{name: "an older iperf3", output: `{"end":{"sum":{"packets":1000,"lost_packets":40}}}`, err: "no packet sent"},
		{name: "an error", output: `{"error":"unable to connect"}`, err: "unable to connect"},
		{name: "nothing", err: "read the report"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			got, err := parseDatagrams(c.output, 64)
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) {
					t.Errorf("error %v, want one with %q", err, c.err)
				}
				return
			}
			if err != nil || got != c.want {
				t.Errorf("%+v, %v, want %+v", got, err, c.want)
			}
		})
	}
}

func TestReadSubnetFile(t *testing.T) {
	cases := []struct {
		name, text string
		want       SubnetFile
		err        string
	}{
		{name: "both families", text: "FLANNEL_MTU=1\nLENO_NETWORK=10.5.0.0/16\nLENO_SUBNET=10.5.34.1/24\nLENO_IPV6_NETWORK=fd00:5::/48\n" +
			"LENO_IPV6_SUBNET=fd00:5:0:22::1/64\nLENO_MTU=1450\nLENO_IPMASQ=true\n",
			want: SubnetFile{
				Network: netip.MustParsePrefix("10.5.0.0/16"), Subnet: netip.MustParsePrefix("10.5.34.1/24"),
				IPv6Network: netip.MustParsePrefix("fd00:5::/48"), IPv6Subnet: netip.MustParsePrefix("fd00:5:0:22::1/64"),
				MTU: 1450, IPMasq: true,
			}},
		{name: "bad subnet", text: "LENO_SUBNET=10.5.34.1\nLENO_MTU=1450\n", err: "LENO_SUBNET"},
		{name: "no MTU", text: "LENO_SUBNET=10.5.34.1/24\n", err: "no MTU"},
		{name: "empty", text: "", err: "no subnet"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "default.env")
			if err := os.WriteFile(path, []byte(c.text), 0o644); err != nil {
				t.Fatal(err)
			}
			got, err := ReadSubnetFile(path)
			switch {
			case c.err == "" && err != nil, c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)):
				t.Fatalf("error %v, want %q", err, c.err)
			case got != c.want:
				t.Errorf("got %+v, want %+v", got, c.want)
			}
		})
	}
}

func TestHostAddrs(t *testing.T) {
	for i, want := range map[int][2]string{0: {"192.0.2.11", "fd00:c0:2::11"}, 9: {"192.0.2.20", "fd00:c0:2::20"}, 25: {"192.0.2.36", "fd00:c0:2::36"}} {
		got := hostAddrs(i)
		if !slices.Equal(got, []netip.Addr{netip.MustParseAddr(want[0]), netip.MustParseAddr(want[1])}) {
			t.Errorf("host %d has %v, want %v", i, got, want)
		}
	}
}

func TestWaitForSaysWhat(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	last := errors.New("the sky is grey")
	err := WaitFor(ctx, "sunshine", func(context.Context) error { return last })
	if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, last) || !strings.Contains(err.Error(), "sunshine") {
		t.Errorf("error %v", err)
	}
	if err := WaitFor(t.Context(), "nothing", func(context.Context) error { return nil }); err != nil {
		t.Error(err)
	}
}
