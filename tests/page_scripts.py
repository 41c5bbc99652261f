"""What is run in a page by tests: JavaScript that looks at it as people do."""

from __future__ import annotations

BEFORE = """
window.ran = [];
window.canary = (what) => { ran.push(what); };
document.addEventListener("securitypolicyviolation", (event) => { ran.push(`${event.violatedDirective} ${event.blockedURI}`); });
"""
"""What every page starts with: it notes what texts of others would run or load."""
WIDER = """() => [...document.querySelectorAll("main *")].filter((one) => !one.closest(".scroll, pre, svg, textarea, .visually-hidden")
    && one.getBoundingClientRect().right > innerWidth + 1).slice(0, 3).map((one) => one.outerHTML.slice(0, 120))"""
"""Answers what reaches beyond the window's right side."""
SPILT = """() => [...document.querySelectorAll("body *")].filter((one) => {
    if (one.closest(".visually-hidden, .skip, svg, textarea, select") || !one.checkVisibility()) return false;
    const { overflowX, display } = getComputedStyle(one);
    return overflowX === "visible" && !display.startsWith("inline") && display !== "contents" && one.scrollWidth > one.clientWidth + 4
        && one.clientWidth > 1;
}).slice(0, 3).map((one) => `${one.scrollWidth} of ${one.clientWidth}: ${one.outerHTML.slice(0, 160)}`)"""
"""Answers what is wider than the box it stands in."""
STOPS = """() => {
    const said = (one) => `${one.tagName.toLowerCase()} ${(one.getAttribute("aria-label") || one.textContent).trim().slice(0, 60)}`;
    const style = (one) => { const { outline, boxShadow, borderColor, stroke, strokeWidth, backgroundColor } = getComputedStyle(one);
        return [outline, boxShadow, borderColor, stroke, strokeWidth, backgroundColor]; };
    const look = (one) => JSON.stringify([one, one.parentElement, ...one.children].filter(Boolean).map(style));
    const seen = (one) => !one.disabled && one.checkVisibility({ visibilityProperty: true });
    const chosen = (one) => one.type !== "radio" || one.checked
        || one === [...one.form.elements[one.name]].find((_, place, all) => !place && !all.some((other) => other.checked));
    const elements = [...document.querySelectorAll("*")];
    const stops = elements.filter((one) =>
        one.matches("a[href], button, input, select, textarea, summary, [tabindex], [contenteditable]")
        && one.tabIndex >= 0 && seen(one) && chosen(one));
    const marks = new Map();
    document.activeElement.blur();
    document.body.tabIndex = -1;
    document.body.focus();
    document.addEventListener("focusin", ({ target }) => { if (target.tabIndex >= 0) marks.set(target, look(target)); });
    window.walk = {
        reached: () => marks.size,
        told: () => {
            document.body.focus();
            const order = [...marks.keys()];
            return {
                stops: stops.map(said),
                reached: order.map(said),
                unmarked: order.filter((one) => look(one) === marks.get(one)).map(said),
                by_mouse: elements.filter((one) => seen(one) && getComputedStyle(one).cursor === "pointer"
                    && !one.closest("a[href], button, summary, label, select, input")).map(said),
                moved: elements.filter((one) => one.tabIndex > 0 || (({ order, flexDirection }) =>
                    order !== "0" || flexDirection.endsWith("reverse"))(getComputedStyle(one))).map(said),
            };
        },
    };
    return stops.length;
}"""
"""Finds what can be used, and notes what is reached; answers how many there are. `walk` tells the rest."""
BARRIERS = """(rules) => axe.run(document, {
    resultTypes: ["violations"], reporter: "no-passes", preload: false, ...(rules.length && { runOnly: rules }),
}).then(({ violations }) => violations.filter((one) => ["serious", "critical"].includes(one.impact)).flatMap((one) =>
    one.nodes.slice(0, 3).map((node) => `${one.id} (${one.impact}): ${node.target} ${node.html.slice(0, 200)} ${node.failureSummary}`)))"""
"""Answers what axe finds grave, by all its rules or by those that are named."""
