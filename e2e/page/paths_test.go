package page

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/lenonet/leno/e2e/chromium"
	"github.com/lenonet/leno/e2e/lab"
	"github.com/lenonet/leno/e2e/world"
)

// TestPathsInABrowser drops all packets between two of three hosts and looks at the table of paths on the page of the third
// one, which hears of it, and at the sparkline on the page of one of the two.
func TestPathsInABrowser(t *testing.T) {
	w := newWorld(t, lab.Options{Hosts: 3})
	w.Start(func(h *lab.Host) []string { return []string{h.Network("default", world.Plan("vxlan"))} })
	w.Settle("default")
	a, b, c := w.Hosts[0], w.Hosts[1], w.Hosts[2]
	page := w.browse(a)
	page.Open("/ui/network/default")
	page.shows("- ms ms", "✓ - ✓", "✓ ✓ -")

	rules := "nft add table inet seeded; nft 'add chain inet seeded in { type filter hook input priority -300; }'"
	for _, addr := range b.Addrs {
		family := "ip"
		if addr.Is6() {
			family = "ip6"
		}
		rules += fmt.Sprintf("; nft add rule inet seeded in %s saddr %s drop", family, addr)
	}
	_, err := c.Exec(w.Ctx, "sh", "-euc", rules)
	w.Must(err)
	page.shows("- ms ms", "✓ - lost", "✓ lost -") // the page that was open follows

	page.choose(b.Name, c.Name)
	page.looks()
	page.withoutLinks(a.Name, b.Name)

	other := w.browse(b)
	other.Open("/ui/network/default")
	other.Eventually("a sparkline with loss", func(context.Context) error {
		labels := chromium.Value[[]string](other.Tab, `[...document.querySelectorAll("table.hosts tr")].flatMap((r) =>
			[...r.querySelectorAll(".spark")].map((s) => r.querySelector(".host").innerText + ": " + s.getAttribute("aria-label")))`)
		for _, label := range labels {
			if strings.HasPrefix(label, c.Name+": Loss in the last ") && strings.Contains(label, "up to ") {
				return nil
			}
		}
		return fmt.Errorf("there are %q", labels)
	})
	other.Shoot(pictures, "paths-lost", 1440)
	other.Open("/ui")
	other.shows("- ✓ ✓", "ms - lost", "✓ lost -")
	other.Shoot(pictures, "overview-lost", 1216)
	other.Do(chromedp.Click("table.paths tbody tr:first-child td:last-child")) // which has no link
	other.Shows(a.Name+" to "+c.Name, "Run next", "Slots")
	other.Clean()

	page.Open("/ui/network/default")
	for _, h := range []*lab.Host{b, c} { // events of other hosts
		page.Shows(h.Name + " reported a warning: paths: packets are lost to 1 of 2 hosts")
	}

	_, err = c.Exec(w.Ctx, "nft", "delete", "table", "inet", "seeded")
	w.Must(err)
	page.Open("/ui/network/default")
	page.shows("- ms ms", "✓ - ✓", "✓ ✓ -")
	page.Clean()
}

// shows waits until the table of paths has these rows, without the names of the hosts and the numbers.
func (b *browser) shows(rows ...string) {
	b.T.Helper()
	want := strings.Join(rows, "\n")
	b.Eventually("the table of paths to be\n"+want, func(context.Context) error {
		got := chromium.Value[string](b.Tab, `[...document.querySelectorAll("table.paths tbody tr")].map((r) =>
			[...r.querySelectorAll("td")].map((c) => c.innerText.replace(/[\d.]+ /, "")).join(" ")).join("\n")`)
		if got != want {
			return fmt.Errorf("it is\n%s\n%s", got, b.Text())
		}
		return nil
	})
}

// choose follows the link of a cell, with scripts and without, and then goes there with the keyboard.
func (b *browser) choose(from, to string) {
	b.T.Helper()
	explained := []string{from + " to " + to, "summary sent by " + from, "Run next", "leno doctor on " + from}
	for _, scripts := range []bool{false, true} {
		b.Scripts(scripts)
		b.Open("/ui/network/default")
		b.Shows("Paths between hosts")
		b.Do(chromedp.Click("table.paths td.lost a"))
		b.Shows(explained...)
	}
	b.Open("/ui/network/default")
	b.Shows("Paths between hosts")
	b.Do(chromedp.Focus("table.paths tbody tr:first-child a"))
	for _, key := range []string{kb.ArrowRight, kb.ArrowDown, kb.ArrowRight, kb.ArrowRight} {
		b.Do(chromedp.KeyEvent(key))
		if chromium.Value[string](b.Tab, `getComputedStyle(document.activeElement).outlineStyle`) == "none" {
			b.T.Errorf("%s does not show the focus", chromium.Value[string](b.Tab, `document.activeElement.outerHTML`))
		}
	}
	if got := chromium.Value[string](b.Tab, `document.activeElement.innerText`); got != "lost" {
		b.T.Fatalf("the arrow keys lead to %q", got)
	}
	b.Do(chromedp.KeyEvent(kb.Enter))
	b.Shows(explained...)
}

// withoutLinks chooses a cell that is in order, with a click and with Enter.
func (b *browser) withoutLinks(to, from string) {
	b.T.Helper()
	explained := []string{from + " to " + to, "sudo leno trace SOURCE DESTINATION on " + from}
	b.Open("/ui/network/default")
	b.Shows("Paths between hosts")
	b.Do(chromedp.Click("table.paths tbody tr:nth-child(2) td:nth-of-type(1)"))
	b.Shows(explained...)
	b.Open("/ui/network/default")
	b.Shows("Paths between hosts")
	b.Do(chromedp.Focus("table.paths tbody tr:nth-child(2) a"), chromedp.KeyEvent(kb.ArrowRight), chromedp.KeyEvent(kb.Enter))
	b.Shows(explained...)
}

// looks checks that the table and the explanation have enough contrast, and that the page fits a phone.
func (b *browser) looks() {
	for _, scheme := range []string{"light", "dark"} {
		b.Scheme(scheme)
		b.Readable("the table of paths in " + scheme)
		b.Shoot(pictures, "paths-"+scheme, 1440)
		for _, width := range []int64{360, 1440} {
			b.Width(width)
			b.Fits(fmt.Sprintf("the table of paths at %d pixels", width))
		}
		b.Shoot(pictures, "paths-"+scheme+"-phone", 360)
	}
	b.Scheme("light")
}
