package site

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/lenonet/leno/e2e/chromium"
	"github.com/lenonet/leno/e2e/lab"
)

// pictures is the directory for screenshots, for people to look at.
const pictures = "../../bin/screenshots"

// phone and desktop are widths in pixels.
const (
	phone   = 360
	desktop = 1366
)

// A looker is a reader of the site.
type looker struct {
	*site
	*chromium.Tab
	t *testing.T
}

// TestSiteInABrowser reads the site as people do, on phone and desktop.
func TestSiteInABrowser(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Minute)
	t.Cleanup(cancel)
	s := open(t).withOlder(t)
	l := &looker{site: s, t: t}
	l.Tab = chromium.Open(ctx, t, s.serve(t), func(complaint string) bool {
		return strings.Contains(complaint, "status of 404") // requested by strays
	})
	l.everyPage()
	l.looks()
	l.searches()
	l.finds("uninstall", "mtu problem", "multi datacenter", "ansible", "curl hangs", "no subnet file", "backup", "encrypt")
	l.switches()
	l.chooses()
	l.types()
	l.opensMenu()
	l.withoutScripts()
	l.strays()
	l.Clean()
}

// everyPage checks that every page fits a phone and that wider parts can be scrolled. It replaces
// the content of one page by the next, which is ten times as fast as loading each.
func (l *looker) everyPage() {
	l.Scheme("light")
	l.Width(phone)
	l.Open(l.base + "configuration/")
	paths, err := json.Marshal(slices.Sorted(maps.Keys(l.pages)))
	must(l.t, err)
	chromium.Value[bool](l.Tab, `(async (paths) => {
		const wrong = [];
		// The styles of blocks are in the pages and must stay.
		const loaded = [...document.querySelectorAll("main link[rel=stylesheet]")].map((link) => {
			document.head.append(link);
			return new Promise((resolve) => { link.onload = resolve; });
		});
		await Promise.all(loaded);
		for (const path of paths) {
			const page = new DOMParser().parseFromString(await (await fetch(path)).text(), "text/html");
			page.querySelectorAll("main link").forEach((link) => link.remove());
			document.querySelector("main").replaceWith(page.querySelector("main"));
			await Promise.all([...document.images].map((i) => i.decode().catch(() => wrong.push(path + ": no picture " + i.src))));
			const over = document.documentElement.scrollWidth - innerWidth;
			if (over > 0) wrong.push(path + ": " + over + " pixels too wide");
			for (const e of document.querySelectorAll("main table, main pre")) {
				if (e.scrollWidth > e.clientWidth + 1 && !/auto|scroll/.test(getComputedStyle(e).overflowX)) wrong.push(path + ": cuts off " + e.innerText.slice(0, 60));
			}
		}
		return wrong;
	})(`+string(paths)+`).then((wrong) => window.wrong = wrong, (error) => window.wrong = [String(error)]), true`)
	l.wait("every page to be measured", `!!window.wrong`)
	for _, wrong := range chromium.Value[[]string](l.Tab, `window.wrong`) {
		l.t.Errorf("on a phone: %s", wrong)
	}
}

// tableOfContentsOver returns by how many pixels the table of contents is wider than its place.
const tableOfContentsOver = `(() => {
	const place = document.querySelector(".right-sidebar"), list = document.querySelector(".right-sidebar .sl-container");
	return list ? Math.ceil(list.getBoundingClientRect().right - place.getBoundingClientRect().right) : 0;
})()`

// looks takes screenshots of pages of every kind and checks that their text is readable in both
// colour schemes.
func (l *looker) looks() {
	kinds := []struct {
		name, path string
		both       bool // both colour schemes
	}{
		{"front", "", true}, {"configuration", "configuration/", true}, {"command", "commands/network/plan/", true},
		{"failures", "concepts/failure-modes/", true}, {"commands", "commands/", false}, {"intro", "intro/", false},
		{"api", "api/", false}, {"operations", "operations/health/", false}, {"picture", "operations/status-page/", false},
	}
	for _, scheme := range []string{"light", "dark"} {
		l.Scheme(scheme)
		for _, kind := range kinds {
			if scheme == "dark" && !kind.both {
				continue
			}
			l.Width(desktop)
			l.Open(l.base + kind.path)
			l.Readable(kind.name + " in " + scheme)
			l.Fits(kind.name + " on a desktop")
			if over := chromium.Value[float64](l.Tab, tableOfContentsOver); over > 0 {
				l.t.Errorf("%s: the table of contents is %v pixels too wide", kind.name, over)
			}
			l.ShootTop(pictures, "site-"+kind.name+"-"+scheme, desktop, 1600)
			l.ShootTop(pictures, "site-"+kind.name+"-"+scheme+"-phone", phone, 2000)
		}
	}
}

