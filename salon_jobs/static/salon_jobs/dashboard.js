// Reads each part of the dashboard again after its data-every seconds: not while the tab is hidden, nor when switched off.
// An answer holds one or more sections, each of which takes the place of the one with its id.
"use strict";
(() => {
    const KEY = "salon-jobs-refresh";
    const button = document.getElementById("refresh-switch");
    const status = document.getElementById("refresh-status");
    const parts = Array.from(document.querySelectorAll("#salon-jobs-dashboard [data-refresh]"));
    if (!button || !parts.length) return;
    let on = true;
    try {
        on = localStorage.getItem(KEY) !== "off";
    } catch {
        // No storage: it is on until switched off.
    }
    const due = new Map(parts.map((part) => [part, Date.now() + 1000 * Number(part.dataset.every)]));
    const busy = new Set();

    function show(text) {
        if (status.textContent !== text) status.textContent = text;
    }

    // What had the focus, and how far a table was scrolled, is found again by id and label.
    function replace(part, html) {
        const focused = part.contains(document.activeElement) ? document.activeElement : null;
        const place = focused && (focused.id ? `#${CSS.escape(focused.id)}` : focused.matches(".scroll")
            ? `.scroll[aria-label="${CSS.escape(focused.getAttribute("aria-label"))}"]` : null);
        const scrolled = new Map(Array.from(part.querySelectorAll(".scroll"), (each) => [each.getAttribute("aria-label"), [each.scrollLeft, each.scrollTop]]));
        part.innerHTML = html;
        for (const each of part.querySelectorAll(".scroll")) each.scrollTo(...(scrolled.get(each.getAttribute("aria-label")) || [0, 0]));
        if (place) part.querySelector(place)?.focus({preventScroll: true});
    }

    async function refresh(part) {
        busy.add(part);
        try {
            const answer = await fetch(part.dataset.refresh, {credentials: "same-origin", cache: "no-store"});
            if (answer.redirected || answer.status === 403) {
                turn(false);
                show("Stopped: sign in again, and reload the page.");
                return;
            }
            if (!answer.ok) throw new Error(String(answer.status));
            const answered = document.createElement("template");
            answered.innerHTML = await answer.text();
            const sections = answered.content.querySelectorAll("section[id]");
            if (!sections.length) {
                turn(false);
                show("Stopped: another page was answered. Reload this one.");
                return;
            }
            for (const section of on ? sections : []) {
                replace(document.getElementById(section.id), section.innerHTML);
            }
            show("");
        } catch (error) {
            show(`Not refreshed (${error.message}); trying again.`);
        } finally {
            busy.delete(part);
            due.set(part, Date.now() + 1000 * Number(part.dataset.every));
        }
    }

    function look() {
        if (!on || document.hidden) return;
        for (const part of parts) if (!busy.has(part) && Date.now() >= due.get(part)) refresh(part);
    }

    function turn(wanted) {
        on = wanted;
        button.textContent = on ? "Stop refreshing" : "Refresh by itself";
    }

    button.parentElement.hidden = false;
    button.addEventListener("click", () => {
        turn(!on);
        show(on ? "" : "Refreshing is off.");
        try {
            localStorage.setItem(KEY, on ? "on" : "off");
        } catch {
            // It is kept for this page alone.
        }
        look();
    });
    document.addEventListener("visibilitychange", look);
    turn(on);
    setInterval(look, 1000);
})();
