"use strict";
// Keeps the page up to date without reloading it: when a blocking read of the API reports
// a change, the script requests the page again and replaces only the parts that differ, so
// that scroll position, focus and selection stay.
(() => {
  const every = 5000; // ms: for counters, and for values whose changes the API does not report
  const least = 500; // ms between two requests
  const most = 30000; // ms: the longest pause between attempts while the agent does not respond
  const wait = 20; // s: duration of a blocking read; browsers open six connections to an agent

  let root = document.body.dataset.root;
  let shown = "";
  let silentSince = null;
  let failures = 0;
  let counts = new Map();
  let looking = false;
  let again = false;
  let timer = 0;
  let hidden = new AbortController();

  const sleep = (ms) => new Promise((done) => setTimeout(done, ms));
  const pause = (tries) => sleep(Math.min(most, 1000 * 2 ** Math.min(tries, 5)) * (0.8 + 0.4 * Math.random()));
  const visible = () => document.visibilityState === "visible" ? Promise.resolve() : new Promise((done) => {
    document.addEventListener("visibilitychange", function seen() {
      if (document.visibilityState !== "visible") return;
      document.removeEventListener("visibilitychange", seen);
      done();
    });
  });

  function answered() {
    failures = 0;
    if (silentSince === null) return;
    silentSince = null;
    document.body.classList.remove("stale");
    tell();
  }

  function silent() {
    failures++;
    if (silentSince === null) silentSince = new Date();
    document.body.classList.add("stale");
    tell();
  }

  function tell() {
    const away = document.getElementById("away");
    const text = silentSince === null ? "" :
      `The agent does not answer since ${silentSince.toISOString().slice(11, 19)} UTC. What is below is from then.`;
    if (away.textContent !== text) away.textContent = text;
    away.hidden = text === "";
  }

  // follow requests the page whenever a blocking read returns another index. The first
  // read may have given the agent data that the page, rendered from memory, did not have.
  // A read that is refused, as when too many are waiting, is repeated at growing
  // intervals, even if the page itself is served.
  async function follow(path) {
    let index = "0";
    let refused = 0;
    for (;;) {
      await visible();
      const started = Date.now();
      try {
        const r = await fetch(`${root}${path}?index=${index}&wait=${wait}s`, { signal: hidden.signal, cache: "no-store" });
        await r.text();
        const next = r.headers.get("X-Leno-Index") || "0";
        if (r.ok && next !== index) look();
        index = next;
        if (!r.ok) throw new Error(r.status);
        refused = 0;
      } catch (e) {
        index = "0";
        if (e.name !== "AbortError") {
          if (refused++ === 0) look(); // to find out whether the agent responds
          await pause(refused);
        }
      }
      await sleep(Math.max(0, least - (Date.now() - started)));
    }
  }

  // look updates the page. If it is called during an update, it updates the page once more.
  async function look() {
    clearTimeout(timer);
    if (looking) {
      again = true;
      return;
    }
    looking = true;
    const started = Date.now();
    try {
      const r = await fetch(location.href, { headers: { Accept: "text/html" }, cache: "no-cache", signal: hidden.signal });
      const text = await r.text();
      if (!r.ok && r.status !== 404) throw new Error(r.status);
      if (text !== shown || counts.size > 0) show(text);
      answered();
    } catch (e) {
      if (e.name !== "AbortError") silent();
    }
    await sleep(Math.max(0, least - (Date.now() - started)));
    looking = false;
    if (document.visibilityState !== "visible") return;
    if (again) {
      again = false;
      look();
      return;
    }
    timer = setTimeout(look, failures > 0 ? Math.min(most, 1000 * 2 ** Math.min(failures, 5)) : every);
  }

  function show(text) {
    shown = text;
    const next = new DOMParser().parseFromString(text, "text/html");
    if (assets(next) !== assets(document)) { // another version of the agent
      location.reload();
      return;
    }
    rates(next);
    document.title = next.title;
    for (const part of ["header", "main", "footer"]) {
      const now = document.querySelector(`body > ${part}`);
      const then = next.querySelector(`body > ${part}`);
      if (now && then) morph(now, then);
    }
    tell();
  }

  const assets = (d) => [...d.querySelectorAll("script[src], link[rel=stylesheet]")].map((e) => e.getAttribute("src") || e.getAttribute("href")).join();

  // rates writes how fast the counters have changed since the last update.
  function rates(next) {
    const now = performance.now();
    const seen = new Map();
    for (const e of next.querySelectorAll("[data-count]")) {
      const row = e.closest("tr").id + "/" + [...e.closest("tr").querySelectorAll("[data-count]")].indexOf(e);
      const value = Number(e.dataset.count);
      const before = counts.get(row);
      let rate = "";
      if (before && now - before.at < 3000 && before.value === value) rate = before.rate;
      else if (before && value >= before.value) rate = perSecond((value - before.value) / (now - before.at) * 1000);
      e.textContent = rate;
      seen.set(row, before && before.value === value && now - before.at < 3000 ? before : { value, at: now, rate });
    }
    counts = seen;
  }

  function perSecond(n) {
    if (n < 0.5) return "0 B/s";
    let unit = 0;
    while (n >= 999.5 && unit < 5) {
      n /= 1000;
      unit++;
    }
    return `${n < 9.95 && unit > 0 ? n.toFixed(1) : n.toFixed(0)} ${" kMGTP"[unit].trim()}B/s`;
  }

  // morph makes a equal to b and leaves equal parts alone.
  function morph(a, b) {
    if (a.nodeType !== Node.ELEMENT_NODE) {
      if (a.data !== b.data) a.data = b.data;
      return;
    }
    if (a.id === "away") return;
    for (const { name, value } of [...b.attributes]) {
      if (name === "value" && a === document.activeElement) continue;
      if (name === "open") continue; // as the reader left it
      if (a.getAttribute(name) !== value) a.setAttribute(name, value);
    }
    for (const { name } of [...a.attributes]) {
      if (name === "tabindex" && a === document.activeElement) continue;
      if (!b.hasAttribute(name) && name !== "open") a.removeAttribute(name);
    }
    const named = new Map();
    for (const child of a.children) if (child.id) named.set(child.id, child);
    let at = a.firstChild;
    for (const want of [...b.childNodes]) {
      const known = want.id && named.get(want.id);
      if (known) {
        if (known === at) at = at.nextSibling;
        else a.insertBefore(known, at);
        morph(known, want);
      } else if (at && !at.id && !want.id && at.nodeName === want.nodeName) {
        const next = at.nextSibling;
        morph(at, want);
        at = next;
      } else {
        a.insertBefore(document.importNode(want, true), at);
      }
    }
    while (at) {
      const next = at.nextSibling;
      at.remove();
      at = next;
    }
  }

  // A click on a slot of the map opens its row.
  document.addEventListener("click", (e) => {
    const id = e.target.closest && e.target.closest("use[data-row]")?.dataset.row;
    const row = id && document.getElementById(id);
    if (row) {
      location.hash = id;
      row.focus({ preventScroll: true });
    }
  });

  // A cell of the table of paths that has no link is chosen with a click or Enter, and the arrow keys go from cell to cell.
  const choose = (cell) => {
    if (!cell.matches(".paths td:not([class])")) return;
    const table = cell.closest("table");
    location.href = `${table.dataset.page}?path=${cell.parentNode.dataset.key}_${table.rows[cell.cellIndex].dataset.key}#${table.dataset.detail}`;
  };
  const steps = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
  document.addEventListener("click", (e) => choose(e.target));
  document.addEventListener("keydown", (e) => {
    const cell = e.target.closest && e.target.closest(".paths th, .paths td");
    const step = steps[e.key];
    if (!cell || e.altKey || e.ctrlKey || e.metaKey) return;
    if (e.key === "Enter") choose(e.target);
    const row = step && cell.closest("table").tBodies[0].rows[cell.parentNode.sectionRowIndex + step[0]];
    const next = row && row.cells[Math.min(cell.cellIndex, row.cells.length - 1) + step[1]];
    if (!next) return;
    e.preventDefault();
    const to = next.querySelector("a") || next;
    if (to === next) next.tabIndex = -1;
    to.focus();
  });

  // The search for hosts runs while the user types.
  let typing = 0;
  document.addEventListener("input", (e) => {
    if (e.target.id !== "q") return;
    clearTimeout(typing);
    typing = setTimeout(() => {
      const to = new URL(location.href);
      to.search = e.target.value ? new URLSearchParams({ q: e.target.value }) : "";
      to.hash = "";
      history.replaceState(null, "", to);
      look();
    }, 150);
  });

  document.addEventListener("visibilitychange", () => {
    if (document.visibilityState === "visible") {
      look();
      return;
    }
    hidden.abort();
    hidden = new AbortController();
    clearTimeout(timer);
  });

  // The page was just rendered; the first update records the counters.
  look();
  follow(document.body.dataset.watch);
})();
