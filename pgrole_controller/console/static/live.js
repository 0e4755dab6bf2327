// Live updates, search as you type, and the theme. Every page works without this file, by loading it again.
(() => {
  "use strict";
  const root = document.documentElement;
  const find = (id) => document.getElementById(id);

  // ---- Theme ---------------------------------------------------------------------------------------------------
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const toggle = find("theme");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : dark.matches);
  const tellTheme = () => toggle?.setAttribute("aria-pressed", String(isDark()));
  toggle?.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    tellTheme();
    try {
      localStorage.setItem("theme", root.dataset.theme);
    } catch {
      root.dataset.storage = "none";
    }
  });
  dark.addEventListener("change", tellTheme);
  tellTheme();

  // ---- Times -----------------------------------------------------------------------------------------------------
  const units = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
  const distance = (milliseconds) => {
    const seconds = Math.floor(Math.abs(milliseconds) / 1000);
    for (const [size, unit] of units) {
      if (seconds < size) continue;
      const words = `${Math.floor(seconds / size).toLocaleString("en")} ${unit}`;
      return milliseconds > 0 ? `in ${words}` : `${words} ago`;
    }
    return "now";
  };
  const tellTimes = () => {
    for (const time of document.querySelectorAll("time[datetime]")) {
      const words = distance(Date.parse(time.dateTime) - Date.now());
      if (time.firstChild && time.firstChild.data !== words) time.firstChild.data = words;
    }
  };
  setInterval(tellTimes, 10000);

  // ---- Swap <main>, and keep focus, scroll and selection: what did not change stays the same node ---------------------
  const keyOf = (node) => (node.nodeType === Node.ELEMENT_NODE ? node.id || node.dataset.key || "" : "");
  const isSame = (one, other) => one.nodeName === other.nodeName && keyOf(one) === keyOf(other);

  const morphAttributes = (old, fresh) => {
    for (const { name } of [...old.attributes]) {
      const isOwn = (name === "open" && old.nodeName === "DETAILS") || name === "data-fresh";
      if (!fresh.hasAttribute(name) && !isOwn) old.removeAttribute(name);
    }
    for (const { name, value } of fresh.attributes) {
      if (name === "open" && old.nodeName === "DETAILS") continue;
      if (old.getAttribute(name) !== value) old.setAttribute(name, value);
    }
    if (old === document.activeElement) return;
    if (old.nodeName === "INPUT" && old.value !== fresh.value) old.value = fresh.value;
    if (old.nodeName === "SELECT") queueMicrotask(() => {
      const chosen = old.querySelector("option[selected]");
      if (chosen) old.value = chosen.value;
    });
  };

  const morph = (old, fresh) => {
    if (old.nodeType !== Node.ELEMENT_NODE) {
      if (old.data !== fresh.data) old.data = fresh.data;
      return;
    }
    morphAttributes(old, fresh);
    const keyed = new Map(); // nodes in order: drifts in the same second have the same key
    for (const child of old.children) {
      if (!keyed.has(keyOf(child))) keyed.set(keyOf(child), []);
      keyed.get(keyOf(child)).push(child);
    }
    let place = old.firstChild;
    for (const next of [...fresh.childNodes]) {
      const known = keyOf(next) ? keyed.get(keyOf(next))?.shift() : null;
      if (known && isSame(known, next)) {
        if (known !== place) old.insertBefore(known, place);
        else place = place.nextSibling;
        morph(known, next);
      } else if (!keyOf(next) && place && isSame(place, next)) {
        const current = place;
        place = place.nextSibling;
        morph(current, next);
      } else {
        old.insertBefore(next, place);
        if (next.nodeType === Node.ELEMENT_NODE && next.dataset.key) next.dataset.fresh = "";
      }
    }
    while (place) {
      const gone = place;
      place = place.nextSibling;
      gone.remove();
    }
  };

  let lastSaid = find("main")?.dataset.announcement ?? "";
  const say = (text) => {
    if (!text || text === lastSaid) return;
    lastSaid = text;
    find("announcement").textContent = text;
  };

  // ---- Fetch what changed -----------------------------------------------------------------------------------------
  let running = null;
  let again = false;
  let streaming = false; // the server tells what changes
  const RETRY = 3000;
  let retry = 0;
  const refresh = async (url = location.href) => {
    running?.abort();
    const request = (running = new AbortController());
    try {
      const asked = { headers: { "X-Fragment": "1" }, signal: request.signal, cache: "no-store", redirect: "manual" };
      const answer = await fetch(url, asked);
      if (answer.status === 401 || answer.type === "opaqueredirect") { // a proxy's login is on another site
        location.reload();
        return;
      }
      if (answer.status !== 404 && !answer.ok) throw new Error(`answered ${answer.status}`);
      const text = await answer.text();
      if (request.signal.aborted) return;
      const fresh = new DOMParser().parseFromString(text, "text/html").querySelector("main");
      if (!fresh) throw new Error("answered no <main>");
      if (fresh.dataset.session !== find("main").dataset.session) { // someone signed in again in another tab
        location.reload();
        return;
      }
      morph(find("main"), document.adoptNode(fresh));
      document.title = `${find("main").dataset.title} · pgrole`;
      tellTimes();
      say(find("main").dataset.announcement);
      clearTimeout(retry);
      if (streaming) tellLive("on");
    } catch (error) {
      if (error.name === "AbortError") return;
      tellLive("lost"); // no further change may come to fetch this one with
      clearTimeout(retry);
      retry = setTimeout(update, RETRY);
    } finally {
      if (running === request) running = null;
    }
  };

  const LIVE = { on: "Live", lost: "Reconnecting", off: "Not live" };
  const tellLive = (state) => {
    const shown = find("live");
    if (!shown || shown.dataset.live === state) return;
    shown.dataset.live = state;
    find("live-words").textContent = LIVE[state];
  };

  const concerns = (names) => {
    const watch = find("main").dataset.watch;
    return watch === "*" || names.includes("connection") || names.includes("progress") || watch.split(" ").some((each) => names.includes(each));
  };

  // The first change is shown at once, and those that follow it together. What is being fetched is not interrupted.
  const PAUSE = 250;
  let quietUntil = 0;
  const update = () => {
    const wait = running ? PAUSE : quietUntil - performance.now();
    if (wait > 0) {
      if (!again) {
        again = true;
        setTimeout(() => {
          again = false;
          update();
        }, wait);
      }
      return;
    }
    quietUntil = performance.now() + PAUSE;
    refresh();
  };

  if (find("live")) {
    let events = null;
    const listen = () => {
      // The version tells the server whether something changed since this page, or while the stream was interrupted.
      const stream = (events = new EventSource(`/events?since=${find("main").dataset.version}`));
      stream.addEventListener("open", () => {
        streaming = true;
        tellLive("on");
      });
      stream.addEventListener("changed", (event) => {
        let names = ["connection"];
        try {
          names = JSON.parse(event.data);
        } catch {
          names = ["connection"]; // look at everything
        }
        if (concerns(names)) update();
      });
      stream.addEventListener("error", () => {
        streaming = false;
        tellLive("lost");
        if (stream.readyState !== EventSource.CLOSED) return;
        setTimeout(() => {
          if (stream !== events) return;
          refresh(); // a session that ended leads to the login page
          listen();
        }, 3000);
      });
    };
    const stop = () => {
      events?.close();
      events = null;
      streaming = false;
    };
    // Browsers open six connections to a server over HTTP/1.1: hidden tabs would keep them from those that are shown.
    const follow = () => {
      if (document.hidden) stop();
      else if (!events) listen();
    };
    document.addEventListener("visibilitychange", follow);
    addEventListener("pagehide", stop);
    follow();
    addEventListener("pageshow", (event) => event.persisted && location.reload());
  }

  // ---- Sign out: no form may lead to another site, where a proxy may have its login ------------------------------------
  document.addEventListener("submit", async (event) => {
    const form = event.target;
    if (!form.matches('form[action="/logout"]')) return;
    event.preventDefault();
    const sent = { method: "POST", body: new URLSearchParams(new FormData(form)), redirect: "manual" };
    await fetch(form.action, sent).catch(() => null);
    location.assign("/login"); // which leads back to the overview if the session has not ended
  });

  // ---- Search as you type --------------------------------------------------------------------------------------------
  const DEBOUNCE = 180;
  let typing = 0;
  const search = (form) => {
    const url = new URL(form.action);
    for (const [name, value] of new FormData(form)) if (value) url.searchParams.set(name, value);
    history.replaceState(null, "", url);
    refresh(url.href);
  };
  document.addEventListener("input", (event) => {
    const form = event.target.closest?.("form[data-search]");
    if (!form) return;
    clearTimeout(typing);
    typing = setTimeout(() => search(form), event.target.nodeName === "SELECT" ? 0 : DEBOUNCE);
  });
  document.addEventListener("submit", (event) => {
    if (!event.target.matches("form[data-search]")) return;
    event.preventDefault();
    clearTimeout(typing);
    search(event.target);
  });
  document.addEventListener("keydown", (event) => {
    const typed = event.target.closest?.("input, textarea, select");
    if (event.key !== "/" || typed || event.ctrlKey || event.metaKey || event.altKey) return;
    const field = find("search");
    if (!field) return;
    event.preventDefault();
    field.focus();
    field.select();
  });
})();
