package doctor

import "testing"

// TestDoctor causes every known fault, each on hosts of its own, and also examines hosts without
// faults.
func TestDoctor(t *testing.T) {
	t.Parallel()
	w := open(t, 37)
	w.treat(w.admit(2, `"vxlan" {}`), here()...)
	w.treat(w.admit(2, `"vxlan" {}`), there()...)
	w.treat(w.admit(2, `"vxlan" {}`), between()...)
	w.treat(w.admit(2, `"vxlan" {}`), sizes()...)
	w.treat(w.admit(1, `"vxlan" {}`, "forward = false"), containers()...)
	w.treat(w.admit(2, `"vxlan" {}`), addresses()...)
	w.treat(w.admit(2, `"vxlan" {}`), detours()...)
	w.treat(w.admit(2, `"vxlan" {}`), explained()...)
	for _, visit := range []struct {
		hosts   int
		backend string
		do      func(*patient) error
	}{
		{1, `"vxlan" {}`, (*patient).cutOff},
		{2, `"udp" {}`, (*patient).noTUN},
		{2, `"vxlan" {}`, (*patient).silent},
		{2, `"vxlan" {}`, (*patient).overlapping},
		{1, `"vxlan" {}`, (*patient).unattended},
		{2, "", (*patient).everything},
		{3, `"vxlan" {}`, (*patient).translated},
		{3, `"vxlan" {}`, (*patient).operate},
		{2, `"vxlan" {}`, (*patient).guarded},
		{1, `"vxlan" {}`, (*patient).entitled},
		{2, `"vxlan" {}`, (*patient).crowded},
	} {
		p := w.admit(visit.hosts, visit.backend)
		w.visit(p, func() error { return visit.do(p) })
	}
	if err := w.runs.Wait(); err != nil {
		t.Error(err)
	}
	w.summarize()
}
