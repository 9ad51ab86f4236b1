package transport

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
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

// TestRenewedCertificate: a connection presents the client certificate that is in the file when it is opened.
func TestRenewedCertificate(t *testing.T) {
	clearEnv(t)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%q", r.TLS.PeerCertificates[0].Subject.CommonName) // as the address of the leader
	}))
	server.TLS = &tls.Config{ClientAuth: tls.RequireAnyClientCert}
	server.Config.SetKeepAlivesEnabled(false)
	server.StartTLS()
	defer server.Close()
	dir := t.TempDir()
	files := TLS{CAFile: filepath.Join(dir, "ca.pem"), CertFile: filepath.Join(dir, "c.pem"), KeyFile: filepath.Join(dir, "k.pem")}
	write := func(path, kind string, der []byte) {
		t.Helper()
		if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	issue := func(name string) {
		t.Helper()
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}}
		certificate, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
		secret, keyErr := x509.MarshalPKCS8PrivateKey(key)
		if err := errors.Join(err, keyErr); err != nil {
			t.Fatal(err)
		}
		write(files.CertFile, "CERTIFICATE", certificate)
		write(files.KeyFile, "PRIVATE KEY", secret)
	}
	write(files.CAFile, "CERTIFICATE", server.Certificate().Raw)
	issue("first")
	client, err := New(Config{Address: server.URL, TLS: files})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"first", "second"} {
		issue(want)
		if got, err := client.API.Status().Leader(); got != want || err != nil {
			t.Errorf("presented %q, %v, want %q", got, err, want)
		}
	}
	write(files.CertFile, "CERTIFICATE", nil)
	if _, err := client.API.Status().Leader(); err == nil || !strings.Contains(err.Error(), files.CertFile) {
		t.Errorf("a file that is no certificate: %v", err)
	}
}
