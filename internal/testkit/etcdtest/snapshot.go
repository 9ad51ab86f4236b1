package etcdtest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lenonet/leno/internal/testkit/programs"
)

// clusterToken is etcd's default. The ID of a cluster is computed from its token and its members.
const clusterToken = "etcd-cluster"

// SaveSnapshot saves the state of the first running member, and returns the path of the file.
func (s *Server) SaveSnapshot(tb testing.TB) string {
	tb.Helper()
	path := filepath.Join(tb.TempDir(), "snapshot.db")
	if err := s.saveSnapshot(path); err != nil {
		tb.Fatalf("save snapshot of etcd: %v", err)
	}
	return path
}

func (s *Server) saveSnapshot(path string) (err error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c, err := s.newClient(s.options.Auth, func(conf *clientv3.Config) {
		for _, m := range s.members {
			if m.isRunning() {
				conf.Endpoints = []string{m.clientURL}
				return
			}
		}
	})
	if err != nil {
		return err
	}
	defer c.Close()
	snapshot, err := c.SnapshotWithVersion(ctx)
	if err != nil {
		return err
	}
	defer snapshot.Snapshot.Close()
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, snapshot.Snapshot)
	return errors.Join(err, f.Close())
}

// RestoreSnapshot does what an operator does after a disaster: it stops all members, restores each of them from a
// snapshot of SaveSnapshot with programs.Etcdutl, and starts them again at the same addresses.
// The revision is that of the snapshot. By default, the ID of the cluster stays the same.
//
// The arguments are appended to those of `etcdutl snapshot restore`, for example "--initial-cluster-token=other" for
// another cluster ID, or "--bump-revision=1000", "--mark-compacted" for a revision above all earlier ones. The servers
// must be of the same minor version as etcdutl.
func (s *Server) RestoreSnapshot(tb testing.TB, path string, args ...string) {
	tb.Helper()
	s.owner()
	if err := s.restoreSnapshot(path, args); err != nil {
		tb.Fatalf("restore snapshot of etcd: %v", err)
	}
}

func (s *Server) restoreSnapshot(path string, args []string) error {
	program, err := programs.Etcdutl.Find()
	if err != nil {
		return err
	}
	s.kill()
	s.restores++
	for _, m := range s.members {
		m.data = filepath.Join(s.dir, fmt.Sprintf("restored-%d", s.restores), m.name)
		if err := os.MkdirAll(filepath.Dir(m.data), 0o700); err != nil {
			return err
		}
		cmd := exec.Command(program, append([]string{
			"snapshot", "restore", path,
			"--name=" + m.name,
			"--data-dir=" + m.data,
			"--initial-cluster=" + s.initialCluster(),
			"--initial-cluster-token=" + clusterToken,
			"--initial-advertise-peer-urls=" + m.peerURL,
		}, args...)...)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%w\n%s", err, out)
		}
	}
	return s.startAll()
}
