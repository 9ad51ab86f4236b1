package carriage

import (
	"testing"

	"github.com/lenonet/leno/backend/switchover"
	"github.com/lenonet/leno/internal/testkit/agenttest"
	"github.com/lenonet/leno/registry"
)

// TestSet: what Of returns is set again without a change, and the end of a switch requires the encryption that was postponed.
func TestSet(t *testing.T) {
	for _, options := range []string{
		`{"vni":1}`,
		`{"epoch":{"number":3,"rotated":true,"since":"2026-01-02T03:04:05Z"}}`,
		`{"switch":{"to":{"type":"udp"}}}`,
		`{"epoch":{"number":1},"switch":{"to":{"type":"wireguard","mtu":1400},"rotated":true,"direction":"back","encryption":"required","encryption_back":"required"}}`,
	} {
		c := agenttest.Carriage(t, "vxlan", options)
		n, err := Set(registry.Network{}, Of(c))
		if err != nil || !n.Carriage().Equal(c) || n.Encryption != "" {
			t.Errorf("%s: %+v, %v", options, n, err)
		}
		d := Of(c)
		if d.Next == nil {
			continue
		}
		if d.Next.Epoch != d.Current.Epoch+1 || d.Next.IsOnDeviceB() == d.Current.IsOnDeviceB() {
			t.Errorf("%s: epochs %d and %d", options, d.Current.Epoch, d.Next.Epoch)
		}
		want := c.Switch.Encryption
		for _, d.Direction = range []switchover.Direction{switchover.Forward, switchover.Back} {
			ended, err := Set(n, d.Ended(c.Epoch.Since))
			if err != nil || ended.Switch != nil || ended.Encryption != want || ended.Backend.Type != d.Target().Type {
				t.Errorf("%s, ended: %+v, %v", options, ended, err)
			}
			want = c.Switch.EncryptionBack
		}
	}
}
