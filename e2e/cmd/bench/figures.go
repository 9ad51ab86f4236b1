package main

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/lenonet/leno/e2e/lab"
)

// A figure is one value that is measured for every contender in every round.
type figure struct {
	Key  string `json:"key"`
	Name string `json:"name"`
	Unit string `json:"unit"`

	digits int  // after the decimal point
	agent  bool // about the overlay's processes, so raw does not have it
}

// memory and the results of the functions below are the keys of figures.
const memory = "memory"

func tcp(streams int) string         { return fmt.Sprintf("tcp_%d", streams) }
func machineCPU(streams int) string  { return fmt.Sprintf("machine_cpu_%d", streams) }
func senderCPU(streams int) string   { return fmt.Sprintf("agent_cpu_sender_%d", streams) }
func receiverCPU(streams int) string { return fmt.Sprintf("agent_cpu_receiver_%d", streams) }
func bothCPU(streams int) string     { return fmt.Sprintf("agent_cpu_both_%d", streams) }
func meanCPU(streams int) string     { return fmt.Sprintf("agent_cpu_mean_%d", streams) }
func udpSent(size int) string        { return fmt.Sprintf("udp_%d_sent", size) }
func udpReceived(size int) string    { return fmt.Sprintf("udp_%d_received", size) }
func udpLoss(size int) string        { return fmt.Sprintf("udp_%d_loss", size) }

// figures returns all figures in the order of the table.
func figures() []figure {
	out := []figure{
		{tcp(1), "TCP, 1 stream", "Gb/s", 2, false},
		{tcp(4), "TCP, 4 streams", "Gb/s", 2, false},
	}
	for _, size := range []struct {
		bytes int
		name  string
	}{{64, "UDP, 64 bytes"}, {1400, "UDP, 1,400 bytes"}} {
		out = append(out,
			figure{udpSent(size.bytes), size.name + ", sent", "k/s", 0, false},
			figure{udpReceived(size.bytes), size.name + ", received", "k/s", 0, false},
			figure{udpLoss(size.bytes), size.name + ", lost", "%", 1, false})
	}
	for _, ping := range []struct{ key, name string }{{"ping", "ping at rest"}, {"load", "ping beside 1 TCP stream"}} {
		out = append(out,
			figure{ping.key + "_average", ping.name + ", average", "µs", 0, false},
			figure{ping.key + "_p99", ping.name + ", p99", "µs", 0, false},
			figure{ping.key + "_lost", ping.name + ", lost", "%", 1, false})
	}
	for _, streams := range []int{1, 4} {
		name := fmt.Sprintf("agent CPU, TCP %d, ", streams)
		out = append(out,
			figure{senderCPU(streams), name + "sending host", "ns/B", 2, true},
			figure{receiverCPU(streams), name + "receiving host", "ns/B", 2, true},
			figure{bothCPU(streams), name + "sum of both", "ns/B", 2, true},
			figure{meanCPU(streams), name + "mean of both", "ns/B", 2, true},
			figure{machineCPU(streams), fmt.Sprintf("machine CPU, TCP %d", streams), "ns/B", 2, false})
	}
	return append(out, figure{memory, "agent, resident", "MiB", 1, true})
}

// values holds the results of one round of one contender, by figure.
type values map[string]float64

// pings records the average in µs, the time that 99 of 100 answers did not exceed, and the
// percentage of pings without an answer.
func (v values) pings(key string, r lab.PingResult) error {
	if r.Received == 0 {
		return errors.New("no ping was answered")
	}
	var sum time.Duration
	for _, t := range r.RTTs {
		sum += t
	}
	micro := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }
	v[key+"_average"] = micro(sum) / float64(len(r.RTTs))
	v[key+"_p99"] = micro(percentile(r.RTTs, 0.99))
	v[key+"_lost"] = 100 * float64(r.Lost()) / float64(r.Sent)
	return nil
}

// line returns a summary of a round.
func (v values) line() string {
	return fmt.Sprintf("TCP %.2f %.2f Gb/s, UDP 64 %.0f of %.0f k/s, UDP 1400 %.0f of %.0f k/s, ping %.0f µs, under load %.0f µs, agent CPU %.2f ns/B",
		v[tcp(1)], v[tcp(4)], v[udpReceived(64)], v[udpSent(64)], v[udpReceived(1400)], v[udpSent(1400)],
		v["ping_average"], v["load_average"], v[meanCPU(1)])
}

// percentile returns the smallest value that at least the share p of all values do not exceed
// (nearest rank). There must be at least one value.
func percentile(all []time.Duration, p float64) time.Duration {
	sorted := slices.Sorted(slices.Values(all))
	return sorted[max(0, int(math.Ceil(p*float64(len(sorted))))-1)]
}

// A summary summarizes the values of all rounds.
type summary struct {
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
}

// summarize needs at least one value. With an even number, the median is the mean of the middle
// two.
func summarize(all []float64) summary {
	sorted := slices.Sorted(slices.Values(all))
	n := len(sorted)
	return summary{Median: (sorted[(n-1)/2] + sorted[n/2]) / 2, Min: sorted[0], Max: sorted[n-1]}
}
