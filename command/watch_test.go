package command

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/command/cli"
	"github.com/lenonet/leno/internal/testkit/waiting"
)

// growing is the output of a running command so far.
type growing struct{ waiting.Lines }

// says waits until the text is printed.
func (g *growing) says(t *testing.T, want string) {
	t.Helper()
	waiting.Eventually(t, func() error {
		if text := g.String(); !strings.Contains(text, want) {
			return fmt.Errorf("%q is not printed:\n%s", want, text)
		}
		return nil
	})
}

// watching runs a command that does not end by itself; end sends Ctrl-C and returns the exit code.
func watching(t *testing.T, f *fakeAgent, terminal bool, args ...string) (stdout, stderr *growing, end func() int) {
	t.Helper()
	stdout, stderr = &growing{}, &growing{}
	env := map[string]string{"LENO_ADDRESS": f.url}
	done := make(chan int, 1)
	go func() {
		done <- cli.Run(args, cli.Meta{Stdin: strings.NewReader(""), Stdout: stdout, Stderr: stderr, Terminal: terminal,
			Getenv: func(name string) string { return env[name] }, Now: func() time.Time { return now }}, Commands)
	}()
	return stdout, stderr, func() int {
		t.Helper()
		if err := syscall.Kill(syscall.Getpid(), syscall.SIGINT); err != nil {
			t.Fatal(err)
		}
		select {
		case code := <-done:
			return code
		case <-time.After(2 * time.Minute):
			t.Fatal("Ctrl-C does not end it")
			return 0
		}
	}
}

// A change is printed, an unchanged state is not. The command waits for an agent that is gone, and
// ends successfully on Ctrl-C.
func TestWatch(t *testing.T) {
	f := newFakeAgent(t)
	stdout, stderr, end := watching(t, f, false, "lease", "list", "-watch")
	stdout.says(t, "host-b")
	f.set(func() { f.index = 61 })
	f.set(func() { f.leases[1].Node, f.index = "host-z", 62 })
	stdout.says(t, "\n\nSUBNET")
	stdout.says(t, "host-z")
	f.set(func() { f.down = true })
	stderr.says(t, "it is away")
	f.set(func() { f.down, f.index, f.leases[1].Node = false, 5, "host-y" }) // another store
	stdout.says(t, "host-y")
	if code := end(); code != cli.ExitDone {
		t.Errorf("exit %d", code)
	}
	if n := strings.Count(stdout.String(), "SUBNET"); n != 3 {
		t.Errorf("printed %d times:\n%s", n, stdout)
	}
	if n := strings.Count(stderr.String(), "it is away"); n != 1 {
		t.Errorf("the outage is told %d times", n)
	}
}

// New events are shown with the earlier ones, although the agent returns only the new ones.
func TestWatchEvents(t *testing.T) {
	f := newFakeAgent(t)
	stdout, _, end := watching(t, f, false, "events", "-watch")
	stdout.says(t, "not permitted")
	f.set(func() {
		f.index, f.events = 61, append(f.events, api.Event{Index: 61, Time: now, Kind: api.EventReload, Severity: api.Info, Message: "configuration reloaded"})
	})
	stdout.says(t, "configuration reloaded")
	end()
	if n := strings.Count(stdout.String(), "agent started"); n != 2 {
		t.Errorf("the first event stands there %d times:\n%s", n, stdout)
	}
}

// A server that does not block is asked only after a pause.
func TestWatchDoesNotSpin(t *testing.T) {
	f := newFakeAgent(t)
	f.prompt = true
	stdout, _, end := watching(t, f, false, "peers", "-watch")
	started := time.Now()
	stdout.says(t, "host-b")
	for reads := 0; reads < 4; time.Sleep(5 * time.Millisecond) { // one read of the networks, and three of the peers
		f.mu.Lock()
		reads = f.reads
		f.mu.Unlock()
	}
	if took := time.Since(started); took < time.Second {
		t.Errorf("three answers without news within %s", took)
	}
	end()
}

// A terminal's screen is redrawn; JSON output has one document for each state.
func TestWatchForms(t *testing.T) {
	f := newFakeAgent(t)
	stdout, _, end := watching(t, f, true, "status", "-watch")
	stdout.says(t, "\x1b[2J\x1b[H\x1b[32mHealthy: 1 network ready.\x1b[0")
	f.set(func() { f.health.Status, f.health.Ready = api.Critical, false })
	stdout.says(t, "\x1b[H\x1b[31mThis host is NOT healthy")
	if code := end(); code != cli.ExitDone {
		t.Errorf("exit %d", code)
	}
	stdout, _, end = watching(t, f, true, "network", "list", "-watch", "-format=json")
	stdout.says(t, "}\n")
	f.set(func() { f.networks, f.index = f.networks[:1], 63 })
	stdout.says(t, "}\n{\n")
	end()
	for decoder := json.NewDecoder(strings.NewReader(stdout.String())); decoder.More(); {
		var list api.NetworkList
		if err := decoder.Decode(&list); err != nil {
			t.Fatalf("%v\n%s", err, stdout)
		}
	}
}

