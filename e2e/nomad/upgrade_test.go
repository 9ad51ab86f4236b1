package nomad

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/lenonet/leno/api"
)

// stagger is the time between the upgrades of two hosts. It is short for the test, and long enough
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

// goesBack upgrades the hosts to a version that cannot be started, and reverts it.
func (c *cluster) goesBack() {
	c.t.Helper()
	c.lossless("upgrade to a binary that is missing, and back", func() {
		before := c.selves()
		c.nomad("job", "run", "-detach", "-var=leno=/opt/leno/none/leno", "-var=stagger="+stagger.String(), c.file("nomad/leno.nomad.hcl"))
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
	})
}

func (c *cluster) selves() (out []api.Self) {
	c.t.Helper()
	for _, m := range c.machines {
		out = append(out, c.self(m))
	}
	return out
}
