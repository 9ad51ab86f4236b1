package transport

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"strings"
	"testing"

	"github.com/lenonet/leno/registry"
)

func clearEnv(t *testing.T) {
	t.Helper()
	for _, pair := range os.Environ() {
		if name, _, _ := strings.Cut(pair, "="); strings.HasPrefix(name, "CONSUL_") {
			t.Setenv(name, "")
		}
	}
}

func TestConnection(t *testing.T) {
	clearEnv(t)
	type want struct{ scheme, address, path, host, token, file string }
	for _, tt := range []struct {
		name string
		conf Config
		env  map[string]string
		want want
		fail string
	}{
		{name: "defaults", want: want{"http", "127.0.0.1:8500", "", "127.0.0.1:8500", "", ""}},
		{name: "host and port", conf: Config{Address: "[2001:db8::1]:8501"}, want: want{"http", "[2001:db8::1]:8501", "", "[2001:db8::1]:8501", "", ""}},
		{name: "http", conf: Config{Address: "http://c:8500"}, want: want{"http", "c:8500", "", "c:8500", "", ""}},
		{name: "https with a path", conf: Config{Address: "https://c/consul/"}, want: want{"https", "c", "/consul", "c", "", ""}},
		{name: "unix", conf: Config{Address: "unix:///run/consul.sock"}, want: want{"http", "localhost", "", "", "", ""}},
		{name: "unknown scheme", conf: Config{Address: "ftp://c"}, fail: `unknown scheme "ftp"`},
		{name: "key pair that is none", conf: Config{TLS: TLS{CertFile: "client_test.go", KeyFile: "client.go"}}, fail: "certificate client_test.go with key client.go"},
		{name: "tls file missing", conf: Config{TLS: TLS{CAFile: "/nowhere/ca.pem"}}, fail: "/nowhere/ca.pem"},
		{name: "certificate without key", conf: Config{TLS: TLS{CertFile: "c.pem"}}, fail: "client key"},
		{name: "environment", env: map[string]string{"CONSUL_HTTP_ADDR": "https://e:1", "CONSUL_HTTP_TOKEN": "et"}, want: want{"https", "e:1", "", "e:1", "et", ""}},
		{name: "environment asks for tls", env: map[string]string{"CONSUL_HTTP_SSL": "true"}, want: want{"https", "127.0.0.1:8500", "", "127.0.0.1:8500", "", ""}},
		{name: "configuration wins", conf: Config{Address: "c:2", Credentials: registry.Credentials{Token: "ct"}},
			env:  map[string]string{"CONSUL_HTTP_ADDR": "https://e:1", "CONSUL_HTTP_TOKEN": "et", "CONSUL_HTTP_TOKEN_FILE": "/ef"},
			want: want{"http", "c:2", "", "c:2", "ct", ""}},
		{name: "token file wins over the environment", conf: Config{Credentials: registry.Credentials{TokenFile: "/cf"}},
			env:  map[string]string{"CONSUL_HTTP_TOKEN": "et", "CONSUL_HTTP_TOKEN_FILE": "/ef"},
			want: want{"http", "127.0.0.1:8500", "", "127.0.0.1:8500", "", "/cf"}},
		{name: "token file of the environment", env: map[string]string{"CONSUL_HTTP_TOKEN": "et", "CONSUL_HTTP_TOKEN_FILE": "/ef"},
			want: want{"http", "127.0.0.1:8500", "", "127.0.0.1:8500", "", "/ef"}},
		{name: "login", conf: Config{Credentials: registry.Credentials{Login: registry.Login{AuthMethod: "m"}}}, want: want{"http", "127.0.0.1:8500", "", "127.0.0.1:8500", "", ""}},
		{name: "token and token file", conf: Config{Credentials: registry.Credentials{Token: "a", TokenFile: "/b"}}, fail: "more than one"},
		{name: "token and login", conf: Config{Credentials: registry.Credentials{Token: "a", Login: registry.Login{AuthMethod: "m"}}}, fail: "more than one"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for name, value := range tt.env {
				t.Setenv(name, value)
			}
			c, err := New(tt.conf)
			if (err != nil) != (tt.fail != "") || err != nil && !strings.Contains(err.Error(), tt.fail) {
				t.Fatalf("New: %v, want %q", err, tt.fail)
			}
			if tt.fail != "" {
				return
			}
			got := want{c.config.Scheme, c.config.Address, c.config.PathPrefix, c.Host, c.Token.have.secret, c.Token.from.TokenFile}
			if got != tt.want {
				t.Errorf("got %+v, want %+v", got, tt.want)
			}
			if got, want := c.Token.HasToken(), tt.want.token+tt.want.file != "" || tt.conf.Login.IsSet(); got != want {
				t.Errorf("has a token: %t, want %t", got, want)
			}
			if c.config.Token != tokenPlaceholder || c.config.TokenFile != "" {
				t.Errorf("the api client was given token %q and file %q", c.config.Token, c.config.TokenFile)
			}
		})
	}
}

// TestMissingCertificate: the error about a file that does not exist wraps fs.ErrNotExist, also if the environment names it.
func TestMissingCertificate(t *testing.T) {
	for _, env := range []map[string]string{
		{"CONSUL_CACERT": "/nowhere/ca.pem"},
		{"CONSUL_CAPATH": "/nowhere"},
		{"CONSUL_CLIENT_CERT": "/nowhere/c.pem", "CONSUL_CLIENT_KEY": "/nowhere/k.pem"},
	} {
		clearEnv(t)
		for name, value := range env {
			t.Setenv(name, value)
		}
		if _, err := New(Config{}); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "/nowhere") {
			t.Errorf("%v: %v", env, err)
		}
	}
}

func TestDial(t *testing.T) {
	clearEnv(t)
	refused := errors.New("not today")
	for give, want := range map[string]string{
		"192.0.2.1:8500":    "tcp 192.0.2.1:8500",
		"http://192.0.2.1":  "tcp 192.0.2.1:80",
		"unix:///no/socket": "unix /no/socket",
	} {
		got := ""
		c, err := New(Config{Address: give, Dial: func(_ context.Context, network, address string) (net.Conn, error) {
			got = network + " " + address
			return nil, refused
		}})
		if err != nil {
			t.Fatal(err)
		}
		opts, cancel := c.Query(t.Context(), Read{})
		defer cancel()
		_, _, err = c.API.KV().Get("key", opts)
		if err = Classify(err); !errors.Is(err, registry.ErrUnavailable) || !strings.Contains(err.Error(), refused.Error()) || got != want {
			t.Errorf("%s: dialled %q, want %q; error %v", give, got, want, err)
		}
	}
}