func TestStatusWaits(t *testing.T) {
	t.Parallel() // it waits
	f := newFakeAgent(t)
	w := world{env: map[string]string{"LENO_ADDRESS": f.url}}
	if got := w.run("status", "-wait"); got.code != cli.ExitDone || !strings.HasPrefix(got.stdout, "Healthy: ") {
		t.Errorf("%+v", got)
	}
	f.set(func() { f.health.Ready, f.down = false, true })
	timer := time.AfterFunc(300*time.Millisecond, func() { f.set(func() { f.down = false }) })
	again := time.AfterFunc(600*time.Millisecond, func() { f.set(func() { f.health.Ready = true }) })
	defer timer.Stop()
	defer again.Stop()
	if got := w.run("status", "-wait=2m"); got.code != cli.ExitDone || strings.Count(got.stdout, "Healthy: ") != 1 {
		t.Errorf("%+v", got)
	}
	warn := func(check string) {
		f.set(func() {
			f.health.Status = api.Warning
			f.health.Networks[0].Checks = []api.Check{{Name: check, Status: api.Warning, Reason: "wrong"}}
		})
	}
	warn("paths") // another host may be down
	if got := w.run("status", "-wait=2m"); got.code != cli.ExitDone || !strings.Contains(got.stdout, " warning") {
		t.Errorf("%+v", got)
	}
	warn("lease")
	if got := w.run("status", "-wait=500ms"); got.code != cli.ExitFailed || !strings.Contains(got.stdout, " warning") {
		t.Errorf("%+v", got)
	}
	f.set(func() { f.down = true })
	if got := w.run("status", "-wait=500ms"); got.code != cli.ExitFailed || got.stdout != "" || !strings.Contains(got.stderr, "after 500ms: it is away") {
		t.Errorf("%+v", got)
	}
}

// TestStatusWaitsForAHangingAgent: if the time is up during a read, the answer before is shown.
func TestStatusWaitsForAHangingAgent(t *testing.T) {
	t.Parallel() // it waits
	f := newFakeAgent(t)
	f.health.Ready, f.health.Status = false, api.Warning
	var reads atomic.Int64
	slow := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/healthz" && reads.Add(1) > 1 {
			<-r.Context().Done()
			return
		}
		f.routes().ServeHTTP(w, r)
	}))
	defer slow.Close()
	got := world{env: map[string]string{"LENO_ADDRESS": slow.URL}}.run("status", "-wait=1s")
	if got.code != cli.ExitFailed || !strings.Contains(got.stdout, " warning") || reads.Load() != 2 {
		t.Errorf("%d reads: %+v", reads.Load(), got)
	}
}

// Colours appear only on a terminal, and only if the user has not turned them off.
func TestColours(t *testing.T) {
	f := newFakeAgent(t)
	f.health.Status, f.health.Networks[0].Status = api.Warning, api.Warning
	for _, tt := range []struct {
		name     string
		terminal bool
		env      map[string]string
		args     string
		coloured bool
	}{
		{"terminal", true, nil, "status", true},
		{"pipe", false, nil, "status", false},
		{"NO_COLOR", true, map[string]string{"NO_COLOR": "1"}, "status", false},
		{"dumb", true, map[string]string{"TERM": "dumb"}, "status", false},
		{"flag", true, nil, "status -no-color", false},
		{"JSON", true, nil, "status -format=json", false},
	} {
		env := map[string]string{"LENO_ADDRESS": f.url}
		for k, v := range tt.env {
			env[k] = v
		}
		got := world{env: env, terminal: tt.terminal}.run(strings.Fields(tt.args)...)
		if strings.Contains(got.stdout, "\x1b[") != tt.coloured {
			t.Errorf("%s: %q", tt.name, got.stdout)
		}
		if tt.coloured && !strings.Contains(got.stdout, "default  \x1b[33mwarning\x1b[0") {
			t.Errorf("%s: %q", tt.name, got.stdout)
		}
	}
	// Colours take no columns.
	plain := world{env: map[string]string{"LENO_ADDRESS": f.url}}.run("lease", "list").stdout
	bright := world{env: map[string]string{"LENO_ADDRESS": f.url}, terminal: true}.run("lease", "list").stdout
	for _, escape := range []string{"\x1b[32m", "\x1b[33m", "\x1b[31m", "\x1b[0m", "\x1b[0;22m"} {
		bright = strings.ReplaceAll(bright, escape, "")
	}
	if plain != bright {
		t.Errorf("%q and %q", plain, bright)
	}
}
