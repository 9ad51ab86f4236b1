package command

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/posener/complete"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/command/cli"
	"github.com/lenonet/leno/command/flannel"
	"github.com/lenonet/leno/registry"
)

// networkImport is `leno network import`.
type networkImport struct {
	*cli.Session
	network, prefix, nodesFile  string
	nodes                       cli.ListFlag
	dryRun, force, renumberIPv6 bool
}

func networkImportSpec(m cli.Meta) cli.Spec {
	i := &networkImport{Session: cli.NewSession(m)}
	return cli.Spec{
		Name: "network import", Args: "FILE...", Min: 1, Max: -1,
		Synopsis: "Import a network from flannel, with each host's subnet",
		Help: `
Reads flannel's network configuration and leases and puts the network into
Consul, with a reservation for each host, so that every host keeps its subnet.
FILE (- for standard input) is the output of etcdctl for flannel's keys, with
-w json or without, the JSON of etcd's version 2 API, a JSON object of keys
and values, or a network configuration alone. You can give several files. If a
host has several leases, give its subnet.env as well: it says which one the
host uses.

flannel identifies hosts by their addresses, leno by their names, which are
those of Consul's nodes unless the agents' configuration says otherwise.
-nodes maps addresses to names.

If a record cannot be carried over, nothing is changed and all such records
are listed. With -force the others are imported. An existing network stays as
it is, and the reservations are made in it. Importing again changes nothing.

The token must be allowed to write the network's keys and reservations.

  $ leno network import flannel.json -nodes=nodes.txt -dry-run
  $ leno network import flannel.json -nodes=nodes.txt
  $ leno network import flannel.json -node=192.0.2.11=host-a

  From etcd and Consul at once:
    $ etcdctl get --prefix /coreos.com/network -w json > flannel.json
    $ consul catalog nodes | leno network import flannel.json -nodes=-`,
		Flags: cli.CombineFlags(i.Session.Register, i.flags),
		Values: complete.Flags{"-node": complete.PredictAnything, "-network": complete.PredictAnything,
			"-nodes": complete.PredictFiles("*")},
		Predict: complete.PredictFiles("*"),
		Run:     i.run,
	}
}

func (i *networkImport) flags(fs *flag.FlagSet) {
	fs.StringVar(&i.network, "network", "default", "`name` of the network in leno")
	fs.StringVar(&i.prefix, "prefix", "", "`key` below which flannel's keys are, if there are several networks")
	fs.StringVar(&i.nodesFile, "nodes", "",
		"`file` of the hosts' names and addresses: the output of consul catalog nodes, JSON of /v1/catalog/nodes, "+
			"or lines as in /etc/hosts; - for standard input")
	fs.Var(&i.nodes, "node", "`address=name` of a host, takes precedence over -nodes; may be given several times")
	fs.BoolVar(&i.dryRun, "dry-run", false, "only show what would be done")
	fs.BoolVar(&i.force, "force", false,
		"import the rest even if some records cannot be carried over, or there are no leases")
	fs.BoolVar(&i.renumberIPv6, "renumber-ipv6", false, "keep the IPv4 subnets even if some hosts get other IPv6 subnets")
}

func (i *networkImport) run(ctx context.Context, files []string) error {
	if i.nodesFile == "-" && slices.Contains(files, "-") {
		return cli.UsageErrorf("standard input can be FILE or -nodes, not both")
	}
	if err := registry.CheckNetworkName(i.network); err != nil {
		return cli.UsageErrorf("-network: %s", err)
	}
	nodes, err := i.readNodes()
	if err != nil {
		return err
	}
	store, err := i.readStore(files)
	if err != nil {
		return err
	}
	if len(store.Leases) == 0 && !i.force {
		return fmt.Errorf("%s: there is a configuration but no lease, so no host would keep its subnet; "+
			"give what `etcdctl get --prefix /coreos.com/network -w json` prints "+
			"(-force creates the network without reservations)", strings.Join(files, ", "))
	}
	if _, err := i.Format.JSON(); err != nil {
		return err
	}
	limit := cli.CallTimeout + time.Duration(len(store.Leases))*importPace
	return i.Agent.CallWithin(ctx, limit, func(ctx context.Context, c *api.Client) error {
		have, err := flannel.ReadExisting(ctx, c, i.network)
		if err != nil {
			return err
		}
		translated, err := flannel.Translate(store, flannel.Options{
			Name:         i.network,
			Nodes:        nodes,
			Now:          i.Meta.Now(),
			Existing:     have.Network,
			RenumberIPv6: i.renumberIPv6,
		})
		if err != nil {
			return err
		}
		p := flannel.NewPlan(translated, have, i.dryRun)
		if err := p.Check(ctx, c); err != nil {
			return err
		}
		if err = i.refusalError(p); err != nil && !i.dryRun {
			return err
		}
		if !i.dryRun {
			if err = p.Apply(ctx, c); err != nil && p.Action == api.ActionCreate {
				return err
			}
		}
		// Print what was done even if something else failed.
		return errors.Join(i.Print(p, func(w io.Writer) { writeImport(w, p) }), err)
	})
}

