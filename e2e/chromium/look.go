package chromium

import (
	"cmp"
	"os"
	"path/filepath"
	"strings"

	"github.com/chromedp/cdproto/accessibility"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
)

// screenshots names the environment variable with the directory for pictures of pages.
const screenshots = "LENO_SCREENSHOTS"

// Scheme switches the page to a colour scheme, light or dark.
func (b *Tab) Scheme(name string) {
	b.t.Helper()
	_, err := chromedp.Call(b.Ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
		Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: name}, {Name: "prefers-reduced-motion", Value: "reduce"}}})
	b.must(err)
}

// Scripts enables or disables JavaScript on pages that are opened from now on.
func (b *Tab) Scripts(on bool) {
	b.t.Helper()
	_, err := chromedp.Call(b.Ctx, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: !on})
	b.must(err)
}

// Names returns the roles and names that a screen reader announces, in order.
func (b *Tab) Names() (out []string) {
	b.t.Helper()
	tree, err := chromedp.Call(b.Ctx, accessibility.GetFullAXTree, accessibility.GetFullAXTreeParams{})
	b.must(err)
	for _, n := range tree.Nodes {
		if !n.Ignored && n.Role != nil && n.Name != nil {
			out = append(out, strings.Trim(string(n.Role.Value), `"`)+" "+strings.Trim(string(n.Name.Value), `"`))
		}
	}
	return out
}

// Width sets the width of the window in pixels.
func (b *Tab) Width(pixels int64) {
	b.t.Helper()
	b.Do(chromedp.EmulateViewport(pixels, 900))
}

// Fits fails the test if the page is wider than the window.
func (b *Tab) Fits(what string) {
	b.t.Helper()
	if over := Value[int](b, `document.documentElement.scrollWidth - innerWidth`); over > 0 {
		b.t.Errorf("%s is %d pixels too wide for the window", what, over)
	}
}

// Readable fails the test if text does not stand out from its background.
func (b *Tab) Readable(what string) {
	b.t.Helper()
	if poor := Value[[]string](b, contrast); len(poor) > 0 {
		b.t.Errorf("%s has too little contrast: %q", what, poor)
	}
}

// Shoot saves a picture of the whole page at the given width. It goes to the directory in
// LENO_SCREENSHOTS, or else to the given one.
func (b *Tab) Shoot(dir, name string, width int64) {
	b.t.Helper()
	b.Width(width)
	b.shoot(dir, name, chromedp.FullScreenshot(100))
}

// ShootTop is like Shoot but takes only the given number of pixels at the top, which is much faster
// in Chromium.
func (b *Tab) ShootTop(dir, name string, width, height int64) {
	b.t.Helper()
	b.Do(chromedp.EmulateViewport(width, height))
	b.shoot(dir, name, chromedp.CaptureScreenshot())
}

func (b *Tab) shoot(dir, name string, how chromedp.Action[[]byte]) {
	b.t.Helper()
	image, err := chromedp.Run(b.Ctx, how)
	b.must(err)
	dir = cmp.Or(os.Getenv(screenshots), dir)
	b.must(os.MkdirAll(dir, 0o755))
	path := filepath.Join(dir, name+".png")
	b.must(os.RemoveAll(path)) // of an earlier run, possibly owned by root
	b.must(os.WriteFile(path, image, 0o644))
	b.Do(chromedp.ResetViewport())
}

// contrast lists text whose contrast with its background is below WCAG 2.2, 1.4.3.
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
