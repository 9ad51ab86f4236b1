package agent

import (
	"context"
	"strings"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"

	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/agent/retry"
)

// notifySystemd tells systemd when all networks are ready and, at each change, which checks fail. Without systemd it
// does nothing.
func (a *Agent) notifySystemd(ctx context.Context) error {
	ready := false
	for {
		report, changed := a.env.Reports.Health.Report()
		message := daemon.SdNotifyReady
		switch {
		case ready || !report.Ready:
			message = ""
		default:
			ready = true
			a.log.Info("ready")
		}
		status := "STATUS=" + strings.ReplaceAll(health.Describe(report), "\n", "; ")
		if err := notify(message, status); err != nil {
			a.log.Warn("systemd could not be notified", "error", err)
		}
		select {
		case <-changed:
			if retry.Sleep(ctx, 50*time.Millisecond) == nil {
				continue
			}
		case <-ctx.Done():
		}
		if err := notify(daemon.SdNotifyStopping); err != nil {
			a.log.Warn("systemd could not be notified", "error", err)
		}
		return ctx.Err()
	}
}

func notify(lines ...string) error {
	var said []string
	for _, line := range lines {
		if line != "" {
			said = append(said, line)
		}
	}
	_, err := daemon.SdNotify(false, strings.Join(said, "\n"))
	return err
}
