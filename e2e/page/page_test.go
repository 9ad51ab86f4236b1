package page

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/lenonet/leno/e2e/chromium"
	"github.com/lenonet/leno/e2e/lab"
	"github.com/lenonet/leno/e2e/world"
)

// TestStatusPageInABrowser looks at a host's page as people do: what it shows, how it follows
// events, and whether it is accessible.
func TestStatusPageInABrowser(t *testing.T) {
	w := newWorld(t, lab.Options{Hosts: 3})
	a, c := w.Hosts[0], w.Hosts[2]
	blocks := func(h *lab.Host) []string {
		return []string{"probe_interval = \"0s\"\n" + world.ShortLease, h.Network("default", world.Plan("udp"))}
	}
	for _, h := range w.Hosts[:2] {
		w.Must(h.StartAgent(h.Config(blocks(h)...)))
	}
	b := w.browse(a)
	for _, h := range w.Hosts[:2] {
		w.Must(h.WaitReady(w.Ctx))
		w.Container(h, "default")
	}
	w.WaitPeers(a, "default", 1)
	w.Linked(w.Containers)
	w.Ping(w.Containers[0], w.Containers[1].Addrs[0])

	b.withoutScripts()
	b.follows(c, blocks)
	b.usable()
	b.readable()
	b.silence()
	b.patience()
	b.Clean()
}

// withoutScripts checks that every table is there for a browser that runs no scripts.
func (b *browser) withoutScripts() {
	b.Scripts(false)
	a, other := b.Hosts[0], b.Hosts[1]
	b.WaitHealth(a, http.StatusOK) // these pages do not change by themselves
	for _, path := range []string{"/ui", "/ui/network/default"} {
		b.Open(path)
		b.Shows(a.Name+": healthy", "All 2 hosts", b.Subnet(a, "default").String(), b.Subnet(other, "default").String(),
			other.Name, "this host holds "+b.Subnet(a, "default").String())
	}
	b.Open("/ui/network/default?q=" + other.Name)
	b.Shows("255 slots, from 10.5.1.0/24", "1 to 1 of 1", b.Subnet(other, "default").String())
	b.Open("/")
	b.Shows("Overview")
	b.Scripts(true)
}

// follows checks that events appear on the page without a reload and without disturbing the reader.
func (b *browser) follows(c *lab.Host, blocks func(*lab.Host) []string) {
	b.Open("/ui/network/default")
	other := b.Hosts[1].Name
	b.Shows(other)
	chromium.Value[bool](b.Tab, `
		window.loadedOnce = true,
		window.rowOfOther = [...document.querySelectorAll("table.hosts tr")].find((r) => r.innerText.includes("`+other+`")),
		window.scrollTo(0, 200),
		getSelection().selectAllChildren(rowOfOther.querySelector(".host")),
		document.querySelector("details summary").click(),
		document.querySelector("details summary").focus(), true`)
	b.Must(c.StartAgent(c.Config(blocks(c)...)))
	b.Must(c.WaitReady(b.Ctx))
	subnet := b.Subnet(c, "default").String()
	b.Shows(subnet, c.Name+" appeared with "+subnet)
	b.undisturbed(other)

	// Traffic: the page shows the counters and the rates.
	pings, err := b.Containers[0].StartEchoes(b.Ctx, b.Containers[1].Addrs[0], 20*time.Millisecond)
	b.Must(err)
	b.Eventually("a rate", func(context.Context) error {
		if !chromium.Value[bool](b.Tab, `[...document.querySelectorAll("[data-count]")].some((e) => /^[1-9].*B\/s$/.test(e.innerText))`) {
			return fmt.Errorf("the page is:\n%s", b.Text())
		}
		return nil
	})
	_, err = pings.Stop()
	b.Must(err)
	// A host dies.
	session := b.Session(c)
	b.Must(c.KillAgent())
	_, err = b.Consul.Client().Session().Destroy(session, nil)
	b.Must(err)
	b.Shows("lapsed, under 1 min")
	b.undisturbed(other)
	if label := chromium.Value[string](b.Tab, `document.querySelector(".map > svg").getAttribute("aria-label")`); label != "255 slots: 1 own, 1 held, 1 lapsed, 252 free" {
		b.T.Errorf("the map is %q", label)
	}
}

// undisturbed checks that the scroll position, the selection, the focus and opened sections are as
// they were.
func (b *browser) undisturbed(selected string) {
	b.T.Helper()
	got := chromium.Value[string](b.Tab, `[window.loadedOnce, scrollY, getSelection().toString().trim(), document.activeElement.tagName,
		document.querySelector("details").open, rowOfOther.isConnected].join(" ")`)
	if want := "true 200 " + selected + " SUMMARY true true"; got != want {
		b.T.Errorf("after news the page has %q, it had %q", got, want)
	}
}

