package paths

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/lenonet/leno/api"
)

// TestDatagrams: the check warns within a minute when pings pass and UDP and TCP are lost, and no longer than that. What
// a rule drops of the messages alone is no warning. Paths on which messages pass are not tested.
func TestDatagrams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := simulate(t, 3)
		s.follow()
		s.run(func() {
			s.expect(api.Passing, "packets reach 3 of 3 hosts")
			time.Sleep(2 * time.Minute)
			s.change(func() {
				if s.asked > 0 {
					t.Errorf("%d tests of healthy paths", s.asked)
				}
				s.muted, s.lossy["host-0001"] = "from", true
			})
			s.expect(api.Warning,
				"packets are lost to 1 of 3 hosts: host-0001 (pings pass, UDP and TCP are lost: run `leno doctor`)")
			if p := s.of("host-0001"); p.State != api.PathReached {
				t.Errorf("%+v", p)
			}
			s.change(func() { clear(s.lossy) })
			s.expect(api.Passing, "only pings are known to pass to 3 of them")
			s.change(func() { s.lossy["host-0002"] = true })
			s.expect(api.Warning, "host-0002 (pings pass")
			s.change(func() { s.muted, s.asked = "", 0 })
			s.expect(api.Passing, "packets reach 3 of 3 hosts")
			s.change(func() {
				if most := int(time.Minute / datagramPause); s.asked > most {
					t.Errorf("%d tests within a minute", s.asked)
				}
			})
		})
	})
}