// importPace is longer than one reservation takes.
const importPace = 200 * time.Millisecond

// readInput reads a file, or standard input for "-".
func (i *networkImport) readInput(file string) (name string, data []byte, err error) {
	if file == "-" {
		data, err = io.ReadAll(i.Meta.Stdin)
		return stdinName, data, err
	}
	data, err = os.ReadFile(file)
	return file, data, err
}

func (i *networkImport) readNodes() (flannel.Nodes, error) {
	out := flannel.Nodes{}
	if i.nodesFile != "" {
		name, data, err := i.readInput(i.nodesFile)
		if err != nil {
			return nil, fmt.Errorf("-nodes: %w", err)
		}
		if out, err = flannel.ReadNodes(name, data); err != nil {
			return nil, fmt.Errorf("-nodes: %w", err)
		}
	}
	for _, text := range i.nodes {
		if err := out.Name(text); err != nil {
			return nil, cli.UsageErrorf("-node: %s", err)
		}
	}
	return out, nil
}

func (i *networkImport) readStore(files []string) (flannel.Store, error) {
	var records []flannel.Record
	var errs []error
	for _, file := range files {
		name, data, err := i.readInput(file)
		if err == nil {
			var more []flannel.Record
			more, err = flannel.Read(name, data)
			records = append(records, more...)
		}
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return flannel.Store{}, err
	}
	store, err := flannel.Collect(records, i.prefix)
	var several *flannel.PrefixError
	if errors.As(err, &several) {
		return store, cli.UsageErrorf("%s", err)
	}
	return store, err
}

// refusalError returns the error for records that cannot be carried over, each on its own line.
func (i *networkImport) refusalError(p flannel.Plan) error {
	if len(p.Skipped) == 0 || i.force {
		return nil
	}
	if i.dryRun { // a dry run prints them
		return fmt.Errorf("%s cannot be carried over, so nothing would be changed (-force imports the rest)",
			cli.Plural(len(p.Skipped), "record"))
	}
	lines := []string{fmt.Sprintf("%s cannot be carried over, so nothing is changed (-force imports the rest):",
		cli.Plural(len(p.Skipped), "record"))}
	for _, s := range p.Skipped {
		lines = append(lines, s.Key+": "+s.Reason)
	}
	return errors.New(strings.Join(lines, "\n"))
}

func writeImport(w io.Writer, p flannel.Plan) {
	switch {
	case p.Action == api.ActionNone:
		cli.Printf(w, "Network %s exists and stays as it is.", p.Network)
	case p.DryRun:
		cli.Printf(w, "Network %s would be created:", p.Network)
	default:
		cli.Printf(w, "Created network %s:", p.Network)
	}
	if p.Action == api.ActionCreate {
		list := poolPairs(p.Pools)
		cli.WritePairs(w, append(list, backendPairs(p.Backend)...))
	}
	if len(p.Reservations) > 0 {
		var rows [][]string
		for _, r := range p.Reservations {
			state := "reserved"
			switch {
			case r.Action == api.ActionNone:
				state = "was reserved"
			case p.DryRun:
				state = "to be reserved"
			}
			rows = append(rows, []string{r.Subnet.String(), r.Node, r.PublicIP.String(), state})
		}
		fmt.Fprintln(w)
		cli.WriteTable(w, []cli.Column{{Title: "SUBNET"}, {Title: "NODE", Cut: true}, {Title: "PUBLIC IP"},
			{Title: "RESERVATION"}}, rows)
	}
	if len(p.Notes)+len(p.Skipped) > 0 {
		fmt.Fprintln(w)
	}
	for _, n := range p.Notes {
		cli.WriteItem(w, "-", n)
	}
	for _, s := range p.Skipped {
		cli.WriteItem(w, "!", "left out: "+s.Key+": "+s.Reason)
	}
}
