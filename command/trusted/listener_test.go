package trusted

import (
	"net"
	"os"
	"slices"
	"testing"
)

func TestListeners(t *testing.T) {
	const table = `  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:14F6 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 20 1 0 100 0 0 10 0
   1: 00000000:14F6 00000000:0000 0A 00000000:00000000 00:00000000 00000000   998        0 21 1 0 100 0 0 10 0
   2: 0B0200C0:14F6 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1001        0 22 1 0 100 0 0 10 0
   3: 0100007F:14F6 0100007F:9999 01 00000000:00000000 00:00000000 00000000  1002        0 23 1 0 100 0 0 10 0
   4: 0100007F:14F7 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1003        0 24 1 0 100 0 0 10 0
   5: 00000000000000000000000001000000:14F6 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 00000000  1004        0 25 1 0 100 0 0 10 0
   6: 0000000000000000FFFF00000100007F:14F6 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 00000000  1005        0 26 1 0 100 0 0 10 0
   7: broken
`
	if got, want := listeners(table, 5366), []int{1000, 998, 1004, 1005}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	port := uint16(l.Addr().(*net.TCPAddr).Port)
	if got := Listeners(port); !slices.Equal(got, []int{os.Geteuid()}) {
		t.Errorf("users of port %d: %v", port, got)
	}
}
