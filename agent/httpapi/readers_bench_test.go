package httpapi

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"runtime"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/memory"
)

// BenchmarkReaders measures what readers cost that wait for the leases of 1,000 hosts, and how soon one change answers
// them all. They are bare connections of the same process that read without decoding, so that they add little to the
// figures.
func BenchmarkReaders(b *testing.B) {
	store := memory.New()
	plan, err := registry.Plan{{Prefix: netip.MustParsePrefix("10.8.0.0/13")}}.Normalize()
	if err != nil {
		b.Fatal(err)
	}
	n := registry.Network{Name: "x", Plan: plan}
	if n.Backend, err = registry.NewBackend("alloc", nil); err != nil {
		b.Fatal(err)
	}
	hosts := store.Client()
	for i := range 1000 {
		name := fmt.Sprintf("host-%d", i)
		_, err := hosts.Acquire(b.Context(), n, registry.Claim{Node: name, NodeID: "id-" + name, MTU: 1450, Backend: n.Backend,
			PublicIPs: []netip.Addr{netip.AddrFrom4([4]byte{192, 0, byte(i >> 8), byte(i)})}, TTL: time.Hour, Hold: 24 * time.Hour})
		if err != nil {
			b.Fatal(err)
		}
	}
	mtu := 1300
	for _, readers := range []int{1, 100, 600, 1000} {
		for _, encoding := range []string{"identity", "gzip"} {
			b.Run(fmt.Sprintf("%d/%s", readers, encoding), func(b *testing.B) {
				benchmarkReaders(b, store, n, readers, encoding, &mtu)
			})
		}
	}
}

func benchmarkReaders(b *testing.B, store *memory.Store, n registry.Network, readers int, encoding string, mtu *int) {
	h := newHost(b, nil)
	h.agent.store = store.Client()
	h.agent.known.Set(Networks{NetworkSet: registry.NetworkSet{Networks: []registry.Network{n}}, Index: 1, Read: true})
	server, err := New(h.options)
	if err != nil {
		b.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	ctx, stop := context.WithCancel(b.Context())
	var served sync.WaitGroup
	served.Go(func() {
		if err := server.Serve(ctx, l); err != nil {
			b.Error(err)
		}
	})
	defer served.Wait()
	defer stop()

	dial := func() net.Conn {
		conn, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			b.Fatal(err)
		}
		return conn
	}
	ask := func(conn net.Conn, index uint64) {
		if _, err := fmt.Fprintf(conn, "GET /v1/network/x/leases?index=%d HTTP/1.1\r\nHost: localhost\r\nAccept-Encoding: %s\r\n\r\n", index, encoding); err != nil {
			b.Error(err)
		}
	}
	read := func(conn net.Conn) (index uint64) {
		r, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			b.Error(err)
			return 0
		}
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			b.Error(err)
		}
		index, _ = strconv.ParseUint(r.Header.Get("X-Leno-Index"), 10, 64)
		return index
	}
	first := dial()
	defer first.Close()
	ask(first, 0)
	index := read(first)
	before, goroutines := inUse(), runtime.NumGoroutine()
	conns := make([]net.Conn, readers)
	for i := range conns {
		conns[i] = dial()
		defer conns[i].Close()
		ask(conns[i], index)
	}
	for server.cache.Waiting() < readers {
		runtime.Gosched()
	}
	memory, goroutines := inUse()-before, runtime.NumGoroutine()-goroutines

	cpu := processorTime()
	for b.Loop() {
		*mtu = 1300 + (*mtu-1299)%200 // what one host says of itself is another thing each time
		if _, err := store.Client().Acquire(b.Context(), n, registry.Claim{Node: "host-0", NodeID: "id-host-0", MTU: *mtu, Backend: n.Backend,
			PublicIPs: []netip.Addr{netip.AddrFrom4([4]byte{192, 0, 0, 0})}, TTL: time.Hour, Hold: 24 * time.Hour}); err != nil {
			b.Fatal(err)
		}
		var all sync.WaitGroup
		for _, conn := range conns {
			all.Go(func() { ask(conn, read(conn)) })
		}
		all.Wait()
		for server.cache.Waiting() < readers {
			runtime.Gosched()
		}
	}
	b.ReportMetric(float64(memory)/float64(readers), "B/reader")
	b.ReportMetric(float64(goroutines)/float64(readers), "goroutines/reader")
	b.ReportMetric(float64((processorTime()-cpu).Microseconds())/1000/float64(b.N), "cpu-ms/op")
}

// inUse returns the memory of live objects and stacks, in bytes.
func inUse() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc + m.StackInuse
}

func processorTime() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
