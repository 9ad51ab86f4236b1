package command

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"log"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/hashicorp/go-hclog"
	"github.com/posener/complete"
	"golang.org/x/sys/unix"

	"github.com/lenonet/leno/agent"
	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/agent/logging"
	"github.com/lenonet/leno/command/cli"
)

func agentSpec(m cli.Meta) cli.Spec {
	a := &agentCommand{meta: m, overrides: overrides{}}
	return cli.Spec{
		Name: "agent", Synopsis: "Run the agent",
		Help: `
Runs leno on this host until it receives SIGINT or SIGTERM. Packets keep
flowing after the agent has stopped. SIGHUP makes it reload its configuration.

If Consul or the network is not available yet, the agent waits instead of
exiting. leno status, /healthz and the log show what it waits for.

  $ leno agent -config-file /etc/leno.hcl
  $ leno agent -config-dir /etc/leno.d
  $ leno agent -dev     one host, no Consul, network "dev" on 10.98.0.0/16

You can also set every option except -config-file, -config-dir and -dev in the
environment: LENO_NODE_NAME, LENO_DATA_DIR, LENO_LOG_LEVEL,
LENO_CONSUL_ADDRESS, LENO_CONSUL_TOKEN_FILE, LENO_HTTP_ADDRESS.`,
		Flags: a.register, Predict: complete.PredictNothing,
		Run: func(ctx context.Context, _ []string) error { return a.run(ctx) },
	}
}

type agentCommand struct {
	meta      cli.Meta
	sources   []string // files and directories in the order given
	dev       bool
	overrides overrides
}

func (a *agentCommand) register(fs *flag.FlagSet) {
	add := func(path string) error {
		a.sources = append(a.sources, path)
		return nil
	}
	fs.Func("config-file", "configuration `file`; may be repeated, later files take precedence", add)
	fs.Func("config-dir", "`directory` whose .hcl and .json files are read; may be repeated", add)
	fs.BoolVar(&a.dev, "dev", false,
		"run without Consul: one host and the network dev; when it stops, it removes the network and restores ip_forward")
	a.overrides.register(a.meta, fs)
}

// load reads the configuration, at the start and at every reload.
func (a *agentCommand) load() (config.Config, error) {
	options := configOptions(agent.Backends())
	options.Dev = a.dev
	options.Overrides = a.overrides
	return config.Load(a.sources, options)
}

func (a *agentCommand) run(ctx context.Context) error {
	if len(a.sources) == 0 && !a.dev {
		return cli.UsageErrorf("no configuration: give -config-file, -config-dir or -dev")
	}
	// Until the agent runs, SIGINT and SIGTERM end the process at once: there is nothing to stop,
	// and a file that blocks must not prevent the exit.
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGHUP)
	defer signal.Stop(signals)
	// The reader of standard error may have ended; the agent must not end because of that.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	c, err := a.load()
	if err != nil {
		return cli.ConfigError(err)
	}
	logs, err := logging.New(a.meta.Stderr, a.meta.ErrorJournal, c.Log)
	if err != nil {
		return cli.ConfigError(err)
	}
	defer logs.Close()
	logger := logs.Logger()
	// Libraries write to the standard logger, which would bypass the log file and break JSON
	// output.
	defer redirect(log.Default(), logger.StandardWriter(&hclog.StandardLoggerOptions{InferLevels: true}))()
	daemonAgent, err := agent.New(c, agent.Options{Logs: logs, Version: a.meta.Version}, a.load)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return err // a certificate or password that another program has not written yet, as after a boot
	case err != nil:
		return cli.ConfigError(err)
	}
	logConfig(logger, c)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	message := "stopping, packets keep flowing"
	if c.Dev {
		message = "stopping, removing the networks"
	}
	tell := func(s os.Signal) { logger.Info(message, "signal", s.String()) }
	return obey(ctx, signals, tell, daemonAgent.Run, func(ctx context.Context) { reload(ctx, logger, daemonAgent) })
}

// obey runs an agent until it has ended, and does what signals ask for. It calls tell when the agent is to stop. After
// a second signal to stop, it waits for neither run nor reload.
func obey(
	ctx context.Context, signals <-chan os.Signal, tell func(os.Signal),
	run func(context.Context) error, reload func(context.Context),
) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	done := make(chan error, 1)
	go func() { done <- run(ctx) }()
	// All signals that arrive during a reload cause one more reload, because the files may have
	// changed after they were read.
	wanted := make(chan struct{}, 1)
	var reloads sync.WaitGroup
	reloads.Go(func() {
		for range wanted {
			reload(ctx)
		}
	})
	for stopping := false; ; {
		select {
		case err := <-done:
			close(wanted)
			reloads.Wait()
			return err
		case s := <-signals:
			switch {
			case s == syscall.SIGHUP && !stopping:
				select {
				case wanted <- struct{}{}:
				default:
				}
			case s == syscall.SIGHUP:
			case stopping:
				close(wanted)
				return errors.New("a second signal ended the agent before it had stopped")
			default:
				tell(s)
				stopping = true
				stop()
			}
		}
	}
}

// reload reads the configuration again; a bad one leaves the old in force.
func reload(ctx context.Context, logger hclog.Logger, running *agent.Agent) {
	tell := func(state string) {
		if _, err := daemon.SdNotify(false, state); err != nil {
			logger.Warn("systemd could not be notified", "error", err)
		}
	}
	if running.Ready() { // otherwise systemd still waits for the first start
		tell(daemon.SdNotifyReloading + fmt.Sprintf("\nMONOTONIC_USEC=%d", monotonicMicros()))
		defer tell(daemon.SdNotifyReady)
	}
	_, _ = running.Refresh(ctx, false) // Refresh logs its result
}

// redirect makes a standard library logger write its bare lines to w until back is called.
func redirect(l *log.Logger, w io.Writer) (restore func()) {
	flags, before := l.Flags(), l.Writer()
	l.SetFlags(0)
	l.SetOutput(w)
	return func() {
		l.SetFlags(flags)
		l.SetOutput(before)
	}
}

// logConfig prints the effective values, without secrets.
func logConfig(logger hclog.Logger, c config.Config) {
	prefix, where := "kv_prefix", c.Consul.KVPrefix
	switch c.Store() {
	case config.StoreEtcd:
		prefix, where = "etcd_prefix", c.Etcd.Prefix
	case config.StoreKubernetes:
		prefix, where = c.Kubernetes.NetConfSource()
	}
	logger.Info("configuration", "files", c.Files, "data_dir", c.DataDir, prefix, where,
		"ttl", c.Lease.TTL.String(), "renew_margin", c.Lease.RenewMargin.String(), "hold", c.Lease.Hold.String(),
		"on_lost", c.Lease.OnLost)
	for _, n := range c.Networks {
		logger.Info("configuration of network", "network", n.Name, "subnet_file", n.SubnetFile, "ip_masq", n.IPMasq,
			"forward", n.Forward, "pools", len(n.Pools))
	}
}

// monotonicMicros returns CLOCK_MONOTONIC in microseconds, which systemd requires with
// RELOADING=1.
func monotonicMicros() int64 {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		return 0
	}
	return t.Nano() / 1000
}
