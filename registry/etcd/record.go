package etcd

import (
	"bytes"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/replica"
)

// tree is all keys below the prefix, or a part of them.
type tree = replica.Tree[*record]

// record is one key as of the revision of its tree.
type record struct {
	key      string
	value    []byte
	lease    clientv3.LeaseID // the etcd lease that the key is attached to, 0 for none
	created  uint64
	modified uint64
}

// keyOf returns the key under which a record is kept.
func keyOf(kv *mvccpb.KeyValue) string { return registry.DistinctKey(string(kv.Key)) }

// newRecord returns a record whose size is bounded, whatever another program wrote.
func newRecord(kv *mvccpb.KeyValue) *record {
	return &record{
		key:      keyOf(kv),
		value:    registry.Bounded(kv.Value),
		lease:    clientv3.LeaseID(kv.Lease),
		created:  uint64(kv.CreateRevision),
		modified: uint64(kv.ModRevision),
	}
}

// Key implements replica.Record.
func (r *record) Key() string { return r.key }

// Modified implements replica.Record.
func (r *record) Modified() uint64 { return r.modified }

// Same implements replica.Record.
func (r *record) Same(o *record) bool {
	return r.modified == o.modified && r.created == o.created && r.lease == o.lease && bytes.Equal(r.value, o.value)
}

// Follows implements replica.Record.
func (r *record) Follows(o *record) bool {
	return r.modified > o.modified && (r.created == o.created || r.created > o.modified)
}
