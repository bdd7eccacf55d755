// Keeps a list of jobs, or the page of one, as it is now while its switch is on, unless somebody works in it.
"use strict";
addEventListener("DOMContentLoaded", () => {
    const EVERY_MS = 5000;
    const KEY = "salon-jobs-live";
    const live = document.querySelector("[data-live]");
    if (!live) return;
    const button = live.querySelector("button");
    const status = live.querySelector("[role=status]");
    const places = live.dataset.live.split(",");
    let on = false;
    let busy = false;
    try {
        on = localStorage.getItem(KEY) === "on";
    } catch {
        // Without storage it starts off.
    }

    function turn(wanted, text = "") {
        on = wanted;
        button.setAttribute("aria-pressed", String(on));
        status.textContent = text;
    }

    function inUse() {
        const parts = places.map((place) => document.querySelector(place)).filter(Boolean);
        return document.hidden || String(getSelection()) !== "" || parts.some(
            (part) => part.contains(document.activeElement) || part.querySelector("input.action-select:checked"));
    }

    function replace(place, fresh) {
        const old = document.querySelector(place);
        if (!old || !fresh) {
            old?.remove();
            return;
        }
        const opened = Array.from(old.querySelectorAll("details"), (each) => each.open);
        const folded = fresh.querySelectorAll("details");
        if (folded.length === opened.length) folded.forEach((each, index) => { each.open = opened[index]; });
        const scrolled = Array.from(old.querySelectorAll(".salon-jobs-flow"), (each) => each.scrollLeft);
        old.replaceWith(fresh);
        fresh.querySelectorAll(".salon-jobs-flow").forEach((each, index) => { each.scrollLeft = scrolled[index]; });
    }

    async function refresh() {
        if (!on || busy || inUse()) return;
        busy = true;
        try {
            const answer = await fetch(location.href, {credentials: "same-origin", cache: "no-store"});
            if (answer.redirected) {
                turn(false, "Stopped: sign in again, or reload the page.");
                return;
            }
            if (!answer.ok) throw new Error(String(answer.status));
            const page = new DOMParser().parseFromString(await answer.text(), "text/html");
            if (!on || inUse()) return;
            for (const place of places) replace(place, page.querySelector(place));
            const boxes = document.querySelectorAll("tr input.action-select");
            if (boxes.length && window.Actions) window.Actions(boxes);
            // In the time zone of the page, not of the browser.
            const fresh = page.querySelector("[data-live]");
            if (fresh) status.textContent = `as of ${fresh.dataset.at}`;
            else turn(false, "It has ended.");
        } catch (error) {
            status.textContent = `Not refreshed (${error.message}); trying again.`;
        } finally {
            busy = false;
        }
    }

    live.hidden = false;
    button.addEventListener("click", () => {
        turn(!on);
        try {
            localStorage.setItem(KEY, on ? "on" : "off");
        } catch {
            // Without storage the choice lasts for this page.
        }
        button.blur();
        refresh();
    });
    turn(on);
    setInterval(refresh, EVERY_MS);
});
