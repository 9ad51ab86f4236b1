package rules

import (
	"errors"
	"fmt"

	"github.com/lenonet/leno/agent/advice"
	"github.com/lenonet/leno/agent/firewall"
	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/api"
)

// writeChecks writes the health check of every network that is present and, if no network is left but rules are, one of
// the agent. The caller holds the lock of desired.
func (k *Keeper) writeChecks() {
	failure := ""
	if err := k.desired.last.err; err != nil {
		failure = advice.Reason(advice.Firewall, err)
		k.faults.Failing(k.log, health.Firewall, failure)
	} else {
		k.faults.Recovered(k.log, health.Firewall)
	}
	if failure != "" && len(k.desired.wishes.networks) == 0 {
		k.health.Set("", health.Firewall, api.Warning, "rules that no network wants could not be removed: "+failure)
	} else {
		k.health.Resolve("", health.Firewall, "no rules are left that no network wants")
	}
	for network := range k.desired.present {
		status, reason := k.desired.verdict(k.desired.wishes.networks[network], failure)
		k.health.Set(network, health.Firewall, status, reason)
	}
}

// verdict returns the check of one network. failure says why the rules could not be applied, if they could not. The
// caller holds mu.
func (d *desired) verdict(n firewall.Network, failure string) (status, reason string) {
	report, unguarded := d.last.report, ""
	if err := report.Unguarded; err != nil {
		unguarded = "; containers can reach the ports of tunnels, and packets with a forged source are not dropped: " +
			advice.Reason(advice.Firewall, err)
	}
	switch {
	case d.last.err != nil && isHarmless(n, d.last.err):
		return api.Warning, failure + unguarded
	case d.last.err != nil:
		return api.Critical, failure + unguarded
	}
	status, reason = api.Passing, "rules are in place"
	if !n.IPMasq && !n.Forward {
		reason = "no rules are asked for"
	}
	if unguarded != "" {
		status = api.Warning
		reason += unguarded
	}
	if !n.IPMasq && !n.Forward {
		return status, reason
	}
	if c := report.Choice; c.Kind != "" {
		reason += fmt.Sprintf(": %s, since %s", c.Kind, c.Reason)
	}
	if tables := report.Unreadable; tables != "" {
		reason += fmt.Sprintf("; %s cannot show the tables %s, which have rules or chains that only nft can write: "+
			"leno reads its rules there from the kernel", report.Choice.Kind, tables)
	}
	if err := report.Instead; err != nil {
		status = api.Warning
		reason += "; repair the firewall that this host prefers, because rules of another kind cannot overrule what Docker " +
			"and others drop: " + advice.Reason(advice.Firewall, err)
	}
	if err := report.Leftover; err != nil {
		status = api.Warning
		reason += "; older ones could not be removed: " + advice.Reason(advice.Firewall, err)
	}
	if repeated := d.flapping.Describe(); repeated != "" {
		status = api.Warning
		reason += "; they are being changed by another program again and again: " + repeated
	}
	return status, reason
}

// isHarmless reports whether packets of a network flow despite an error with its rules: the rules are in force, or
// nothing drops forwarded packets, so that no rule is missing.
func isHarmless(n firewall.Network, err error) bool {
	return errors.Is(err, firewall.ErrUnseen) || errors.Is(err, firewall.ErrNotInstalled) && !n.IPMasq
}