// searches finds a word with the keyboard alone, in the search index published with the pages. While Pagefind starts on a
// busy machine, it may never answer what is typed: then the page is opened again.
func (l *looker) searches() {
	l.Width(desktop)
	var typed time.Time
	answered := func(context.Context) error {
		if time.Since(typed) > 30*time.Second {
			l.Open(l.base)
			l.wait("search to be ready", `!document.querySelector("button[data-open-modal]").disabled && !!document.querySelector("#starlight__search input")`)
			l.Do(chromedp.KeyEvent("k", chromedp.KeyModifiers(2 /* Ctrl */)))
			l.wait("search to have the focus", `document.activeElement?.matches("#starlight__search input")`)
			l.Do(chromedp.KeyEvent("masquerade"))
			typed = time.Now()
		}
		if !chromium.Value[bool](l.Tab, `document.querySelectorAll("#starlight__search .pagefind-ui__result-link").length > 0 && !document.querySelector("#starlight__search .pagefind-ui__loading")`) {
			return errors.New("there are none")
		}
		return nil
	}
	defer func() {
		if l.t.Failed() {
			l.t.Logf("the search shows: %s", chromium.Value[string](l.Tab, `document.querySelector("#starlight__search").innerHTML.slice(0, 4000)`))
		}
	}()
	must(l.t, lab.WaitFor(l.Ctx, "results", answered))
	if found := chromium.Value[[]string](l.Tab, `[...document.querySelectorAll("#starlight__search .pagefind-ui__result-link")].map((a) => a.getAttribute("href"))`); !slices.ContainsFunc(found, func(path string) bool {
		path, _, _ = strings.Cut(path, "#")
		return l.pages[path] != nil
	}) {
		l.t.Errorf("masquerade was found at %q", found)
	}
	l.Readable("the search")
	l.ShootTop(pictures, "site-search", desktop, 900)
	l.Do(chromedp.KeyEvent(kb.Escape))
	l.wait("the search to close", `!document.querySelector("site-search dialog").open`)
}

// finds checks that the search finds pages for words that people type.
func (l *looker) finds(words ...string) {
	l.Open(l.base)
	list, err := json.Marshal(words)
	must(l.t, err)
	chromium.Value[bool](l.Tab, fmt.Sprintf(`(async (words) => {
		const search = await import(%q);
		const missing = [];
		for (const word of words) if ((await search.search(word)).results.length === 0) missing.push(word);
		return missing;
	})(%s).then((missing) => window.missing = missing, (error) => window.missing = [String(error)]), true`, l.base+"pagefind/pagefind.js", list))
	l.wait("the searches", `!!window.missing`)
	if missing := chromium.Value[[]string](l.Tab, `window.missing`); len(missing) > 0 {
		l.t.Errorf("the search finds nothing for %q", missing)
	}
}

// switches checks that the reader's choice of a colour scheme takes effect and persists.
func (l *looker) switches() {
	l.Scheme("light")
	l.Width(desktop)
	l.Open(l.base + "backends/")
	ground := func() string { return chromium.Value[string](l.Tab, `getComputedStyle(document.body).backgroundColor`) }
	light := ground()
	chromium.Value[bool](l.Tab, `(() => {
		const select = document.querySelector("starlight-theme-select select");
		select.value = "dark";
		return select.dispatchEvent(new Event("change"));
	})()`)
	dark := ground()
	l.Open(l.base + "api/")
	if again := ground(); dark == light || again != dark {
		l.t.Errorf("light is %s, dark %s, and on the next page %s", light, dark, again)
	}
	chromium.Value[bool](l.Tab, `localStorage.clear(), true`)
}

