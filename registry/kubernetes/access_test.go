package kubernetes

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
	"weak"

	"github.com/hashicorp/go-hclog"

	"github.com/lenonet/leno/internal/testkit/kubetest"
	"github.com/lenonet/leno/internal/testkit/waiting"
	"github.com/lenonet/leno/registry"
)

// credentials are the files of a client in a directory.
type credentials struct {
	dir    string
	server string
}

func (c credentials) path(name string) string { return filepath.Join(c.dir, name) }

// write replaces a file, as a program does that rotates credentials.
func (c credentials) write(t *testing.T, name, text string) {
	t.Helper()
	if err := os.WriteFile(c.path("new"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(c.path("new"), c.path(name)); err != nil {
		t.Fatal(err)
	}
}

// config writes the kubeconfig with a user, for example "token: x".
func (c credentials) config(t *testing.T, user string) {
	t.Helper()
	c.write(t, "kubeconfig", fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: %q, certificate-authority: %s}}]
users: [{name: u, user: {%s}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
`, c.server, c.path("ca.crt"), user))
}

// otherCA returns a certificate that has signed nothing.
func otherCA(t *testing.T) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber:          big.NewInt(1),
		NotAfter:              time.Now().Add(time.Hour),
		IsCA:                  true,
		BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}

// testRotation replaces each file of a client's credentials while it runs. The client follows, keeps what works when a
// file is broken, and never shows a token.
func testRotation(t *testing.T, c *cluster) {
	ca, err := os.ReadFile(c.CAFile())
	if err != nil {
		t.Fatal(err)
	}
	files := credentials{dir: t.TempDir(), server: c.URL()}
	files.write(t, "ca.crt", string(ca))
	files.config(t, "token: "+kubetest.AdminToken)
	var log bytes.Buffer
	client := c.open(t, "host-a", vxlanConf, func(o *Config) {
		o.Kubeconfig = files.path("kubeconfig")
		o.Logger = hclog.New(&hclog.LoggerOptions{Output: &log, Level: hclog.Trace})
	})
	want := func(when string, err error) {
		t.Helper()
		if got := client.Probe(t.Context()); !errors.Is(got, err) {
			t.Errorf("%s: %v, want %v", when, got, err)
		}
	}
	wantRefused := func(when, file string) {
		t.Helper()
		want(when, registry.ErrDenied)
		want(when, registry.ErrToken)
		text := "the API server does not accept the credentials in " + files.path(file)
		if err := client.Probe(t.Context()); !strings.HasSuffix(fmt.Sprint(err), ": "+text) {
			t.Errorf("%s: %v, want %q", when, err, text)
		}
	}
	const secret = "secret-of-host-z"
	want("a token", nil)
	files.config(t, "token: "+secret)
	wantRefused("another token", "kubeconfig")
	files.config(t, "token: "+kubetest.AdminToken)
	want("the first token", nil)

	files.write(t, "kubeconfig", secret)
	want("the token instead of the kubeconfig", nil)
	files.write(t, "kubeconfig", "token: {"+secret)
	want("a kubeconfig that is no YAML", nil)
	if err := os.Remove(files.path("kubeconfig")); err != nil {
		t.Fatal(err)
	}
	want("no kubeconfig", nil)

	files.config(t, "tokenFile: "+files.path("token"))
	want("no token file", nil)
	files.write(t, "token", kubetest.AdminToken)
	want("a token file", nil)
	files.write(t, "token", secret)
	wantRefused("another token in it", "token")
	files.write(t, "token", kubetest.AdminToken+"\n")
	want("the first token in it", nil)

	files.write(t, "ca.crt", otherCA(t))
	want("another authority", registry.ErrUnavailable)
	files.write(t, "ca.crt", "no certificate")
	want("a broken one", registry.ErrUnavailable)
	files.write(t, "ca.crt", string(ca))
	want("the first authority", nil)

	_, err = client.As(secret+"\n").Network(t.Context(), DefaultNetwork)
	denied := client.As(secret).(*Client).Probe(t.Context())
	for _, text := range []string{log.String(), fmt.Sprint(denied), fmt.Sprint(err)} {
		if strings.Contains(text, secret) || strings.Contains(text, kubetest.AdminToken) {
			t.Errorf("a token is shown:\n%s", text)
		}
	}
	if n := strings.Count(log.String(), "cannot be used"); n < 4 || n > 6 {
		t.Errorf("%d lines about credentials that cannot be used:\n%s", n, log.String())
	}
}

// testInventedTokens: nothing is left of a caller's token after its request, and all of them share connections.
func testInventedTokens(t *testing.T, c *cluster) {
	a := c.open(t, "host-a", vxlanConf)
	n := network(t, a)
	var left []weak.Pointer[connection]
	for i := range 20 {
		token, want := fmt.Sprint("invented-", i), registry.ErrDenied
		if i%5 == 0 {
			token, want = kubetest.AdminToken, nil
		}
		guest := a.As(token).(*Client)
		if _, _, err := guest.WatchLeases(t.Context(), n, 0); !errors.Is(err, want) {
			t.Errorf("token %d: %v, want %v", i, err, want)
		}
		if guest.own.access != a.shared {
			t.Error("the token has connections of its own")
		}
		left = append(left, weak.Make(guest.own))
	}
	isFree := func(p weak.Pointer[connection]) bool { return p.Value() == nil }
	waiting.Until(t, "all tokens are forgotten", func() bool {
		runtime.GC()
		left = slices.DeleteFunc(left, isFree)
		return len(left) == 0
	})
}
