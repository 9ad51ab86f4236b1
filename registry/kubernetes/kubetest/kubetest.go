// Package kubetest starts real API servers of Kubernetes on loopback for tests, each with an etcd server of its own. No
// other component of Kubernetes runs: tests create Nodes themselves.
//
// The servers end with the test that started them, even if its process is killed.
package kubetest

import (
	"bytes"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/lenonet/leno/registry/etcd/etcdtest"
)

// Tokens of users. AdminToken has all rights. UserToken has those that Server.Allow grants.
const (
	AdminToken = "admin-token"
	UserToken  = "user-token"
)

// userName is the name of UserToken's user.
const userName = "user"

// patience limits every wait of this package; only a failure takes that long.
const patience = 2 * time.Minute

var errPortTaken = errors.New("port is taken")

// Server is an API server. Methods end the test when they fail. One goroutine at a time may call them.
type Server struct {
	// Etcd is the server's storage.
	Etcd *etcdtest.Server

	tb     testing.TB
	dir    string
	port   int
	http   *http.Client
	cmd    *exec.Cmd
	exited chan struct{} // closed when the process has ended
}

// Start starts an API server and blocks until it is ready, which takes some seconds.
func Start(tb testing.TB) *Server {
	tb.Helper()
	s := &Server{
		Etcd: etcdtest.Start(tb, etcdtest.Options{}),
		tb:   tb,
		dir:  tb.TempDir(),
		http: &http.Client{
			Timeout: 10 * time.Second,
			Transport: &http.Transport{
				TLSClientConfig:   &tls.Config{InsecureSkipVerify: true}, // the server signs its certificate itself
				DisableKeepAlives: true,
			},
		},
	}
	tb.Cleanup(s.Stop)
	if err := s.writeFiles(); err != nil {
		tb.Fatal(err)
	}
	for try := 0; ; try++ {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			tb.Fatal(err)
		}
		s.port = l.Addr().(*net.TCPAddr).Port
		_ = l.Close()
		err = s.run()
		if err == nil {
			return s
		}
		if !errors.Is(err, errPortTaken) || try == 2 {
			tb.Fatal(err)
		}
	}
}

// writeFiles writes the key and the tokens.
func (s *Server) writeFiles() error {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return err
	}
	block := &pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)}
	tokens := fmt.Sprintf("%s,admin,1,\"system:masters\"\n%s,%s,2\n", AdminToken, UserToken, userName)
	return errors.Join(
		os.WriteFile(filepath.Join(s.dir, "key.pem"), pem.EncodeToMemory(block), 0o600),
		os.WriteFile(filepath.Join(s.dir, "tokens.csv"), []byte(tokens), 0o600),
	)
}

// URL returns the address of the server.
func (s *Server) URL() string { return fmt.Sprintf("https://127.0.0.1:%d", s.port) }

// Kubeconfig writes a kubeconfig for a token, and returns its path.
func (s *Server) Kubeconfig(tb testing.TB, token string) string {
	tb.Helper()
	path := filepath.Join(tb.TempDir(), "kubeconfig")
	text := fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: %q, insecure-skip-tls-verify: true}}]
users: [{name: u, user: {token: %s}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
`, s.URL(), token)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		tb.Fatal(err)
	}
	return path
}

// run starts the process and waits until it is ready.
func (s *Server) run() error {
	program := os.Getenv("LENO_TEST_KUBE_APISERVER")
	if program == "" {
		return errors.New("no API server to test with: set LENO_TEST_KUBE_APISERVER to the path that `tools/get " +
			"kube-apiserver` prints, or run make test, which sets it")
	}
	log, err := os.Create(filepath.Join(s.dir, "log"))
	if err != nil {
		return err
	}
	defer log.Close()
	file := func(name string) string { return filepath.Join(s.dir, name) }
	cmd := exec.Command(program,
		"--etcd-servers="+strings.Join(s.Etcd.Endpoints(), ","),
		"--service-account-issuer=https://x",
		"--service-account-key-file="+file("key.pem"),
		"--service-account-signing-key-file="+file("key.pem"),
		"--cert-dir="+file("certs"),
		"--token-auth-file="+file("tokens.csv"),
		"--authorization-mode=RBAC",
		"--service-cluster-ip-range=10.96.0.0/24",
		"--disable-admission-plugins=ServiceAccount",
		"--bind-address=127.0.0.1",
		"--advertise-address=127.0.0.1",
		fmt.Sprintf("--secure-port=%d", s.port),
	)
	cmd.Stdout, cmd.Stderr, cmd.Dir = log, log, s.dir
	// When a test binary is killed, the kernel kills its servers too. The kernel considers the thread that started them
	// the parent, so that thread stays as long as they run.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started, exited := make(chan error, 1), make(chan struct{})
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(exited)
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		return err
	}
	s.cmd, s.exited = cmd, exited
	return s.awaitReady(log.Name())
}

