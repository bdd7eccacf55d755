// Refreshes each part of the dashboard every data-every seconds, unless the tab is hidden or auto-refresh is off.
// A response holds one or more sections, each of which replaces the one with its id.
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
        // Without storage it starts on.
    }
    const due = new Map(parts.map((part) => [part, Date.now() + 1000 * Number(part.dataset.every)]));
    const busy = new Set();

    function show(text) {
        if (status.textContent !== text) status.textContent = text;
    }

    // Focus and scroll positions are restored by id and label.
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
                show("Stopped: the server returned another page. Reload this one.");
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

    function refreshDue() {
        if (!on || document.hidden) return;
        for (const part of parts) if (!busy.has(part) && Date.now() >= due.get(part)) refresh(part);
    }

    function turn(wanted) {
        on = wanted;
        button.textContent = on ? "Pause auto-refresh" : "Resume auto-refresh";
    }

    // What the pointer is at, in words beside the plot's title.
    document.getElementById("salon-jobs-dashboard").addEventListener("pointermove", (event) => {
        const svg = event.target.closest("svg.plot");
        for (const each of document.querySelectorAll(".pointed")) if (!svg || !svg.closest("figure").contains(each)) each.textContent = "";
        if (!svg) return;
        const figure = svg.closest("figure");
        const points = JSON.parse(svg.parentElement.dataset.points);
        const labels = Array.from(figure.querySelectorAll(".legend [data-label]"), (each) => each.dataset.label);
        const box = svg.getBoundingClientRect();
        const place = Math.round((event.clientX - box.left) / box.width * (points.length - 1));
        const [at, ...values] = points[Math.min(points.length - 1, Math.max(0, place))];
        figure.querySelector(".pointed").textContent = `${at}: ${values.map((value, line) => `${labels[line]} ${value}`).join(", ")}`;
    });

    button.parentElement.hidden = false;
    button.addEventListener("click", () => {
        turn(!on);
        show(on ? "" : "Auto-refresh is off.");
        try {
            localStorage.setItem(KEY, on ? "on" : "off");
        } catch {
            // Without storage the choice lasts for this page.
        }
        refreshDue();
    });
    document.addEventListener("visibilitychange", refreshDue);
    turn(on);
    setInterval(refreshDue, 1000);
})();
