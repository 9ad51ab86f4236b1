package etcd

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/lenonet/leno/registry"
	claims "github.com/lenonet/leno/registry/claim"
)

// classify wraps an error of etcd's client in the sentinel that fits. ctx is the caller's context: its end is never an
// error of the store.
func classify(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	if ended := ctx.Err(); ended != nil {
		return ended
	}
	switch err {
	case rpctypes.ErrPermissionDenied, rpctypes.ErrAuthFailed, rpctypes.ErrUserEmpty, rpctypes.ErrInvalidAuthToken,
		rpctypes.ErrUserNotFound, rpctypes.ErrPermissionNotGranted:
		return fmt.Errorf("%w: %w", registry.ErrDenied, err)
	}
	code := status.Code(err)
	if known, ok := errors.AsType[rpctypes.EtcdError](err); ok {
		code = known.Code()
	}
	switch {
	case code == codes.PermissionDenied, code == codes.Unauthenticated:
		return fmt.Errorf("%w: %w", registry.ErrDenied, err)
	case errors.Is(err, rpctypes.ErrNoSpace), errors.Is(err, rpctypes.ErrGRPCNoSpace):
		return fmt.Errorf("%w: %w", registry.ErrNoSpace, err)
	case code == codes.Unavailable, code == codes.DeadlineExceeded, code == codes.ResourceExhausted,
		code == codes.Canceled,
		errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return fmt.Errorf("%w: %w", registry.ErrUnavailable, err)
	}
	return err
}

// classifyWatch is classify for the reason why a server ended a watch, which may be a text. The next call finds out why
// a server does so for a reason that is not known here.
func classifyWatch(ctx context.Context, err error) error {
	err = rpctypes.Error(err)
	if strings.HasSuffix(err.Error(), rpctypes.ErrPermissionDenied.Error()) {
		err = rpctypes.ErrPermissionDenied
	}
	err = classify(ctx, err)
	if errors.Is(err, registry.ErrDenied) || errors.Is(err, registry.ErrUnavailable) || ctx.Err() != nil {
		return err
	}
	return fmt.Errorf("%w: %w", registry.ErrUnavailable, err)
}

// errRefused means that a transaction was refused because a record had changed since it was read.
var errRefused = claims.ErrOutdated

// conflict returns errRefused as an ErrConflict, and other errors unchanged.
func conflict(err error) error {
	if err == errRefused {
		return fmt.Errorf("%w: %w", registry.ErrConflict, err)
	}
	return err
}
