package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/agent/files"
	"github.com/lenonet/leno/registry/consul/transport"
	"github.com/lenonet/leno/registry/kubernetes"
)

// CheckFiles checks the files of this host that a configuration names. It returns an error for each setting, such as
// "http.tls.key_file", with whose file an agent could not start or not work. It changes nothing, and gives up on a file
// that blocks when ctx ends.
func CheckFiles(ctx context.Context, c config.Config) map[string]error {
	wrong := map[string]error{}
	for block, t := range map[string]config.TLS{
		"consul.tls.": c.Consul.TLS,
		"etcd.tls.":   c.Etcd.TLS,
		"http.tls.":   c.HTTP.TLS,
	} {
		_, _, errs := t.Read(ctx)
		for option, err := range errs {
			wrong[block+option] = err
		}
	}
	check := func(setting, path string, usable func(path string) error) {
		if path == "" {
			return
		}
		_, err := files.Within(ctx, path, func() (struct{}, error) { return struct{}{}, usable(path) })
		if err != nil {
			wrong[setting] = err
		}
	}
	check("consul.token_file", c.Consul.TokenFile, func(path string) error { return checkTokenFile(ctx, path) })
	check("consul.login.bearer_token_file", c.Consul.Login.BearerTokenFile, func(path string) error {
		return checkTokenFile(ctx, path)
	})
	check("etcd.password_file", c.Etcd.PasswordFile, func(string) error {
		_, err := c.Etcd.ReadPassword(ctx)
		return err
	})
	check("data_dir", c.DataDir, wantType(fs.ModeDir, "a directory"))
	check("log_file", c.Log.File, wantType(0, "a regular file"))
	if socket, ok := strings.CutPrefix(c.HTTP.Address, "unix://"); ok {
		check("http.address", socket, wantType(fs.ModeSocket, "a socket"))
	}
	check("http.socket", c.HTTP.Socket, wantType(fs.ModeSocket, "a socket"))
	check("kubernetes.kubeconfig", c.Kubernetes.Kubeconfig, func(path string) error {
		if _, err := files.Read(ctx, path); err != nil {
			return err
		}
		return kubernetes.CheckKubeconfig(path)
	})
	check("kubernetes.net_conf", c.Kubernetes.NetConf, func(path string) error {
		data, err := files.Read(ctx, path)
		if err != nil {
			return err
		}
		if err := kubernetes.CheckNetConf(data); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		return nil
	})
	kinds := Backends()
	for _, n := range c.Networks {
		check("network."+n.Name+".subnet_file", n.SubnetFile, wantType(0, "a regular file"))
		if n.Backend == nil || kinds[n.Backend.Type].CheckFiles == nil {
			continue
		}
		setting := "network." + n.Name + ".backend"
		found, err := files.Within(ctx, setting, func() (map[string]error, error) {
			return kinds[n.Backend.Type].CheckFiles(n.Backend.Options), nil
		})
		if err != nil {
			wrong[setting] = err
		}
		for option, err := range found {
			wrong[setting+"."+option] = err
		}
	}
	return wrong
}

// wantType returns a check that a path has a certain type, described by what, or does not exist. The agent creates it
// in that case.
func wantType(mode fs.FileMode, what string) func(path string) error {
	return func(path string) error {
		switch info, err := os.Stat(path); {
		case errors.Is(err, fs.ErrNotExist):
			return nil
		case err != nil:
			return err
		case info.Mode().Type() != mode:
			return fmt.Errorf("%s is not %s", path, what)
		}
		return nil
	}
}

// checkTokenFile checks that the Consul client can use the token in a file.
func checkTokenFile(ctx context.Context, path string) error {
	data, err := files.Read(ctx, path)
	if err != nil {
		return err
	}
	if _, err := transport.ParseToken(data); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}
