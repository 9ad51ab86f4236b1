// Package packettrace contains the command trace, and the form of doctor that examines one address. It follows packets
// through this host and the other one, and prints where they are lost.
package packettrace

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/posener/complete"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/command/cli"
)

// The answer of the other host's agent has so many bytes and objects at most.
const answerBytes, answerObjects = 1 << 20, 1000

// Spec returns the command trace.
func Spec(m cli.Meta) cli.Spec {
	t := &tracer{Session: cli.NewSession(m)}
	return cli.Spec{
		Name: "trace", Args: "SOURCE DESTINATION [PROTOCOL/PORT]", Min: 2, Max: 3,
		Synopsis: "Find where packets between two addresses are lost",
		Help: `
Follows packets from one address to another, each of a container or of a host,
and prints what the kernel does with them at each stage, from the container to
the tunnel, and then on the other host. The first stage that loses them is the
verdict, with its cause and what to do.

Run it as root on the host of the source or of the destination: it looks into
the container's network namespace and sends a few packets from there, so that
the counters of firewall rules show which rule drops them. It changes nothing.

The other host is asked through its agent, at its public address or at
-peer-address. If the agent does not answer, run the command there, too.

  $ leno trace 10.5.34.2 10.5.35.2
  $ leno trace 10.5.34.2 10.5.35.2 tcp/80
  $ leno trace -peer-address=192.0.2.12:5366 10.5.34.2 10.5.35.2

Exits 1 if packets are lost.`,
		Flags: t.register, Predict: complete.PredictNothing,
		Run: func(ctx context.Context, args []string) error {
			r, err := parseTrace(args)
			if err != nil {
				return err
			}
			return t.run(ctx, r, writeTrace)
		},
	}
}

// timeout bounds a trace through two hosts.
const timeout = 2 * cli.CallTimeout

// A tracer follows packets through this host and the other one.
type tracer struct {
	*cli.Session
	peer string // address of the other host's agent, "" for its public address
}

func (t *tracer) register(fs *flag.FlagSet) {
	t.Session.Register(fs)
	fs.StringVar(&t.peer, "peer-address", "",
		"`address` of the agent on the other host; default its public address with port "+defaultPort())
}

func defaultPort() string {
	_, port, _ := strings.Cut(api.DefaultAddress, ":")
	return port
}

// parseTrace parses "SOURCE DESTINATION [PROTOCOL/PORT]".
func parseTrace(args []string) (r api.TraceRequest, err error) {
	for i, to := range []*netip.Addr{&r.Source, &r.Destination} {
		if *to, err = netip.ParseAddr(args[i]); err != nil {
			return r, cli.UsageErrorf("%q is not an address such as 10.5.34.2", args[i])
		}
	}
	if len(args) < 3 {
		return r, nil
	}
	protocol, port, hasPort := strings.Cut(args[2], "/")
	r.Protocol = protocol
	switch {
	case protocol == "icmp" && !hasPort:
		return r, nil
	case protocol != "tcp" && protocol != "udp":
		return r, cli.UsageErrorf("%q is not a protocol with a port such as tcp/80", args[2])
	}
	if r.Port, err = strconv.Atoi(port); err != nil || r.Port < 1 || r.Port > 65535 {
		return r, cli.UsageErrorf("the port of %q is not a number from 1 to 65535", args[2])
	}
	return r, nil
}

// run follows the packets and prints the result with write. Packets that are lost make the command fail.
func (t *tracer) run(ctx context.Context, r api.TraceRequest, write func(io.Writer, api.Trace)) error {
	if _, err := t.Format.JSON(); err != nil {
		return err
	}
	var out api.Trace
	const until = "until both hosts have followed the packets"
	err := t.Agent.CallWithin(ctx, timeout, until, func(ctx context.Context, c *api.Client) (err error) {
		out, err = t.follow(ctx, c, r)
		return err
	})
	if err != nil {
		return err
	}
	if err := t.Print(out, func(w io.Writer) { write(w, out) }); err != nil {
		return err
	}
	if _, isLost := out.Lost(); isLost {
		return cli.ErrReported
	}
	return nil
}

// follow asks both hosts, and puts the stages in the order of the path.
func (t *tracer) follow(ctx context.Context, c *api.Client, r api.TraceRequest) (api.Trace, error) {
	here, err := t.traceHere(ctx, c, r)
	if err != nil {
		return here, err
	}
	isSource, other := here.Source.Node == here.Node, here.Destination
	if !isSource {
		other = here.Source
	}
	if other.Node == here.Node {
		return here, nil
	}
	there, err := t.traceThere(ctx, other, r)
	if err != nil {
		if here.Arrived == api.ArrivedYes {
			return here, nil // packets pass the other host
		}
		there.Stages = []api.TraceHop{unansweredHop(here, other, t.peerAddress(other), err)}
	}
	if isSource {
		here.Stages = joinStages(here.Stages, there.Stages)
		return here, nil
	}
	here.Stages = joinStages(there.Stages, here.Stages)
	if there.Arrived != "" {
		here.Arrived, here.Why = there.Arrived, there.Why
	}
	return here, nil
}

