package access

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	consul "github.com/hashicorp/consul/api"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/e2e/lab"
	"github.com/lenonet/leno/e2e/traffic"
	"github.com/lenonet/leno/e2e/world"
	"github.com/lenonet/leno/registry"
)

// hostRules are the rules of the hosts' tokens in TestTokens: everything that agents need, on
// whichever node they ask.
const hostRules = `key_prefix "leno/" { policy = "write" }
session_prefix "" { policy = "write" }
service_prefix "leno" { policy = "write" }
agent_prefix "" { policy = "read" }
node_prefix "" { policy = "read" }`

// oftenRenewed makes an agent renew its lease every second.
const oftenRenewed = `lease {
  ttl          = "10s"
  renew_margin = "9s"
}`

// secretive is a world with tokens in use that no program may print.
type secretive struct {
	*testWorld
	mu      sync.Mutex
	tokens  []string
	answers bytes.Buffer // responses of the API and output of commands

	following sync.WaitGroup // goroutines that read a host's log
}

// issue creates a token.
func (s *secretive) issue(name, rules string) string {
	s.T.Helper()
	return s.uses(s.newToken(name, rules))
}

func (s *secretive) uses(token string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tokens = append(s.tokens, token)
	return token
}

// withdraw deletes a token.
func (s *secretive) withdraw(token string) {
	s.T.Helper()
	acl := s.Consul.Client().ACL()
	self, _, err := acl.TokenReadSelf(&consul.QueryOptions{Token: token})
	s.Must(err)
	_, err = acl.TokenDelete(self.AccessorID, &consul.WriteOptions{Token: world.OperatorToken})
	s.Must(err)
}

func (s *secretive) heard(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answers.WriteString(text + "\n")
}

// run runs a command on a host. search checks its output and error for tokens.
func (s *secretive) run(h *lab.Host, args ...string) (string, error) {
	out, err := h.Leno(s.Ctx, args...)
	text := out
	if err != nil {
		// The error also contains the command line, with the token that the test passed to it.
		_, said, _ := strings.Cut(err.Error(), "exit status")
		text += said
	}
	s.heard(text)
	return out, err
}

// ask sends a request with a token and returns the status.
func (s *secretive) ask(h *lab.Host, method, path, body, token string) int {
	s.T.Helper()
	r, err := http.NewRequestWithContext(s.Ctx, method, "http://127.0.0.1:5366"+path, strings.NewReader(body))
	s.Must(err)
	r.Header.Set("X-Consul-Token", token)
	answer, err := h.HTTP().Do(r)
	s.Must(err)
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	s.Must(err)
	s.heard(fmt.Sprintf("%s %v %s", path, answer.Header, text))
	return answer.StatusCode
}

// follow records the output of a host's monitor until the agent ends.
func (s *secretive) follow(h *lab.Host) {
	s.T.Helper()
	client, err := api.New(api.Config{Address: "127.0.0.1:5366", Token: s.tokens[0], HTTPClient: &http.Client{Transport: h.HTTP().Transport}})
	s.Must(err)
	ctx, cancel := context.WithCancel(s.Ctx)
	stream, err := client.Monitor(ctx, api.Monitor{Level: "trace"})
	s.Must(err)
	s.following.Go(func() {
		var all bytes.Buffer
		_, err := io.Copy(&all, stream)
		if err != nil && ctx.Err() == nil {
			s.T.Errorf("monitor of %s: %v", h.Name, err)
		}
		if !strings.Contains(all.String(), "[TRACE]") {
			s.T.Errorf("monitor of %s has no trace:\n%s", h.Name, all.String())
		}
		s.heard(all.String())
	})
	s.T.Cleanup(func() { cancel(); s.following.Wait() })
}

// use makes every kind of request and runs every command that takes a token.
func (s *secretive) use(h *lab.Host, token string, allowed bool) {
	s.T.Helper()
	free := s.Free("default")
	reservation := "/v1/network/default/reservation/" + registry.SubnetKey(free)
	const body = `{"pools":[{"prefix":"10.9.0.0/16"}],"backend":{"type":"alloc"}}`
	want := map[bool]int{true: http.StatusOK, false: http.StatusForbidden}[allowed]
	for _, r := range [][3]string{
		{"PUT", "/v1/network/spare", body},
		{"PUT", reservation, `{"node":"x"}`},
		{"DELETE", reservation, ""},
		{"DELETE", "/v1/network/spare", ""},
	} {
		if r[1] == "/v1/network/spare" && !allowed && r[0] == "DELETE" {
			continue // there is none
		}
		if got := s.ask(h, r[0], r[1], r[2], token); got != want {
			s.T.Errorf("%s %s: %d, want %d", r[0], r[1], got, want)
		}
	}
	for _, path := range []string{"/v1/agent/self", "/v1/networks", "/v1/network/default", "/v1/network/default/leases", "/v1/network/default/peers",
		"/v1/network/default/reservations", "/v1/agent/events", "/v1/agent/metrics", "/healthz", "/readyz", "/ui", "/v1/agent/monitor?log_level=" + token} {
		s.ask(h, "GET", strings.Replace(path, token, "x", 1), "", token)
	}
	commands := []string{"reservation add -node=x default " + free.String(), "lease revoke default " + free.String(), "network delete nothing", "status -nonsense"}
	if allowed {
		commands = append(commands, "status", "peers", "lease list", "network list", "reservation list", "network show")
	}
	var all sync.WaitGroup
	for _, args := range commands {
		all.Go(func() {
			_, err := s.run(h, append(strings.Fields(args), "-token="+token)...)
			if strings.HasPrefix(args, "reservation") && (err == nil) != allowed {
				s.T.Errorf("leno %s: %v", args, err)
			}
		})
	}
	all.Wait()
}

