package etcdtest

import (
	"context"
	"errors"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// What a user may do with a key.
const (
	Read      = clientv3.PermissionType(clientv3.PermRead)
	Write     = clientv3.PermissionType(clientv3.PermWrite)
	ReadWrite = clientv3.PermissionType(clientv3.PermReadWrite)
)

// Right allows a user to access one key, or all keys with a prefix.
type Right struct {
	Key    string                  // for example "/coreos.com/network/"
	Prefix bool                    // Key is a prefix
	Access clientv3.PermissionType // Read, Write or ReadWrite; the zero value is Read
}

// AddUser creates a user of a server with Options.Auth. It has a role of the same name with the rights. Tests that
// share a server must use different names.
func (s *Server) AddUser(tb testing.TB, name, password string, rights ...Right) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c := s.Client(tb)
	_, userErr := c.UserAdd(ctx, name, password)
	_, roleErr := c.RoleAdd(ctx, name)
	_, grantErr := c.UserGrantRole(ctx, name, name)
	errs := []error{userErr, roleErr, grantErr}
	for _, r := range rights {
		end := ""
		if r.Prefix {
			end = clientv3.GetPrefixRangeEnd(r.Key)
		}
		_, err := c.RoleGrantPermission(ctx, name, r.Key, end, r.Access)
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		tb.Fatalf("add etcd user %s: %v", name, err)
	}
}

// enableAuth creates the root user and enables authentication.
func (s *Server) enableAuth() error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c, err := s.newClient(false)
	if err != nil {
		return err
	}
	defer c.Close()
	if _, err := c.UserAdd(ctx, RootUser, RootPassword); err != nil {
		return err
	}
	if _, err := c.RoleAdd(ctx, "root"); err != nil {
		return err
	}
	if _, err := c.UserGrantRole(ctx, RootUser, "root"); err != nil {
		return err
	}
	_, err = c.AuthEnable(ctx)
	return err
}