// joinStages puts the stages on the destination's host before the last one of the source's, which says what became of
// the packets.
func joinStages(source, destination []api.TraceHop) []api.TraceHop {
	at := len(source)
	if at > 0 && source[at-1].Stage == "answer" {
		at--
	}
	return slices.Insert(slices.Clone(source), at, destination...)
}

// traceHere follows the packets through this host: in this process if it may look into containers, otherwise the agent
// does it as far as it may.
func (t *tracer) traceHere(ctx context.Context, c *api.Client, r api.TraceRequest) (api.Trace, error) {
	if t.Agent.IsLocal() && t.isPrivileged(ctx, c) {
		return traceInProcess(ctx, c, r)
	}
	return c.Trace(ctx, r)
}

// traceThere asks the agent of the other host. The caller's token is for this host's agent, and tracing needs none.
func (t *tracer) traceThere(ctx context.Context, other api.TraceEnd, r api.TraceRequest) (api.Trace, error) {
	address := t.peerAddress(other)
	if address == "" {
		return api.Trace{}, errors.New("it has no address")
	}
	client, err := t.Agent.OpenOther(address, answerBytes, answerObjects)
	if err != nil {
		return api.Trace{}, err
	}
	defer client.Close()
	return client.Trace(ctx, r)
}

// peerAddress returns the address of the agent on the other host.
func (t *tracer) peerAddress(other api.TraceEnd) string {
	switch {
	case t.peer != "":
		return t.peer
	case len(other.PublicIPs) == 0:
		return ""
	}
	port, _ := strconv.Atoi(defaultPort())
	return netip.AddrPortFrom(other.PublicIPs[0], uint16(port)).String()
}

// unansweredHop is the stage of a host whose agent could not be asked.
func unansweredHop(here api.Trace, other api.TraceEnd, address string, err error) api.TraceHop {
	saw := fmt.Sprintf("its agent does not answer at %s (%v); agents listen on 127.0.0.1 by default", address, cause(err))
	if address == "" {
		address, saw = "its agent", "the address of its agent is not known: name it with -peer-address"
	}
	if refused, ok := errors.AsType[*api.Error](err); ok {
		saw = fmt.Sprintf("its agent at %s answers: %s", address, refused.Message)
	}
	return api.TraceHop{Stage: "other host", Node: other.Node, Where: address, Saw: saw, Status: api.HopUnknown,
		Do: fmt.Sprintf("run `sudo leno trace %s` on %s", here.Arguments(), other.Node)}
}

// cause returns the innermost error.
func cause(err error) error {
	for {
		inner := errors.Unwrap(err)
		if inner == nil {
			return err
		}
		err = inner
	}
}

// writeTrace prints the verdict, the stages that are not ok in detail, and a table of all.
func writeTrace(w io.Writer, t api.Trace) {
	writeTraceVerdict(w, t)
	fmt.Fprintln(w)
	var rows [][]string
	for _, h := range t.Stages {
		rows = append(rows, []string{h.Status, h.Stage, h.Node, h.Where, h.Saw})
	}
	cli.WriteTable(w, []cli.Column{{Title: "STATUS"}, {Title: "STAGE"}, {Title: "HOST", Cut: true},
		{Title: "WHERE", Cut: true}, {Title: "SAW", Cut: true}}, rows)
}

// writeTraceVerdict prints the verdict, and the stages that are not ok in detail.
func writeTraceVerdict(w io.Writer, t api.Trace) {
	verdict := cmp.Or(map[string]string{api.ArrivedYes: "packets arrive",
		api.ArrivedNo: "packets are not answered"}[t.Arrived], "nothing is known to lose packets")
	if hop, isLost := t.Lost(); isLost {
		verdict = fmt.Sprintf("lost on %s at the stage %q", hop.Node, hop.Stage)
	}
	what := t.Protocol
	if t.Port > 0 {
		what += fmt.Sprintf("/%d", t.Port)
	}
	cli.Printf(w, "%s", cli.EscapeLine(fmt.Sprintf("%s (%s) to %s (%s), %s, network %s: %s", t.Source.Address,
		t.Source.Node, t.Destination.Address, t.Destination.Node, what, t.Network, verdict)))
	for _, h := range t.Stages {
		if h.Status != api.HopOK {
			cli.WriteFinding(w, hopFinding(t, h))
		}
	}
}

// stages is the section of the documentation that lists the stages.
const stages = "troubleshooting#find-where-packets-between-two-addresses-are-lost"

// hopFinding returns a stage as a finding.
func hopFinding(t api.Trace, h api.TraceHop) api.Finding {
	statuses := map[string]string{api.HopLost: "lost", api.HopWarning: api.FindingWarning}
	return api.Finding{Check: h.Stage, Status: cmp.Or(statuses[h.Status], api.FindingUnknown), Network: t.Network,
		Peer: h.Node, Tried: "look at " + h.Where, Saw: h.Saw, Do: h.Do, Docs: stages}
}
