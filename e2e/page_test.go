package e2e

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/lenonet/leno/e2e/lab"
)

// TestStatusPageInABrowser looks at the page of a host as people do: what it says,
// how it follows what happens, and whether everybody can use it.
func TestStatusPageInABrowser(t *testing.T) {
	w := newWorld(t, lab.Options{Hosts: 3})
	a, c := w.Hosts[0], w.Hosts[2]
	blocks := func(h *lab.Host) []string { return []string{shortLease, h.Network("default", plan("udp"))} }
	for _, h := range w.Hosts[:2] {
		w.must(h.StartAgent(h.Config(blocks(h)...)))
	}
	b := w.browse(a)
	for _, h := range w.Hosts[:2] {
		w.must(h.WaitReady(w.ctx))
		w.container(h, "default")
	}
	w.waitPeers(a, "default", 1)
	w.ping(w.containers[0], w.containers[1].Addrs[0])

	b.withoutScripts()
	b.follows(c, blocks)
	b.usable()
	b.readable()
	b.silence()
	b.patience()
	b.clean()
}

// withoutScripts: every table is there for a browser that runs no scripts.
func (b *browser) withoutScripts() {
	b.scripts(false)
	a, other := b.Hosts[0], b.Hosts[1]
	for _, path := range []string{"/ui", "/ui/network/default"} {
		b.open(path)
		b.shows(a.Name+" is well", "255 slots, from 10.5.1.0/24", b.subnet(a, "default").String(), b.subnet(other, "default").String(),
			other.Name, "this host holds "+b.subnet(a, "default").String())
	}
	b.open("/ui/network/default?q=" + other.Name)
	b.shows("1 to 1 of 1", b.subnet(other, "default").String())
	b.open("/")
	b.shows("Overview")
	b.scripts(true)
}

// follows: what happens is on the page without loading it again, and the reader is
// not disturbed.
func (b *browser) follows(c *lab.Host, blocks func(*lab.Host) []string) {
	b.open("/ui/network/default")
	other := b.Hosts[1].Name
	b.shows(other)
	value[bool](b, `
		window.loadedOnce = true,
		window.rowOfOther = [...document.querySelectorAll("table.hosts tr")].find((r) => r.innerText.includes("`+other+`")),
		window.scrollTo(0, 200),
		getSelection().selectAllChildren(rowOfOther.querySelector(".host")),
		document.querySelector("details summary").click(),
		document.querySelector("details summary").focus(), true`)
	b.must(c.StartAgent(c.Config(blocks(c)...)))
	b.must(c.WaitReady(b.ctx))
	subnet := b.subnet(c, "default").String()
	b.shows(subnet, c.Name+" appeared with "+subnet)
	b.undisturbed(other)

	// Traffic: what was counted is there, and how fast it goes. A host dies meanwhile.
	b.ping(b.containers[0], b.containers[1].Addrs[0])
	session := b.session(c)
	b.must(c.KillAgent())
	_, err := b.Consul.Client().Session().Destroy(session, nil)
	b.must(err)
	moved := false
	b.eventually("a rate, and a lapsed lease", func(context.Context) error {
		moved = moved || value[bool](b, `[...document.querySelectorAll("[data-count]")].some((e) => /^[1-9].*B\/s$/.test(e.innerText))`)
		if text := b.text(); !moved || !strings.Contains(text, "lapsed, under 1 min") {
			return fmt.Errorf("a rate was seen: %v, the page is:\n%s", moved, text)
		}
		return nil
	})
	b.undisturbed(other)
	if label := value[string](b, `document.querySelector(".map > svg").getAttribute("aria-label")`); label != "255 slots: 1 own, 1 held, 1 lapsed, 252 free" {
		b.t.Errorf("the map is %q", label)
	}
}

// undisturbed: the reader's place, selection, focus and what was opened are as
// they were.
func (b *browser) undisturbed(selected string) {
	b.t.Helper()
	got := value[string](b, `[window.loadedOnce, scrollY, getSelection().toString().trim(), document.activeElement.tagName,
		document.querySelector("details").open, rowOfOther.isConnected].join(" ")`)
	if want := "true 200 " + selected + " SUMMARY true true"; got != want {
		b.t.Errorf("after news the page has %q, it had %q", got, want)
	}
}

