package etcd

import (
	"strings"
	"testing"

	"go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/lenonet/leno/internal/testkit/etcdtest"
	"github.com/lenonet/leno/registry"
)

// TestNoSpace: etcd without space renews leases and writes none, and the error has its answer.
func TestNoSpace(t *testing.T) {
	t.Parallel()
	s := newStore(t, etcdtest.Start(t, etcdtest.Options{}))
	c := s.open(t)
	n := s.define(t, "10.5.0.0/16")
	held := acquire(t, c, n, claim(1))
	alarms := etcdserverpb.NewMaintenanceClient(s.admin.ActiveConnection())
	_, err := alarms.Alarm(testContext(t), &etcdserverpb.AlarmRequest{
		Action: etcdserverpb.AlarmRequest_ACTIVATE,
		Alarm:  etcdserverpb.AlarmType_NOSPACE,
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Renew(testContext(t), held); err != nil {
		t.Errorf("renew: %v", err)
	}
	_, err = c.Acquire(testContext(t), n, claim(2))
	wantErr(t, err, registry.ErrNoSpace)
	wantErr(t, err, registry.ErrUnavailable)
	if err != nil && !strings.Contains(err.Error(), "database space exceeded") {
		t.Error(err)
	}
}
