package netfilter

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"github.com/lenonet/leno/internal/testkit/nstest"
)

// A listing is started again when another program wrote during it, even if the listing failed, and is given up in the
// end.
func TestNFTSettled(t *testing.T) {
	ns := nstest.New(t)
	ns.Do(func() {
		conn, err := Open()
		if err != nil {
			t.Fatal(err)
		}
		defer conn.CloseLasting()
		other, err := Open()
		if err != nil {
			t.Fatal(err)
		}
		defer other.CloseLasting()
		disturb := func() {
			other.AddTable(&nftables.Table{Name: "other", Family: nftables.TableFamilyINet})
			other.DelTable(&nftables.Table{Name: "other", Family: nftables.TableFamilyINet})
			if err := other.Flush(); err != nil {
				t.Fatal(err)
			}
		}
		listings := 0
		err = conn.Settled(func() error {
			if listings++; listings < 4 {
				disturb()
				return unix.EINTR
			}
			return nil
		})
		if err != nil || listings != 4 {
			t.Errorf("%d listings, %v", listings, err)
		}
		err = conn.Settled(func() error { disturb(); return nil })
		if err == nil || !strings.Contains(err.Error(), "changed by another program") {
			t.Errorf("never settled: %v", err)
		}
		if err := conn.Settled(func() error { return unix.EIO }); !errors.Is(err, unix.EIO) {
			t.Errorf("a listing that failed: %v", err)
		}
	})
}