// usable checks that every control can be reached by keyboard, in order, with a visible focus, and
// that a screen reader has a name for every part.
func (b *browser) usable() {
	const describe = `((e) => e.tagName + " " + (e.id || e.getAttribute("href") || e.getAttribute("aria-labelledby") || e.innerText).trim())`
	b.Open("/ui/network/default")
	b.Shows(b.Hosts[1].Name)
	want := chromium.Value[[]string](b.Tab, `[...document.querySelectorAll("a[href], button, input, summary, [tabindex='0']")].filter((e) => e.checkVisibility()).map(`+describe+`)`)
	if len(want) < 12 {
		b.T.Errorf("only %q can be used", want)
	}
	var got []string
	for range want {
		b.Do(chromedp.KeyEvent(kb.Tab))
		got = append(got, chromium.Value[string](b.Tab, describe+"(document.activeElement)"))
		if chromium.Value[string](b.Tab, `getComputedStyle(document.activeElement).outlineStyle`) == "none" {
			b.T.Errorf("%s does not show that it has the focus", got[len(got)-1])
		}
	}
	if !slices.Equal(got, want) {
		b.T.Errorf("the keyboard reaches\n%q, there is\n%q", got, want)
	}
	if got[0] != "A #main" {
		b.T.Errorf("the first way is not past the navigation: %s", got[0])
	}
	names := strings.Join(b.Names(), "\n")
	for _, name := range []string{"banner ", "navigation Networks", "main ", "contentinfo ", "status ", "heading Network default", "heading Slots",
		"image 255 slots: 1 own", "search ", "searchbox Find a host, address or state", "button Find",
		"table Hosts and slots of network default, 1 to 3 of 3", "columnheader Public IP", "rowheader 10.5.", "table The last "} {
		if !strings.Contains("\n"+names, "\n"+name) && !(name == "image 255 slots: 1 own" && strings.Contains(names, "img 255 slots: 1 own")) {
			b.T.Errorf("a screen reader finds no %q in\n%s", name, names)
		}
	}
	if !slices.ContainsFunc(strings.Split(names, "\n"), func(name string) bool {
		return (strings.HasPrefix(name, "heading ") || strings.HasPrefix(name, "region ")) && strings.Contains(name, b.Hosts[0].Name)
	}) {
		b.T.Errorf("a screen reader finds no verdict on %s in\n%s", b.Hosts[0].Name, names)
	}
	b.Do(chromedp.Focus("#q"), chromedp.SendKeys("#q", "LAPSED"))
	b.Shows("1 to 1 of 1", b.Hosts[2].Name)
	b.Must(lab.WaitFor(b.Ctx, "what was typed", func(context.Context) error {
		if got := chromium.Value[string](b.Tab, `document.activeElement.id + document.activeElement.value + location.search`); got != "qLAPSED?q=LAPSED" {
			return fmt.Errorf("the focus and the address have %q", got)
		}
		return nil
	}))
}

// readable checks that text has enough contrast in both colour schemes and fits a phone.
func (b *browser) readable() {
	for _, scheme := range []string{"light", "dark"} {
		b.Scheme(scheme)
		for name, path := range map[string]string{"overview": "/ui", "network": "/ui/network/default"} {
			b.Open(path)
			b.Shows(b.Hosts[2].Name)
			chromium.Value[bool](b.Tab, `document.querySelectorAll("details").forEach((d) => d.open = true), true`)
			b.Readable(path + " in " + scheme)
			chromium.Value[bool](b.Tab, `document.querySelectorAll("details").forEach((d) => d.open = false), true`)
			b.Shoot(pictures, name+"-"+scheme, 1440)
			for _, width := range []int64{360, 1440} {
				b.Width(width)
				b.Fits(fmt.Sprintf("%s at %d pixels", path, width))
			}
			if (name == "network") == (scheme == "dark") {
				b.Shoot(pictures, name+"-"+scheme+"-phone", 360)
			}
		}
	}
}

// silence checks that the page reports an agent that does not respond, and its return.
func (b *browser) silence() {
	b.Scheme("light")
	b.Open("/ui")
	b.Shows(b.Hosts[0].Name)
	b.away.Store(true)
	b.Shows("The agent does not answer since")
	b.Shoot(pictures, "silent", 1440)
	b.away.Store(false)
	b.Eventually("the page to follow again", func(context.Context) error {
		if strings.Contains(b.Text(), "does not answer") {
			return fmt.Errorf("it still says that the agent does not answer")
		}
		return nil
	})
	status, _, err := b.Hosts[0].Get(b.Ctx, "/ui")
	if err != nil || status != http.StatusOK {
		b.T.Errorf("%d, %v", status, err)
	}
}

// patience checks that a page whose reads are refused, as when too many wait, asks at growing
// intervals, and does not report the agent as missing while the page itself is served.
func (b *browser) patience() {
	b.full.Store(true)
	b.hurry()
	b.Open("/ui/network/default")
	b.Eventually("half a minute between two reads", func(context.Context) error {
		// Ignore the normal pause of 5 s between two updates.
		if waits := chromium.Value[[]float64](b.Tab, `waits.filter((ms) => ms > 1000 && ms !== 5000)`); len(waits) == 0 || slices.Max(waits) < 20_000 {
			return fmt.Errorf("waits of %v ms", waits)
		}
		return nil
	})
	if text := b.Text(); strings.Contains(text, "does not answer") {
		b.T.Errorf("the page is answered, and reports:\n%s", text)
	}
}
