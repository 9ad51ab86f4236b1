package etcd

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/replica"
)

// Limits of one page of a list.
const (
	maxPage     = 1000     // keys
	maxPageSize = 16 << 20 // bytes, also of the answer to any other request
)

// list reads all records below a prefix, in pages, so that no answer is too large to be received whatever other
// programs have written there. Each page has a time limit of its own.
func (s *servers) list(ctx context.Context, prefix string) (*tree, error) {
	for {
		l, err := s.listOnce(ctx, prefix)
		if !errors.Is(err, errOtherState) || ctx.Err() != nil {
			return l, err
		}
		if err := registry.Sleep(ctx, rand.N(20*time.Millisecond)); err != nil {
			return nil, err
		}
	}
}

// errOtherState means that the revision of a list's first page is not known any more: it was compacted away, or the
// store was set back.
var errOtherState = errors.New("the store has another state now")

func (s *servers) listOnce(ctx context.Context, prefix string) (*tree, error) {
	size := &cmp.Or(s.host, s).page
	var cluster, revision uint64
	var records []*record
	for from := prefix; ; {
		limit := cmp.Or(size.Load(), maxPage)
		resp, err := s.readPage(ctx, from, prefix, limit, revision)
		switch {
		case isTooLarge(err) && limit > 1:
			size.Store(limit / 2)
			continue
		case isTooLarge(err): // a single value
			resp, err = s.readPage(ctx, from, prefix, 0, revision)
		}
		if err != nil {
			return nil, err
		}
		if revision == 0 {
			cluster, revision = resp.Header.ClusterId, uint64(resp.Header.Revision)
		} else if cluster != resp.Header.ClusterId {
			return nil, errOtherState
		}
		for _, kv := range resp.Kvs {
			records = append(records, newRecord(kv))
		}
		if !resp.More || len(resp.Kvs) == 0 {
			return replica.NewTree(cluster, revision, records), nil
		}
		from = string(resp.Kvs[len(resp.Kvs)-1].Key) + "\x00"
		size.Store(min(limit+limit/4+1, maxPage))
	}
}

// readPage reads the first keys below prefix that are not before from, at most limit of them, as of a revision, 0 for
// the present one. With limit 0 it reads one key without its value, as if that was as large as a page.
func (s *servers) readPage(ctx context.Context, from, prefix string, limit int64, revision uint64) (
	*clientv3.GetResponse, error) {
	options := []clientv3.OpOption{
		clientv3.WithRange(clientv3.GetPrefixRangeEnd(prefix)),
		clientv3.WithLimit(max(limit, 1)),
		clientv3.WithRev(int64(revision)),
	}
	if limit == 0 {
		options = append(options, clientv3.WithKeysOnly())
	}
	answer, err := s.do(ctx, clientv3.OpGet(from, options...))
	if err == rpctypes.ErrCompacted || err == rpctypes.ErrFutureRev {
		err = errOtherState
	}
	if err == nil && limit == 0 {
		for _, kv := range answer.Get().Kvs {
			kv.Value = registry.TooLarge(maxPageSize)
		}
	}
	return answer.Get(), err
}

// isTooLarge reports whether an answer was too large to be received.
func isTooLarge(err error) bool {
	_, isEtcds := errors.AsType[rpctypes.EtcdError](err) // such as that the server has too many requests
	return status.Code(err) == codes.ResourceExhausted && !isEtcds
}
