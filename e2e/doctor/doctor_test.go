// Package doctor causes faults on hosts of a lab and checks that `leno doctor` names each of them,
// and reports nothing on healthy hosts.
package doctor

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/e2e/lab"
)

// binary is the path of the leno under test, built once.
var binary string

func TestMain(m *testing.M) {
	os.Exit(lab.RunWithLeno(&binary, m.Run))
}

// want is a finding that doctor must report.
type want struct {
	check, network, peer string
	warning              bool     // not a fault
	words                []string // words of the observation and the advice
	also                 []string // checks of other faults that must be reported as well
	shown                string   // the check of health that shows it without being asked, "" for none
	path                 string   // the state of the path to the second host that is shown without being asked, "" for the usual one
	whyPassing           string   // why nothing shows it without being asked: all checks are passing
}

// examine returns what doctor reports on the host.
func (w *ward) examine(ctx context.Context, h *lab.Host) (api.Diagnosis, error) {
	client, err := api.New(api.Config{HTTPClient: h.HTTP()})
	if err != nil {
		return api.Diagnosis{}, err
	}
	return client.Doctor(ctx, api.DoctorOptions{})
}

// alone returns what the command reports without an agent.
func (w *ward) alone(h *lab.Host, before ...string) (api.Diagnosis, error) {
	text, err := h.Exec(w.ctx, append(before, binary, "doctor", "-format=json", "-config-file", h.ConfigFile())...)
	var out api.Diagnosis
	if jsonErr := json.Unmarshal([]byte(text), &out); jsonErr != nil {
		return out, fmt.Errorf("%w: %w: %s", jsonErr, err, text)
	}
	if faulty := len(faults(out)) > 0; faulty != (err != nil) {
		return out, fmt.Errorf("exit code: %v, with %v", err, faults(out))
	}
	return out, nil
}

func faults(d api.Diagnosis) []api.Finding {
	var out []api.Finding
	for _, f := range d.Findings {
		if f.Status == api.FindingFault {
			out = append(out, f)
		}
	}
	return out
}

// told returns a finding as one line.
func told(f api.Finding) string {
	return fmt.Sprintf("%s %s of %q with %q: tried %s; saw %s; do %s", f.Status, f.Check, f.Network, f.Peer, f.Tried, f.Saw, f.Do)
}

func lines(list []api.Finding) string {
	var out []string
	for _, f := range list {
		if f.Status != api.FindingOK {
			out = append(out, told(f))
		}
	}
	return strings.Join(out, "\n")
}

// is returns an error unless the diagnosis is that of the fault.
func (f want) is(d api.Diagnosis) error {
	found := faults(d)
	if f.warning && len(found) == 0 {
		found = slices.DeleteFunc(slices.Clone(d.Findings), func(f api.Finding) bool { return f.Status != api.FindingWarning })
	}
	if len(found) == 0 {
		return fmt.Errorf("nothing is told, want %s:\n%s", f.check, lines(d.Findings))
	}
	first := found[0]
	if first.Check != f.check || first.Network != f.network || first.Peer != f.peer {
		return fmt.Errorf("the first is not %s of %q with %q:\n%s", f.check, f.network, f.peer, lines(d.Findings))
	}
	if first.Tried == "" || first.Saw == "" || first.Do == "" {
		return fmt.Errorf("a part is missing: %s", told(first))
	}
	var others []string
	text := first.Saw + "\n" + first.Do
	for _, other := range found[1:] {
		others = append(others, other.Check)
		text += "\n" + other.Saw + "\n" + other.Do
	}
	if !slices.Equal(others, f.also) {
		return fmt.Errorf("beside it %q are told, want %q:\n%s", others, f.also, lines(d.Findings))
	}
	for _, word := range f.words {
		if !strings.Contains(text, word) {
			return fmt.Errorf("it does not say %q:\n%s", word, lines(found))
		}
	}
	return nil
}

// well blocks until doctor finds no fault and no warning, except warnings of the named checks.
func (w *ward) well(h *lab.Host, warnings ...string) error {
	return w.until(h, "health", func(d api.Diagnosis) error {
		for _, f := range d.Findings {
			if f.Status == api.FindingOK {
				continue
			}
			excused := false
			for _, check := range warnings {
				excused = excused || f.Status == api.FindingWarning && f.Check == check
			}
			if !excused {
				return fmt.Errorf("is not well:\n%s", lines(d.Findings))
			}
		}
		return nil
	})
}

// patience is the time limit for doctor's verdict. The longest wait is for the end of a session.
const patience = 5 * time.Minute

func (w *ward) until(h *lab.Host, what string, right func(api.Diagnosis) error) error {
	began := time.Now()
	ctx, cancel := context.WithTimeout(w.ctx, patience)
	defer cancel()
	err := lab.WaitFor(ctx, fmt.Sprintf("doctor on %s to tell of %s", h.Name, what), func(ctx context.Context) error {
		d, err := w.examine(ctx, h)
		if err == nil {
			err = right(d)
		}
		return err
	})
	w.t.Logf("%s: %s after %s", h.Name, what, time.Since(began).Round(10*time.Millisecond))
	return err
}
