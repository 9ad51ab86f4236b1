package nomad

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/lenonet/leno/api"
)

// stagger is the time between the upgrades of two hosts, or with deployments the time that the first agent must be
// ready for before. It is short for the test, and long enough
// to see which host still runs the previous version.
const stagger = 3 * time.Second

// upgrade gives both hosts another binary and configuration with a new version of the job.
func (c *cluster) upgrade() {
	c.t.Helper()
	for _, m := range c.machines {
		c.must(os.MkdirAll(m.path("/opt/leno/next"), 0o755))
		c.must(os.Symlink(c.programs.leno, m.path("/opt/leno/next/leno")))
	}
	c.lossless("upgrade of the job", func() {
		before := c.selves()
		c.does("nomad job run -var=leno=/opt/leno/next/leno examples/nomad/leno.nomad.hcl", "-detach", "-var=stagger="+stagger.String())
		for i, m := range c.machines {
			c.another(m, before[i])
			command, err := m.run(c.ctx, "cat", fmt.Sprintf("/proc/%d/cmdline", c.self(m).PID))
			c.must(err)
			c.must(contains(strings.ReplaceAll(command, "\x00", " "), "/opt/leno/next/leno agent"))
		}
	})
	allocs := c.running("leno", 1, c.machines...)
	c.apart(allocs[0], allocs[1])
	c.settled()
}

// placed returns the time between the placement of two allocations.
func placed(a, b alloc) time.Duration { return time.Duration(a.CreateTime - b.CreateTime).Abs() }

// apart fails unless the two allocations were placed a stagger apart, within the tolerance of
// Nomad's timer and clock.
func (c *cluster) apart(a, b alloc) {
	c.t.Helper()
	if d := placed(a, b); d < stagger*9/10 {
		c.t.Errorf("%s and %s got version %d of the job within %s, not one after the other", a.NodeName, b.NodeName, a.JobVersion, d)
	}
}

// deployments returns the deployments of the system job, the newest first. Before 1.11, Nomad creates none.
func (c *cluster) deployments(ctx context.Context) (out []struct {
	JobVersion                int
	Status, StatusDescription string
}, err error,
) {
	return out, c.get(ctx, "/v1/job/leno/deployments", &out)
}

// settled blocks until no deployment of the system job is active.
func (c *cluster) settled() {
	c.t.Helper()
	c.eventually("the deployment of the agents to end", func(ctx context.Context) error {
		all, err := c.deployments(ctx)
		for _, d := range all {
			if d.Status == "running" || d.Status == "pending" {
				err = errors.Join(err, fmt.Errorf("version %d is %s: %s", d.JobVersion, d.Status, d.StatusDescription))
			}
		}
		return err
	})
}

// goesBack upgrades the hosts to a version that cannot be started. Nomad reverts it, or the operator does.
func (c *cluster) goesBack() {
	c.t.Helper()
	known, err := c.deployments(c.ctx)
	c.must(err)
	c.lossless("upgrade to a binary that is missing, and back", func() {
		before := c.selves()
		c.nomad("job", "run", "-detach", "-var=leno=/opt/leno/none/leno", "-var=stagger="+stagger.String(), c.file("nomad/leno.nomad.hcl"))
		if len(known) > 0 {
			c.revertedByNomad(before)
		} else {
			c.revertedByOperator(before)
		}
	})
}

// revertedByNomad waits until Nomad has reverted version 2 of the job, after it failed on one host.
func (c *cluster) revertedByNomad(before []api.Self) {
	c.t.Helper()
	c.eventually("the deployment to fail", func(ctx context.Context) error {
		all, err := c.deployments(ctx)
		if err != nil {
			return err
		}
		return contains(fmt.Sprint(all), c.says("Failed due to unhealthy allocations - rolling back to job version 1"))
	})
	c.running("leno", 3, c.machines...)
	all, err := c.allocs(c.ctx, "leno")
	c.must(err)
	failed := map[string]bool{}
	for _, a := range all {
		if a.JobVersion == 2 {
			failed[a.NodeName] = true
		}
	}
	if len(failed) != 1 {
		c.t.Errorf("the version failed on %v", failed)
	}
	for i, m := range c.machines {
		switch {
		case failed[m.Name]:
			c.must(c.said(c.ctx, m, "leno", c.says(`binary "/opt/leno/none/leno" could not be found`)))
			c.another(m, before[i])
		case c.self(m).PID != before[i].PID:
			c.t.Errorf("%s: the agent was %d and is %d", m.Name, before[i].PID, c.self(m).PID)
		}
	}
	// Otherwise the next version would stop at the first host.
	before = c.selves()
	for _, line := range c.lines("nomad job restart -yes -reschedule leno") {
		c.nomad(strings.Fields(line)[1:]...)
	}
	for i, m := range c.machines {
		c.another(m, before[i])
	}
	c.eventually("the deployment to be forgotten", func(ctx context.Context) error {
		all, err := c.deployments(ctx)
		for _, d := range all {
			if d.Status == "failed" {
				err = errors.Join(err, fmt.Errorf("version %d: %s", d.JobVersion, d.StatusDescription))
			}
		}
		return err
	})
}

// revertedByOperator waits until version 2 of the job has failed on all hosts, and reverts it.
func (c *cluster) revertedByOperator(before []api.Self) {
	c.t.Helper()
	for _, m := range c.machines {
		c.gone(m)
	}
	failed := map[string]alloc{} // the first per host: Nomad retries it when the other fails
	c.eventually("the allocations to fail", func(ctx context.Context) error {
		all, err := c.allocs(ctx, "leno")
		for _, a := range all {
			first, ok := failed[a.NodeName]
			if a.JobVersion == 2 && a.ClientStatus == "failed" && (!ok || a.CreateTime < first.CreateTime) {
				failed[a.NodeName] = a
			}
		}
		if err == nil && len(failed) != len(c.machines) {
			err = fmt.Errorf("%+v", all)
		}
		return err
	})
	c.apart(failed[c.machines[0].Name], failed[c.machines[1].Name])
	for _, m := range c.machines {
		c.must(c.said(c.ctx, m, "leno", c.says(`binary "/opt/leno/none/leno" could not be found`)))
	}
	c.must(contains(c.nomad("job", "status", "leno"), "failed"))
	c.does("nomad job revert leno 1", "-detach")
	for i, m := range c.machines {
		c.another(m, before[i])
	}
	if allocs := c.running("leno", 3, c.machines...); placed(allocs[0], allocs[1]) >= stagger {
		c.t.Errorf("the version before came back %s apart", placed(allocs[0], allocs[1]))
	}
}

func (c *cluster) selves() (out []api.Self) {
	c.t.Helper()
	for _, m := range c.machines {
		out = append(out, c.self(m))
	}
	return out
}