func (s *Server) awaitReady(log string) error {
	var err error
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); {
		if _, err = s.request("GET", "/readyz", nil); err == nil {
			return nil
		}
		select {
		case <-s.exited:
			text, _ := os.ReadFile(log)
			text = text[max(0, len(text)-2000):]
			if bytes.Contains(text, []byte("address already in use")) {
				return fmt.Errorf("the API server ended at once: %w:\n%s", errPortTaken, text)
			}
			return fmt.Errorf("the API server ended at once:\n%s", text)
		case <-time.After(100 * time.Millisecond):
		}
	}
	return fmt.Errorf("the API server is not ready after %v: %w", patience, err)
}

// Stop kills the API server with SIGKILL, if it runs. The objects stay for Restart.
func (s *Server) Stop() {
	if s.cmd == nil {
		return
	}
	_ = s.cmd.Process.Kill()
	<-s.exited
	s.cmd = nil
}

// Pause stops the API server with SIGSTOP: its connections stay open, and nothing is answered. Stop and Restart end it.
func (s *Server) Pause() {
	s.tb.Helper()
	if err := s.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		s.tb.Fatal(err)
	}
}

// Restart starts the API server at its old address, after killing it if it runs, and blocks until it is ready.
func (s *Server) Restart() {
	s.tb.Helper()
	s.Stop()
	for deadline := time.Now().Add(patience); ; time.Sleep(100 * time.Millisecond) {
		err := s.run()
		if err == nil {
			return
		}
		if !errors.Is(err, errPortTaken) || time.Now().After(deadline) {
			s.tb.Fatal(err)
		}
	}
}

// YAML is the body of a request in YAML.
type YAML string

// request makes one request with all rights. A string is sent as a merge patch.
func (s *Server) request(method, path string, body any) ([]byte, error) {
	kind := "application/json"
	var data []byte
	switch b := body.(type) {
	case nil:
	case YAML:
		data, kind = []byte(b), "application/yaml"
	case string:
		data, kind = []byte(b), "application/merge-patch+json"
	default:
		var err error
		if data, err = json.Marshal(b); err != nil {
			return nil, err
		}
	}
	req, err := http.NewRequest(method, s.URL()+path, bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+AdminToken)
	req.Header.Set("Content-Type", kind)
	resp, err := s.http.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	out, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode > 299 {
		err = fmt.Errorf("%s %s: %s: %s", method, path, resp.Status, out)
	}
	return out, err
}

// Do makes one request with all rights and returns the answer, for example Do(tb, "DELETE", "/api/v1/nodes/a", nil). A
// body that is a string is sent as a merge patch, YAML as such, and another one as JSON.
func (s *Server) Do(tb testing.TB, method, path string, body any) []byte {
	tb.Helper()
	out, err := s.request(method, path, body)
	if err != nil {
		tb.Fatal(err)
	}
	return out
}

// AddNode creates a Node with annotations, and with podCIDRs if there are any.
func (s *Server) AddNode(tb testing.TB, name string, annotations map[string]string, podCIDRs ...string) {
	tb.Helper()
	spec := map[string]any{}
	if len(podCIDRs) > 0 {
		spec["podCIDR"], spec["podCIDRs"] = podCIDRs[0], podCIDRs
	}
	s.Do(tb, "POST", "/api/v1/nodes", map[string]any{
		"apiVersion": "v1",
		"kind":       "Node",
		"metadata":   map[string]any{"name": name, "annotations": annotations},
		"spec":       spec,
	})
}

// Annotate changes annotations of a Node. Nil removes one.
func (s *Server) Annotate(tb testing.TB, name string, changes map[string]any) {
	tb.Helper()
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": changes}})
	if err != nil {
		tb.Fatal(err)
	}
	s.Do(tb, "PATCH", "/api/v1/nodes/"+name, string(patch))
}

// Annotations returns the annotations of a Node.
func (s *Server) Annotations(tb testing.TB, name string) map[string]string {
	tb.Helper()
	var o struct {
		Metadata struct {
			Annotations map[string]string `json:"annotations"`
		} `json:"metadata"`
	}
	if err := json.Unmarshal(s.Do(tb, "GET", "/api/v1/nodes/"+name, nil), &o); err != nil {
		tb.Fatal(err)
	}
	return o.Metadata.Annotations
}

// DeleteNode deletes a Node.
func (s *Server) DeleteNode(tb testing.TB, name string) {
	tb.Helper()
	s.Do(tb, "DELETE", "/api/v1/nodes/"+name, nil)
}

// Allow grants UserToken the rights of a ClusterRole.
func (s *Server) Allow(tb testing.TB, role string) {
	tb.Helper()
	const api = "rbac.authorization.k8s.io"
	s.Do(tb, "POST", "/apis/"+api+"/v1/clusterrolebindings", map[string]any{
		"metadata": map[string]any{"name": "test-" + role},
		"roleRef":  map[string]any{"apiGroup": api, "kind": "ClusterRole", "name": role},
		"subjects": []any{map[string]any{"apiGroup": api, "kind": "User", "name": userName}},
	})
}