// TestTokens checks that a token can be replaced without a lapse or a lost packet, in its file and
// in the configuration, and that no token appears in anything that leno prints, returns, logs or
// stores, at its most verbose.
func TestTokens(t *testing.T) {
	s := &secretive{testWorld: newWorld(t, lab.Options{Hosts: 2, ConsulConfig: fmt.Sprintf(denying, `"initial_management": "`+world.OperatorToken+`", `)})}
	a, b := s.Hosts[0], s.Hosts[1]
	operator := s.issue("operator", `key_prefix "leno/" { policy = "write" }`)
	first, second := s.issue("a1", hostRules), s.issue("b1", hostRules)

	// host-a reads its token from a file and logs JSON to another file; host-b has its token in the
	// configuration.
	file, log := filepath.Join(a.Dir, "token"), filepath.Join(a.Dir, "log/leno.log")
	write := func(token string) { s.Must(os.WriteFile(file, []byte(token+"\n"), 0o600)) }
	configure := func(h *lab.Host, consul, more string) string {
		text := strings.Replace(h.Config(more+oftenRenewed, h.Network("default", world.Plan("vxlan"))), "consul {\n", "consul {\n  "+consul+"\n", 1)
		return strings.Replace(text, `"DEBUG"`, `"TRACE"`, 1)
	}
	logging := fmt.Sprintf("log_json = true\nlog_file = %q\nlog_rotate_bytes = 20000\n", log)
	write(first)
	s.Must(a.StartAgent(configure(a, fmt.Sprintf("token_file = %q", file), logging)))
	s.Must(b.StartAgent(configure(b, fmt.Sprintf("token = %q", second), "")))
	for _, h := range s.Hosts {
		s.Must(h.WaitReady(s.Ctx))
		s.Container(h, "default")
		s.follow(h)
	}
	s.Settle("default")
	stream := traffic.Start(s.World, s.Containers[0], s.Containers[1], 20*time.Millisecond)
	sessions := map[string]string{a.Name: s.heldBy(a), b.Name: s.heldBy(b)}

	s.use(a, operator, true)
	s.use(a, s.uses("1f6a3c9e-0000-4000-8000-00000000dead"), false)
	expired := s.issue("expired", hostRules)
	s.withdraw(expired)
	s.use(b, expired, false)

	// The token is replaced while it is valid, by the file alone; while it is valid, by a reload;
	// and after it was deleted, by the file and SIGHUP.
	renewed := func(h *lab.Host) {
		t.Helper()
		for range 2 { // the first renewal may have begun under the old token
			before := s.local(h).Renewed
			s.Eventually(h.Name+" to renew under its new token", func(context.Context) error {
				if at := s.local(h).Renewed; at.Equal(before) {
					return fmt.Errorf("last renewed at %s", at)
				}
				return nil
			})
		}
		s.WaitHealth(h, http.StatusOK)
	}
	next := s.issue("a2", hostRules)
	write(next)
	s.withdraw(first)
	third := s.issue("b2", hostRules)
	s.Must(os.WriteFile(b.ConfigFile(), []byte(configure(b, fmt.Sprintf("token = %q", third), "")), 0o600))
	out, err := s.run(b, "reload")
	s.Must(err)
	if !strings.Contains(out, "consul.token: set -> set") {
		t.Errorf("leno reload says %q", out)
	}
	s.withdraw(second)
	renewed(a)
	renewed(b)
	s.withdraw(next)
	s.Eventually("the deleted token to be refused", func(context.Context) error {
		if code, _ := s.Health(a); code == http.StatusOK {
			return errors.New("all is well")
		}
		return nil
	})
	write(s.issue("a3", hostRules))
	s.Must(a.Agent().Signal(syscall.SIGHUP))
	renewed(a)

	s.reloads(a, configure(a, fmt.Sprintf("token_file = %q", file), logging), log)

	if now := map[string]string{a.Name: s.heldBy(a), b.Name: s.heldBy(b)}; fmt.Sprint(now) != fmt.Sprint(sessions) {
		t.Errorf("sessions %v, before %v", now, sessions)
	}
	s.Must(stream.WaitAnswers(s.Ctx, 100))
	result, err := stream.Stop()
	s.Must(err)
	if result.Lost() != 0 {
		t.Error(result.Losses())
	}
	monitor, err := b.Start(world.Leno(), "monitor", "-log-level=trace")
	s.Must(err)
	s.Must(monitor.WaitFor(s.Ctx, "a line of the monitor", func(context.Context) error {
		s.Health(b) // adds a line to the log
		if !strings.Contains(monitor.Output(), "[TRACE]") {
			return errors.New(monitor.Output())
		}
		return nil
	}))
	s.Must(monitor.Signal(syscall.SIGINT))
	s.Must(monitor.Wait(s.Ctx))
	for _, h := range s.Hosts {
		s.Must(h.StopAgent(s.Ctx))
	}
	s.following.Wait() // their streams ended with the agents
	s.search(file)
}