// usable: everything that can be used is reached by the keyboard, in order, and
// shows it; a screen reader has a name for every part.
func (b *browser) usable() {
	const describe = `((e) => e.tagName + " " + (e.id || e.getAttribute("href") || e.getAttribute("aria-labelledby") || e.innerText).trim())`
	b.open("/ui/network/default")
	b.shows(b.Hosts[1].Name)
	want := value[[]string](b, `[...document.querySelectorAll("a[href], button, input, summary, [tabindex='0']")].filter((e) => e.checkVisibility()).map(`+describe+`)`)
	if len(want) < 12 {
		b.t.Errorf("only %q can be used", want)
	}
	var got []string
	for range want {
		b.do(chromedp.KeyEvent(kb.Tab))
		got = append(got, value[string](b, describe+"(document.activeElement)"))
		if value[string](b, `getComputedStyle(document.activeElement).outlineStyle`) == "none" {
			b.t.Errorf("%s does not show that it has the focus", got[len(got)-1])
		}
	}
	if !slices.Equal(got, want) {
		b.t.Errorf("the keyboard reaches\n%q, there is\n%q", got, want)
	}
	if got[0] != "A #main" {
		b.t.Errorf("the first way is not past the navigation: %s", got[0])
	}
	names := strings.Join(b.names(), "\n")
	for _, name := range []string{"banner ", "navigation Networks", "main ", "contentinfo ", "heading " + b.Hosts[0].Name, "status ", "heading Network default", "heading Slots",
		"image 255 slots: 1 own", "search ", "searchbox Find a host, address or state", "button Find",
		"table Hosts and slots of network default, 1 to 3 of 3", "columnheader Public IP", "rowheader 10.5.", "table The last "} {
		if !strings.Contains("\n"+names, "\n"+name) && !(name == "image 255 slots: 1 own" && strings.Contains(names, "img 255 slots: 1 own")) {
			b.t.Errorf("a screen reader finds no %q in\n%s", name, names)
		}
	}
	b.do(chromedp.Focus("#q"), chromedp.SendKeys("#q", "LAPSED"))
	b.shows("1 to 1 of 1", b.Hosts[2].Name)
	if value[string](b, `document.activeElement.id + document.activeElement.value + location.search`) != "qLAPSED?q=LAPSED" {
		b.t.Error("typing lost its place")
	}
}

// contrast lists text whose colours are too near each other, by WCAG 2.2, 1.4.3.
const contrast = `(() => {
	const parts = (c) => c.match(/[\d.]+/g).map(Number);
	const light = (c) => {
		const [r, g, b] = c.map((v) => v / 255).map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
		return 0.2126 * r + 0.7152 * g + 0.0722 * b;
	};
	const out = new Set();
	const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
	for (let n = walker.nextNode(); n; n = walker.nextNode()) {
		const e = n.parentElement;
		if (!n.data.trim() || !e.checkVisibility()) continue;
		let ground = [0, 0, 0, 0];
		for (let up = e; up && (ground[3] ?? 1) === 0; up = up.parentElement) ground = parts(getComputedStyle(up).backgroundColor);
		const a = light(parts(getComputedStyle(e).color)), b = light(ground);
		const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
		if (ratio < 4.5) out.add(ratio.toFixed(2) + " " + n.data.trim().slice(0, 40));
	}
	return [...out];
})()`

// readable: text stands out in both colour schemes, and fits a phone.
func (b *browser) readable() {
	for _, scheme := range []string{"light", "dark"} {
		b.scheme(scheme)
		for name, path := range map[string]string{"overview": "/ui", "network": "/ui/network/default"} {
			b.open(path)
			b.shows(b.Hosts[2].Name)
			value[bool](b, `document.querySelectorAll("details").forEach((d) => d.open = true), true`)
			if poor := value[[]string](b, contrast); len(poor) > 0 {
				b.t.Errorf("%s in %s has too little contrast: %q", path, scheme, poor)
			}
			value[bool](b, `document.querySelectorAll("details").forEach((d) => d.open = false), true`)
			b.shoot(name+"-"+scheme, 1440)
			for _, width := range []int64{360, 1440} {
				b.do(chromedp.EmulateViewport(width, 800))
				if over := value[int](b, `document.documentElement.scrollWidth - innerWidth`); over > 0 {
					b.t.Errorf("%s at %d pixels is %d too wide", path, width, over)
				}
			}
			if (name == "network") == (scheme == "dark") {
				b.shoot(name+"-"+scheme+"-phone", 360)
			}
		}
	}
}

// silence: an agent that does not answer is told, and that it does again.
func (b *browser) silence() {
	b.scheme("light")
	b.open("/ui")
	b.shows(b.Hosts[0].Name + " ")
	b.away.Store(true)
	b.shows("The agent does not answer since")
	b.shoot("silent", 1440)
	b.away.Store(false)
	b.eventually("the page to follow again", func(context.Context) error {
		if strings.Contains(b.text(), "does not answer") {
			return fmt.Errorf("it still says that the agent does not answer")
		}
		return nil
	})
	status, _, err := b.Hosts[0].Get(b.ctx, "/ui")
	if err != nil || status != http.StatusOK {
		b.t.Errorf("%d, %v", status, err)
	}
}

// patience: a page whose reads are refused, as when too many wait, asks more and
// more seldom, though the page itself is answered.
func (b *browser) patience() {
	b.full.Store(true)
	b.hurry()
	b.open("/ui/network/default")
	b.eventually("half a minute between two reads", func(context.Context) error {
		// What is not a wait of 5 s between two looks.
		if waits := value[[]float64](b, `waits.filter((ms) => ms > 1000 && ms !== 5000)`); len(waits) == 0 || slices.Max(waits) < 20_000 {
			return fmt.Errorf("waits of %v ms", waits)
		}
		return nil
	})
	if text := b.text(); strings.Contains(text, "does not answer") {
		b.t.Errorf("the page is answered, and says:\n%s", text)
	}
}
