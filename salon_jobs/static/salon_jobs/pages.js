// Drops the second submit of a double click (each submit of an action is an action of its own), and scrolls the picture
// of a flow to the job of the page.
"use strict";
(() => {
    const MOST_MS = 2000;
    const sent = new WeakMap();
    addEventListener("submit", (event) => {
        const form = event.target;
        if (event.defaultPrevented || form.method !== "post") return;
        const now = Date.now();
        if (now - (sent.get(form) ?? -MOST_MS) < MOST_MS) event.preventDefault();
        else sent.set(form, now);
    });
    addEventListener("DOMContentLoaded", () => {
        for (const each of document.querySelectorAll(".salon-jobs-flow")) each.scrollLeft = each.dataset.at - 100;
    });
})();