// heldBy returns the session that holds the host's lease.
func (s *secretive) heldBy(h *lab.Host) string {
	s.T.Helper()
	key := "leno/leases/default/" + strings.Replace(s.Subnet(h, "default").String(), "/", "-", 1)
	pair, _, err := s.Consul.Client().KV().Get(key, &consul.QueryOptions{Token: world.OperatorToken, RequireConsistent: true})
	s.Must(err)
	if pair == nil {
		s.T.Fatalf("no %s", key)
	}
	return pair.Session
}

// reloads changes a configuration in every way, under traffic.
func (s *secretive) reloads(h *lab.Host, good, log string) {
	s.T.Helper()
	put := func(text string) { // atomically: half a file would be another configuration
		s.Must(os.WriteFile(h.ConfigFile()+".new", []byte(text), 0o600))
		s.Must(os.Rename(h.ConfigFile()+".new", h.ConfigFile()))
	}
	refused := func(text string, words ...string) {
		s.T.Helper()
		put(text)
		_, err := s.run(h, "reload")
		if err == nil {
			s.T.Fatalf("%q was taken over", words)
		}
		s.Must(h.Agent().Signal(syscall.SIGHUP))
		for _, word := range words {
			if !strings.Contains(err.Error(), word) {
				s.T.Errorf("leno reload does not say %q: %v", word, err)
			}
			// JSON escapes quotes and arrows.
			name, _, _ := strings.Cut(word, ": ")
			s.WaitLog(h, name)
		}
	}
	token := s.uses("5ecretf0-0000-4000-8000-00000000beef")
	refused(good+"consul {\n  token = \""+token+"\n}\n", h.ConfigFile()+":")
	refused(strings.Replace(good, "data_dir ", "log_level = \"LOUD\"\ndata_dir ", 1), "log_level")
	refused(strings.Replace(good, "consul {\n", "consul {\n  kv_prefix = \"other\"\n  datacenter = \"dc9\"\n", 1),
		`consul.kv_prefix: "leno" -> "other"`, `consul.datacenter: "" -> "dc9"`, "nothing was changed")
	refused(strings.Replace(good, log, filepath.Dir(log), 1), "is not a file", "nothing was changed")

	// Many reloads at once: in the end, the configuration is what the file contains.
	for i := range 40 {
		put(strings.Replace(good, "TRACE", map[bool]string{true: "INFO", false: "TRACE"}[i%2 == 0], 1))
		s.Must(h.Agent().Signal(syscall.SIGHUP))
	}
	s.Must(os.Rename(log, log+".moved"))
	put(strings.Replace(good, "lease {\n", "lease {\n  hold = \"7h\"\n", 1))
	s.Must(h.Agent().Signal(syscall.SIGHUP))
	s.Eventually("the last reload", func(context.Context) error {
		moved, err := os.ReadFile(log + ".moved")
		s.Must(err)
		text, err := os.ReadFile(log)
		switch {
		case err != nil:
			return err
		case !strings.Contains(string(text), "configuration reloaded"):
			return errors.New("the new file does not tell of it")
		case !strings.Contains(string(moved)+string(text), `"lease.hold"`): // one of the many reloads may have read it
			return errors.New("the last configuration was not taken over")
		}
		return nil
	})
	s.WaitHealth(h, http.StatusOK)
}

// search looks for tokens in everything that was printed, returned or written, except the files
// with secrets and the configurations.
func (s *secretive) search(secretFiles ...string) {
	s.T.Helper()
	find := func(where, text string) {
		for _, token := range s.tokens {
			if i := strings.Index(text, token); i >= 0 {
				s.T.Errorf("a token is in %s: …%s…", where, text[max(0, i-300):min(len(text), i+100)])
			}
		}
	}
	find("an answer", s.answers.String())
	files, logs := 0, ""
	for _, h := range s.Hosts {
		logs += h.Agent().Output()
		s.Must(filepath.WalkDir(h.Dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || slices.Contains(secretFiles, path) || path == h.ConfigFile() || !d.Type().IsRegular() {
				return err
			}
			text, err := os.ReadFile(path)
			files++
			find(path, string(text))
			return err
		}))
	}
	find("the output of an agent", logs)
	if files < 8 || !strings.Contains(logs, "TRACE") || !strings.Contains(logs, "Permission denied") && !strings.Contains(logs, "ACL not found") {
		s.T.Errorf("%d files and %d bytes of logs: that is not all there was", files, len(logs))
	}
}
