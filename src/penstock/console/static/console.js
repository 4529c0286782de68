// The console's own script: live fragments and keys. Every page reads well without it.
"use strict";
(() => {
  const live = document.getElementById("live"), state = document.getElementById("state");
  const of = document.body.dataset.live;
  // What a person is doing must not be taken from under the hands.
  const busy = () => live.contains(document.activeElement) && document.activeElement.matches("input,textarea,select")
    || live.querySelector("details[open],input:checked") || String(getSelection()).length > 0;
  if (live && window.EventSource) {
    const source = new EventSource("/live?of=" + encodeURIComponent(of));
    source.onopen = () => { state.textContent = "live"; state.className = "on"; };
    source.onerror = () => { state.textContent = "not live"; state.className = ""; };
    source.onmessage = event => {
      if (busy()) return;
      const focused = document.activeElement && live.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
      live.innerHTML = JSON.parse(event.data);
      if (focused) [...live.querySelectorAll("a[href]")].find(link => link.getAttribute("href") === focused)?.focus();
    };
    addEventListener("pagehide", () => source.close());
  }
  addEventListener("keydown", event => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input,textarea,select")) {
      if (event.key === "Escape") event.target.blur();
      return;
    }
    if (event.key === "/") { event.preventDefault(); document.getElementById("find").focus(); return; }
    const keyed = { g: ".brand", t: "[data-key=t]", d: "[data-key=d]", m: "[data-key=m]" }[event.key];
    if (keyed) document.querySelector(keyed)?.click();
  });
})();