// chooses checks that another version can be chosen, and that it opens on the same page if it has
// that page.
func (l *looker) chooses() {
	for page, want := range map[string]string{"api/": "/older/api/", "backends/": "/older/"} {
		l.Open(l.base + page)
		l.wait("a choice of versions", `document.querySelector("leno-version select")?.options.length === 2`)
		if got, want := chromium.Value[string](l.Tab, `[...document.querySelector("leno-version select").options].map((o) => o.text).join(", ")`), strings.Trim(l.base, "/")+" (latest), older"; got != want {
			l.t.Errorf("there are %q to choose from, want %q", got, want)
		}
		chromium.Value[bool](l.Tab, `(() => {
			const select = document.querySelector("leno-version select");
			select.value = "older";
			return select.dispatchEvent(new Event("change"));
		})()`)
		l.wait("the older version", fmt.Sprintf(`location.pathname === %q`, want))
	}
}

// opensMenu checks that the sidebar can be opened on a phone.
func (l *looker) opensMenu() {
	l.Width(phone)
	visible := fmt.Sprintf(`document.querySelector("nav a[href='%sgetting-started/']").checkVisibility({ visibilityProperty: true })`, l.base)
	for _, page := range []string{"", "configuration/"} {
		l.Open(l.base + page)
		if chromium.Value[bool](l.Tab, visible) {
			l.t.Errorf("the menu of %q is open before it was opened", page)
		}
		l.Do(chromedp.Click("starlight-menu-button button"))
		l.wait("the menu", visible)
	}
	l.Readable("the menu")
	l.ShootTop(pictures, "site-menu-phone", phone, 900)
}

// types checks that every control can be reached by keyboard, with a visible focus.
func (l *looker) types() {
	l.Open(l.base + "configuration/")
	l.wait("the versions to choose from", `document.querySelector("select[aria-label=Version]") !== null`)
	const describe = `((e) => e.tagName + " " + (e.getAttribute("href") ?? e.getAttribute("aria-label") ?? e.innerText.trim()))`
	var got []string
	for range 12 {
		l.Do(chromedp.KeyEvent(kb.Tab))
		got = append(got, chromium.Value[string](l.Tab, describe+"(document.activeElement)"))
		if chromium.Value[bool](l.Tab, `getComputedStyle(document.activeElement).outlineStyle === "none" && getComputedStyle(document.activeElement.parentElement).outlineStyle === "none"`) {
			l.t.Errorf("%s does not show that it has the focus", got[len(got)-1])
		}
	}
	for i, want := range []string{"A #_top", "A " + l.base, "SELECT Version", "BUTTON Search"} {
		if got[i] != want {
			l.t.Errorf("the keyboard reaches %q, want %s as number %d", got, want, i+1)
		}
	}
	names := strings.Join(l.Names(), "\n")
	for _, name := range []string{"banner ", "navigation Main", "main ", "heading Configuration", "navigation On this page", "button Search", "combobox Select theme"} {
		if !strings.Contains(names, name) {
			l.t.Errorf("a screen reader finds no %q in\n%s", name, names)
		}
	}
	l.Open(l.base)
	if names := strings.Join(l.Names(), "\n"); !strings.Contains(names, "The path of a packet between containers on two hosts") {
		l.t.Errorf("a screen reader finds no picture in\n%s", names)
	}
}

// withoutScripts checks that text and links are there for a browser that runs no scripts, also
// under the addresses that always lead to the newest version.
func (l *looker) withoutScripts() {
	l.Scripts(false)
	l.Width(desktop)
	l.Open(l.base + "configuration/")
	l.Shows("Configuration", "subnet_len", "Troubleshooting", "HTTP API")
	l.Open("/latest/api/")
	l.Shows("HTTP API", "X-Leno-Index")
	l.Open("/versions/")
	l.Shows(strings.Trim(l.base, "/"))
	l.Scripts(true)
}

// strays checks that an unknown address leads to a page with links, and that an address without a
// version leads to the newest version, including the part of the page that it names.
func (l *looker) strays() {
	l.Open(l.base + "no/such/page/")
	l.Shows("404")
	l.Open("/latest/operations/health/#the-service-in-consul")
	l.wait("the newest version", fmt.Sprintf(`location.pathname + location.hash === %q`, l.base+"operations/health/#the-service-in-consul"))
	l.Open("/")
	l.wait("the newest version", fmt.Sprintf(`location.pathname === %q`, l.base))
}

// wait blocks until an expression is true on the page.
func (l *looker) wait(what, expression string) {
	l.t.Helper()
	must(l.t, lab.WaitFor(l.Ctx, what, func(context.Context) error {
		ok, err := chromedp.Run(l.Ctx, chromedp.Evaluate[bool](expression))
		if err == nil && !ok {
			err = fmt.Errorf("not yet: %s", expression)
		}
		return err
	}))
}
